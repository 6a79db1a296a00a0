"""Measured kernel times, and how to read between them.

A table keeps shapes (as logarithms) and times of one kind of kernel. Between its points a shape's
time is the roofline's times the neighbours' ratio of measured to roofline, each weighted by the
inverse square of its distance in octaves; the roofline itself counts as one more neighbour one
octave away, so that far from all points it alone remains. At a measured point the measured time
comes back. `catalog/tables/README.md` says how and where the times were taken.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hardware.attention_roofline import (
    ATTENTION_CLOCK,
    ATTENTION_RATES,
    attention_roofline_s,
)
from hardware.roofline import H200, HOPPER_GEMM, Floats, gemm_roofline_s

TABLES = Path(__file__).parent / "catalog" / "tables"
NUM_NEIGHBOURS = 16
REACH_OCTAVES = 1.0
"""A shape counts as measured when a measured one lies within this distance."""
PRIOR_OCTAVES = 1.0
"""The roofline weighs as much as a neighbour at this distance."""
SAME_PLACE = 1e-12
"""Squared octaves below which two shapes are one."""


class Reading(NamedTuple):
    """`ratio`: what multiplies the roofline's time of the shape; `near`: the table covers it."""

    ratio: float
    near: bool


@dataclass(frozen=True, slots=True, eq=False)
class ShapeTable:
    """Measured shapes of one kind of kernel: where they lie, in octaves, and the logarithm of
    measured over roofline time."""

    places: Floats
    log_ratios: Floats

    def read(self, place: Floats) -> Reading:
        """Ratio of measured to roofline time at `place`, from its nearest neighbours."""
        apart = self.places - place
        squares = np.einsum("ij,ij->i", apart, apart)
        count = min(NUM_NEIGHBOURS, len(squares))
        nearest = squares.argpartition(count - 1)[:count]
        near_squares, logs = squares[nearest], self.log_ratios[nearest]
        closest = near_squares.argmin()
        near = bool(near_squares[closest] <= REACH_OCTAVES**2)
        if near_squares[closest] < SAME_PLACE:
            return Reading(math.exp(logs[closest]), near)
        weights = 1.0 / near_squares
        return Reading(math.exp(weights @ logs / (weights.sum() + 1.0 / PRIOR_OCTAVES**2)), near)


@dataclass(frozen=True, slots=True)
class TimeCurve:
    """Seconds against bytes of one memory-bound kernel; both grow."""

    log_bytes: Floats
    log_seconds: Floats

    def seconds(self, num_bytes: float) -> float:
        """Straight in log-log between points, the last rate beyond, the first time below."""
        last = math.exp(self.log_bytes[-1])
        if num_bytes >= last:
            return math.exp(self.log_seconds[-1]) * num_bytes / last
        at = math.log(max(num_bytes, 1.0))
        return math.exp(np.interp(at, self.log_bytes, self.log_seconds))

    @property
    def first_bytes(self) -> float:
        return math.exp(self.log_bytes[0])

    def covers(self, num_bytes: float) -> bool:
        """Within a factor of 2 of the measured sizes; below them the launch floor rules."""
        return num_bytes <= 2.0 * math.exp(self.log_bytes[-1])


def table_rows(name: str) -> Iterator[list[str]]:
    """Rows of a table of the catalog, its header left out."""
    lines = (TABLES / name).read_text(encoding="utf-8").splitlines()
    return (line.split(",") for line in lines[1:])


def _octaves(sizes: Floats) -> Floats:
    return np.asarray(np.log2(sizes), dtype=float)


def gemm_places(shapes: Floats) -> Floats:
    """(batch, m, n, k) -> octaves."""
    return _octaves(shapes)


BATCH_OCTAVE = 0.1
"""How far apart twice the batch at half the heads is: nearly the same kernel."""


