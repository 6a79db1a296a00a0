"""From a Megatron-LM launch script, argument list or file of arguments to a run file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from simulator.checking import check_run
from simulator.errors import ConfigError, Place, Problem
from simulator.importing.cluster_choice import ClusterOptions, choose_cluster, data_parallel_unit
from simulator.importing.launch import Launch, launch_of_mapping, launch_of_script
from simulator.importing.megatron import last_of_each, translate
from simulator.importing.read_input import read_text
from simulator.importing.run_text import run_text, settings_tree
from simulator.importing.shell_script import Note
from simulator.importing.translation import Fate, Setting, Translation
from simulator.overrides import apply_override, parse_override
from simulator.preset_loading import resolve_presets
from simulator.runspec import RunSpec
from simulator.yaml_lines import Located, parse_yaml

MAPPINGS = (".yaml", ".yml", ".json")


@dataclass(frozen=True, slots=True)
class Imported:
    """A run file and the account of how it came about."""

    text: str
    run: RunSpec
    source: str
    understood: tuple[Fate, ...]
    ignored: tuple[Fate, ...]
    not_modelled: tuple[Fate, ...]
    unknown: tuple[Fate, ...]
    assumed: tuple[str, ...]
    notes: tuple[Note, ...]
    """On the reading of the script itself."""


def import_megatron(
    path: Path,
    options: ClusterOptions,
    environment: Mapping[str, str],
    overrides: Sequence[str] = (),
) -> Imported:
    """Read a script's text and write the run file of the step that it trains.

    Parameters
    ----------
    path: a shell script, a bare list of arguments, or YAML or JSON (by its ending).
    options: of the cluster, which scripts do not describe.
    environment: variables that are set when the script starts; `1`, `2`, ... its arguments.
    overrides: `PATH=VALUE` settings laid over the run file.

    Raises `ConfigError` with all that is wrong, each with the script's line.
    """
    source = str(path)
    launch = _launch(path, environment)
    arguments, said = last_of_each(list(launch.arguments))
    t = Translation(arguments, Place(source))
    t.assumed.extend(said)
    t.settings["name",] = Setting(path.stem.replace("_", " "), "", Place(source))
    translate(t, launch.program)
    choose_cluster(t, launch, options)
    _default_batch(t)
    tree, run = _checked(t, path, overrides)
    heading = [f"Imported from {path.name} by clustersim import megatron."]
    on_a_key = tuple(f"{'.'.join(key)} =" for key in t.settings)
    heading += [f"ASSUMED: {words}" for words in t.assumed if not words.startswith(on_a_key)]
    text = run_text(tree, t.settings, heading)
    return Imported(
        text, run, source, tuple(t.understood), tuple(t.ignored), tuple(t.not_modelled),
        tuple(t.unknown), tuple(t.assumed), launch.notes,
    )  # fmt: skip


def _launch(path: Path, environment: Mapping[str, str]) -> Launch:
    source = str(path)
    text = read_text(path, "a launch script")
    if path.suffix.lower() not in MAPPINGS:
        return launch_of_script(text, source, environment)
    problems: list[Problem] = []
    tree = parse_yaml(text, lambda line: Place(source, line), problems)
    if problems:
        raise ConfigError(problems)
    return launch_of_mapping(tree, source, environment)


def _default_batch(t: Translation) -> None:
    """Without --global-batch-size Megatron-LM takes one microbatch per replica."""
    if ("training", "global_batch_size") in t.settings:
        return
    node = t.settings["cluster", "node"].value
    per_node = int(node["gpus_per_node"]) if isinstance(node, dict) else 8
    replicas = t.whole("cluster", "num_nodes") * per_node // data_parallel_unit(t)
    batch = t.whole("training", "micro_batch_size") * max(1, replicas)
    why = "--global-batch-size is not given: one microbatch per replica"
    t.assume(("training", "global_batch_size"), str(batch), why)


def _checked(t: Translation, path: Path, overrides: Sequence[str]) -> tuple[Located, RunSpec]:
    problems = list(t.problems)
    tree = settings_tree(t.settings, t.source)
    for text in overrides:
        try:
            tree = apply_override(tree, parse_override(text, problems))
        except ConfigError as error:
            problems.extend(error.problems)
    resolved, failed = resolve_presets(tree, path.parent, problems)
    run = check_run(resolved, failed, problems)
    if problems or run is None:
        raise ConfigError(sorted(dict.fromkeys(problems), key=_line))
    return tree, run


def _line(problem: Problem) -> int:
    return problem.place.line if problem.place is not None else 0
