"""Seconds of one kernel on one GPU: matrix products, attention, memory-bound kernels.

On Hopper the answer comes from kernels measured on an H200 and, away from what was measured, from
the roofline that was fitted to them; elsewhere from a roofline alone. Times are those of a chip at
its sustained clock, as a long training step finds it, and leave out the host's launch time, which
`KernelModel.launch_s` gives.
"""

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import numpy as np

from hardware.attention_roofline import (
    ATTENTION_RATES,
    FLASH_1_OVER_2,
    attention_roofline_s,
)
from hardware.grouped_gemm import (
    grouped_rates,
    grouped_roofline_s,
    grouped_shape,
    read_grouped,
)
from hardware.kernel_tables import (
    Reading,
    attention_places,
    gemm_places,
    load_attention_tables,
    load_gemm_tables,
)
from hardware.memory_bound import memory_bound_s
from hardware.roofline import (
    GEMM_FAMILIES,
    H200,
    Chip,
    alignment_slowdown,
    gemm_roofline_s,
    sustained_clock,
)
from hardware.scaled_gemm import SCALED_TYPES, scaled_gemm
from hardware.spec import GpuSpec

Source = Literal["measured", "extrapolated", "roofline"]
GemmKind = Literal["fwd", "dgrad", "wgrad"]
AttentionKernel = Literal["fused", "flash", "flash1"]

LAUNCH_S = 6.6e-6
"""Host time to launch one small PyTorch kernel, asynchronously (H200 host, one-element in-place
add, our `cpu_issue_add_1elem_inplace`, 6.63 us). A linear layer's forward takes 15.5 us."""


@dataclass(frozen=True, slots=True)
class KernelTime:
    """Seconds on the device.

    `measured`: between measured shapes of the same chip (H100 and H800: the same but for the
    memory, which is scaled); `extrapolated`: from measurements farther away; `roofline`: no
    measurement of this architecture.
    """

    seconds: float
    source: Source


