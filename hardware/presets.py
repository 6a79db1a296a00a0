"""The shipped catalog: GPUs, NVLinks, nodes, fabrics and profiles by name, one YAML file each.

`read_preset` gives the raw mapping, for a loader that lays a user's settings over it; `load_gpu`,
`load_node` and `load_fabric` give checked specs. A node file names its GPU by preset name, and its
NVLink where that is not cut down.
"""

import difflib
from pathlib import Path
from typing import Any, Literal, TypeAlias

import yaml

from hardware.spec import FabricSpec, GpuSpec, NodeSpec

PresetKind: TypeAlias = Literal["gpus", "nvlinks", "nodes", "fabrics", "profiles"]

_CATALOG = Path(__file__).parent / "catalog"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def preset_names(kind: PresetKind) -> tuple[str, ...]:
    """Name what the catalog holds of one kind, in alphabetical order."""
    return tuple(sorted(path.stem for path in (_CATALOG / kind).glob("*.yaml")))


def read_preset(kind: PresetKind, name: str) -> dict[str, Any]:
    """Read one catalog file as it stands: quantities are still text with units.

    Raises `ValueError` with the nearest name, if the catalog has none of that name.
    """
    names = preset_names(kind)
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(names)}"
        raise ValueError(f"no preset {name!r} among the {kind}; {hint}")
    text = (_CATALOG / kind / f"{name}.yaml").read_text(encoding="utf-8")
    mapping: dict[str, Any] = yaml.load(text, Loader=_LOADER)
    return mapping


def load_gpu(name: str) -> GpuSpec:
    """Read and check a GPU of the catalog."""
    return GpuSpec.model_validate(read_preset("gpus", name))


def load_node(name: str) -> NodeSpec:
    """Read and check a node of the catalog, with the GPU and the NVLink that it names."""
    mapping = read_preset("nodes", name)
    mapping["gpu"] = read_preset("gpus", mapping["gpu"])
    if isinstance(mapping["nvlink"], str):
        mapping["nvlink"] = read_preset("nvlinks", mapping["nvlink"])
    return NodeSpec.model_validate(mapping)


def load_fabric(name: str) -> FabricSpec:
    """Read and check a fabric of the catalog."""
    return FabricSpec.model_validate(read_preset("fabrics", name))
