"""Answers made by hand, for tests of what is done with them."""

from collections.abc import Callable
from typing import Any

from simulator.study.evaluate import Outcome
from simulator.study.points import Point, Scalar
from simulator.study.varied import Varied, combine
from simulator.study.whatif import Answer, Row, Study


def result(step_s: float, *, pp_s: float = 0.0, dp_s: float = 0.0, fits: bool = True) -> Any:
    """What the study layer reads of a result."""
    kinds = {"tp": 0.0, "cp": 0.0, "ep": 0.0, "pp": pp_s, "dp": dp_s}
    return {
        "step_time_s": step_s, "mfu": 0.5 / step_s, "hfu": 0.5 / step_s,
        "tokens_per_s_per_gpu": 100.0 / step_s, "model_tflops_per_gpu": 500.0 / step_s,
        "bubble_fraction": 0.1,
        "communication": {kind: {"exposed_s": s} for kind, s in kinds.items()},
        "memory": {"peak_bytes": 2.0**30, "fits": fits},
        "simulation": {"num_gpus": 16},
        "cost": {"gpu_hours_per_step": 1.0, "energy_j_per_step": 2.0, "usd_per_step": None},
    }  # fmt: skip


def answer(
    varied: list[Varied],
    outcome: Callable[..., Outcome],
    *,
    own: tuple[Scalar, ...] | None = None,
    zipped: bool = False,
) -> Answer:
    """Rows of numeric settings; `outcome` gets the values of a point."""
    rows = []
    for number, settings in enumerate(combine(varied, zipped)):
        values = tuple(_number(setting.text) for setting in settings)
        rows.append(Row(number, Point(settings, values, None), outcome(*values)))
    study = Study("run.yaml", (), tuple(varied), zipped)
    return Answer(study, tuple(rows), own or (None,) * len(varied), 0, ())


def _number(text: str) -> Scalar:
    try:
        return float(text)
    except ValueError:
        return text
