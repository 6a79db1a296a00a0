"""What a GPU kernel does, by its name.

Classes are those that the kernel model prices apart: matrix products, fused attention, kernels
bound by memory (finer, for reading), the optimizer's own, and communication by what it does.
Names as of cuBLAS (nvjet, xmma, cutlass, magma, s1688/s16816 kernels), cuDNN, FlashAttention,
Transformer Engine, Apex, Triton as PyTorch's inductor names it, PyTorch's ATen and NCCL; those of
one H200 (PyTorch 2.11, cuBLAS 13.1, cuDNN 9.19, Transformer Engine 2.10) read off its traces.
"""

import re
from functools import lru_cache
from typing import Literal

Communication = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "send_recv", "all_to_all", "broadcast",
    "other_communication",
]  # fmt: skip
COMMUNICATION: tuple[Communication, ...] = (
    "all_reduce", "all_gather", "reduce_scatter", "send_recv", "all_to_all", "broadcast",
    "other_communication",
)  # fmt: skip
KernelClass = Literal[
    "gemm", "attention", "optimizer", "norm", "activation", "softmax", "rotary", "embedding",
    "moe_routing", "quantize", "elementwise", "reduction", "copy", "fill", "other",
    "all_reduce", "all_gather", "reduce_scatter", "send_recv", "all_to_all", "broadcast",
    "other_communication",
]  # fmt: skip
MEMORY_BOUND: tuple[KernelClass, ...] = (
    "norm", "activation", "softmax", "rotary", "embedding", "moe_routing", "quantize",
    "elementwise", "reduction", "copy", "fill", "other",
)  # fmt: skip
"""Classes that the breakdown counts together as memory-bound; `other` is what no name gave away."""

_COMMUNICATION: tuple[tuple[str, Communication], ...] = (
    (r"all_?reduce|twoshot|oneshot|cross_device_reduce", "all_reduce"),
    (r"all_?gather|rr_ag", "all_gather"),
    (r"reduce_?scatter|rr_rs", "reduce_scatter"),
    (r"all_?to_?all", "all_to_all"),
    (r"send_?recv|push_?(?:send|recv)|\b(?:send|recv)\b", "send_recv"),
    (r"broadcast", "broadcast"),
)
_IS_COMMUNICATION = re.compile(
    r"nccl|rccl|onerank|userbuffers|nvshmem|deep_?ep|cross_device_reduce|multimem_all|"
    r"(?:one|two)_?shot_all_?reduce|symm_mem",
    re.IGNORECASE,
)
_CLASSES: tuple[tuple[str, KernelClass], ...] = (
    # fused attention first: its kernels may be built from cutlass or named after gemm
    (
        r"flash|fmha|sdpa|fused_attn|_attn_|mem_eff|attention_kernel|"
        r"cudnn::fusion::|compute_dot_do_o|convert_dq",
        "attention",
    ),
    (r"multi_tensor|multitensor|fused_?adam|adamw?_|_adam|fused_?lamb|lamb_stage", "optimizer"),
    (r"cast_transpose|quantiz|amax|cast_fp8|fp8_cast|dequant|swizzle_scal|scale_from", "quantize"),
    (
        r"permute|chunk_sort|sort_chunks|topk|bitonicsort|router|moe_|row_id_map|bincount|histc",
        "moe_routing",
    ),
    (r"layer_?norm|rms_?norm|ln_(?:fwd|bwd)|gammabeta|normalization::|layernorm", "norm"),
    (r"softmax|cross_?entropy|nll_loss|log_softmax", "softmax"),
    (r"rope|rotary", "rotary"),
    (r"globalKernelBgrad|epilogue::impl", "reduction"),
    (
        r"nvjet|cijk_|gemm|gemv|cutlass|xmma|cublas|splitk|wgrad|dgrad|matmul|magma|"
        r"[a-z]?s(?:884|1688|16816|161616)|_mma_|bmm",
        "gemm",
    ),
    (
        r"embedding|indexselect|compute_grad_weight|sum_and_scatter|segment|gather_kernel|"
        r"radix_?sort|unique_by_key|index_elementwise|indexfunc",
        "embedding",
    ),
    (r"gelu|swiglu|silu|geglu|tanh|sigmoid|relu", "activation"),
    (r"^memset|fillfunctor|fill_kernel|triton_poi_fused_zero|_zeros?_", "fill"),
    (r"^memcpy|copy_kernel|catarray|batchedcopy|copy_device|transpose|direct_copy", "copy"),
    (r"reduce_kernel|triton_(?:red|per)_|cub::|norm_?kernel", "reduction"),
    (r"elementwise|triton_poi_|triton_|unary_kernel|binary|dropout|foreach", "elementwise"),
)
_PATTERNS = tuple((re.compile(pattern, re.IGNORECASE), name) for pattern, name in _CLASSES)
_KINDS = tuple((re.compile(pattern, re.IGNORECASE), name) for pattern, name in _COMMUNICATION)


@lru_cache(maxsize=65536)
def kernel_class(name: str, collective: str = "") -> KernelClass:
    """The class of a kernel, memory copy or fill.

    `collective` is what the trace itself calls it, which tells an all-to-all from other sends.

    >>> kernel_class("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    'all_reduce'
    >>> kernel_class("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT")
    'gemm'
    """
    if collective or _IS_COMMUNICATION.search(name):
        return _communication(collective) or _communication(name) or "other_communication"
    return next((kind for pattern, kind in _PATTERNS if pattern.search(name)), "other")


def _communication(text: str) -> Communication | None:
    return next((kind for pattern, kind in _KINDS if pattern.search(text)), None)


_AXES = (
    ("tensor_and_context", "tp"), ("tensor_model", "tp"), ("_tp", "tp"),
    ("expert_data", "dp"), ("expert_tensor_and_model", "ep"), ("expert_tensor", "tp"),
    ("expert_model", "ep"), ("_ep", "ep"),
    ("data_parallel", "dp"), ("tensor_and_data", "dp"), ("optimizer_instance", "dp"),
    ("fsdp", "dp"), ("_dp", "dp"),
    ("pipeline", "pp"), ("position_embedding", "dp"), ("embedding", "dp"), ("_pp", "pp"),
    ("context", "cp"), ("_cp", "cp"),
)  # fmt: skip


def group_axis(description: str) -> str:
    """The axis of a process group, by the description that Megatron-LM (parallel_state.py) or a
    device mesh (`mesh_tp`) gives it; empty where that does not tell.

    >>> group_axis("TENSOR_MODEL_PARALLEL_GROUP")
    'tp'
    """
    text = description.lower()
    return next((axis for part, axis in _AXES if part in text), "")
