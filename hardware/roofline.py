"""Seconds of one matrix product from tiles, waves and bytes: what holds where nothing was measured.

A GEMM is cut into output tiles, one per SM at a time; a tile costs its K loop and a start-up, the
tiles of one launch run in waves over the SMs, and no launch beats its bytes over the memory
bandwidth. The library tries several tile shapes and K splits; the best one counts. Works on arrays
of shapes so that measured tables can be compared with it cheaply.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hardware.spec import GpuSpec

Floats = npt.NDArray[np.float64]


class Chip(NamedTuple):
    """What a roofline needs of a GPU, for one operand type."""

    num_sms: int
    peak_flops_per_s: float
    bandwidth_bytes_per_s: float


H200 = Chip(132, 989e12, 4.8e12)
"""Where the tables of `catalog/tables/` were measured (16-bit operands; NVIDIA H200 data sheet)."""


@dataclass(frozen=True, slots=True)
class GemmRates:
    """What one architecture's GEMM kernels reach. Sources stand with the instances below."""

    flops_fraction: float
    """Of the nominal dense peak, in the K loop of an endless tile, at the sustained clock."""
    start_up_k: float
    """Prologue and epilogue of a tile, as so many steps of its K loop."""
    edge_elements: float
    """A tile of tm x tn runs at 1 / (1 + edge_elements * (1/tm + 1/tn)) of that: loads per FLOP."""
    wave_hardness: float
    """1: a partly filled wave costs a whole one; 0: only its share (stream-K, small-tile tails)."""
    bandwidth_fraction: float
    """Of the nominal memory bandwidth, for operands and result together."""
    blend: float
    """Exponent p of (compute^p + memory^p)^(1/p): how well the two overlap."""
    start_s: float
    """Of every launch, on the device."""
    tiles: tuple[tuple[int, int], ...]
    k_splits: tuple[int, ...]


