"""What a profile file or preset sets, for runs that have a profile of their own already."""

from collections.abc import Mapping
from pathlib import Path

from hardware.spec import ProfileSpec
from simulator.catalog import load_preset
from simulator.errors import ConfigError, Place, Problem
from simulator.preset_loading import preset_names
from simulator.runspec import RunSpec
from simulator.spec_errors import nearest
from simulator.yaml_lines import read_yaml

_WORDS = ("name", "source")


def profile_fields(named: str) -> Mapping[str, float]:
    """Fields that a preset of the catalog or a YAML file sets, in SI units.

    Raises `ConfigError` for a file that cannot be read or sets what is no field of a profile.
    """
    if named in preset_names("profiles"):
        spec = load_preset("profiles", named)
        assert isinstance(spec, ProfileSpec)
        return _numbers(spec)
    problems: list[Problem] = []
    tree = read_yaml(Path(named), problems)
    for key, child in (tree.mapping or {}).items():
        if key not in ProfileSpec.model_fields:
            near = nearest(key, ProfileSpec.model_fields)
            hint = f"; did you mean {near!r}?" if near else ""
            problems.append(Problem(f"unknown key{hint}", key, child.place))
    if problems or tree.mapping is None:
        place = Place(named)
        raise ConfigError(problems or [Problem("is not a mapping of a profile", place=place)])
    try:
        return _numbers(ProfileSpec.model_validate(tree.plain()))
    except ValueError as error:
        raise ConfigError(Problem(str(error), place=Place(named))) from None


def with_profile(run: RunSpec, changes: Mapping[str, float]) -> RunSpec:
    """The run under its own profile with some fields changed."""
    if not changes:
        return run
    profile = run.cluster.profile.model_copy(update=dict(changes))
    return run.model_copy(update={"cluster": run.cluster.model_copy(update={"profile": profile})})


def _numbers(spec: ProfileSpec) -> dict[str, float]:
    return {key: getattr(spec, key) for key in spec.model_fields_set if key not in _WORDS}
