"""What a framework of its time does where a published run does not say: the documented table.

A row of a runs table (`validation.measured`) names its framework; the first pattern that matches
chooses a `Software`. A row's own columns, and Megatron-LM arguments quoted in its notes, always
win over these defaults.
"""

import re
from dataclasses import dataclass, replace
from typing import Literal

from validation.splits import Split

HOST_OPERATION_S = 60e-6
"""Per operation of a layer. The smallest models of vTrain's single-node sweep (VIA-Research/vTrain,
data/ground_truth_single.csv: hidden 1024, micro-batch 1) take 3.5 ms a layer and microbatch
whatever their size, for 58 operations (forward, again, backward)."""
NANOTRON_HOST_OPERATION_S = 107e-6
"""nanotron on H100, tensor-parallel 8: 4.5 ms a layer at any width for 42 operations (hidden 2048,
micro-batch 1, of the Ultra-Scale Playbook's sweep)."""
NANOTRON_RESERVED = 1.42
"""Reserved over our peak: its bf16 gradients beside the fp32 ones, unfused activations, fragments.
Median of the 1,004 runs of the sweep that finished and can be simulated (1.42 of either half of
them); which runs then are out of memory is not fitted."""
NANOTRON_HOST_COPY_S = 4e-6
"""reduce_scatter_coalesced and all_gather_coalesced of nanotron's distributed.py split, flatten and
copy every weight for every rank. Slope of what the unchecked ZeRO-1 runs of the sweep (PP 1,
several nodes, at most 8 microbatches) take beyond everything else: 7.5 us per weight and rank, of
two collectives."""
H200_HOST_OPERATION_S = 125e-6
"""Our H200's slow hosts: from 2.9 to 5.4 ms for a Transformer Engine layer of 30 operations, by
run and machine; 125 us gives the least mean error over our 29 dense bf16 runs, of which 7 wait for
their host."""
H200_STEP_OVERHEAD_S = 18e-3
"""As `ProfileSpec` ships it, measured on those hosts."""
STEP_OVERHEAD_S = H200_STEP_OVERHEAD_S * HOST_OPERATION_S / H200_HOST_OPERATION_S
"""Between two steps: what our H200's hosts take, by the ratio of their pace to a DGX's."""


@dataclass(frozen=True, slots=True)
class Software:
    """One framework of one time. Fields carry the names of the run file's keys."""

    name: str
    source: str
    """Where each default is taken from."""
    attention_backend: Literal["fused", "flash", "flash1", "unfused"] = "fused"
    sequence_parallel: bool = True
    """Where tensor parallelism is used."""
    tp_comm_overlap: bool = False
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    ddp_bucket_size: int | None = None
    overlap_reduce_scatter: bool = True
    """Whether overlap_grad_reduce holds where optimizer state is sharded, too."""
    host_copy_s: float = 0.0
    """`ProfileSpec.host_copy_s`."""
    overlap_p2p_communication: bool | None = None
    """None: as the schedule has it by default."""
    enable_optimizer_post_validation: bool = False
    accumulate_allreduce_grads_in_fp32: bool = True
    gradient_accumulation_fusion: bool = True
    async_tensor_model_parallel_allreduce: bool = True
    cross_entropy_loss_fusion: bool = False
    bias_activation_fusion: bool = True
    joined_keys_values: bool = False
    gpt_position_embedding: Literal["learned_absolute", "rope"] = "rope"
    """Of a model without a gated MLP; gated ones (Llama) are taken to rotate."""
    gpt_untied: bool = True
    """Whether such a model has an output matrix of its own; gated ones are taken to."""
    gpt_dropout: float = 0.0
    recompute_granularity: Literal["none", "selective", "full"] = "none"
    pipeline_split: Split = "even"
    """How it divides layers over stages of one chunk."""
    host_operation_s: float = HOST_OPERATION_S
    """`ProfileSpec.host_operation_s`: how slowly its Python issues a layer's operations."""
    launch_blocking: bool = False
    broken_pipeline: bool = False
    """Its pipeline parallelism was at fault, so that step times of several stages tell nothing."""
    step_overhead_s: float = STEP_OVERHEAD_S
    """`ProfileSpec.step_overhead_s`: data, Python and logging between steps."""
    reserved_over_needed: float = 1.0
    """What the caching allocator holds over what is needed, in runs close to its limit."""
    fp8_recipe: Literal["delayed", "tensorwise"] = "delayed"
    """Where a source says no more than fp8."""
    fp8_param_gather: bool = False
    """`LowPrecision.param_gather`."""
    unsupported: str = ""
    """Why rows of this framework are not simulated, if they are not."""


