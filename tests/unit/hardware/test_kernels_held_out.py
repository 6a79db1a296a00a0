"""Accuracy at shapes the table does not hold: rows, layers, models and token counts left out."""

from collections.abc import Callable

import numpy as np
import pytest

from hardware.kernel_tables import (
    ATTENTION_TABLES,
    COOL_CLOCK,
    TABLES,
    attention_table,
    gemm_table,
)

Row = list[str]


def _gemm_rows() -> list[Row]:
    lines = (TABLES / "h200_gemm.csv").read_text().splitlines()[1:]
    rows = [line.split(",") for line in lines]
    return [row for row in rows if all(int(size) % 8 == 0 for size in row[2:5])]


def _numbers(rows: list[Row]) -> np.ndarray:
    clock = [COOL_CLOCK if row[6].startswith(("sweep", "odd")) else 1.0 for row in rows]
    numbers = [[*map(float, row[1:5]), float(row[5]) * 1e-6] for row in rows]
    return np.column_stack([np.array(numbers), clock])


def _errors(kind: str, kept: list[Row], left_out: list[Row]) -> list[float]:
    """Relative errors of the time at `left_out`, from a table of `kept` alone."""
    table, target = gemm_table(kind, _numbers(kept)), gemm_table(kind, _numbers(left_out))
    ratios = [table.read(place).ratio for place in target.places]
    return list(np.abs(np.array(ratios) / np.exp(target.log_ratios) - 1.0))


def _layer(row: Row) -> str:
    return row[6]


def _width(row: Row) -> str:
    return row[6].split("_h")[-1].split("_")[0]


def _tokens(row: Row) -> str:
    return row[4] if row[0].startswith("wgrad") else row[2]


def _cross_validated(kinds: tuple[str, ...], group: Callable[[Row], str]) -> np.ndarray:
    """Errors over five folds of whole groups, each kind by itself."""
    errors: list[float] = []
    for kind in kinds:
        rows = [row for row in _gemm_rows() if row[0] == kind and row[6] != "bmm"]
        fold = {name: at % 5 for at, name in enumerate(sorted(set(map(group, rows))))}
        for held in range(5):
            kept = [row for row in rows if fold[group(row)] != held]
            left_out = [row for row in rows if fold[group(row)] == held]
            errors += _errors(kind, kept, left_out)
    return np.array(errors)


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("rows", lambda row: ",".join(row)),
        ("layers", _layer),
        ("widths", _width),
        ("tokens", _tokens),
    ],
)
def test_gemms(name: str, group: Callable[[Row], str]) -> None:
    errors = _cross_validated(("fwd", "dgrad", "wgrad"), group)
    assert np.median(errors) < 0.05, name
    assert np.percentile(errors, 90) < 0.10, name


def test_accumulating_gemms() -> None:
    errors = _cross_validated(("wgrad_acc_fp32",), _layer)
    # 117 shapes only, taken in changing power states
    assert np.median(errors) < 0.06
    assert np.percentile(errors, 90) < 0.14


@pytest.mark.parametrize(("kernel", "percentile_90"), [("fused", 0.12), ("flash", 0.12)])
def test_attention(kernel: str, percentile_90: float) -> None:
    lines = (TABLES / ATTENTION_TABLES[kernel]).read_text().splitlines()[1:]
    rows = [line.split(",") for line in lines]
    errors: list[float] = []
    for direction in ("fwd", "bwd"):
        numbers = np.array([[float(x) for x in row[1:]] for row in rows if row[0] == direction])
        numbers[:, -1] *= 1e-6
        heads = numbers[:, 0] * numbers[:, 1]
        for held in sorted(set(heads)):
            table = attention_table(kernel, direction, numbers[heads != held])
            target = attention_table(kernel, direction, numbers[heads == held])
            ratios = np.array([table.read(place).ratio for place in target.places])
            errors += list(np.abs(ratios / np.exp(target.log_ratios) - 1.0))
    assert np.median(errors) < 0.05
    assert np.percentile(errors, 90) < percentile_90