def attention_places(shapes: Floats) -> Floats:
    """(batch, heads, kv_heads, seq, head_dim) -> octaves of total heads, length, width, sharing,
    and batch."""
    batch, heads, kv_heads, seq, head_dim = shapes.T
    sizes = np.stack([batch * heads, seq, head_dim, heads / kv_heads, batch**BATCH_OCTAVE], axis=1)
    return _octaves(sizes)


COOL_CLOCK = 1.17
"""GEMM rate of a cool chip over the sustained one: 796/672, 795/679, 783/679, 811/696 TFLOP/s in
the first 20 ms against after 0.4 s at the 700 W limit, random data, 8192^3, 4096x12288x4096,
4096^3, 16384x28672x8192 (H200, 1980 MHz falling to about 1500 MHz). The rows of sweeps and odd
shapes were taken on a cool chip."""


@lru_cache(maxsize=1)
def load_gemm_tables() -> dict[str, ShapeTable]:
    """H200 bf16 GEMMs by kind: fwd, dgrad, wgrad, wgrad_acc_fp32, and `bmm_` of the first three."""
    kinds: dict[str, list[tuple[float, ...]]] = {}
    for kind, batch, m, n, k, time_us, tag in table_rows("h200_gemm.csv"):
        clock = COOL_CLOCK if tag.startswith(("sweep", "odd")) else 1.0
        key = f"bmm_{kind}" if tag == "bmm" else kind
        shape = float(batch), float(m), float(n), float(k)
        if all(size % 8 == 0 for size in shape[1:]):
            kinds.setdefault(key, []).append((*shape, float(time_us) * 1e-6, clock))
    return {kind: gemm_table(kind, np.array(rows)) for kind, rows in kinds.items()}


def gemm_table(kind: str, rows: Floats) -> ShapeTable:
    """Table of rows of batch, m, n, k, seconds and clock over the sustained one."""
    accumulate = kind == "wgrad_acc_fp32"
    rates = HOPPER_GEMM.batched if kind.startswith("bmm") else HOPPER_GEMM.plain
    rates = HOPPER_GEMM.accumulate if accumulate else rates
    expected = gemm_roofline_s(H200, rates, rows[:, :4], accumulate, clock=rows[:, 5])
    return ShapeTable(gemm_places(rows[:, :4]), np.log(rows[:, 4] / expected))


ATTENTION_TABLES = {"fused": "h200_attention.csv", "flash": "h200_attention_flash2.csv"}


@lru_cache(maxsize=len(ATTENTION_TABLES))
def load_attention_tables(kernel: str) -> dict[str, ShapeTable]:
    """H200 causal attention by direction, of cuDNN (`fused`) or FlashAttention-2 (`flash`)."""
    directions: dict[str, list[tuple[float, ...]]] = {}
    for direction, *numbers in table_rows(ATTENTION_TABLES[kernel]):
        *shape, time_us = map(float, numbers)
        directions.setdefault(direction, []).append((*shape, time_us * 1e-6))
    return {key: attention_table(kernel, key, np.array(rows)) for key, rows in directions.items()}


def attention_table(kernel: str, direction: str, rows: Floats) -> ShapeTable:
    """Table of rows of batch, heads, kv_heads, seq, head_dim and seconds on a cool chip."""
    rates = ATTENTION_RATES[kernel]["hopper"][direction]
    expected = attention_roofline_s(H200, rates, direction == "bwd", rows[:, :5])
    return ShapeTable(
        attention_places(rows[:, :5]), np.log(rows[:, 5] * ATTENTION_CLOCK / expected)
    )


@lru_cache(maxsize=1)
def load_memory_bound_curves() -> dict[str, TimeCurve]:
    """H200 memory-bound kernels by name."""
    points: dict[str, list[tuple[float, float]]] = {}
    for kernel, num_bytes, time_us, _ in table_rows("h200_memory_bound.csv"):
        points.setdefault(kernel, []).append((float(num_bytes), float(time_us) * 1e-6))
    return {
        kernel: TimeCurve(*np.log(np.array(sorted(pairs)).T)) for kernel, pairs in points.items()
    }
