"""Products of 8- and 4-bit operands: measured shapes come back, others come near, bounds hold."""

import numpy as np
import pytest

from hardware.kernel_tables import TABLES
from hardware.kernels import kernel_model
from hardware.presets import load_gpu
from hardware.roofline import sustained_clock
from hardware.scaled_gemm import fp8_table, matrix_peak_flops_per_s

H200 = kernel_model(load_gpu("h200-sxm-141g"))
B200 = kernel_model(load_gpu("b200-sxm-180g"))


def rows() -> list[list[str]]:
    lines = (TABLES / "h200_gemm_fp8.csv").read_text().splitlines()[1:]
    return [line.split(",") for line in lines]


def test_a_measured_shape_comes_back() -> None:
    kind, m, n, k, time_us, _ = rows()[300]
    time = H200.gemm(int(m), int(n), int(k), kind, "fp8")  # type: ignore[arg-type]
    assert time.seconds == pytest.approx(float(time_us) * 1e-6)
    assert time.source == "measured"


def test_shapes_left_out() -> None:
    """Weights (n and k of the layer) left out one pair at a time."""
    errors: list[float] = []
    for kind in ("fwd", "dgrad", "wgrad"):
        numbers = np.array([[1.0, *map(float, r[1:5])] for r in rows() if r[0] == kind])
        numbers[:, -1] *= 1e-6
        weights = numbers[:, 2] * (1 << 20) + (numbers[:, 1] if kind == "wgrad" else numbers[:, 3])
        for held in sorted(set(weights)):
            table, target = fp8_table(numbers[weights != held]), fp8_table(numbers[weights == held])
            ratios = np.array([table.read(place).ratio for place in target.places])
            errors += list(np.abs(ratios / np.exp(target.log_ratios) - 1.0))
    assert np.median(errors) < 0.06
    assert np.percentile(errors, 90) < 0.15


def test_long_products_gain_about_twice() -> None:
    """At 8,192 cubed on Hopper (some rows are of a cooler chip); blockwise 1.13 and 1.19 slower."""
    shape = 8192, 8192, 8192
    for kind, slower in (("fwd", 1.13), ("dgrad", 1.19), ("wgrad", 1.19)):
        bf16, fp8, blocks = (
            H200.gemm(*shape, kind, dtype).seconds  # type: ignore[arg-type]
            for dtype in ("bf16", "fp8", "fp8_blockwise")
        )
        assert 1.6 < bf16 / fp8 < 2.3
        assert blocks / fp8 == pytest.approx(slower)


def test_four_bits_on_blackwell() -> None:
    shape = 16384, 16384, 16384
    bf16, fp8, fp4 = (B200.gemm(*shape, "fwd", d).seconds for d in ("bf16", "mxfp8", "nvfp4"))
    assert bf16 > fp8 > fp4
    assert B200.gemm(*shape, "fwd", "mxfp8").source == "roofline"


def test_accumulating_moves_more() -> None:
    shape = 8192, 8192, 1024
    plain = H200.gemm(*shape, "wgrad", "fp8").seconds
    assert H200.gemm(*shape, "wgrad", "fp8", accumulate_fp32=True).seconds > plain


def test_no_rate() -> None:
    with pytest.raises(ValueError, match="no matrix rate for 'fp8'"):
        kernel_model(load_gpu("a100-sxm-80g")).gemm(512, 512, 512, "fwd", "fp8")


def test_peaks() -> None:
    h100 = load_gpu("h100-sxm-80g")
    assert matrix_peak_flops_per_s(h100, "fp8_blockwise") == 1979e12
    assert matrix_peak_flops_per_s(h100, "nvfp4") is None


def test_blackwell_clocks_by_power() -> None:
    """(1200 - 250) / 750 and (1400 - 250) / 750, to the third root; Hopper is not touched."""
    clocks = {n: sustained_clock(load_gpu(n)) for n in ("b200-sxm-180g", "gb200", "gb300")}
    assert clocks == pytest.approx({
        "b200-sxm-180g": 1.0, "gb200": (950 / 750) ** (1 / 3), "gb300": (1150 / 750) ** (1 / 3),
    })  # fmt: skip
    assert sustained_clock(load_gpu("h100-sxm-80g")) == 1.0
