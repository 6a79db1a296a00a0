"""Where a log's arguments contradict a run file: a comparison of two different runs says little."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from simulator.runspec import RunSpec
from validation.megatron_log import MegatronLog
from workloads.stages import stage_chunks

_DIGITS = re.compile(r"\d{1,18}")
_PARAMETERS_APART = 0.002
"""Relative difference of parameter counts that is no rounding or small buffer."""


@dataclass(frozen=True, slots=True)
class Contradiction:
    """One setting that log and run file have differently. `path` is the run file's key."""

    argument: str
    path: str
    log: str
    run: str
    line: int

    def __str__(self) -> str:
        return f"{self.argument} is {self.log} in the log, {self.run} in the run file ({self.path})"


class _Check(NamedTuple):
    """How an argument is read and what of the run file it must equal."""

    argument: str
    path: str
    read: Callable[[str], Any]


def _count(text: str) -> int:
    return int(text)


def _count_or_one(text: str) -> int:
    return 1 if text == "None" else int(text)


def _flag(text: str) -> bool:
    return {"True": True, "False": False}[text]


def _choice(text: str) -> str:
    return "none" if text == "None" else text


_CHECKS = (
    _Check("world_size", "cluster.num_gpus", _count),
    _Check("data_parallel_size", "data_parallel_size", _count),
    _Check("tensor_model_parallel_size", "parallelism.tensor_model_parallel_size", _count),
    _Check("pipeline_model_parallel_size", "parallelism.pipeline_model_parallel_size", _count),
    _Check(
        "virtual_pipeline_model_parallel_size",
        "parallelism.virtual_pipeline_model_parallel_size", _count_or_one,
    ),
    _Check("context_parallel_size", "parallelism.context_parallel_size", _count),
    _Check("expert_model_parallel_size", "parallelism.expert_model_parallel_size", _count),
    _Check("sequence_parallel", "parallelism.sequence_parallel", _flag),
    _Check("tp_comm_overlap", "parallelism.tp_comm_overlap", _flag),
    _Check("micro_batch_size", "training.micro_batch_size", _count),
    _Check("global_batch_size", "training.global_batch_size", _count),
    _Check("num_microbatches", "num_microbatches", _count),
    _Check("seq_length", "training.seq_length", _count),
    _Check("recompute_granularity", "training.recompute_granularity", _choice),
    _Check("num_layers", "model.num_layers", _count),
    _Check("hidden_size", "model.hidden_size", _count),
    _Check("ffn_hidden_size", "model.ffn_hidden_size", _count),
    _Check("num_attention_heads", "model.num_attention_heads", _count),
    _Check("kv_channels", "model.kv_channels", _count),
    _Check("swiglu", "model.gated_linear_unit", _flag),
    _Check("normalization", "model.normalization", str),
    _Check("add_bias_linear", "model.add_bias_linear", _flag),
    _Check(
        "untie_embeddings_and_output_weights", "model.untie_embeddings_and_output_weights", _flag
    ),
    _Check("position_embedding_type", "model.position_embedding_type", str),
    _Check("hidden_dropout", "model.hidden_dropout", float),
    _Check("attention_dropout", "model.attention_dropout", float),
    _Check("use_distributed_optimizer", "optimizer.use_distributed_optimizer", _flag),
    _Check("overlap_grad_reduce", "optimizer.overlap_grad_reduce", _flag),
    _Check("overlap_param_gather", "optimizer.overlap_param_gather", _flag),
)  # fmt: skip
"""Arguments under Megatron-LM's names (megatron/training/arguments.py)."""
_NEEDS_SEVERAL_GPUS = {"overlap_grad_reduce", "overlap_param_gather", "sequence_parallel"}
"""Have no effect on one GPU, whatever the log says."""


def find_contradictions(run: RunSpec, log: MegatronLog) -> tuple[Contradiction, ...]:
    """All settings that the log tells and the run file has differently, in a fixed order."""
    found = [
        *_from_arguments(run, log), *_from_precision(run, log), *_from_groups(run, log),
        *_from_vocabulary(run, log),
    ]  # fmt: skip
    told = {one.argument for one in found}
    if "global_batch_size" not in log.arguments:
        found += _from_iterations(run, log)
    if not told & {"tensor_model_parallel_size", "pipeline_model_parallel_size"}:
        found += _from_parameters(run, log)
    return tuple(found)


