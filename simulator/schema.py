"""JSON Schema of the run file, for editors: made from the specs that check it.

Beyond what the specs say it allows what loading allows: the name of a preset or a path where one
may stand, keys that override a preset's, a quantity with a unit where a number stands.
"""

import copy
from collections.abc import Iterable, Mapping
from typing import Any, get_args, get_origin

from pydantic import BaseModel, BeforeValidator

from hardware.spec import (
    BackgroundJob,
    FabricSpec,
    GpuSpec,
    NodeSpec,
    NvlinkSpec,
    PeakFlops,
    ProfileSpec,
)
from simulator.overrides import PRESET, Kind
from simulator.preset_loading import preset_names
from simulator.spec_errors import run_schema
from workloads.spec import ModelSpec

_QUANTITY = {"type": "string", "pattern": r"^\s*[-+]?[0-9._]+([eE][-+]?[0-9]+)?\s*[A-Za-zµ/]*\s*$"}
_PATH = {"type": "string", "pattern": r"(/|\.(yaml|yml|json)$)"}
_SPECS: tuple[type[BaseModel], ...] = (
    ModelSpec, NodeSpec, GpuSpec, NvlinkSpec, PeakFlops, FabricSpec, ProfileSpec,
    BackgroundJob,
)  # fmt: skip
_SLOTS: tuple[tuple[str, str, str, Kind], ...] = (
    ("RunSpec", "model", "ModelSpec", "models"),
    ("ClusterSpec", "node", "NodeSpec", "nodes"),
    ("ClusterSpec", "fabric", "FabricSpec", "fabrics"),
    ("NodeSpec", "gpu", "GpuSpec", "gpus"),
    ("NodeSpec", "nvlink", "NvlinkSpec", "nvlinks"),
    ("ClusterSpec", "profile", "ProfileSpec", "profiles"),
)
"""Spec and key that may name a preset, the spec of its contents, the kind of preset."""


def run_file_schema() -> dict[str, Any]:
    """The schema, as plain JSON values."""
    schema: dict[str, Any] = copy.deepcopy(dict(run_schema()))
    specs: dict[str, Any] = {**schema["$defs"], "RunSpec": schema}
    for spec in _SPECS:
        _allow_quantities(specs[spec.__name__], spec)
    for owner, key, contents, kind in _SLOTS:
        _allow_preset(specs[contents])
        _allow_name(specs[owner]["properties"], key, kind)
    # inside a preset these complete what the preset holds, so that no key of theirs is required
    for nested in ("GpuSpec", "NvlinkSpec", "PeakFlops"):
        specs[nested].pop("required", None)
        specs[nested].pop("anyOf", None)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "clustersim run file",
    }


def _allow_quantities(definition: dict[str, Any], spec: type[BaseModel]) -> None:
    for name, field in spec.model_fields.items():
        if _reads_units(field.metadata) or _reads_units(_metadata(field.annotation)):
            found = definition["properties"][name]
            if any(option.get("type") == "string" for option in found.get("anyOf", ())):
                continue  # takes text of its own
            kept = {
                key: found.pop(key) for key in ("title", "description", "default") if key in found
            }
            options = found.pop("anyOf", [found])
            definition["properties"][name] = {"anyOf": [*options, _QUANTITY], **kept}


def _metadata(annotation: Any) -> Iterable[Any]:
    """What annotates the members of a union such as `Hertz | None`."""
    for member in get_args(annotation):
        if get_origin(member) is not None:
            yield from getattr(member, "__metadata__", ())


def _reads_units(metadata: Iterable[Any]) -> bool:
    return any(isinstance(item, BeforeValidator) for item in metadata)


def _allow_preset(definition: dict[str, Any]) -> None:
    """Let a mapping name a preset, and then leave out what the preset holds."""
    definition["properties"][PRESET] = {
        "type": "string",
        "description": "Name of a preset of the catalog, or path of a YAML file, whose keys the "
        "others here override.",
    }
    required = definition.pop("required", [])
    definition["anyOf"] = [{"required": [PRESET]}, {"required": required}]


def _allow_name(properties: dict[str, Any], key: str, kind: Kind) -> None:
    found: Mapping[str, Any] = properties[key]
    described = {name: found[name] for name in ("description",) if name in found}
    names = {"type": "string", "enum": sorted(preset_names(kind))}
    properties[key] = {"anyOf": [names, _PATH, {"$ref": found["$ref"]}], **described}
