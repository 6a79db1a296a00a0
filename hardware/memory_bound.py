"""Seconds of kernels that move bytes and compute next to nothing.

Each class has a measured curve of time against bytes on the H200, or runs a fixed factor slower
than the plain elementwise curve. On another GPU the part above the launch floor scales with the
memory bandwidth and, as far as the SMs bind it, with those.
"""

import math

from hardware.kernel_tables import TimeCurve, load_memory_bound_curves
from hardware.roofline import H200
from hardware.spec import GpuSpec

H200_SM_HZ = 132 * 1.98e9
"""SMs times boost clock of the chip that was measured."""

FLOOR_S = 2e-6
"""Least time between two dependent small kernels on a stream (H200: 1.84 us back to back)."""

OVER_ELEMENTWISE = {
    "activation_fwd": 1.20,
    "activation_bwd": 1.54,
    "bias_gelu_fwd": 1.45,
    "bias_gelu_bwd": 1.24,
    "swiglu_fwd": 0.98,
    "swiglu_bwd": 1.83,
    "bias_dropout_add": 1.1,
    "cross_entropy": 1.45,
    "fill": 0.93,
}
"""Time over that of an elementwise kernel of the same bytes, from kernels of Megatron-LM steps on
our H200 (torch.compile's fused kernels):
bias-GeLU 268 MB in 93.0 us, backward 403 MB in 118 us (1.3B); SwiGLU 271 MB in 61.6 us, backward
451 MB in 187 us (7B); 705 MB in 166 us, backward 1,174 MB in 512 us (70B width). `activation_*` is
the mean of both, for a caller who does not say which. Add of bias and residual without dropout 0.9
(101 MB in 22.4 us); the dropout kernel alone 1.4; 1.1 is assumed for both fused. Cross entropy:
Megatron's eager chain of eight kernels over the logits (cast, max, subtract, exp, sum, divide;
multiply, cast) moves 52 bytes per logit in 7.11 ms of 412 M logits: 3.01 TB/s. Fill of fp32
zeros: 1.88 GB in 399 us."""

FUSED_SOFTMAX_OVER_ELEMENTWISE = 1.0
"""Megatron-LM's fused causal softmax, 2021 to 2022 (A100): assumed to stream as an elementwise
kernel. The H200 curves are PyTorch's own softmax, which is slower (1.1 to 1.9 TB/s)."""

STREAM_FRACTION = {"hopper": 0.865, "ampere": 0.834, "blackwell": 0.865, "ada": 0.834}
"""Measured STREAM over nominal bandwidth: H200 4.15 of 4.8 TB/s, A100 1.70 of 2.039 TB/s (Azure
AI benchmarking guide); B200 taken as H200, Ada as A100."""

NAMES = (
    "layernorm_fwd", "layernorm_bwd", "rmsnorm_fwd", "rmsnorm_bwd", "elementwise", "bias_grad",
    "rotary", "softmax_fwd", "softmax_bwd", "dropout", "embedding_fwd", "embedding_bwd",
    "adam", "grad_norm", "quantize_delayed", "quantize_tensorwise", "quantize_blockwise",
    "quantize_blockwise_weight", "router", "permute", "unpermute", "permute_select",
    "permute_index_add", "unpermute_scatter_add", *OVER_ELEMENTWISE,
)  # fmt: skip


def memory_bound_s(kernel: str, num_bytes: float, gpu: GpuSpec) -> tuple[float, bool]:
    """Seconds, and whether the H200 was measured at that size.

    A kernel that is slower than an elementwise one of the same bytes is also bound by its SMs; the
    two bounds add up as squares, and each scales with its own part of the chip. So a norm, at
    half of the H200's bandwidth, gains little from more of it.

    Raises `ValueError` for an unknown class, naming those known, and for negative bytes.
    """
    if kernel not in NAMES:
        raise ValueError(f"unknown memory-bound kernel {kernel!r}; choose {', '.join(NAMES)}")
    if not num_bytes >= 0:
        raise ValueError(f"num_bytes must not be negative, found {num_bytes}")
    curves = load_memory_bound_curves()
    plain = curves["elementwise"]
    fused = gpu.architecture != "hopper" and kernel.startswith("softmax_")
    factor = FUSED_SOFTMAX_OVER_ELEMENTWISE if fused else OVER_ELEMENTWISE.get(kernel, 1.0)
    curve = plain if fused else curves.get(kernel, plain)
    here_s = max(0.0, _seconds(curve, plain, num_bytes) * factor - FLOOR_S)
    streaming_s = min(here_s, max(0.0, plain.seconds(num_bytes) - FLOOR_S))
    computing_s = math.sqrt(here_s**2 - streaming_s**2)
    streaming_s *= _stream_bytes_per_s("hopper", H200.bandwidth_bytes_per_s) / _stream_bytes_per_s(
        gpu.architecture, gpu.memory_bandwidth_bytes_per_s
    )
    computing_s *= H200_SM_HZ / (gpu.num_sms * gpu.boost_clock_hz)
    return FLOOR_S + math.hypot(streaming_s, computing_s), curve.covers(num_bytes)


def _stream_bytes_per_s(architecture: str, nominal_bytes_per_s: float) -> float:
    return STREAM_FRACTION[architecture] * nominal_bytes_per_s


def _seconds(curve: TimeCurve, elementwise: TimeCurve, num_bytes: float) -> float:
    """Below its first point a curve falls as the elementwise one does."""
    first = curve.first_bytes
    if num_bytes >= first:
        return curve.seconds(num_bytes)
    return curve.seconds(first) * elementwise.seconds(num_bytes) / elementwise.seconds(first)
