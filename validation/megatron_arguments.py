"""The arguments of a run, as far as its log tells them.

Megatron-LM prints them all between two rules when it starts; logs are often trimmed, so the sizes
and configurations that later lines name are taken too, under Megatron's own names.
"""

import re
from typing import NamedTuple

from validation.log_text import Line

_BEGINS = re.compile(r"-{3,} arguments -{3,}")
_ENDS = re.compile(r"-{3,} end of arguments -{3,}")
_ARGUMENT = re.compile(r"^\s*([A-Za-z_]\w*) \.* (\S.*?)?\s*$")
_DOTTED = re.compile(r"^\s*([A-Za-z_]\w*) \.{3,} (\S.*?)\s*$")

_WORLD = re.compile(r"using world size: (\d+)")
_SIZES = {
    "data_parallel_size": re.compile(r"\bdata[- ]parallel[- ]size: (\d+)"),
    "context_parallel_size": re.compile(r"(?<!hierarchical )\bcontext[- ]parallel[- ]size: (\d+)"),
    "tensor_model_parallel_size": re.compile(r"\btensor[- ]model[- ]parallel[- ]size: (\d+)"),
    "pipeline_model_parallel_size": re.compile(r"\bpipeline[- ]model[- ]parallel[- ]size: (\d+)"),
}
_MICROBATCHES = re.compile(r"setting number of micro-?batches to constant (\d+)")
_PADDED = re.compile(r"padded vocab \(size: \d+\) with \d+ dummy tokens \(new size: (\d+)\)")
_CONFIGS = {
    "DistributedDataParallelConfig(": (
        "overlap_grad_reduce", "overlap_param_gather", "use_distributed_optimizer",
    ),
    "OptimizerConfig(": ("fp16", "bf16", "use_distributed_optimizer"),
    "GPTDatasetConfig(": ("sequence_length",),
}  # fmt: skip
_MEGATRONS_NAME = {"sequence_length": "seq_length"}


class Argument(NamedTuple):
    """A value as the log prints it, and where."""

    value: str
    line: int


class ArgumentReader:
    """Finds arguments line by line. What the dump says wins over what other lines say."""

    def __init__(self) -> None:
        self._dumped: dict[str, Argument] = {}
        self._told: dict[str, Argument] = {}
        self._inside = False

    @property
    def found(self) -> dict[str, Argument]:
        """Megatron's name, with underscores -> value."""
        return self._told | self._dumped

    def take(self, line: Line) -> None:
        """Look at one line."""
        text = line.text
        if _BEGINS.search(text):
            self._inside = True
        elif _ENDS.search(text):
            self._inside = False
        elif found := (_ARGUMENT if self._inside else _DOTTED).match(text):
            self._dumped[found[1]] = Argument(found[2] or "", line.number)
        else:
            self._take_telling(line)

    def _take_telling(self, line: Line) -> None:
        text = line.text
        if found := _WORLD.search(text):
            self._tell("world_size", found[1], line)
            for name, pattern in _SIZES.items():
                if found := pattern.search(text):
                    self._tell(name, found[1], line)
        elif found := _MICROBATCHES.search(text):
            self._tell("num_microbatches", found[1], line)
        elif found := _PADDED.search(text):
            self._tell("padded_vocab_size", found[1], line)
        else:
            for config, names in _CONFIGS.items():
                if config in text:
                    self._take_config(text.partition(config)[2], names, line)

    def _take_config(self, text: str, names: tuple[str, ...], line: Line) -> None:
        for name in names:
            if found := re.search(rf"\b{name}=(\w+)", text):
                self._tell(_MEGATRONS_NAME.get(name, name), found[1], line)

    def _tell(self, name: str, value: str, line: Line) -> None:
        self._told.setdefault(name, Argument(value, line.number))