_TILES = (
    (256, 128), (128, 256), (192, 128), (128, 192), (128, 128),
    (128, 64), (64, 128), (64, 256), (256, 64), (64, 64),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class GemmFamily:
    """Rates of one architecture's plain, accumulating (fp32, in place) and batched products."""

    plain: GemmRates
    accumulate: GemmRates
    batched: GemmRates


_HOPPER = GemmRates(
    flops_fraction=0.747, start_up_k=193.0, edge_elements=3.78, wave_hardness=0.577,
    bandwidth_fraction=0.592, blend=7.06, start_s=5.1e-6,
    tiles=((320, 128), (192, 192), (256, 192), (192, 256), *_TILES), k_splits=(1, 2, 4, 8),
)  # fmt: skip
HOPPER_GEMM = GemmFamily(
    _HOPPER,
    replace(_HOPPER, blend=2.0),
    replace(_HOPPER, start_up_k=66.0, bandwidth_fraction=0.836, start_s=3.4e-6),
)
"""Least absolute error over our 3,158 aligned H200 GEMMs (`catalog/tables/h200_gemm.csv`): median
2.8 %, 90th percentile 9 %; accumulating (117) 5 and 14 %; batched (275) 6 and 16 %. Tiles as in
the names of cuBLAS 13's kernels (nvjet_sm90)."""

_AMPERE = GemmRates(
    flops_fraction=0.855, start_up_k=96.0, edge_elements=3.0, wave_hardness=0.9,
    bandwidth_fraction=0.8, blend=7.0, start_s=4e-6,
    tiles=_TILES, k_splits=(1, 2, 4),
)  # fmt: skip
AMPERE_GEMM = GemmFamily(_AMPERE, replace(_AMPERE, blend=1.25), replace(_AMPERE, start_up_k=48.0))
"""flops_fraction: cuBLASLt reaches 256 of 312 TFLOP/s at 16384^3 in fp16 on an A100 (Azure AI
benchmarking guide); the best bf16 shape anyone found 271 (stas00/ml-engineering). Waves: CUTLASS
tiles of up to 256x128, one per SM, with few stream-K kernels before CUDA 12, so nearly hard. The
start-up is a software pipeline of three stages of 32; the bandwidth a little under STREAM's
0.83. Accumulating: Ampere's kernels are not persistent, so a tile's epilogue, which reads and
writes the fp32 result, hides behind no other tile's products; the low blend adds about its bytes'
time (a wgrad of 6144 x 3072 x 8192: 1.25 ms of products, 0.09 ms of epilogue)."""

_BLACKWELL = replace(_HOPPER, flops_fraction=0.527)
BLACKWELL_GEMM = GemmFamily(
    _BLACKWELL,
    replace(HOPPER_GEMM.accumulate, flops_fraction=0.527),
    replace(HOPPER_GEMM.batched, flops_fraction=0.527),
)
"""Hopper's shape; the rate is that of long products on a B200 under its power limit: 0.49 to 0.515
of 2250 TFLOP/s forward and dgrad, 0.45 accumulating wgrad, over 60 products of Llama 3 70B and 405B
with 4,096 tokens (MooreThreads/SimuMax, configs/system/b200_bf16_ceperm.json). Short ones reach
0.63 there, and the best anyone found is 1745 TFLOP/s (stas00/ml-engineering): a cool chip's."""

B200_POWER_W = 1000.0
STATIC_POWER_W = 250.0
"""Memory, leakage and links of a busy Blackwell, which its clock does not change: a guess."""


def sustained_clock(gpu: GpuSpec) -> float:
    """Clock that a Blackwell holds in a long step over that of the B200 whose products gave the
    rates above: what power the limit leaves the SMs goes with the cube of their clock (voltage
    rises with it). 1.08 for GB200 (1,200 W), 1.15 for GB300 (1,400 W); 1 elsewhere."""
    if gpu.architecture != "blackwell":
        return 1.0
    spent = (gpu.tdp_w - STATIC_POWER_W) / (B200_POWER_W - STATIC_POWER_W)
    return float(max(spent, 0.0) ** (1.0 / 3.0))


GEMM_FAMILIES = {
    "hopper": HOPPER_GEMM,
    "ampere": AMPERE_GEMM,
    "ada": AMPERE_GEMM,
    "blackwell": BLACKWELL_GEMM,
}


class _Candidates(NamedTuple):
    """Each tile with each split of K. `flops_per_k`: of one step of K, weighted by how much slower
    than an endless tile it runs. `partial_bytes`: fp32 sums of a split, per result element."""

    tile_m: Floats
    tile_n: Floats
    split: Floats
    flops_per_k: Floats
    partial_bytes: Floats


@lru_cache(maxsize=16)
def _candidates(rates: GemmRates) -> _Candidates:
    rows = [(tm, tn, split) for tm, tn in rates.tiles for split in rates.k_splits]
    tm, tn, split = np.array(rows, dtype=float).T
    slower = 1.0 + rates.edge_elements * (1.0 / tm + 1.0 / tn)
    partial_bytes = np.where(split > 1, 8.0 * split, 0.0)
    return _Candidates(tm, tn, split, 2.0 * tm * tn * slower, partial_bytes)


def gemm_bytes(shapes: Floats, accumulate_fp32: bool) -> Floats:
    """Operands read and result written once, in 2-byte types; fp32 read and written in place when
    accumulating. `shapes`: rows of (batch, m, n, k)."""
    batch, m, n, k = shapes.T
    result_bytes = 8.0 if accumulate_fp32 else 2.0
    return np.asarray(batch * (2.0 * (m * k + n * k) + result_bytes * m * n), dtype=float)


def gemm_roofline_s(
    chip: Chip,
    rates: GemmRates,
    shapes: Floats,
    accumulate_fp32: bool = False,
    clock: Floats | float = 1.0,
) -> Floats:
    """Seconds of each of `shapes` (rows of batch, m, n, k), with the best tile and split.

    `clock`: speed of the SMs over their sustained speed.
    """
    tile = _candidates(rates)
    batch, m, n, k = shapes.T[:, :, None]
    workers = np.ceil(m / tile.tile_m) * np.ceil(n / tile.tile_n) * (batch * tile.split)
    share = np.maximum(workers / chip.num_sms, 1.0)
    waves = share + rates.wave_hardness * (np.ceil(share) - share)
    flops = waves * tile.flops_per_k * (k / tile.split + rates.start_up_k)
    sm_rate = chip.peak_flops_per_s * rates.flops_fraction / chip.num_sms
    compute_s = flops / (sm_rate * np.asarray(clock).reshape(-1, 1))
    moved = gemm_bytes(shapes, accumulate_fp32)[:, None] + batch * m * n * tile.partial_bytes
    memory_s = moved / (chip.bandwidth_bytes_per_s * rates.bandwidth_fraction)
    each = np.arange(len(shapes))
    best = np.maximum(compute_s, memory_s).argmin(axis=1)
    compute_s, memory_s = compute_s[each, best], memory_s[each, best]
    blended = (compute_s**rates.blend + memory_s**rates.blend) ** (1.0 / rates.blend)
    return np.asarray(blended + rates.start_s, dtype=float)


ALIGNMENT_SLOWDOWN = {8: 1.0, 4: 2.75, 2: 4.6, 1: 7.8}
"""Time over aligned, by the largest power of two (up to 8) that divides every contiguous dimension
of operands and result. H200, M 4096, K 4096: N odd 95-99, N%8=4 273-283, N%8=0 about 760 TFLOP/s;
N%4=2 interpolated."""


def alignment_slowdown(kind: str, m: int, n: int, k: int) -> float:
    """Factor on the time of a product whose rows do not start at multiples of 16 bytes.

    Contiguous dimensions: `fwd` (TN) k and n, `dgrad` (NN) k and n, `wgrad` (NT) m and n.
    """
    contiguous = (m, n) if kind == "wgrad" else (k, n)
    return max(ALIGNMENT_SLOWDOWN[math.gcd(size, 8)] for size in contiguous)
