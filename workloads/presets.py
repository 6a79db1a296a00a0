"""Models that ship: one YAML file each in `workloads/catalog/`, named by the file."""

from pathlib import Path
from typing import Any

import yaml

from workloads.spec import ModelSpec

CATALOG = Path(__file__).parent / "catalog"


def preset_names() -> tuple[str, ...]:
    """Names of all models, sorted."""
    return tuple(sorted(path.stem for path in CATALOG.glob("*.yaml")))


def preset_path(name: str) -> Path:
    """File of a model. Raises `KeyError` for a name that does not ship."""
    path = CATALOG / f"{name}.yaml"
    if name not in preset_names():
        raise KeyError(name)
    return path


def read_preset(name: str) -> dict[str, Any]:
    """The mapping a model's file holds."""
    loaded: dict[str, Any] = yaml.safe_load(preset_path(name).read_text(encoding="utf-8"))
    return loaded


def load_model(name: str) -> ModelSpec:
    """A model of the catalog, checked."""
    return ModelSpec.model_validate(read_preset(name))