MEGATRON_2021 = Software(
    name="Megatron-LM, 2020 and 2021",
    source="NVIDIA/Megatron-LM v2.0 to v2.5: megatron/model/transformer.py, mpu/mappings.py and "
    "mpu/layers.py (the input gradient is all-reduced after both backward products), "
    "model/distributed.py (each gradient is added to a 2-byte main gradient by a kernel of its "
    "own), p2p_communication.py (synchronous), arguments.py (dropout 0.1)",
    attention_backend="unfused",
    sequence_parallel=False,
    overlap_p2p_communication=False,
    accumulate_allreduce_grads_in_fp32=False,
    gradient_accumulation_fusion=False,
    async_tensor_model_parallel_allreduce=False,
    gpt_position_embedding="learned_absolute",
    gpt_untied=False,
    gpt_dropout=0.1,
)

MEGATRON_2022 = replace(
    MEGATRON_2021,
    name="Megatron-LM, 2022",
    source="NVIDIA/Megatron-LM v3.0: core/tensor_parallel/layers.py "
    "(LinearWithGradAccumulationAndAsyncCommunication: all-reduce beside wgrad, wgrad added into "
    "fp32 main gradients), p2p_communication.py (synchronous); Korthikanti 2022 (arXiv "
    "2205.05198)",
    accumulate_allreduce_grads_in_fp32=True,
    gradient_accumulation_fusion=True,
    async_tensor_model_parallel_allreduce=True,
)

ZERO_BUBBLE_FORK = replace(
    MEGATRON_2022,
    name="Megatron-LM, 2023 (zero bubble fork)",
    source="sail-sg/zero-bubble-pipeline-parallelism, a fork of Megatron-LM of 2023; Qi et al. "
    "(arXiv 2401.10241), section 5: no data or tensor parallelism, first and last stage have one "
    "layer fewer; section 4: post-validation of its own schedules",
    pipeline_split="embedding_and_loss",
)

MEGATRON_DEEPSPEED = replace(
    MEGATRON_2021,
    name="Megatron-DeepSpeed",
    source="microsoft/Megatron-DeepSpeed and bigscience-workshop/Megatron-DeepSpeed, forks of "
    "Megatron-LM v2.4: the same layers; gradients stay in 2 bytes, added by a kernel of their own; "
    "layers by --pp-partition-method",
    pipeline_split="deepspeed",
)

NANOTRON = Software(
    "nanotron",
    "huggingface/nanotron v0.5: optim/gradient_accumulator.py (fp32 gradients, all-reduced "
    "by a hook on the last backward's DDP buckets of 25 MB), distributed.py and "
    "optim/zero.py (sharded ones are copied for the reduce-scatter while the hook waits, "
    "weights for the all-gather after the step), "
    "tensor_parallel/functional.py (asynchronous column products), "
    "models/llama.py (keys and values joined for FlashAttention's rotary kernel), "
    "pipeline_parallel/p2p.py (synchronous), models/base.py (stages)",
    pipeline_split="nanotron",
    overlap_grad_reduce=True,
    ddp_bucket_size=12_500_000,
    overlap_reduce_scatter=False,
    host_copy_s=NANOTRON_HOST_COPY_S,
    attention_backend="flash",
    gradient_accumulation_fusion=False,
    overlap_p2p_communication=False,
    joined_keys_values=True,
    bias_activation_fusion=False,
    host_operation_s=NANOTRON_HOST_OPERATION_S,
    reserved_over_needed=NANOTRON_RESERVED,
)

