"""The rows of a study as a table of plain values: JSON, CSV, Parquet. SI units throughout."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simulator.errors import ConfigError
from simulator.files import whole_file, write_text
from simulator.metrics import KINDS
from simulator.study.points import Scalar
from simulator.study.whatif import Answer, Row

_NUMBERS = (
    "step_time_s", "tokens_per_s_per_gpu", "model_tflops_per_gpu", "mfu", "hfu", "bubble_fraction",
)  # fmt: skip
_COSTS = ("gpu_hours_per_step", "energy_j_per_step", "usd_per_step")


def columns(row: Row) -> dict[str, Scalar]:
    """One row: its number, settings, status, and the figures that studies compare.

    Figures are None where there is no result.
    """
    result: Mapping[str, Any] = row.outcome.result or {}
    memory, kinds = result.get("memory", {}), result.get("communication", {})
    settings = zip(row.point.settings, row.point.values, strict=True)
    return {
        "point": row.number,
        **{setting.path: value for setting, value in settings},
        "status": row.outcome.status,
        "reason": row.outcome.reason,
        **{name: result.get(name) for name in _NUMBERS},
        **{f"{kind}_exposed_s": value for kind, value in exposed_s(kinds).items()},
        "num_gpus": result.get("simulation", {}).get("num_gpus"),
        "peak_memory_bytes": memory.get("peak_bytes"),
        "fits": memory.get("fits"),
        **{name: result.get("cost", {}).get(name) for name in _COSTS},
    }


def exposed_s(kinds: Mapping[str, Mapping[str, float]]) -> dict[str, float | None]:
    """Seconds of each kind of communication that compute does not cover."""
    return {name: kinds[name]["exposed_s"] if name in kinds else None for name in KINDS}


def answer_json(answer: Answer) -> dict[str, Any]:
    """Everything, each point with its full result."""
    study = answer.study
    return {
        "run_file": study.run_file,
        "set": list(study.overrides),
        "vary": {varied.path: list(varied.texts) for varied in study.varied},
        "zipped": study.zipped,
        "points": [_point_json(row) for row in answer.rows],
    }


def _point_json(row: Row) -> dict[str, Any]:
    settings = zip(row.point.settings, row.point.values, strict=True)
    return {
        "point": row.number,
        "settings": {s.path: {"asked": s.text, "value": value} for s, value in settings},
        "status": row.outcome.status,
        "reason": row.outcome.reason,
        "result": row.outcome.result,
    }


def write_csv(answer: Answer, path: Path) -> None:
    """One line per point under a line of names; empty where there is no value."""
    table = [columns(row) for row in answer.rows]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(table[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: _csv_value(v) for k, v in row.items()} for row in table)
    write_text(path, text.getvalue())


def _csv_value(value: Scalar) -> Scalar:
    return ("true" if value else "false") if isinstance(value, bool) else value


def write_parquet(answer: Answer, path: Path) -> None:
    """The same table in Apache Parquet, each column of one type."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ConfigError("--parquet: needs the package pyarrow, which is not installed") from None
    table = [columns(row) for row in answer.rows]
    plain = {name: _one_type([row[name] for row in table]) for name in table[0]}
    with whole_file(path) as scratch:
        pq.write_table(pa.table(plain), scratch)


def _one_type(values: Sequence[Scalar]) -> list[Scalar]:
    """Numbers stay numbers if all are; anything mixed becomes text."""
    there = [value for value in values if value is not None]
    if all(isinstance(value, bool) for value in there):
        return list(values)
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in there):
        whole = all(isinstance(v, int) for v in there)
        return [v if v is None or whole else float(v) for v in values]
    return [None if value is None else str(value) for value in values]
