"""The shipped catalog: every file is a checked spec; key figures are the published ones."""

import pytest

from hardware.presets import load_fabric, load_gpu, load_node, preset_names, read_preset
from hardware.spec import FabricSpec, GpuSpec, NodeSpec

LOADERS = {"gpus": (load_gpu, GpuSpec), "nodes": (load_node, NodeSpec),
           "fabrics": (load_fabric, FabricSpec)}  # fmt: skip
ALL = [(kind, name) for kind in ("gpus", "nodes", "fabrics") for name in preset_names(kind)]


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_every_file_is_a_spec_under_its_own_name_with_a_source(kind, name):
    load, spec = LOADERS[kind]
    loaded = load(name)
    assert isinstance(loaded, spec)
    assert loaded.name == name
    assert loaded.source.strip()


@pytest.mark.parametrize("name", preset_names("nodes"))
def test_a_node_names_a_gpu_of_the_catalog(name):
    assert read_preset("nodes", name)["gpu"] in preset_names("gpus")


@pytest.mark.parametrize("name", preset_names("nodes"))
def test_no_link_is_faster_than_its_nominal_rate(name):
    nvlink = load_node(name).nvlink
    assert nvlink.usable_bytes_per_s <= nvlink.bandwidth_bytes_per_s


def test_read_preset_keeps_units_as_written():
    assert read_preset("nodes", "dgx-h100")["nic_bandwidth_bytes_per_s"] == "400Gb/s"


def test_quantities_are_per_direction_and_decimal():
    node = load_node("dgx-h100")
    assert node.nic_bandwidth_bytes_per_s == 400e9 / 8
    assert node.nvlink.bandwidth_bytes_per_s == 18 * 25e9  # NVLink 4: 18 links of 25 GB/s
    assert node.nvlink.usable_bytes_per_s == pytest.approx(18 * 20.6e9)  # NCCL topo.h
    assert node.gpu.memory_bytes == 81559 * 2**20


@pytest.mark.parametrize(
    ("name", "bf16", "memory_gb_nominal", "bandwidth"),
    [
        ("a100-sxm-80g", 312e12, 80, 2.039e12),
        ("a100-sxm-40g", 312e12, 40, 1.555e12),
        ("h100-sxm-80g", 989e12, 80, 3.35e12),
        ("h200-sxm-141g", 989e12, 141, 4.8e12),
        ("b200-sxm-180g", 2250e12, 180, 8e12),
    ],
)
def test_published_figures(name, bf16, memory_gb_nominal, bandwidth):
    """NVIDIA data sheets; the driver's memory lies within 8 % of the nominal decimal GB."""
    gpu = load_gpu(name)
    assert gpu.peak_flops_per_s.bf16 == bf16
    assert gpu.memory_bytes == pytest.approx(memory_gb_nominal * 1e9, rel=0.08)
    assert gpu.memory_bandwidth_bytes_per_s == pytest.approx(bandwidth)


def test_dense_rates_double_down_the_tensor_core_precisions():
    for name in preset_names("gpus"):
        peak = load_gpu(name).peak_flops_per_s
        assert peak.fp16 == peak.bf16
        assert peak.tf32 == pytest.approx(peak.bf16 / 2, rel=0.02)
        if peak.fp8 is not None:
            assert peak.fp8 == pytest.approx(2 * peak.bf16, rel=0.02)


@pytest.mark.parametrize("kind", ["gpus", "nodes", "fabrics"])
@pytest.mark.parametrize("name", ["", "..", "../gpus/gb200", "no-such-thing-at-all"])
def test_a_name_that_is_not_in_the_catalog_is_refused(kind, name):
    with pytest.raises(ValueError, match="no preset"):
        read_preset(kind, name)


def test_a_misspelt_name_gets_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'dgx-h100'"):
        load_node("dgx-h10")