SOFTWARE: tuple[tuple[str, Software], ...] = (
    (
        r"MegaScale",
        Software("MegaScale", "NSDI 2024", unsupported="MegaScale changes the model (parallel "
                 "block, sliding window)"),
    ),
    (r"JAX|Pax|MaxText|AutoModel", Software("JAX", "", unsupported="not a Megatron-like trainer")),
    (r"HAI-LLM|Meta internal|unknown", Software("closed", "", unsupported="closed trainer")),
    (r"Megatron-LM (Sep 2020|Jan 2021|2021)", MEGATRON_2021),
    (r"Megatron-LM 2022", MEGATRON_2022),
    (
        r"Megatron-LM \(commit 285068c8\)",
        replace(
            MEGATRON_2022,
            name="Megatron-LM, 2023",
            source="MegaScale (arXiv 2402.15627), section 6: Megatron-LM at commit 285068c8",
            sequence_parallel=True,
            gpt_dropout=0.0,
        ),
    ),
    (r"Megatron-LM fork, schedule (1F1B-I|1F1B)$", ZERO_BUBBLE_FORK),
    (
        r"Megatron-LM fork, schedule ZB-[12]p$",
        replace(
            ZERO_BUBBLE_FORK,
            name="zero-bubble schedules of that fork",
            overlap_p2p_communication=None,
            enable_optimizer_post_validation=True,
        ),
    ),
    (
        r"Megatron-DeepSpeed, flash-attn v2",
        replace(
            MEGATRON_DEEPSPEED,
            name="Megatron-DeepSpeed with FlashAttention 2",
            source="OpenLLM-France/Lucie-Training: CUDA_LAUNCH_BLOCKING=1, so nothing overlaps, "
            "the host's work neither; bf16 with DeepSpeed's bf16_optimizer.py, whose gradients are "
            "accumulated and all-reduced in fp32; Megatron-LM fuses SwiGLU from core 0.4 on",
            launch_blocking=True,
            accumulate_allreduce_grads_in_fp32=True,
            bias_activation_fusion=False,
            attention_backend="flash",
            gpt_dropout=0.0,
        ),
    ),
    (
        r"BF16Optimizer",
        replace(
            MEGATRON_DEEPSPEED,
            name="Megatron-DeepSpeed, BF16Optimizer",
            source="bigscience chronicles: bf16 with fp32 gradient accumulation",
            accumulate_allreduce_grads_in_fp32=True,
        ),
    ),
    (r"Megatron-DeepSpeed", MEGATRON_DEEPSPEED),
    (
        r"Megatron-Core r0\.8",
        Software(
            "Megatron-Core 0.8",
            "NVIDIA/Megatron-LM README of July 2024: overlap of data-, tensor- and "
            "pipeline-parallel communication",
            tp_comm_overlap=True,
            overlap_grad_reduce=True,
            overlap_param_gather=True,
            gpt_position_embedding="learned_absolute",
        ),
    ),
    (
        r"Megatron-Core v0\.6|FlagScale",
        Software("Megatron-Core 0.6", "FlagOpen/FlagPerf launch scripts: no overlap asked for"),
    ),
    (
        r"Megatron-LM core_v",
        Software(
            "Megatron-Core on our H200",
            "NVIDIA/Megatron-LM core_v0.15.3, arguments.py: nothing overlaps unless asked for",
            sequence_parallel=False,
            gpt_position_embedding="learned_absolute",
            gpt_untied=False,
            gpt_dropout=0.1,
            host_operation_s=H200_HOST_OPERATION_S,
            step_overhead_s=H200_STEP_OVERHEAD_S,
        ),
    ),
    (
        r"Megatron-Core dev CI",
        Software(
            "Megatron-Core",
            "NVIDIA/Megatron-LM core_v0.15, arguments.py: nothing overlaps unless asked for",
            sequence_parallel=False,
            gpt_position_embedding="learned_absolute",
            gpt_untied=False,
            gpt_dropout=0.1,
        ),
    ),
    (
        r"Megatron-LM 23e00ed0",
        Software(
            "Megatron-LM, January 2026",
            "MooreThreads/SimuMax docs/b200: all overlap switched off, fused cross entropy",
            cross_entropy_loss_fusion=True,
        ),
    ),
    (
        r"recipe|NeMo|MLPerf|Megatron-Bridge|mcore",
        Software(
            "NeMo",
            "NVIDIA/dgxc-benchmarking recipes and NeMo's MegatronCommOverlapCallback: gradients "
            "reduced in 2 bytes (grad_reduce_in_fp32=False), data-parallel overlaps on",
            fp8_param_gather=True,
            pipeline_split="nemo",
            overlap_grad_reduce=True,
            overlap_param_gather=True,
            accumulate_allreduce_grads_in_fp32=False,
        ),
    ),
    (r"Megatron-Core", Software("Megatron-Core", "as Megatron-Core 0.8", tp_comm_overlap=True,
                                overlap_grad_reduce=True, overlap_param_gather=True)),
    (
        r"llm-foundry",
        Software(
            "LLM Foundry",
            "mosaicml/llm-foundry, models/mpt (attn_impl: triton, as was the default; flash-attn's "
            "fused cross entropy, learned positions, tied embeddings, no biases or dropout); "
            "mosaicml/composer, "
            "trainer/mosaic_fsdp_utils.py: mixed_precision DEFAULT reduces in fp32, PURE in bf16",
            attention_backend="flash1",
            sequence_parallel=False,
            overlap_grad_reduce=True,
            overlap_param_gather=True,
            cross_entropy_loss_fusion=True,
            gpt_position_embedding="learned_absolute",
            gpt_untied=False,
        ),
    ),
    (
        r"PyTorch FSDP1 \+ SDPA flash",
        Software(
            "fms-fsdp",
            "foundation-model-stack/fms-fsdp: FSDP1, bf16 parameters and reduction (policies/"
            "mixed_precision.py), torch.compile",
            attention_backend="flash",
            sequence_parallel=False,
            overlap_grad_reduce=True,
            overlap_param_gather=True,
            accumulate_allreduce_grads_in_fp32=False,
        ),
    ),
    (
        r"torchtitan",
        Software(
            "torchtitan",
            "pytorch/torchtitan: FSDP2, bf16 parameters, fp32 reduction (config job_config.py: "
            "mixed_precision_param, mixed_precision_reduce), scaled_dot_product_attention's flash "
            "kernel (FlashAttention 2)",
            fp8_recipe="tensorwise",
            attention_backend="flash",
            overlap_grad_reduce=True,
            overlap_param_gather=True,
        ),
    ),
    (r"nanotron.* after_pp_fix=False", replace(NANOTRON, broken_pipeline=True)),
    (r"nanotron", NANOTRON),
    (
        r"InternEvo",
        Software(
            "InternEvo",
            "InternLM/InternEvo, doc/en/train_performance.md: ZeRO-1 with overlapped reduction",
            sequence_parallel=False,
            overlap_grad_reduce=True,
            accumulate_allreduce_grads_in_fp32=False,
            gradient_accumulation_fusion=False,
        ),
    ),
    (
        r"PaddlePaddle",
        Software(
            "PaddlePaddle 2.5",
            "FlagOpen/FlagPerf, training/nvidia: PaddleNLP with flash-attn, no overlap; SiLU and "
            "product of its LLaMA are kernels of their own",
            sequence_parallel=False,
            bias_activation_fusion=False,
            accumulate_allreduce_grads_in_fp32=False,
            gradient_accumulation_fusion=False,
            async_tensor_model_parallel_allreduce=False,
        ),
    ),
)  # fmt: skip
"""(pattern searched in the framework's name, defaults), the first that matches."""


def software_of(framework: str) -> Software | None:
    """The defaults for a framework, None for one that the table does not know."""
    for pattern, software in SOFTWARE:
        if re.search(pattern, framework):
            return software
    return None
