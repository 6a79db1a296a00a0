"""The kernel model: measured points come back, the rest follows from rooflines worked by hand."""

import math

import pytest

from hardware.kernels import KernelModel, kernel_model
from hardware.memory_bound import NAMES
from hardware.spec import GpuSpec, PeakFlops

_PEAK = PeakFlops(bf16=989e12, fp16=989e12)


def _hopper(name: str, bandwidth: float) -> GpuSpec:
    return GpuSpec(
        name=name, architecture="hopper", num_sms=132, boost_clock_hz=1.98e9,
        peak_flops_per_s=_PEAK, memory_bytes=80e9, memory_bandwidth_bytes_per_s=bandwidth,
        l2_bytes=50e6, tdp_w=700, source="test",
    )  # fmt: skip


@pytest.fixture
def h200() -> KernelModel:
    return KernelModel(_hopper("h200", 4.8e12))


@pytest.fixture
def h100() -> KernelModel:
    return KernelModel(_hopper("h100", 3.35e12))


@pytest.fixture
def a100() -> KernelModel:
    return KernelModel(
        GpuSpec(
            name="a100", architecture="ampere", num_sms=108, boost_clock_hz=1.41e9,
            peak_flops_per_s=PeakFlops(bf16=312e12, fp16=312e12), memory_bytes=80e9,
            memory_bandwidth_bytes_per_s=2.039e12, l2_bytes=40e6, tdp_w=400, source="test",
        )
    )  # fmt: skip


@pytest.mark.parametrize(
    ("m", "n", "k", "kind", "accumulate", "measured_us"),
    [
        (9216, 18432, 1024, "wgrad", False, 588.88),
        (9216, 18432, 1024, "wgrad", True, 840.064),
        (20480, 20480, 4096, "wgrad", True, 5167.63),
    ],
)
def test_measured_gemms_come_back(
    h200: KernelModel, m: int, n: int, k: int, kind: str, accumulate: bool, measured_us: float
) -> None:
    time = h200.gemm(m, n, k, kind, accumulate_fp32=accumulate)  # type: ignore[arg-type]
    assert time.source == "measured"
    assert time.seconds == pytest.approx(measured_us * 1e-6, rel=1e-6)


def test_cool_rows_are_slowed_to_the_sustained_clock(h200: KernelModel) -> None:
    # 4096 x 1024 x 4096 of the N sweep: 55.536 us on a cool chip, nearly all of it compute
    time = h200.gemm(4096, 1024, 4096, "fwd")
    assert 1.10 * 55.536e-6 < time.seconds < 1.17 * 55.536e-6


def test_attention_comes_back_at_the_training_clock(h200: KernelModel) -> None:
    # 2 x 32 heads, s 1024, d 128: 49.984 us on a cool chip, times 1.23
    time = h200.attention("fwd", 2, 32, 32, 1024, 1024, 128, causal=True)
    assert time.source == "measured"
    assert time.seconds == pytest.approx(1.23 * 49.984e-6, rel=1e-6)


def test_full_attention_does_twice_the_work(h200: KernelModel) -> None:
    causal = h200.attention("bwd", 1, 16, 16, 4096, 4096, 128, causal=True)
    full = h200.attention("bwd", 1, 16, 16, 4096, 4096, 128, causal=False)
    assert full.seconds == 2 * causal.seconds
    assert full.source == "extrapolated"


def test_sources(h200: KernelModel, a100: KernelModel) -> None:
    assert h200.gemm(4096, 5000, 4096, "fwd").source == "measured"
    assert h200.gemm(64, 64, 2**20, "fwd").source == "extrapolated"
    assert h200.gemm(4096, 4097, 4096, "fwd").source == "extrapolated"
    assert a100.gemm(4096, 4096, 4096, "fwd").source == "roofline"
    assert a100.attention("fwd", 1, 16, 16, 2048, 2048, 128, True).source == "roofline"
    assert a100.memory_bound("adam", 1e9).source == "roofline"


def test_h100_differs_only_where_memory_rules(h200: KernelModel, h100: KernelModel) -> None:
    fast, slow = h200.memory_bound("elementwise", 4e9), h100.memory_bound("elementwise", 4e9)
    # above the 2 us floor, time is in proportion to the bandwidth
    assert (slow.seconds - 2e-6) / (fast.seconds - 2e-6) == pytest.approx(4.8 / 3.35)
    big = (8192, 8192, 8192, "fwd")
    assert h100.gemm(*big).seconds == pytest.approx(h200.gemm(*big).seconds, rel=1e-3)
    attention = ("fwd", 1, 32, 32, 4096, 4096, 128, True)
    assert h100.attention(*attention) == h200.attention(*attention)


