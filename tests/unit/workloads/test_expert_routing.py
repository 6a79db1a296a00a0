"""How tokens spread over experts, and what the fullest rank gets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_models import llama, training

from workloads.routing import busiest_rank, kept_share
from workloads.spec import ParallelismSpec

MODEL = llama(num_experts=4, moe_ffn_hidden_size=48)
TWO = ParallelismSpec(expert_model_parallel_size=2)


def test_balanced_is_even() -> None:
    assert busiest_rank(MODEL, training(), TWO) == pytest.approx(1.0)
    assert kept_share(MODEL, training()) == pytest.approx(1.0)


def test_measured_loads() -> None:
    """5 of 8 tokens go to the second rank's experts: 1.25 times its half."""
    train = training(moe_routing="histogram", moe_expert_loads=(1, 2, 2, 3))
    assert busiest_rank(MODEL, train, TWO) == pytest.approx(1.25)


def test_capacity_drops_and_padding_fills() -> None:
    loads = {"moe_routing": "histogram", "moe_expert_loads": (1, 1, 1, 5)}
    train = training(**loads, moe_expert_capacity_factor=1.0)
    assert kept_share(MODEL, train) == pytest.approx((3 * 0.125) + 0.25)
    padded = training(
        **loads, moe_expert_capacity_factor=1.0, moe_pad_expert_input_to_capacity=True
    )
    assert kept_share(MODEL, padded) == pytest.approx(1.0)
    assert busiest_rank(MODEL, padded, TWO) == pytest.approx(1.0)


@given(st.floats(0, 3), st.sampled_from([1, 2, 4]))
def test_a_power_law_is_never_less_than_even(exponent: float, ranks: int) -> None:
    train = training(moe_routing="zipf", moe_zipf_exponent=exponent)
    layout = ParallelismSpec(expert_model_parallel_size=ranks)
    assert 1.0 - 1e-9 <= busiest_rank(MODEL, train, layout) <= ranks + 1e-9
    if ranks == 1:
        assert busiest_rank(MODEL, train, layout) == pytest.approx(1.0)