def _from_arguments(run: RunSpec, log: MegatronLog) -> Iterator[Contradiction]:
    for check in _CHECKS:
        argument = log.arguments.get(check.argument)
        wanted = _at(run, check.path)
        if argument is None or wanted is None:
            continue
        if check.argument in _NEEDS_SEVERAL_GPUS and run.cluster.num_gpus == 1:
            continue
        try:
            told = check.read(argument.value)
        except (ValueError, KeyError):
            continue  # None where Megatron-LM fills it in later, or a name of another release
        if told != wanted:
            yield Contradiction(check.argument, check.path, str(told), str(wanted), argument.line)


def _at(run: RunSpec, path: str) -> Any:
    """The value at a dotted path; None where the spec has no such key (yet)."""
    value: Any = run
    for name in path.split("."):
        value = getattr(value, name, None)
    return value


def _from_precision(run: RunSpec, log: MegatronLog) -> Iterator[Contradiction]:
    flags = {name: log.arguments.get(name) for name in ("fp8", "bf16", "fp16")}
    told = next((n for n, a in flags.items() if a and a.value not in ("None", "False")), None)
    set_to: Any = run.training.precision
    precision = set_to if isinstance(set_to, str) else str(getattr(set_to, "format", set_to))
    # a trimmed log may leave fp8 out, while bf16 is always told
    if told is None or precision.startswith(told) or (flags["fp8"] is None and "fp8" in precision):
        return
    argument = flags[told]
    line = argument.line if argument else 0
    yield Contradiction("precision", "training.precision", told, precision, line)


def _from_groups(run: RunSpec, log: MegatronLog) -> Iterator[Contradiction]:
    """Query groups count only where the log says that they are used."""
    used, groups = log.arguments.get("group_query_attention"), log.arguments.get("num_query_groups")
    if used is None or groups is None or not _DIGITS.fullmatch(groups.value):
        return
    heads = run.model.num_attention_heads
    told = int(groups.value) if used.value == "True" else heads
    if told != run.model.query_groups:
        yield Contradiction(
            "num_query_groups", "model.num_query_groups", str(told), str(run.model.query_groups),
            groups.line,
        )  # fmt: skip


def _from_vocabulary(run: RunSpec, log: MegatronLog) -> Iterator[Contradiction]:
    """As padded, give or take one step: tokenizers add a word or two to those given."""
    told = log.arguments.get("padded_vocab_size")
    tp = run.parallelism.tensor_model_parallel_size
    padded = run.model.padded_vocab_size(tp)
    if told is None or not _DIGITS.fullmatch(told.value):
        return
    if abs(int(told.value) - padded) > run.model.make_vocab_size_divisible_by * tp:
        yield Contradiction(
            "padded_vocab_size", "model.vocab_size", told.value, str(padded), told.line
        )


def _from_iterations(run: RunSpec, log: MegatronLog) -> Iterator[Contradiction]:
    one = log.steady[0]
    wanted = run.training.global_batch_size
    if one.global_batch_size is not None and one.global_batch_size != wanted:
        yield Contradiction(
            "global_batch_size", "training.global_batch_size", str(one.global_batch_size),
            str(wanted), one.line,
        )  # fmt: skip


def _from_parameters(run: RunSpec, log: MegatronLog) -> Iterator[Contradiction]:
    """Weights of a rank: they tell of layers and sizes where the arguments are trimmed."""
    held = stage_chunks(run.model, run.training, run.parallelism)
    for count in log.parameters:
        stage = count.rank[1] if len(count.rank) > 1 else 0
        layers = [layer for (at, _), chunk in held.items() if at == stage for layer in chunk]
        wanted = sum(layer.parameters for layer in layers)
        if layers and abs(count.parameters / wanted - 1) > _PARAMETERS_APART:
            yield Contradiction(
                f"number of parameters on rank {count.rank}", "model", f"{count.parameters:,}",
                f"{wanted:,}", count.line,
            )  # fmt: skip
            return  # the others say the same
