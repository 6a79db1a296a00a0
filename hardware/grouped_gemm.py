"""Seconds of the products of several experts: one grouped launch, or one launch after the other.

A grouped launch is priced as a batched one over equal parts of the tokens, brought to what was
measured on an H200 by the neighbours' ratio (`hardware.kernel_tables`): grouped kernels of few
tokens an expert read weights that few tokens use, and their tiles are partly empty.
"""

from functools import lru_cache

import numpy as np

from hardware.kernel_tables import Reading, ShapeTable, table_rows
from hardware.roofline import GEMM_FAMILIES, H200, Chip, Floats, GemmRates, gemm_roofline_s

FP32_EXTRA_BYTES = 6.0
"""Of an element that is added to in place in fp32, over a 2-byte one that is written."""


def grouped_shape(kind: str, groups: int, m: int, n: int, k: int) -> tuple[float, ...]:
    """(batch, m, n, k) of each expert's product, tokens divided evenly."""
    if kind == "wgrad":
        return float(groups), float(m), float(n), max(1.0, k / groups)
    return float(groups), max(1.0, m / groups), float(n), float(k)


def grouped_roofline_s(
    chip: Chip, rates: GemmRates, shapes: Floats, accumulate_fp32: bool = False
) -> Floats:
    """Seconds of each of `shapes`, rows of `grouped_shape`."""
    seconds = gemm_roofline_s(chip, rates, shapes)
    if accumulate_fp32:
        batch, m, n, _ = shapes.T
        rate = chip.bandwidth_bytes_per_s * rates.bandwidth_fraction
        seconds = seconds + FP32_EXTRA_BYTES * batch * m * n / rate
    return np.asarray(seconds)


def grouped_rates(architecture: str) -> GemmRates:
    """Of plain products: the kernels and their tiles are the same."""
    return GEMM_FAMILIES[architecture].plain


def read_grouped(kind: str, shape: tuple[float, ...]) -> Reading:
    """Ratio of measured to roofline time on the H200 around a shape."""
    return load_grouped_tables()[kind].read(np.log2(np.array([shape])))


@lru_cache(maxsize=1)
def load_grouped_tables() -> dict[str, ShapeTable]:
    """H200 bf16 grouped products by kind, even loads."""
    kinds: dict[str, list[tuple[float, ...]]] = {}
    for kind, groups, m, n, k, time_us in table_rows("h200_grouped_gemm.csv"):
        shape = grouped_shape(kind, int(groups), int(m), int(n), int(k))
        kinds.setdefault(kind, []).append((*shape, float(time_us) * 1e-6))
    rates = grouped_rates("hopper")
    tables = {}
    for kind, found in kinds.items():
        rows = np.array(found)
        expected = grouped_roofline_s(H200, rates, rows[:, :4])
        tables[kind] = ShapeTable(np.log2(rows[:, :4]), np.log(rows[:, 4] / expected))
    return tables