def test_unfused_scores_are_memory_bound(h100: KernelModel, h200: KernelModel) -> None:
    scores = {"m": 2048, "n": 2048, "k": 64, "kind": "fwd", "batch": 64}
    ratio = h100.gemm(**scores).seconds / h200.gemm(**scores).seconds  # type: ignore[arg-type]
    assert 1.2 < ratio < 4.8 / 3.35


def test_fp16_runs_as_bf16(h200: KernelModel) -> None:
    shape = (4096, 9216, 18432, "fwd")
    assert h200.gemm(*shape, dtype="fp16") == h200.gemm(*shape, dtype="bf16")


@pytest.mark.parametrize("kernel", NAMES)
def test_memory_bound_times_grow_from_the_floor(h200: KernelModel, kernel: str) -> None:
    sizes = [2.0**power for power in range(4, 38)]
    times = [h200.memory_bound(kernel, size).seconds for size in sizes]
    assert times == sorted(times)
    assert times[0] >= 2e-6
    for size, seconds in zip(sizes, times, strict=True):
        assert size / seconds < 4.8e12
    # a linear tail: four times the bytes, four times what is above the floor
    far = h200.memory_bound(kernel, 4e12).seconds - 2e-6
    farther = h200.memory_bound(kernel, 16e12).seconds - 2e-6
    assert math.isclose(farther / far, 4, rel_tol=1e-3)


def test_large_gemm_rates(a100: KernelModel) -> None:
    # cuBLASLt on an A100, fp16, 16384^3: 256 TFLOP/s (Azure AI benchmarking guide)
    side = 16384
    rate = 2 * side**3 / a100.gemm(side, side, side, "fwd", dtype="fp16").seconds
    assert rate == pytest.approx(256e12, rel=0.02)


def test_unaligned_rows_are_slow(h200: KernelModel) -> None:
    # measured: N 50304 at 780, N 50260 (multiple of 4) at 273, N 50257 (odd) at 99 TFLOP/s
    aligned, by_four, odd = (h200.gemm(4096, n, 4096, "fwd").seconds for n in (50304, 50260, 50257))
    assert by_four / aligned == pytest.approx(780 / 273, rel=0.1)
    assert odd / aligned == pytest.approx(780 / 98.7, rel=0.1)


def test_errors_say_what_is_allowed(h200: KernelModel) -> None:
    with pytest.raises(ValueError, match=r"unknown memory-bound kernel 'gelu'.*activation_fwd"):
        h200.memory_bound("gelu", 1e6)
    with pytest.raises(ValueError, match="must not be negative"):
        h200.memory_bound("adam", -1.0)
    with pytest.raises(ValueError, match="n must be at least 1, found 0"):
        h200.gemm(1, 0, 1, "fwd")
    with pytest.raises(ValueError, match="no matrix rate for 'fp8'"):
        h200.gemm(8, 8, 8, "fwd", dtype="fp8")
    with pytest.raises(ValueError, match="choose fwd, dgrad or wgrad"):
        h200.gemm(8, 8, 8, "bwd")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="choose fwd or bwd"):
        h200.attention("dgrad", 1, 1, 1, 8, 8, 8, True)  # type: ignore[arg-type]


def test_models_are_shared(h200: KernelModel) -> None:
    assert kernel_model(h200.gpu) is kernel_model(h200.gpu)


def test_older_attention_kernels(h100: KernelModel, a100: KernelModel) -> None:
    """On Hopper FlashAttention 2 reaches half of cuDNN's rate; its predecessor is 1.8 times slower;
    on Ampere nothing is faster than FlashAttention 2."""

    def times(model: KernelModel) -> list[float]:
        shape = ("fwd", 1, 32, 32, 8192, 8192, 128, True, "bf16")
        kernels = ("fused", "flash", "flash1")
        return [model.attention(*shape, kernel=k).seconds for k in kernels]  # type: ignore[arg-type]

    fused, flash, older = times(h100)
    assert flash / fused == pytest.approx(1.94, rel=0.1)
    assert older / flash == pytest.approx(1.8)
    fused, flash, older = times(a100)
    assert flash == fused
    assert older / flash == pytest.approx(1.8)
