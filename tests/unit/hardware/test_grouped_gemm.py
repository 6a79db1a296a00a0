"""Grouped products and exchanges of tokens."""

import pytest

from hardware.collectives import GroupShape
from hardware.kernel_tables import COOL_CLOCK
from hardware.kernels import KernelModel, kernel_model
from hardware.presets import load_gpu, load_node
from hardware.token_exchange import NETWORK_SHARE, expected_places, token_exchange_cost


@pytest.fixture(scope="module")
def h200() -> KernelModel:
    return kernel_model(load_gpu("h200-sxm-141g"))


@pytest.mark.parametrize(
    ("groups", "m", "n", "k", "kind", "measured_us"),
    [(8, 16384, 4096, 2048, "fwd", 401.088), (8, 32768, 7168, 4096, "dgrad", 2869.46),
     (8, 2816, 2048, 16384, "wgrad", 306.112)],
)  # fmt: skip
def test_measured_shapes_come_back(
    h200: KernelModel, groups: int, m: int, n: int, k: int, kind: str, measured_us: float
) -> None:
    time = h200.grouped_gemm(groups, m, n, k, kind)  # type: ignore[arg-type]
    assert time.source == "measured"
    assert time.seconds == pytest.approx(measured_us * 1e-6, rel=0.03)


def test_transformer_engines_grouped_linear(h200: KernelModel) -> None:
    """Held out: 8 experts, 16,384 tokens, 11,264 x 2,048: 1,016 us forward on a cool chip."""
    time = h200.grouped_gemm(8, 16384, 11264, 2048, "fwd")
    assert time.seconds == pytest.approx(1016.4e-6 * COOL_CLOCK, rel=0.05)


def test_many_experts_cost_more_than_few(h200: KernelModel) -> None:
    few = h200.grouped_gemm(8, 8192, 4096, 2048, "fwd").seconds
    many = h200.grouped_gemm(256, 8192, 4096, 2048, "fwd").seconds
    assert many > 1.5 * few


def test_accumulating_in_fp32_takes_longer(h200: KernelModel) -> None:
    plain = h200.grouped_gemm(64, 2816, 2048, 8192, "wgrad").seconds
    added = h200.grouped_gemm(64, 2816, 2048, 8192, "wgrad", accumulate_fp32=True).seconds
    assert added > plain


def test_eight_bits_are_faster(h200: KernelModel) -> None:
    high = h200.grouped_gemm(8, 32768, 4096, 4096, "fwd").seconds
    low = h200.grouped_gemm(8, 32768, 4096, 4096, "fwd", "fp8").seconds
    assert 1.2 < high / low < 2.2


@pytest.mark.parametrize("m", [0, -1])
def test_no_tokens_are_refused(h200: KernelModel, m: int) -> None:
    with pytest.raises(ValueError, match="m must be at least 1"):
        h200.grouped_gemm(8, m, 64, 64, "fwd")


def test_places_hit_by_random_picks() -> None:
    assert expected_places(1, 8) == pytest.approx(1.0)
    assert expected_places(2, 2) == pytest.approx(1.5)
    assert expected_places(8, 2) == pytest.approx(2 * (1 - 0.5**8))


def test_a_token_crosses_the_network_once_a_node() -> None:
    """16 ranks on 2 nodes, 8 choices: nearly every token goes once to the other node."""
    node, rate, num_bytes = load_node("dgx-h100"), 50e9, 64e6
    cost = token_exchange_cost(num_bytes, 8, GroupShape(16, 2, 8), node, rate)
    away = num_bytes * expected_places(8, 2) / 2
    assert cost.time_s - cost.latency_s == pytest.approx(away / (NETWORK_SHARE * rate), rel=1e-6)
    inside = token_exchange_cost(num_bytes, 8, GroupShape(8, 1, 0), node, rate)
    assert inside.time_s < cost.time_s
    assert token_exchange_cost(0.0, 8, GroupShape(8, 1, 0), node, rate).time_s == 0.0
