"""Seconds of fused causal attention where it was not measured: FLOPs over a rate that grows with
sequence length and head width."""

from dataclasses import dataclass

import numpy as np

from hardware.roofline import Chip, Floats

CAUSAL_FORWARD_FLOPS = 2.0
"""Times batch * heads * seq^2 * head_dim: two products over half the square."""
BACKWARD_OVER_FORWARD = 2.5
"""Five products instead of two (FlashAttention, arXiv 2205.14135, appendix B)."""
ROWS_PER_BLOCK = 128
"""Query rows of one thread block, in cuDNN's and FlashAttention's kernels alike."""


@dataclass(frozen=True, slots=True)
class AttentionRates:
    """Rate = flops_fraction * peak / ((1 + half_seq / seq) * (1 + half_width / head_dim))."""

    flops_fraction: float
    half_seq: float
    half_width: float
    start_s: float


ATTENTION_CLOCK = 1.23
"""Attention on a cool chip (1980 MHz) over the same in a training step, which runs at about 1600
MHz under the 700 W limit. From the H200: kernels of a 70B-wide Llama step (64 heads, 8 groups,
s 4096) take 588 us forward and 1,766 us backward against 460 and 1,459 us alone: 1.28 and 1.21."""

_HOPPER = {
    "fwd": AttentionRates(0.909 / ATTENTION_CLOCK, 242.0, 60.8, 15.1e-6),
    "bwd": AttentionRates(0.735 / ATTENTION_CLOCK, 779.0, 37.3, 34.3e-6),
}
"""Least absolute error over 272 cuDNN kernels each way (`catalog/tables/h200_attention.csv`),
median 4.5 %, brought to the sustained clock."""

_HOPPER_FLASH = {
    "fwd": AttentionRates(0.336 / ATTENTION_CLOCK, 230.0, 10.9, 21.6e-6),
    "bwd": AttentionRates(0.347 / ATTENTION_CLOCK, 596.0, 13.3, 43.5e-6),
}
"""Least absolute error over 272 FlashAttention-2 kernels each way (`catalog/tables/
h200_attention_flash2.csv`), median 8.6 and 4.8 %: about half of cuDNN's rate, as it does not use
Hopper's asynchronous matrix instructions (FlashAttention-3, arXiv 2407.08608, section 1)."""

_AMPERE = {
    "fwd": AttentionRates(0.95, 242.0, 60.8, 10e-6),
    "bwd": AttentionRates(0.71, 779.0, 37.3, 20e-6),
}
"""FlashAttention-2 on an A100 (arXiv 2307.08691, section 4.1): forward up to 73 % of 312 TFLOP/s,
backward up to 63 %, less when causal: about 200 and 175 TFLOP/s at 16k, head width 128. How the
rate falls with length and width is taken from Hopper."""

_BLACKWELL = {
    "fwd": AttentionRates(0.75, 242.0, 60.8, 15e-6),
    "bwd": AttentionRates(0.60, 779.0, 37.3, 34e-6),
}
"""A guess: Hopper's sustained fractions, on the higher peak."""

FLASH_1_OVER_2 = 1.8
"""Time of FlashAttention in Triton, as trainers had it in 2022 and early 2023, over that of
FlashAttention 2: 1.3 to 2.5 (arXiv 2307.08691, section 4.1), the geometric mean."""

ATTENTION_RATES = {
    "fused": {"hopper": _HOPPER, "ampere": _AMPERE, "ada": _AMPERE, "blackwell": _BLACKWELL},
    "flash": {"hopper": _HOPPER_FLASH, "ampere": _AMPERE, "ada": _AMPERE, "blackwell": _BLACKWELL},
}
"""Kernel -> architecture -> direction. `fused`: cuDNN's; `flash`: FlashAttention-2, as fast as
any on Ampere. On Blackwell no rate of it is known."""


def attention_roofline_s(
    chip: Chip, rates: AttentionRates, backward: bool, shapes: Floats
) -> Floats:
    """Seconds of causal attention, one direction; rows of batch, heads, kv_heads, seq, head_dim."""
    batch, heads, _, seq, head_dim = shapes.T
    flops = CAUSAL_FORWARD_FLOPS * batch * heads * seq**2 * head_dim
    flops = flops * (BACKWARD_OVER_FORWARD if backward else 1.0)
    blocks = batch * heads * np.ceil(seq / ROWS_PER_BLOCK)
    idle = np.maximum(1.0, chip.num_sms / blocks)
    slow = (1.0 + rates.half_seq / seq) * (1.0 + rates.half_width / head_dim) * idle
    return np.asarray(rates.start_s + flops * slow / (chip.peak_flops_per_s * rates.flops_fraction))