@dataclass(frozen=True, slots=True, eq=False)
class KernelModel:
    """Prices the kernels of one GPU. Remembers its answers."""

    gpu: GpuSpec
    launch_s: float = LAUNCH_S
    _known: dict[tuple[object, ...], KernelTime] = field(default_factory=dict, repr=False)

    def gemm(
        self,
        m: int,
        n: int,
        k: int,
        kind: GemmKind,
        dtype: str = "bf16",
        batch: int = 1,
        accumulate_fp32: bool = False,
    ) -> KernelTime:
        """C[m, n] = A[m, k] @ B[k, n], `batch` times in one launch.

        `dtype`: bf16, fp16, or a scaled type of `hardware.scaled_gemm`.
        `accumulate_fp32`: C is fp32 and added to in place (wgrad into main gradients).
        Raises `ValueError` for sizes below 1, an unknown kind, or a type the GPU has no rate for.
        """
        key = ("gemm", m, n, k, kind, dtype, batch, accumulate_fp32)
        if key not in self._known:
            if kind not in ("fwd", "dgrad", "wgrad"):
                raise ValueError(f"unknown GEMM kind {kind!r}; choose fwd, dgrad or wgrad")
            _check_sizes(m=m, n=n, k=k, batch=batch)
            self._known[key] = self._price(dtype, kind, (batch, m, n, k), accumulate_fp32)
        return self._known[key]

    def grouped_gemm(
        self,
        groups: int,
        m: int,
        n: int,
        k: int,
        kind: GemmKind,
        dtype: str = "bf16",
        accumulate_fp32: bool = False,
    ) -> KernelTime:
        """`groups` products in one grouped launch, tokens divided evenly among them: m of all
        together, or for wgrad k.

        Raises `ValueError` as `gemm` does.
        """
        key = ("grouped", groups, m, n, k, kind, dtype, accumulate_fp32)
        if key not in self._known:
            if kind not in ("fwd", "dgrad", "wgrad"):
                raise ValueError(f"unknown GEMM kind {kind!r}; choose fwd, dgrad or wgrad")
            _check_sizes(groups=groups, m=m, n=n, k=k)
            if dtype in SCALED_TYPES:
                time = self._scaled_group(groups, m, n, k, kind, dtype, accumulate_fp32)
                self._known[key] = time
                return time
            shape = grouped_shape(kind, groups, m, n, k)
            rates = grouped_rates(self.gpu.architecture)
            chip = _chip(self.gpu, dtype)
            seconds = float(grouped_roofline_s(chip, rates, np.array([shape]), accumulate_fp32)[0])
            time = KernelTime(seconds, "roofline")
            if self.gpu.architecture == "hopper":
                time = self._corrected(seconds, read_grouped(kind, shape), True)
            self._known[key] = time
        return self._known[key]

    def _scaled_group(
        self,
        groups: int,
        m: int,
        n: int,
        k: int,
        kind: GemmKind,
        dtype: str,
        accumulate_fp32: bool,
    ) -> KernelTime:
        """A grouped launch in fewer bits: as much faster than bf16 as one expert's product is."""
        whole = self.grouped_gemm(groups, m, n, k, kind, "bf16", accumulate_fp32)
        rows, depth = (m, -(-k // groups)) if kind == "wgrad" else (-(-m // groups), k)
        low = self.gemm(rows, n, depth, kind, dtype, 1, accumulate_fp32)
        high = self.gemm(rows, n, depth, kind, "bf16", 1, accumulate_fp32)
        seconds = whole.seconds * low.seconds / high.seconds
        return KernelTime(seconds, _less_sure(whole.source))

    def attention(
        self,
        direction: Literal["fwd", "bwd"],
        batch: int,
        heads: int,
        kv_heads: int,
        seq_q: int,
        seq_kv: int,
        head_dim: int,
        causal: bool,
        dtype: str = "bf16",
        kernel: AttentionKernel = "fused",
    ) -> KernelTime:
        """Attention over local heads without scores in memory, all kernels of its direction
        together: cuDNN's (`fused`), FlashAttention 2 (`flash`) or its predecessor (`flash1`).

        Raises `ValueError` for sizes below 1 or an unknown direction.
        """
        key = (direction, batch, heads, kv_heads, seq_q, seq_kv, head_dim, causal, dtype, kernel)
        if key not in self._known and kernel == "flash1":
            newer = self.attention(
                direction, batch, heads, kv_heads, seq_q, seq_kv, head_dim, causal, dtype, "flash"
            )
            self._known[key] = KernelTime(newer.seconds * FLASH_1_OVER_2, _less_sure(newer.source))
        if key not in self._known:
            if direction not in ("fwd", "bwd"):
                raise ValueError(f"unknown attention direction {direction!r}; choose fwd or bwd")
            _check_sizes(
                batch=batch, heads=heads, kv_heads=kv_heads, seq_q=seq_q, seq_kv=seq_kv,
                head_dim=head_dim,
            )  # fmt: skip
            shape = batch, heads, kv_heads, math.sqrt(seq_q * seq_kv), head_dim
            time = self._price_attention(_chip(self.gpu, dtype), kernel, direction, shape)
            if not (causal and seq_q == seq_kv):
                # the same efficiency, over the whole square
                time = KernelTime(time.seconds * (1 if causal else 2), _less_sure(time.source))
            self._known[key] = time
        return self._known[key]

    def memory_bound(self, kernel: str, num_bytes: float) -> KernelTime:
        """A kernel of class `kernel` (see `memory_bound.NAMES`) with `num_bytes` of ideal traffic.

        Raises `ValueError` for an unknown class or negative bytes.
        """
        key = (kernel, num_bytes)
        if key not in self._known:
            seconds, near = memory_bound_s(kernel, num_bytes, self.gpu)
            self._known[key] = KernelTime(seconds, self._source(near))
        return self._known[key]

    def _price(
        self, dtype: str, kind: GemmKind, sizes: tuple[int, ...], accumulate_fp32: bool
    ) -> KernelTime:
        if dtype not in SCALED_TYPES:
            return self._price_gemm(_chip(self.gpu, dtype), kind, sizes, accumulate_fp32)
        seconds, reading = scaled_gemm(self.gpu, dtype, kind, sizes, accumulate_fp32)
        source: Source = "roofline" if reading is None else self._source(reading.near)
        return KernelTime(seconds, source)

    def _price_gemm(
        self, chip: Chip, kind: str, sizes: tuple[float, ...], accumulate_fp32: bool
    ) -> KernelTime:
        batch, m, n, k = map(int, sizes)
        family = GEMM_FAMILIES[self.gpu.architecture]
        if accumulate_fp32:
            rates, name = family.accumulate, "wgrad_acc_fp32"
        elif batch > 1:
            rates, name = family.batched, f"bmm_{kind}"
        else:
            rates, name = family.plain, kind
        shape = np.array([sizes], dtype=float)
        slowdown = alignment_slowdown(kind, m, n, k)
        seconds = float(gemm_roofline_s(chip, rates, shape, accumulate_fp32)[0]) * slowdown
        if self.gpu.architecture != "hopper":
            return KernelTime(seconds, "roofline")
        reading = load_gemm_tables()[name].read(gemm_places(shape))
        return self._corrected(seconds, reading, slowdown == 1.0)

    def _price_attention(
        self, chip: Chip, kernel: AttentionKernel, direction: str, sizes: tuple[float, ...]
    ) -> KernelTime:
        rates = ATTENTION_RATES[kernel][self.gpu.architecture][direction]
        backward = direction == "bwd"
        shape = np.array([sizes], dtype=float)
        seconds = float(attention_roofline_s(chip, rates, backward, shape)[0])
        if self.gpu.architecture != "hopper":
            return KernelTime(seconds, "roofline")
        reading = load_attention_tables(kernel)[direction].read(attention_places(shape))
        return self._corrected(seconds, reading, True)

    def _corrected(self, seconds: float, reading: Reading, usual: bool) -> KernelTime:
        return KernelTime(seconds * reading.ratio, self._source(reading.near and usual))

    def _source(self, near: bool) -> Source:
        if self.gpu.architecture != "hopper":
            return "roofline"
        same = (self.gpu.num_sms, self.gpu.peak_flops_per_s.bf16) == H200[:2]
        return "measured" if near and same else "extrapolated"


@lru_cache(maxsize=64)
def kernel_model(gpu: GpuSpec) -> KernelModel:
    """The kernel model of `gpu`. Tables load when first asked."""
    return KernelModel(gpu)


def _less_sure(source: Source) -> Source:
    return "extrapolated" if source == "measured" else source


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, found {size}")


def _chip(gpu: GpuSpec, dtype: str) -> Chip:
    peak = getattr(gpu.peak_flops_per_s, dtype, None)
    if peak is None:
        raise ValueError(f"{gpu.name} has no matrix rate for {dtype!r}")
    rate = peak * sustained_clock(gpu)
    return Chip(gpu.num_sms, rate, gpu.memory_bandwidth_bytes_per_s)
