"""Clusters by the names and texts of runs tables."""

import pytest

from hardware.collectives import GroupShape, bus_factor, collective_cost
from validation.clusters import cluster_of
from validation.network_notes import (
    COLLECTIVE_CHECK_S,
    MESSAGE_BYTES,
    NETWORK_CHECK_S,
    SLOW_TRANSFER_S,
    with_noted_network,
)


def cluster(gpu: str, num_gpus: int, internode: str = "") -> object:
    return cluster_of({"gpu": gpu, "num_gpus": str(num_gpus), "internode": internode})


@pytest.mark.parametrize(
    ("internode", "nics", "gigabits"),
    [
        ("4x100Gb Omni-Path per node", 4, 100),
        ("8x200Gb HDR IB (Selene)", 8, 200),
        ("800Gb/s per node (4x200Gb HDR IB)", 4, 200),
        ("DGX H100: 8x NVLink4/NVSwitch, 8x400Gb/s IB NDR", 8, 400),
        ("400Gb/s per GPU RDMA", 8, 400),
        ("", 8, 200),
    ],
)
def test_nics_as_printed(internode: str, nics: int, gigabits: float) -> None:
    found = cluster_of({"gpu": "a100-sxm-80g", "num_gpus": "64", "internode": internode})
    assert found.node.nics_per_node == nics
    assert found.node.nic_bandwidth_bytes_per_s == pytest.approx(gigabits * 1e9 / 8)
    assert (found.num_nodes, found.node.gpus_per_node) == (8, 8)


def test_fewer_gpus_than_a_node_holds() -> None:
    found = cluster_of({"gpu": "h200-sxm-141g", "num_gpus": "1", "internode": ""})
    assert (found.num_nodes, found.node.gpus_per_node, found.node.nics_per_node) == (1, 1, 1)


@pytest.mark.parametrize(
    ("num_gpus", "domain"), [(8, 8), (72, 72), (128, 64), (144, 72), (2496, 64), (32 * 5, 32)]
)
def test_domain_of_72(num_gpus: int, domain: int) -> None:
    found = cluster_of({"gpu": "gb200-nvl72", "num_gpus": str(num_gpus), "internode": ""})
    assert found.node.gpus_per_node == domain
    assert found.num_gpus == num_gpus


def test_a_cluster_that_is_named() -> None:
    row = {"gpu": "h100-sxm-80g", "num_gpus": "64", "internode": "not printed (HF hopper-prod)"}
    assert cluster_of(row).node.name == "p5-48xlarge"
    assert cluster_of(row | {"internode": ""}).node.name == "dgx-h100"


def test_what_the_catalog_lacks() -> None:
    with pytest.raises(ValueError, match="abacus"):
        cluster("abacus", 8)
    with pytest.raises(ValueError, match="do not fill"):
        cluster("h100-sxm-80g", 12)


def test_network_of_the_notes() -> None:
    """Half of the all-gather that the catalog's network gives: half its efficiency."""
    plain = cluster_of({"gpu": "h100-sxm-80g", "num_gpus": "64", "internode": ""})
    cost = collective_cost(
        "all_gather", MESSAGE_BYTES, GroupShape(64, 8, 8), plain.node, plain.nic_rate_bytes_per_s
    )
    busbw = MESSAGE_BYTES * bus_factor("all_gather", 64) / cost.time_s
    notes = f"tied; nccl AR/AG/RS GB/s 94.1/{busbw / 2e9:.3f}/27.95 intra 458/263/262"
    found = with_noted_network(plain, {"notes": notes})
    assert found.profile.network_efficiency == pytest.approx(0.5, rel=1e-3)
    assert with_noted_network(plain, {"notes": "none"}) == plain


def test_one_node_needs_no_network() -> None:
    alone = cluster_of({"gpu": "h100-sxm-80g", "num_gpus": "8", "internode": ""})
    assert with_noted_network(alone, {"notes": "nccl AR/AG/RS GB/s 1.0/1/1"}) == alone


def test_nvlink_of_the_notes() -> None:
    """A tenth of what the catalog's NVLink gives 8 GPUs, on one node and on several."""
    for num_gpus in ("8", "16"):
        plain = cluster_of({"gpu": "h100-sxm-80g", "num_gpus": num_gpus, "internode": ""})
        cost = collective_cost(
            "all_reduce", MESSAGE_BYTES, GroupShape(8, 1, 8), plain.node, plain.nic_rate_bytes_per_s
        )
        busbw = MESSAGE_BYTES * bus_factor("all_reduce", 8) / cost.time_s
        notes = f"nccl AR/AG/RS GB/s 45/41/42 intra {busbw / 10e9:.3f}/42/42"
        profile = with_noted_network(plain, {"notes": notes}).profile
        assert profile.nvlink_efficiency == pytest.approx(0.1, rel=1e-3)
        assert profile.collective_check_s == 0.0


def test_jobs_whose_collectives_are_checked() -> None:
    """425 GB/s inside a node tell them; their network is then the catalog's."""
    plain = cluster_of({"gpu": "h100-sxm-80g", "num_gpus": "64", "internode": ""})
    notes = "nccl AR/AG/RS GB/s 94.1/53.0/52.72 intra 425.36/241/240"
    profile = with_noted_network(plain, {"notes": notes}).profile
    assert profile.collective_check_s == COLLECTIVE_CHECK_S
    assert profile.network_collective_check_s == NETWORK_CHECK_S
    assert profile.network_efficiency == 1.0
    quick = with_noted_network(plain, {"notes": notes.replace("425.36", "458.1")}).profile
    assert quick.collective_check_s == quick.network_collective_check_s == 0.0
    assert quick.network_efficiency < 1.0


def test_jobs_with_slow_transfers() -> None:
    """Those marked as from before the authors' fix, and those without NVLink, between nodes."""
    rates = "nccl AR/AG/RS GB/s 94.1/53.0/52.72 intra"
    for notes, num_gpus, seconds in (
        (f"after_pp_fix=False; {rates} 425/241/240", "64", SLOW_TRANSFER_S),
        (f"after_pp_fix=False; {rates} 425/241/240", "8", 0.0),
        (f"after_pp_fix=False; {rates} 458/263/262", "64", 0.0),
        (f"after_pp_fix=True; {rates} 425/241/240", "64", 0.0),
        (f"after_pp_fix=True; {rates} 45.2/41.8/42.8", "8", SLOW_TRANSFER_S),
    ):
        plain = cluster_of({"gpu": "h100-sxm-80g", "num_gpus": num_gpus, "internode": ""})
        assert with_noted_network(plain, {"notes": notes}).profile.host_transfer_s == seconds
