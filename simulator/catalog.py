"""The presets that ship: as specs, as plain values for JSON, as tables for people."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from hardware.spec import FabricSpec, GpuSpec, NodeSpec, NvlinkSpec, ProfileSpec
from simulator.errors import ConfigError, Place, Problem
from simulator.overrides import PRESET_KINDS, Kind
from simulator.preset_loading import KINDS, at, preset_names, resolve_presets
from simulator.spec_errors import nearest
from simulator.yaml_lines import Located
from workloads.flops import parameter_count
from workloads.spec import ModelSpec

PresetSpec = GpuSpec | NvlinkSpec | NodeSpec | FabricSpec | ProfileSpec | ModelSpec
_SPEC_OF: Mapping[Kind, type[PresetSpec]] = {
    "gpus": GpuSpec,
    "nvlinks": NvlinkSpec,
    "nodes": NodeSpec,
    "fabrics": FabricSpec,
    "profiles": ProfileSpec,
    "models": ModelSpec,
}


def load_preset(kind: Kind, name: str) -> PresetSpec:
    """One preset of the catalog, checked. Raises `ConfigError` for what it lacks or cannot use."""
    place = Place("catalog")
    path = next(path for path, of in PRESET_KINDS.items() if of == kind)
    tree = Located(name, place)
    for key in reversed(path):
        tree = Located({key: tree}, place)
    problems: list[Problem] = []
    tree, _ = resolve_presets(tree, Path(), problems)
    found = at(tree, path)
    if problems or found is None:
        raise ConfigError(problems)
    try:
        return _SPEC_OF[kind].model_validate(found.plain())
    except ValidationError as error:
        raise ConfigError(f"preset {name} of {kind}: {error}") from None


def check_kind(kind: str) -> Kind:
    """Return `kind` if the catalog has it. Raises `ConfigError` with the nearest name if not."""
    for known in KINDS:
        if kind == known:
            return known
    near = nearest(kind, KINDS)
    hint = f"; did you mean {near!r}?" if near else ""
    raise ConfigError(f"catalog: {kind!r} is not a kind; choose {', '.join(KINDS)}{hint}")


def catalog_json(kinds: tuple[Kind, ...]) -> dict[str, dict[str, Any]]:
    """Kind, name of the preset, fields in SI units."""
    return {
        kind: {name: load_preset(kind, name).model_dump(mode="json") for name in preset_names(kind)}
        for kind in kinds
    }


def print_catalog(kinds: tuple[Kind, ...], console: Console) -> None:
    """One table per kind with the figures that tell its presets apart."""
    for kind in kinds:
        rows = [(name, _figures(load_preset(kind, name))) for name in preset_names(kind)]
        table = Table(title=kind, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column("preset", no_wrap=True)
        for heading in rows[0][1] if rows else ():
            table.add_column(heading, justify="right", no_wrap=True)
        for name, figures in rows:
            table.add_row(name, *figures.values())
        console.print(table)


def _figures(spec: PresetSpec) -> dict[str, str]:
    if isinstance(spec, GpuSpec):
        return _gpu_figures(spec)
    if isinstance(spec, NvlinkSpec):
        return _nvlink_figures(spec)
    if isinstance(spec, NodeSpec):
        return _node_figures(spec)
    if isinstance(spec, ProfileSpec):
        return _profile_figures(spec)
    return _fabric_figures(spec) if isinstance(spec, FabricSpec) else _model_figures(spec)


def _gpu_figures(spec: GpuSpec) -> dict[str, str]:
    fp8 = spec.peak_flops_per_s.fp8
    return {
        "family": spec.architecture,
        "SMs": str(spec.num_sms),
        "bf16\nTFLOP/s": f"{spec.peak_flops_per_s.bf16 / 1e12:.0f}",
        "fp8\nTFLOP/s": f"{fp8 / 1e12:.0f}" if fp8 else "-",
        "memory\nGB": f"{spec.memory_bytes / 1e9:.1f}",
        "memory\nTB/s": f"{spec.memory_bandwidth_bytes_per_s / 1e12:.2f}",
        "W": f"{spec.tdp_w:.0f}",
    }


def _nvlink_figures(spec: NvlinkSpec) -> dict[str, str]:
    return {
        "GB/s": f"{spec.bandwidth_bytes_per_s / 1e9:.0f}",
        "usable\nGB/s": f"{spec.usable_bytes_per_s / 1e9:.1f}",
        "reduces\nin switches": "yes" if spec.in_switch_reduction else "no",
    }


def _node_figures(spec: NodeSpec) -> dict[str, str]:
    return {
        "GPUs": f"{spec.gpus_per_node} x {spec.gpu.name}",
        "NVLink\nGB/s": f"{spec.nvlink.bandwidth_bytes_per_s / 1e9:.0f}",
        "NICs": f"{spec.nics_per_node} x {spec.nic_bandwidth_bytes_per_s * 8 / 1e9:.0f} Gb/s",
        "PCIe\nGB/s": f"{spec.pcie_bandwidth_bytes_per_s / 1e9:.0f}",
    }


def _fabric_figures(spec: FabricSpec) -> dict[str, str]:
    return {
        "kind": spec.kind,
        "tiers": str(spec.tiers),
        "link\nGb/s": f"{spec.link_bandwidth * 8 / 1e9:.0f}",
        "over-\nsubscribed": f"{spec.oversubscription:g}",
        "nodes\nper unit": str(spec.nodes_per_unit),
    }


def _profile_figures(spec: ProfileSpec) -> dict[str, str]:
    """What differs from the profile that ships."""
    plain = ProfileSpec()
    said = {k: v for k, v in spec if v != getattr(plain, k) and k not in ("name", "source")}
    return {"sets": ", ".join(f"{key} {value:g}" for key, value in said.items())}


def _model_figures(spec: ModelSpec) -> dict[str, str]:
    return {
        "1e9\nweights": f"{parameter_count(spec) / 1e9:.1f}",
        "layers": str(spec.num_layers),
        "hidden": str(spec.hidden_size),
        "FFN": str(spec.ffn_size),
        "heads": str(spec.num_attention_heads),
        "KV\nheads": str(spec.query_groups),
        "vocab": str(spec.vocab_size),
    }
