"""From a tree of located values, presets filled in, to a checked `RunSpec`.

The specs convert and check key by key; then `check_layout` and this module check what must hold
between keys. So that one misspelt key does not hide what else is wrong, the second check runs on a
copy in which unknown keys and choices are mended to the nearest known ones.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydantic import (
    BaseModel,
    ConfigDict,
    NonNegativeInt,
    PositiveInt,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import ErrorDetails

from hardware.cluster_checks import cluster_problems
from hardware.scaled_gemm import BLACKWELL_ONLY, matrix_peak_flops_per_s
from hardware.spec import ClusterSpec
from simulator.errors import Problem
from simulator.runspec import RunSpec
from simulator.spec_errors import (
    key_path,
    place_at,
    schema_at,
    spec_problem,
    suggest_key,
    suggest_value,
)
from simulator.yaml_lines import Located
from workloads.spec import ModelSpec, OptimizerSpec, ParallelismSpec, TrainingSpec

_SECTIONS = ("model", "training", "parallelism", "optimizer", "cluster")

KeyPath = tuple[str, ...]


def check_run(tree: Located, failed: Sequence[KeyPath], problems: list[Problem]) -> RunSpec | None:
    """Check everything; add what is wrong to `problems` and return the run if nothing was.

    `failed` are paths whose preset could not be read: nothing more is said of what is below.
    """
    plain = _plain(tree)
    run, details = _checked_keys(plain, tree, failed, problems)
    mended, written = _mended(plain, details)
    num_gpus = _num_gpus(mended)
    if num_gpus is not None:
        for path, message in _layout_problems(mended, num_gpus):
            place = place_at(tree, written.get(path, tuple(path.split("."))))
            problems.append(Problem(message, path, place))
        problems.extend(_slow_gpu_problems(mended, num_gpus, tree))
        problems.extend(_network_problems(mended, tree))
    if run is not None:
        problems.extend(_precision_problems(run, tree))
    return run


def check_keys(tree: Located, failed: Sequence[KeyPath], problems: list[Problem]) -> RunSpec | None:
    """The same for each key by itself, whatever must hold between them."""
    return _checked_keys(_plain(tree), tree, failed, problems)[0]


def _checked_keys(
    plain: Mapping[str, Any],
    tree: Located,
    failed: Sequence[KeyPath],
    problems: list[Problem],
) -> tuple[RunSpec | None, list[ErrorDetails]]:
    run, details = _validated(plain)
    details = [detail for detail in details if not _below(key_path(detail["loc"]), failed)]
    problems.extend(spec_problem(detail, tree) for detail in details)
    return run, details


def _plain(tree: Located) -> dict[str, Any]:
    """Ordinary values; a section that holds nothing is an empty mapping."""
    return {
        key: {} if child.value is None and key in _SECTIONS else child.plain()
        for key, child in (tree.mapping or {}).items()
    }


def _validated(plain: Mapping[str, Any]) -> tuple[RunSpec | None, list[ErrorDetails]]:
    try:
        return RunSpec.model_validate(plain), []
    except ValidationError as error:
        return None, error.errors(include_url=False)


def _below(path: KeyPath, roots: Sequence[KeyPath]) -> bool:
    return any(path[: len(root)] == root for root in roots)


def _mended(
    plain: dict[str, Any], details: Sequence[ErrorDetails]
) -> tuple[dict[str, Any], dict[str, KeyPath]]:
    """A copy where unknown keys and choices are the nearest known ones, or left out; and for each
    key that was put right, the path under which it was written."""
    written: dict[str, KeyPath] = {}
    for detail in details:
        path = key_path(detail["loc"])
        if detail["type"] == "extra_forbidden":
            near = suggest_key(path)
            plain = _renamed(plain, path, near)
            written.setdefault(".".join((*path[:-1], near or path[-1])), path)
        elif detail["type"] == "literal_error":
            near = suggest_value(path, detail["input"])
            if path[-1].isdigit() and near is None:  # in a list something must stand
                near = schema_at(path)["enum"][0]
            plain = _renamed(plain, path, path[-1], near)
    return plain, written


def _renamed(
    mapping: dict[str, Any], path: KeyPath, key: str | None, value: str | None = None
) -> dict[str, Any]:
    """Move what stands at `path` to the sibling `key`, unless that is set; or change its value."""
    copy = dict(mapping)
    if len(path) > 1:
        inner = copy[path[0]]
        if isinstance(inner, list):
            i = int(path[1])
            mended = value if len(path) == 2 else _renamed(inner[i], path[2:], key, value)
            copy[path[0]] = [*inner[:i], mended, *inner[i + 1 :]]
        else:
            copy[path[0]] = _renamed(inner, path[1:], key, value)
        return copy
    old = copy.pop(path[0])
    if key == path[0] and value is not None:
        copy[key] = value
    elif key is not None and key != path[0]:
        copy.setdefault(key, old)
    return copy


class _NodeSize(BaseModel):
    model_config = ConfigDict(extra="ignore")
    gpus_per_node: PositiveInt


class _ClusterSize(BaseModel):
    """What the number of GPUs follows from, whatever else is wrong with a cluster."""

    model_config = ConfigDict(extra="ignore")
    node: _NodeSize
    num_nodes: PositiveInt


def _num_gpus(plain: Mapping[str, Any]) -> int | None:
    try:
        size = _ClusterSize.model_validate(plain.get("cluster"))
    except ValidationError:
        return None
    return size.num_nodes * size.node.gpus_per_node


def _layout_problems(plain: Mapping[str, Any], num_gpus: int) -> list[tuple[str, str]]:
    from workloads.layout_checks import check_layout

    try:
        return list(
            check_layout(
                ModelSpec.model_validate(plain.get("model")),
                ParallelismSpec.model_validate(plain.get("parallelism")),
                TrainingSpec.model_validate(plain.get("training")),
                OptimizerSpec.model_validate(plain.get("optimizer", {})),
                num_gpus,
            )
        )
    except ValidationError:  # reported already
        return []


def _precision_problems(run: RunSpec, tree: Located) -> list[Problem]:
    """A precision that the GPU has no matrix units for."""
    gpu, dtype = run.cluster.node.gpu, run.training.linear_dtype
    able = matrix_peak_flops_per_s(gpu, dtype) is not None
    if able and (dtype not in BLACKWELL_ONLY or gpu.architecture == "blackwell"):
        return []
    has = [name for name, peak in gpu.peak_flops_per_s if peak is not None]
    path = ("training", "precision")
    message = f"{gpu.name} ({gpu.architecture}) has no matrix units for {dtype}; it has "
    return [Problem(message + ", ".join(has), ".".join(path), place_at(tree, path))]


def _slow_gpu_problems(plain: Mapping[str, Any], num_gpus: int, tree: Located) -> list[Problem]:
    """Ranks of `slow_gpus` that the cluster lacks or that are named twice, as 17 and 017."""
    slow = plain["cluster"].get("slow_gpus")
    if not slow or not isinstance(slow, dict):
        return []
    problems: list[Problem] = []
    seen: set[int] = set()
    for key, rank in _ranks(slow):
        message = None
        if rank >= num_gpus:
            message = f"there is no such rank; {num_gpus} GPUs are ranks 0 to {num_gpus - 1}"
        elif rank in seen:
            message = f"rank {rank} twice"
        if message:
            path = ("cluster", "slow_gpus", key)
            problems.append(Problem(message, ".".join(path), place_at(tree, path)))
        seen.add(rank)
    return problems


def _network_problems(plain: Mapping[str, Any], tree: Located) -> Iterator[Problem]:
    """What the network cannot be: nodes that are not there or used twice, links of other names."""
    try:
        cluster = ClusterSpec.model_validate(plain.get("cluster"))
    except ValidationError:  # reported already
        return
    for path, message in cluster_problems(cluster):
        keys = ("cluster", *path)
        yield Problem(message, ".".join(keys), place_at(tree, keys))


def _ranks(slow: Mapping[str, object]) -> list[tuple[str, int]]:
    """Keys with the ranks they are read as; those that are none have been reported already."""
    whole = TypeAdapter(NonNegativeInt)
    ranks: list[tuple[str, int]] = []
    for key in slow:
        with suppress(ValidationError):
            ranks.append((key, whole.validate_python(key)))
    return ranks
