"""Seconds of matrix products of 8- and 4-bit operands with scales.

A product of operands of half the bytes at twice the peak moves and computes what one of 2-byte
operands with half of K does, so the roofline of 2-byte products is asked for K over the ratio of
peaks, with rates of its own. On Hopper the answer is corrected by kernels measured on an H200.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Literal

import numpy as np

from hardware.kernel_tables import Reading, ShapeTable, gemm_places, table_rows
from hardware.roofline import (
    BLACKWELL_GEMM,
    H200,
    HOPPER_GEMM,
    Chip,
    Floats,
    GemmRates,
    gemm_roofline_s,
    sustained_clock,
)
from hardware.spec import GpuSpec

ScaledType = Literal["fp8", "fp8_blockwise", "mxfp8", "nvfp4"]
"""Operands: 8 bits with one scale per tensor, per 128 x 128 or 1 x 128 block, per 32 in a row
(MXFP8); 4 bits with one per 16 (NVFP4)."""
SCALED_TYPES: tuple[ScaledType, ...] = ("fp8", "fp8_blockwise", "mxfp8", "nvfp4")

BLACKWELL_ONLY: tuple[ScaledType, ...] = ("mxfp8", "nvfp4")

H200_FP8_PEAK = 1979e12

_HOPPER_FP8 = replace(
    HOPPER_GEMM.plain, flops_fraction=0.736, start_up_k=235.0, edge_elements=3.80,
    wave_hardness=0.629, bandwidth_fraction=0.533, blend=7.80, start_s=5.6e-6,
)  # fmt: skip
"""Least absolute error over 599 tensorwise-scaled H200 products (`catalog/tables/
h200_gemm_fp8.csv`), median 4.9 %, 90th percentile 12 %."""

_LOSS = _HOPPER_FP8.flops_fraction / HOPPER_GEMM.plain.flops_fraction
_BLACKWELL_SCALED = replace(_HOPPER_FP8, flops_fraction=BLACKWELL_GEMM.plain.flops_fraction * _LOSS)
"""Not measured: Blackwell's share of its bf16 peak, with what Hopper loses from bf16 to fp8."""

BLOCKWISE_SLOWDOWN: Mapping[str, float] = {"fwd": 1.13, "dgrad": 1.19, "wgrad": 1.19}
"""Time of block-scaled products on Hopper over tensorwise ones, which its matrix units cannot scale
themselves: Transformer Engine's Linear on our H200, 21 shapes, forward and backward apart."""

RATES: Mapping[str, GemmRates] = {"hopper": _HOPPER_FP8, "blackwell": _BLACKWELL_SCALED}


def matrix_peak_flops_per_s(gpu: GpuSpec, dtype: str) -> float | None:
    """Dense peak for operands of `dtype`; None where the GPU has no such matrix units."""
    name = {"nvfp4": "fp4", "fp8_blockwise": "fp8", "mxfp8": "fp8"}.get(dtype, dtype)
    peak: float | None = getattr(gpu.peak_flops_per_s, name, None)
    return peak


def scaled_gemm(
    gpu: GpuSpec, dtype: ScaledType, kind: str, sizes: tuple[int, ...], accumulate_fp32: bool
) -> tuple[float, Reading | None]:
    """Seconds, and how near a measured shape is (None where nothing was measured); `sizes`: batch,
    m, n, k. Raises `ValueError` where the GPU has no matrix units for it."""
    peak = matrix_peak_flops_per_s(gpu, dtype)
    rates = RATES.get(gpu.architecture)
    if peak is None or rates is None:
        raise ValueError(f"{gpu.name} has no matrix rate for {dtype!r}")
    bf16 = gpu.peak_flops_per_s.bf16
    rate = bf16 * sustained_clock(gpu)
    chip = Chip(gpu.num_sms, rate, gpu.memory_bandwidth_bytes_per_s)
    shape = np.array([sizes], dtype=float)
    seconds = float(gemm_roofline_s(chip, rates, _halved(shape, peak / bf16), accumulate_fp32)[0])
    if gpu.architecture != "hopper":
        return seconds, None
    reading = load_fp8_tables()[kind].read(gemm_places(shape))
    seconds *= reading.ratio
    return seconds * (BLOCKWISE_SLOWDOWN[kind] if dtype == "fp8_blockwise" else 1.0), reading


@lru_cache(maxsize=1)
def load_fp8_tables() -> dict[str, ShapeTable]:
    """H200 fp8 products, one scale per tensor, by kind: fwd, dgrad, wgrad."""
    kinds: dict[str, list[tuple[float, ...]]] = {}
    for kind, m, n, k, time_us, _ in table_rows("h200_gemm_fp8.csv"):
        row = (1.0, float(m), float(n), float(k), float(time_us) * 1e-6)
        kinds.setdefault(kind, []).append(row)
    return {kind: fp8_table(np.array(rows)) for kind, rows in kinds.items()}


def fp8_table(rows: Floats) -> ShapeTable:
    """Table of rows of batch, m, n, k and seconds."""
    shapes = _halved(rows[:, :4], H200_FP8_PEAK / H200.peak_flops_per_s)
    expected = gemm_roofline_s(H200, _HOPPER_FP8, shapes)
    return ShapeTable(gemm_places(rows[:, :4]), np.log(rows[:, 4] / expected))


def _halved(shapes: Floats, ratio: float) -> Floats:
    """The 2-byte product with the same bytes and time at peak: K over the ratio of peaks."""
    return np.asarray(shapes / np.array([1.0, 1.0, 1.0, ratio]), dtype=float)
