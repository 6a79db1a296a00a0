"""Tables of measured runs: each row becomes run specs to simulate and the values it measured.

One CSV format for all sources, one run a row, blank where the source does not say. Blanks are
filled from `validation.defaults`; a setting that was not published at all (micro-batch,
interleaving, recomputation of tuned headline runs) becomes several specs, of which the one that
performs best is compared. A row that cannot be simulated keeps its reason.
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hardware.scaled_gemm import matrix_peak_flops_per_s
from hardware.spec import ClusterSpec
from simulator.errors import ConfigError, Place, Problem
from simulator.runspec import RunSpec
from validation.arguments import layers_of_interleaving, quoted_arguments
from validation.clusters import cluster_of
from validation.defaults import Software, software_of
from validation.experts import (
    attention_fields,
    expert_fields,
    expert_layout,
    expert_training,
)
from validation.network_notes import with_noted_network
from validation.precisions import precision_setting
from validation.recomputation import recompute_settings
from validation.splits import split_by_arguments, split_of
from workloads.layout_checks import check_layout
from workloads.spec import (
    ModelSpec,
    OptimizerSpec,
    ParallelismSpec,
    TrainingSpec,
)

Row = Mapping[str, str]

COLUMNS = (
    "id", "num_layers", "hidden_size", "num_attention_heads", "seq_length", "gpu", "num_gpus",
    "global_batch_size", "framework", "step_time_s",
)  # fmt: skip
"""Columns that a table needs; others are read where they exist."""

UNPUBLISHED_MICRO_BATCHES = (1, 2, 4)
"""Tried where a source does not print the micro-batch; but
PIPELINED_MICRO_BATCH in a pipeline of stages, as 161 of the 172 published runs with hidden size
8192 and up have it that print theirs (NVIDIA's recipes, MLPerf, SC21, Korthikanti)."""
PIPELINED_MICRO_BATCH = 1

DEFAULT_VOCAB_SIZE = 50257
"""GPT-2's, which Megatron-LM's examples use, where a source does not print it."""


class NotModelledError(ValueError):
    """The row needs something that is not built, or does not say enough; the message says what."""


@dataclass(frozen=True)
class MeasuredRun:
    """One row: what was measured, and what to simulate for it."""

    row: Row
    id: str
    source_key: str
    step_time_s: float | None
    peak_memory_bytes: float | None
    memory_is_allocated: bool
    """`max allocated` of PyTorch, which leaves out CUDA context and NCCL; else as `nvidia-smi`."""
    oom: bool
    """The run failed for lack of memory."""


def read_runs(path: Path) -> tuple[MeasuredRun, ...]:
    """Read a runs table.

    Raises `ConfigError` for a file that cannot be read, lacks needed columns, or has a number that
    is none, all problems at once.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            header = tuple(reader.fieldnames or ())
            lines = [(reader.line_num, {k: v or "" for k, v in row.items() if k}) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(Problem(f"cannot be read: {reason}", place=Place(str(path)))) from None
    absent = [name for name in COLUMNS if name not in header]
    if absent:
        message = f"is not a table of runs: no column {', '.join(absent)}"
        raise ConfigError(Problem(message, place=Place(str(path), 1)))
    problems: list[Problem] = []
    runs: list[MeasuredRun] = []
    for line, row in lines:
        try:
            runs.append(measured_run(row))
        except ValueError as error:
            problems.append(Problem(str(error), place=Place(str(path), line)))
    if problems:
        raise ConfigError(problems)
    return tuple(runs)


def measured_run(row: Row) -> MeasuredRun:
    """The measured values of a row. Raises `ValueError` for text where a number belongs."""
    basis = row.get("peak_memory_basis", "")
    memory = _number(row, "peak_memory_gb")
    reserved = re.search(r"max reserved ([\d.]+)", basis)
    if reserved and "nanotron" in row["framework"]:
        # its first figure is what is allocated between steps, not at the peak
        memory = float(reserved[1])
    step = None if _tells_no_time(row) else _number(row, "step_time_s")
    return MeasuredRun(
        row=row,
        id=row["id"],
        source_key=row["id"].partition("-")[0],
        step_time_s=step if step else None,
        peak_memory_bytes=None if not memory else memory * (2**30 if "GiB" in basis else 1e9),
        memory_is_allocated="allocated" in basis,
        oom=_flag(row, "oom") is True,
    )


def _tells_no_time(row: Row) -> bool:
    """Whether the framework's pipeline parallelism was broken: such rows are judged by their memory
    only."""
    software = _known_software(row)
    pipelined = (_integer(row, "pipeline_model_parallel_size") or 1) > 1
    return software is not None and software.broken_pipeline and pipelined


def reserved_over_needed(row: Row) -> float:
    """What the row's framework reserves over what it needs (`Software.reserved_over_needed`)."""
    software = _known_software(row)
    return 1.0 if software is None else software.reserved_over_needed


def run_specs(row: Row) -> tuple[RunSpec, ...]:
    """What to simulate for a row: one spec, or one for each unpublished setting that is possible.

    Raises `NotModelledError` where it cannot be simulated.
    """
    software = _software(row)
    _check_supported(row)
    found: list[RunSpec] = []
    reason = ""
    for settings in _settings(row, software):
        try:
            found.append(_run_spec(row, software, settings))
        except NotModelledError as error:
            reason = reason or str(error)
    if not found:
        raise NotModelledError(reason)
    return tuple(found)


# what cannot be simulated


def _software(row: Row) -> Software:
    software = _known_software(row)
    if software is None:
        raise NotModelledError(f"no defaults for the framework {row['framework']!r}")
    if software.unsupported:
        raise NotModelledError(software.unsupported)
    return software


def _known_software(row: Row) -> Software | None:
    """By the framework's name and what the notes say of it."""
    said = re.findall(r"JAX|after_pp_fix=\w+", row.get("notes", ""))
    return software_of(" ".join([row["framework"], *said]))


def _check_supported(row: Row) -> None:
    task = row.get("task", "") or "pretrain"
    if task != "pretrain":
        raise NotModelledError(f"task {task}")
    if row.get("data_parallel_sharding", "") not in _SHARDING:
        raise NotModelledError(f"data-parallel sharding {row['data_parallel_sharding']}")
    needed = ("num_layers", "hidden_size", "num_attention_heads", "seq_length",
              "global_batch_size", "num_gpus")  # fmt: skip
    blank = [key for key in needed if not row[key]]
    if blank:
        raise NotModelledError(f"the source does not print {', '.join(blank)}")
    schedule = _schedule_name(row)
    if schedule is not None and schedule not in _SCHEDULES:
        raise NotModelledError(f"schedule {schedule} is not built yet")


_SCHEDULES = {"1F1B": None, "1F1B-I": None, "ZB-1p": "zb_h1", "ZB-2p": "zb_h2"}
"""Schedule that a source names -> the run file's, None for the default. ZB-1p and ZB-2p are found
by a search within the memory of ZB-H1 and of ZB-H2, which they equal when F = B = W (Qi 2023,
section 3)."""


def _schedule_name(row: Row) -> str | None:
    named = re.search(r"schedule (\S+)", row["framework"])
    return None if named is None else named[1]


_SHARDING = {
    "": "none", "0": "none", "1": "zero1", "zero1": "zero1", "dist-opt": "zero1", "2": "zero2",
    "3": "zero3", "fsdp": "zero3",
}  # fmt: skip
"""Text -> `OptimizerSpec.data_parallel_sharding`."""


# what a row leaves open


def _settings(row: Row, software: Software) -> Iterator[dict[str, Any]]:
    """Each combination of settings that the source does not print."""
    tp, pp = _layout(row)
    layers = int(row["num_layers"])
    micro = _integer(row, "micro_batch_size")
    chunks = _chunks(row, pp)
    usual = UNPUBLISHED_MICRO_BATCHES if pp == 1 else (PIPELINED_MICRO_BATCH,)
    tried = (micro,) if micro else usual
    tuned = micro is None and not _number(row, "virtual_pipeline_model_parallel_size")
    if chunks is None:
        per_stage = layers // pp if layers % pp == 0 else 1
        counts = [n for n in range(1, per_stage + 1) if per_stage % n == 0] if tuned else [1]
        chunked: Sequence[int] = counts if pp > 1 else (1,)
    else:
        chunked = (chunks,)
    granularity = row.get("recompute_granularity", "")
    recompute: Sequence[str] = (granularity,) if granularity else (
        ("none", "selective", "full") if tuned else (software.recompute_granularity,)
    )  # fmt: skip
    for m, v, r in product(tried, chunked, recompute):
        yield {"tp": tp, "pp": pp, "vpp": v, "micro_batch_size": m, "recompute": r}


def _layout(row: Row) -> tuple[int, int]:
    """Tensor- and pipeline-parallel size; from the notes where the columns are blank."""
    tp = _integer(row, "tensor_model_parallel_size")
    pp = _integer(row, "pipeline_model_parallel_size")
    if tp is None or pp is None:
        assumed = re.search(r"\bTP(\d+) PP(\d+)\b", row.get("notes", ""))
        if not assumed:
            raise NotModelledError("the source does not print the parallel layout")
        return int(assumed[1]), int(assumed[2])
    return tp, pp


def _chunks(row: Row, pp: int) -> int | None:
    each = layers_of_interleaving(quoted_arguments(row.get("notes", "")))
    if each is not None:
        return max(1, int(row["num_layers"]) // (pp * each))
    return _integer(row, "virtual_pipeline_model_parallel_size")


# one spec


def _run_spec(row: Row, software: Software, settings: Mapping[str, Any]) -> RunSpec:
    arguments = quoted_arguments(row.get("notes", ""))
    try:
        model = _model(row, software, arguments)
        training = _training(row, software, settings, arguments)
        parallelism = _parallelism(row, model, software, settings, arguments)
        cluster = _with_host(with_noted_network(cluster_of(row), row), software)
        optimizer = _optimizer(row, software, cluster)
        problems = check_layout(model, parallelism, training, optimizer, cluster.num_gpus)
        if matrix_peak_flops_per_s(cluster.node.gpu, training.linear_dtype) is None:
            raise NotModelledError(f"{row['gpu']} has no matrix units for {row['precision']}")
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise NotModelledError(f"{place}: {first['msg']}") from None
    except ValueError as error:
        raise NotModelledError(str(error)) from None
    if problems:
        raise NotModelledError("; ".join(f"{path}: {message}" for path, message in problems))
    return RunSpec(
        name=row["id"], model=model, training=training, parallelism=parallelism,
        optimizer=optimizer, cluster=cluster,
    )  # fmt: skip


def _model(row: Row, software: Software, arguments: Mapping[str, str]) -> ModelSpec:
    gated = "swiglu" in arguments if arguments else _flag(row, "gated_linear_unit") is True
    nemotron = "nemotron" in row.get("model", "").lower()
    plain = not gated and not nemotron  # GPT
    positions = arguments.get("position-embedding-type") or (
        software.gpt_position_embedding if plain else "rope"
    )
    untied = software.gpt_untied if plain else True
    if arguments:
        untied = "untie-embeddings-and-output-weights" in arguments
    tied = re.search(r"tied_embeddings=(True|False)", row.get("notes", ""))
    if tied:
        untied = tied[1] == "False"
    dropout = software.gpt_dropout if plain else 0.0
    squared = nemotron or "squared-relu" in arguments
    bias = "disable-bias-linear" not in arguments if arguments else plain
    if "no biases" in row.get("notes", ""):
        bias = False
    norm = arguments.get("normalization") or ("RMSNorm" if gated else "LayerNorm")
    special = {"add_bias_linear": bias, **attention_fields(row), **expert_fields(row)}
    return ModelSpec(
        name=row.get("model", "") or "custom",
        num_layers=int(row["num_layers"]),
        hidden_size=int(row["hidden_size"]),
        ffn_hidden_size=_integer(row, "ffn_hidden_size"),
        num_attention_heads=int(row["num_attention_heads"]),
        num_query_groups=_integer(row, "num_query_groups"),
        kv_channels=_integer(row, "kv_channels"),
        vocab_size=_integer(row, "vocab_size") or DEFAULT_VOCAB_SIZE,
        position_embedding_type=positions,
        normalization=norm,
        gated_linear_unit=gated,
        activation_function="silu" if gated else "squared_relu" if squared else "gelu",
        untie_embeddings_and_output_weights=untied,
        hidden_dropout=float(arguments.get("hidden-dropout") or dropout),
        attention_dropout=float(arguments.get("attention-dropout") or dropout),
        **special,
    )


def _training(
    row: Row, software: Software, settings: Mapping[str, Any], arguments: Mapping[str, str]
) -> TrainingSpec:
    backend: str = software.attention_backend
    if arguments.get("transformer-impl") == "local" or "unfused attention" in row["framework"]:
        backend = "unfused"
    if arguments.get("attention-backend") in ("flash", "fused", "unfused"):
        backend = arguments["attention-backend"]
    per_chunk = int(row["num_layers"]) // (settings["pp"] * settings["vpp"])
    return TrainingSpec(
        seq_length=int(row["seq_length"]),
        micro_batch_size=settings["micro_batch_size"],
        global_batch_size=int(row["global_batch_size"]),
        precision=precision_setting(
            row.get("precision", ""), software.fp8_recipe, software.fp8_param_gather
        ),
        **recompute_settings(row, settings["recompute"], per_chunk),
        attention_backend=backend,
        accumulate_allreduce_grads_in_fp32=software.accumulate_allreduce_grads_in_fp32
        and "mixed_precision PURE" not in row.get("notes", ""),
        gradient_accumulation_fusion=software.gradient_accumulation_fusion
        and "no-gradient-accumulation-fusion" not in arguments,
        cross_entropy_loss_fusion=software.cross_entropy_loss_fusion
        or "cross-entropy-loss-fusion" in arguments,
        cuda_graph=_cuda_graph(row),
        joined_keys_values=software.joined_keys_values,
        bias_activation_fusion=software.bias_activation_fusion
        and "no-bias-swiglu-fusion" not in arguments,
        **expert_training(row, arguments),
    )


def _parallelism(
    row: Row,
    model: ModelSpec,
    software: Software,
    settings: Mapping[str, Any],
    arguments: Mapping[str, str],
) -> ParallelismSpec:
    tp, chunks = settings["tp"], settings["vpp"]
    sequence = _or(_flag(row, "sequence_parallel"), software.sequence_parallel) and tp > 1
    tp_overlap = _or(_flag(row, "tp_comm_overlap"), software.tp_comm_overlap) and sequence
    overlap_p2p = software.overlap_p2p_communication
    schedule = _SCHEDULES[_schedule_name(row) or "1F1B"]
    if (chunks == 1 and schedule is None) or "no-overlap-p2p-communication" in arguments:
        overlap_p2p = False
    split = split_by_arguments(arguments)
    if not split:
        split = split_of(software.pipeline_split, model, settings["pp"], chunks)
    return ParallelismSpec(
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=settings["pp"],
        virtual_pipeline_model_parallel_size=chunks,
        context_parallel_size=_integer(row, "context_parallel_size") or 1,
        pipeline_schedule=schedule,
        microbatch_group_size_per_vp_stage=_given(
            arguments, "microbatch-group-size-per-virtual-pipeline-stage"
        ),
        defer_embedding_wgrad_compute="defer-embedding-wgrad-compute" in arguments,
        wgrad_deferral_limit=_given(arguments, "wgrad-deferral-limit") or 0,
        sequence_parallel=sequence,
        scatter_gather_tensors_in_pipeline="scatter/gather OFF" not in row.get("notes", ""),
        tp_comm_overlap=tp_overlap,
        overlap_p2p_communication=overlap_p2p,
        async_tensor_model_parallel_allreduce=software.async_tensor_model_parallel_allreduce,
        **split,
        **expert_layout(row, arguments),
    )


def _optimizer(row: Row, software: Software, cluster: ClusterSpec) -> OptimizerSpec:
    sharding = _SHARDING[row.get("data_parallel_sharding", "")]
    sharded = sharding != "none"
    overlaps = software.overlap_grad_reduce and (software.overlap_reduce_scatter or not sharded)
    reduce = _or(_flag(row, "overlap_grad_reduce"), overlaps)
    gather = _or(_flag(row, "overlap_param_gather"), software.overlap_param_gather)
    hybrid = "HSDP: shard inside the node" in row.get("notes", "")
    return OptimizerSpec(
        use_distributed_optimizer=sharded,
        data_parallel_sharding=sharding,
        num_distributed_optimizer_instances=cluster.num_nodes if hybrid else 1,
        overlap_grad_reduce=reduce,
        ddp_bucket_size=software.ddp_bucket_size,
        overlap_param_gather=sharded and reduce and gather,
        enable_optimizer_post_validation=software.enable_optimizer_post_validation,
    )


def _cuda_graph(row: Row) -> str:
    """The run file's name of what is captured. Graphs of parts of a layer (attention, router)
    count as the whole layer's."""
    text = row.get("cuda_graph", "").lower().replace(" ", "_")
    if text in ("", "0") or text.startswith("none"):
        return "none"
    return "full_iteration" if "full_iteration" in text else "per_layer"


def _with_host(cluster: ClusterSpec, software: Software) -> ClusterSpec:
    profile = cluster.profile.model_copy(
        update={
            "host_operation_s": software.host_operation_s,
            "launch_blocking": software.launch_blocking,
            "step_overhead_s": software.step_overhead_s,
            "host_copy_s": software.host_copy_s,
        }
    )
    return cluster.model_copy(update={"profile": profile})


# cells


def _number(row: Row, key: str) -> float | None:
    text = row.get(key, "").strip()
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{key}: {text!r} is not a number") from None


def _integer(row: Row, key: str) -> int | None:
    value = _number(row, key)
    return None if value is None else int(value)


def _given(arguments: Mapping[str, str], option: str) -> int | None:
    return int(arguments[option]) if option in arguments else None


def _flag(row: Row, key: str) -> bool | None:
    text = row.get(key, "").strip().lower()
    if text in ("1", "true"):
        return True
    return False if text in ("0", "false") else None


def _or(value: bool | None, default: bool) -> bool:
    return default if value is None else value
