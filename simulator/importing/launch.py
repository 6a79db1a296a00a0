"""Which command of a script starts the training, with which arguments, on how many GPUs.

Launchers known: torchrun, python -m torch.distributed.launch or .run, deepspeed, srun and sbatch
with their options (also `#SBATCH` lines), mpirun.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from simulator.errors import ConfigError, Place, Problem
from simulator.importing.arguments import Argument, filled, mapped_arguments, read_arguments
from simulator.importing.shell_script import Command, Note, Script, read_script, words_of
from simulator.importing.text_pieces import Text, is_known, literal, plain
from simulator.yaml_lines import Located

MARKS = frozenset(
    (
        "num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size", "seq_length",
        "max_position_embeddings", "micro_batch_size", "global_batch_size", "train_iters",
        "train_samples", "lr", "bf16", "fp16", "tensor_model_parallel_size",
        "pipeline_model_parallel_size", "sequence_parallel", "use_distributed_optimizer",
        "num_experts", "tokenizer_type",
    )
)  # fmt: skip
"""Arguments by which a command is known to train with Megatron-LM."""

_NODES = ("nnodes", "num_nodes", "nodes", "N")
_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "num_nodes": ("NNODES", "NUM_NODES", "N_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "gpus_per_node": (
        "GPUS_PER_NODE", "NPROC_PER_NODE", "NUM_GPUS_PER_NODE", "SLURM_GPUS_PER_NODE",
        "SLURM_NTASKS_PER_NODE",
    ),
    "world_size": ("WORLD_SIZE", "SLURM_NTASKS"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Size:
    """A number of nodes or GPUs, and where it is said."""

    value: int
    origin: str
    place: Place


@dataclass(frozen=True, slots=True)
class Launch:
    """What a script starts."""

    program: str
    """The training program, "" where the script names none."""
    arguments: tuple[Argument, ...]
    num_nodes: Size | None
    gpus_per_node: Size | None
    world_size: Size | None
    """GPUs in all, where a launcher says that instead."""
    notes: tuple[Note, ...]


def launch_of_script(text: str, source: str, environment: Mapping[str, str]) -> Launch:
    """Read a launch script, or a bare list of arguments.

    Raises `ConfigError` where no command has arguments of Megatron-LM.
    """
    if _is_bare_list(text):
        arguments, left_over = read_arguments(_bare_words(text, environment), source)
        if not any(argument.name in MARKS for argument in arguments):
            raise _nothing_found(source)
        return Launch("", tuple(arguments), None, None, None, tuple(left_over))
    batch = list(_batch_options(text, source))
    script = read_script(text, source, {**_slurm_variables(batch), **environment})
    command, notes = _training_command(script, source)
    before, program, after = _parted(command.words)
    arguments, left_over = read_arguments(after, source)
    options = [*_options(before, source), *_options(command.around, source)]
    if not program:
        options = [*_options(after, source), *options]
        launcher = {"nproc_per_node", "nnodes", "node_rank", "master_addr", "master_port"}
        arguments = [a for a in arguments if a.name not in launcher]
    sizes = _sizes([*options, *batch], script, source)
    return Launch(program, tuple(arguments), *sizes, (*script.notes, *notes, *left_over))


def _is_bare_list(text: str) -> bool:
    """Whether a file holds arguments and no commands: its first word is an option."""
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line and not line.startswith("#")), "")
    return first.startswith("--")


def _bare_words(text: str, environment: Mapping[str, str]) -> Iterator[Text]:
    """Words of a bare list, quotes taken off; `(`, `|` and `*` are ordinary characters there."""
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.rstrip().removesuffix("\\")
        try:
            words = shlex.split(line, comments=True)
        except ValueError:  # a quote that does not end
            words = line.split()
        yield from (filled(word, number, environment) for word in words)


def launch_of_mapping(tree: Located, source: str, environment: Mapping[str, str]) -> Launch:
    """Read a YAML or JSON file of arguments: flat, in sections, or under `MODEL_ARGS`."""
    entries = tree.mapping or {}
    told = entries.get("MODEL_ARGS", tree)
    arguments = mapped_arguments(told, environment)
    if not any(argument.name in MARKS for argument in arguments):
        raise _nothing_found(source)
    names = {"num_nodes": _NODES, "gpus_per_node": ("devices", "nproc_per_node", "gpus_per_node")}
    sizes: dict[str, Size] = {}
    for argument in arguments:
        for size, keys in names.items():
            if argument.name in keys and argument.is_known and argument.text.isdigit():
                sizes[size] = Size(int(argument.text), argument.spelled, argument.place)
    kept = [a for a in arguments if a.name not in (*_NODES, "devices", "gpus_per_node")]
    return Launch("", tuple(kept), sizes.get("num_nodes"), sizes.get("gpus_per_node"), None, ())


def _nothing_found(source: str) -> ConfigError:
    message = (
        "no Megatron-LM arguments found, such as --num-layers and --micro-batch-size; give the "
        "script whose text has them, a list of arguments, or a YAML or JSON file of them"
    )
    return ConfigError(Problem(message, place=Place(source)))


def _training_command(script: Script, source: str) -> tuple[Command, list[Note]]:
    """The command with most arguments of Megatron-LM; else the variable that holds most."""
    bare = [c for c in script.commands if c.words and plain(c.words[0]).startswith("--")]
    commands = [c for c in script.commands if c not in bare]
    best = max(commands, key=lambda c: _score(c.words), default=None)
    score = _score(best.words) if best else 0
    bare_words = tuple(word for command in bare for word in command.words)
    if best is not None and score and score >= _score(bare_words):
        notes = [Note("cut off from the command above; is a backslash missing?", c.line)
                 for c in bare]  # fmt: skip
        others = [c for c in commands if c is not best and _score(c.words) * 2 > score]
        if others:
            lines = ", ".join(str(c.line) for c in others)
            notes.append(Note(f"taken; commands that train too, left out: line {lines}", best.line))
        whole = Command((*best.words, *bare_words), best.line, best.around)
        return whole, notes
    if _score(bare_words) >= 2:
        return Command(bare_words, bare[0].line), []
    held = {name: words_of(variable) for name, variable in script.variables.items()}
    name = max(held, key=lambda name: _score(held[name]), default="")
    if name and _score(held[name]) >= 2:
        words = tuple(held[name])
        note = f"no command with Megatron-LM's arguments found; taken from the variable {name}"
        launcher = [w for n, ws in held.items() if n != name for w in ws if _is_launcher(ws)]
        return Command(words, words[0][0].line, tuple(launcher)), [Note(note, words[0][0].line)]
    raise _nothing_found(source)


def _is_launcher(words: Sequence[Text]) -> bool:
    return any(re.match(r"--nproc[-_]per[-_]node", plain(word)) for word in words)


def _score(words: Sequence[Text]) -> int:
    names = {_option(plain(word))[0] for word in words if plain(word).startswith("--")}
    return len(names & MARKS)


def _parted(words: Sequence[Text]) -> tuple[list[Text], str, list[Text]]:
    """Launcher, training program, its arguments; all of it arguments if no program is named."""
    for i, word in enumerate(words):
        if re.search(r"\.py$", plain(word).strip("'\"")):
            return list(words[:i]), plain(word), list(words[i + 1 :])
    first = next((i for i, w in enumerate(words) if plain(w).startswith("--")), len(words))
    return list(words[:first]), "", list(words[first:])


def _option(text: str) -> tuple[str, str | None]:
    """`--name=value` -> (`name`, value); None where the value is the next word."""
    name, equals, value = text.partition("=")
    return name.lstrip("-").replace("-", "_"), value if equals else None


@dataclass(frozen=True, slots=True)
class _Option:
    name: str
    value: str
    spelled: str
    place: Place


def _options(words: Sequence[Text], source: str) -> Iterator[_Option]:
    """Options of launchers: `--nodes=4`, `--nodes 4`, `-N 4`, `-N4`."""
    for i, word in enumerate(words):
        text = plain(word)
        if not text.startswith("-"):
            continue
        name, value = _option(text)
        if value is None and not text.startswith("--") and re.fullmatch(r"-[NnG]\d+", text):
            name, value = text[1], text[2:]
        if value is None and i + 1 < len(words):
            value = plain(words[i + 1]) if is_known(words[i + 1]) else None
        if value is not None and is_known(word):
            yield _Option(name, value, text.partition("=")[0], Place(source, word[0].line))


def _batch_options(text: str, source: str) -> Iterator[_Option]:
    """Of `#SBATCH` lines."""
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("#SBATCH"):
            told = re.sub(r"\s#.*", "", line.removeprefix("#SBATCH"))
            words = [literal(word, number) for word in told.split()]
            for option in _options(words, source):
                yield replace(option, spelled=f"#SBATCH {option.spelled}")


def _slurm_variables(options: Sequence[_Option]) -> dict[str, str]:
    """Variables that Slurm sets inside a job with these options."""
    found: dict[str, str] = {}
    nodes, per_node = _first(options, _NODES), _first(options, ("ntasks_per_node",))
    gpus = _first(options, ("gpus_per_node", "gres"))
    if nodes:
        found |= {"SLURM_NNODES": str(nodes.value), "SLURM_JOB_NUM_NODES": str(nodes.value)}
    if per_node:
        found["SLURM_NTASKS_PER_NODE"] = str(per_node.value)
    if gpus:
        found |= {"SLURM_GPUS_ON_NODE": str(gpus.value), "SLURM_GPUS_PER_NODE": str(gpus.value)}
    if nodes and per_node:
        found["SLURM_NTASKS"] = str(nodes.value * per_node.value)
    return found


def _first(options: Sequence[_Option], names: Sequence[str]) -> Size | None:
    """The first of these options that holds a number; `gpu:8` and `gpu:h100:8` hold 8."""
    for option in options:
        number = option.value.rpartition(":")[2]
        if option.name in names and re.fullmatch(r"[1-9]\d{0,6}", number):
            return Size(int(number), option.spelled, option.place)
    return None


def _sizes(
    options: Sequence[_Option], script: Script, source: str
) -> tuple[Size | None, Size | None, Size | None]:
    """Nodes, GPUs per node, GPUs in all: by options of launchers, else by usual variables."""
    per_node = _first(options, ("nproc_per_node",)) or _first(options, ("num_gpus",))
    tasks = _first(options, ("ntasks_per_node",))
    gpus = _first(options, ("gpus_per_node", "gres"))
    per_node = per_node or gpus or (tasks if tasks and tasks.value > 1 else None)
    nodes = _first([o for o in options if ":" not in o.value], _NODES)
    world = _first(options, ("np",) if per_node else ("np", "ntasks", "n"))
    found = {"num_nodes": nodes, "gpus_per_node": per_node, "world_size": world}
    for size, names in _VARIABLES.items():
        found[size] = found[size] or _variable(script, names, source)
    return found["num_nodes"], found["gpus_per_node"], found["world_size"]


def _variable(script: Script, names: Sequence[str], source: str) -> Size | None:
    for name in names:
        value = script.variables.get(name, {}).get("0", ())
        if value and is_known(value) and re.fullmatch(r"[1-9]\d{0,6}", plain(value)):
            return Size(int(plain(value)), f"${name}", Place(source, value[0].line))
    return None
