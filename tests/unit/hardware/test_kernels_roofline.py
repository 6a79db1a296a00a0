"""GEMM rooflines on a toy GPU, by hand."""

import numpy as np
import pytest

from hardware.roofline import Chip, GemmRates, alignment_slowdown, gemm_roofline_s

TOY = Chip(num_sms=4, peak_flops_per_s=4e12, bandwidth_bytes_per_s=1e15)
"""1 TFLOP/s per SM; memory too fast to matter."""


def _rates(**changes: object) -> GemmRates:
    values = {
        "flops_fraction": 1.0, "start_up_k": 0.0, "edge_elements": 0.0, "wave_hardness": 1.0,
        "bandwidth_fraction": 1.0, "blend": 50.0, "start_s": 0.0, "tiles": ((100, 100),),
        "k_splits": (1,),
    } | changes  # fmt: skip
    return GemmRates(**values)  # type: ignore[arg-type]


def _seconds(rates: GemmRates, *shape: int, chip: Chip = TOY, accumulate: bool = False) -> float:
    return float(gemm_roofline_s(chip, rates, np.array([shape], float), accumulate)[0])


TILE_S = 2 * 100 * 100 * 1000 / 1e12
"""One tile, K 1000, on one SM."""


@pytest.mark.parametrize(
    ("shape", "waves"),
    [
        ((1, 200, 200, 1000), 1),  # 4 tiles on 4 SMs
        ((1, 200, 201, 1000), 2),  # 6 tiles
        ((1, 100, 500, 1000), 2),  # 5 tiles
        ((3, 200, 200, 1000), 3),  # 12 tiles
        ((1, 1, 1, 1000), 1),
    ],
)
def test_waves(shape: tuple[int, ...], waves: int) -> None:
    assert _seconds(_rates(), *shape) == pytest.approx(waves * TILE_S)


def test_soft_waves_cost_their_share() -> None:
    # 5 tiles on 4 SMs: 1.25 waves, and half of the missing 0.75
    time = _seconds(_rates(wave_hardness=0.5), 1, 100, 500, 1000)
    assert time == pytest.approx((1.25 + 0.5 * 0.75) * TILE_S)


def test_start_up_counts_as_k() -> None:
    time = _seconds(_rates(start_up_k=500.0, start_s=1e-6), 1, 200, 200, 1000)
    assert time == pytest.approx(1.5 * TILE_S + 1e-6)


def test_smaller_tiles_win_where_the_large_one_leaves_sms_idle() -> None:
    rates = _rates(tiles=((200, 200), (100, 100)), edge_elements=10.0)
    # 200 x 200 once: 4 TILE_S / (1/1.1) on one SM; 100 x 100 on all four: 1.2 TILE_S
    assert _seconds(rates, 1, 200, 200, 1000) == pytest.approx(1.2 * TILE_S)
    # with work for all, the large tile's better rate wins: 4 tiles of 200 x 200
    assert _seconds(rates, 1, 400, 400, 1000) == pytest.approx(4 * 1.1 * TILE_S)


def test_split_k_feeds_idle_sms_and_pays_in_bytes() -> None:
    rates = _rates(k_splits=(1, 4))
    assert _seconds(rates, 1, 100, 100, 4000) == pytest.approx(TILE_S)
    # partial sums: 4 splits x 8 bytes x 10,000 elements, and 2-byte operands and result
    moved = 2 * (2 * 100 * 4000 + 100 * 100) + 4 * 8 * 100 * 100
    slow = TOY._replace(bandwidth_bytes_per_s=moved / (2 * TILE_S))
    assert _seconds(rates, 1, 100, 100, 4000, chip=slow) == pytest.approx(2 * TILE_S)


def test_memory_bound_below_the_ridge() -> None:
    chip = TOY._replace(bandwidth_bytes_per_s=1e9)
    plain = 2 * (200 * 10 + 10 * 200 + 200 * 200)
    assert _seconds(_rates(), 1, 200, 200, 10, chip=chip) == pytest.approx(plain / 1e9)
    # accumulating reads and writes fp32: 8 bytes instead of 2
    more = 2 * (200 * 10 + 10 * 200) + 8 * 200 * 200
    time = _seconds(_rates(), 1, 200, 200, 10, chip=chip, accumulate=True)
    assert time == pytest.approx(more / 1e9)


@pytest.mark.parametrize(
    ("kind", "m", "n", "k", "factor"),
    [
        ("fwd", 7, 64, 64, 1.0),  # rows of TN operands run along k, of the result along n
        ("fwd", 64, 63, 64, 7.8),
        ("fwd", 64, 64, 60, 2.75),
        ("wgrad", 64, 64, 7, 1.0),
        ("wgrad", 62, 64, 64, 4.6),
    ],
)
def test_alignment(kind: str, m: int, n: int, k: int, factor: float) -> None:
    assert alignment_slowdown(kind, m, n, k) == factor
