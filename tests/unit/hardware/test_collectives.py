"""Costs of collectives: published curves, hand-worked parts, and orders that must hold."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware.collectives import GroupShape, bus_factor, collective_cost, point_to_point
from hardware.nccl import Kind
from hardware.presets import load_node, preset_names
from hardware.spec import without_nvls

H100, A100 = load_node("dgx-h100"), load_node("dgx-a100")
NDR, HDR = 0.96 * 50e9, 0.96 * 25e9
MIB, GIB = 2.0**20, 2.0**30
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")


def busbw(kind, num_bytes, shape, node=H100, nic_rate=NDR):
    cost = collective_cost(kind, num_bytes, shape, node, nic_rate)
    return cost.wire_bytes / cost.time_s


def test_bus_factors():
    """nccl-tests, doc/PERFORMANCE.md, for 8 ranks."""
    assert bus_factor("all_reduce", 8) == 2 * 7 / 8
    assert bus_factor("all_gather", 8) == bus_factor("reduce_scatter", 8) == 7 / 8
    assert bus_factor("all_to_all", 8) == 7 / 8
    assert bus_factor("broadcast", 8) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_one_rank_or_no_bytes_cost_nothing(kind):
    alone = collective_cost(kind, 1e9, GroupShape(1, 1, 0), H100, NDR)
    empty = collective_cost(kind, 0.0, GroupShape(8, 1, 8), H100, NDR)
    assert alone.time_s == empty.time_s == 0.0
    assert alone.num_channels == empty.num_channels == 0


def test_time_is_latency_plus_wire_bytes_over_rate():
    cost = collective_cost("all_gather", 1e9, GroupShape(8, 1, 8), H100, NDR)
    assert cost.wire_bytes == 1e9 * 7 / 8
    assert cost.time_s == cost.latency_s + cost.wire_bytes / cost.rate_bytes_per_s


def test_small_all_reduce_is_the_tuners_latency_and_the_launch():
    """Ring LL, 8 GPUs: base 6.6 us and 14 hops of 0.6 us; 8 us of launch."""
    cost = collective_cost("all_reduce", 8.0, GroupShape(8, 1, 8), H100, NDR)
    assert (cost.algorithm, cost.protocol) == ("ring", "ll")
    assert cost.latency_s == pytest.approx((8 + 6.6 + 14 * 0.6) * 1e-6, rel=1e-3)


def test_small_all_reduce_over_many_nodes_takes_the_tree():
    """Tree LL, 64 nodes of one GPU: base 6.8 us, 2 log2(64) hops of 5 us; 8 us of launch."""
    cost = collective_cost("all_reduce", 8.0, GroupShape(64, 64, 1), H100, NDR)
    assert (cost.algorithm, cost.protocol) == ("tree", "ll")
    assert cost.latency_s == pytest.approx((8 + 6.8 + 2 * 6 * 5) * 1e-6, rel=0.02)


@pytest.mark.parametrize(
    ("kind", "node", "shape", "num_bytes", "published", "tolerance"),
    [
        # stas00/ml-engineering, network/README.md (PyTorch, NCCL 2.27), H200 and B200.
        ("all_reduce", "dgx-h200", GroupShape(8, 1, 8), 8 * GIB, 473e9, 0.03),
        ("all_reduce", "dgx-h200", GroupShape(6, 1, 6), 8 * GIB, 436e9, 0.05),
        ("all_reduce", "dgx-h200", GroupShape(4, 1, 4), 8 * GIB, 363e9, 0.03),
        ("all_gather", "dgx-h200", GroupShape(8, 1, 8), 16 * GIB, 361e9, 0.03),
        ("reduce_scatter", "dgx-h200", GroupShape(8, 1, 8), 16 * GIB, 363e9, 0.03),
        ("all_reduce", "dgx-b200", GroupShape(8, 1, 8), 8 * GIB, 838e9, 0.03),
        # MooreThreads SimuMax, H100 x 8, bf16.
        ("all_gather", "dgx-h100", GroupShape(8, 1, 8), 128 * MIB, 304e9, 0.06),
        ("reduce_scatter", "dgx-h100", GroupShape(8, 1, 8), GIB, 341e9, 0.04),
        # MLCommons training_results_v4.0 (Oracle) and v5.0 (Supermicro), logs.
        ("all_reduce", "dgx-h100", GroupShape(8, 1, 8), 53687090, 327.4e9, 0.05),
        ("all_reduce", "dgx-b200", GroupShape(8, 1, 8), 40160460, 389.2e9, 0.05),
        # Azure AI-benchmarking-guide; NVIDIA/nccl-tests issue 119 (4 x HDR a node); OCI.
        ("all_reduce", "dgx-a100", GroupShape(8, 1, 8), GIB, 228e9, 0.05),
        ("all_reduce", "hgx-a100-4nic", GroupShape(24, 3, 4), 133169160, 95.7e9, 0.05),
        ("all_reduce", "dgx-a100-40g", GroupShape(16, 2, 8), 8 * GIB, 189.6e9, 0.05),
        # NVIDIA/nccl-tests issue 309 and a Nebius document, 8 x NDR a node.
        ("all_reduce", "dgx-h100", GroupShape(16, 2, 8), 8 * GIB, 467e9, 0.05),
        ("all_reduce", "dgx-h100", GroupShape(32, 4, 8), GIB, 358e9, 0.08),
        ("all_reduce", "dgx-h100", GroupShape(1024, 128, 8), 16 * GIB, 367e9, 0.07),
    ],
)
def test_published_bus_bandwidths(kind, node, shape, num_bytes, published, tolerance):
    nic_rate = 0.96 * load_node(node).nic_bandwidth_bytes_per_s
    measured = busbw(kind, num_bytes, shape, load_node(node), nic_rate)
    assert measured == pytest.approx(published, rel=tolerance)


def test_a_data_group_of_one_gpu_a_node_reaches_its_nic_and_no_more():
    """46 to 49 GB/s of an NDR port (NCCL maintainers, nccl-tests issues 130 and 309)."""
    rate = busbw("reduce_scatter", 4 * GIB, GroupShape(48, 48, 1))
    assert 46e9 < rate < NDR


def test_k_members_a_node_use_k_nics():
    one = collective_cost("all_gather", GIB, GroupShape(16, 16, 1), H100, NDR)
    four = collective_cost("all_gather", GIB, GroupShape(64, 16, 4), H100, NDR)
    assert four.rate_bytes_per_s == 4 * one.rate_bytes_per_s == 4 * NDR


def test_all_to_all_between_nodes_leaves_the_local_share_out_of_the_nics():
    """2 nodes of 8: of 15 sixteenths sent, 8 leave. AWS B300: 180 GB/s of bus at 90 on the NIC."""
    cost = collective_cost("all_to_all", 8 * GIB, GroupShape(16, 2, 8), H100, NDR)
    share_away = (8 / 16) / (15 / 16)
    assert cost.rate_bytes_per_s == pytest.approx(0.94 * NDR / share_away)
    assert cost.nic_weight == pytest.approx(8 * share_away)


def test_switch_reduction_relieves_the_ports():
    """Each port carries the buffer once: 1 / (2 x 7/8) of the bus bytes."""
    cost = collective_cost("all_reduce", GIB, GroupShape(8, 1, 8), H100, NDR)
    assert cost.algorithm == "nvls"
    assert cost.nvlink_weight == pytest.approx(1 / (2 * 7 / 8))
    assert cost.rate_bytes_per_s * cost.nvlink_weight <= H100.nvlink.usable_bytes_per_s
    assert collective_cost("all_reduce", GIB, GroupShape(8, 1, 8), A100, HDR).algorithm == "ring"


def test_channels_are_few_for_one_nic_and_many_inside_a_node():
    inside = collective_cost("all_gather", GIB, GroupShape(8, 1, 8), H100, NDR)
    outside = collective_cost("all_gather", GIB, GroupShape(48, 48, 1), H100, NDR)
    assert (inside.num_channels, outside.num_channels) == (16, 4)  # ceil(48 / 14)


def test_point_to_point():
    near = point_to_point(1e9, True, H100, NDR, path_latency_s=3.4e-6)
    far = point_to_point(1e9, False, H100, NDR, path_latency_s=2e-6)
    assert near.time_s == pytest.approx(8e-6 + 3.4e-6 + 1e9 / 370.8e9)
    assert far.time_s == pytest.approx(14e-6 + 2e-6 + 1e9 / NDR)
    assert point_to_point(0.0, False, H100, NDR).time_s == 0.0


@pytest.mark.parametrize(
    ("num_bytes", "shape", "message"),
    [
        (-1.0, GroupShape(8, 1, 8), "bytes"),
        (1.0, GroupShape(8, 9, 1), "do not spread"),
        (1.0, GroupShape(8, 0, 1), "do not spread"),
        (1.0, GroupShape(8, 2, 0), "without a NIC"),
    ],
)
def test_impossible_groups_are_refused(num_bytes, shape, message):
    with pytest.raises(ValueError, match=message):
        collective_cost("all_reduce", num_bytes, shape, H100, NDR)


def test_a_negative_send_is_refused():
    with pytest.raises(ValueError, match="-1"):
        point_to_point(-1.0, True, H100, NDR)


# Orders that hold whatever the constants

NODES = st.sampled_from([load_node(name) for name in preset_names("nodes")])
SIZES = st.floats(1.0, 1e11)
COUNTS = st.integers(1, 128)
LOCAL = st.sampled_from([1, 2, 4])


def price(kind, num_bytes, num_nodes, per_node, node, nic_rate):
    shape = GroupShape(num_nodes * per_node, num_nodes, min(per_node, node.nics_per_node))
    return collective_cost(kind, num_bytes, shape, node, nic_rate)


@given(st.sampled_from(KINDS), SIZES, st.floats(1.0, 100.0), COUNTS, LOCAL, NODES)
@settings(max_examples=200, deadline=None)
def test_more_bytes_are_never_faster(kind, num_bytes, factor, num_nodes, per_node, node):
    small = price(kind, num_bytes, num_nodes, per_node, node, NDR)
    large = price(kind, num_bytes * factor, num_nodes, per_node, node, NDR)
    assert large.time_s >= small.time_s * (1 - 1e-12)
    assert small.latency_s >= 0


@given(st.sampled_from(KINDS), SIZES, st.floats(1.0, 8.0), COUNTS, LOCAL, NODES)
@settings(max_examples=200, deadline=None)
def test_more_bandwidth_is_never_slower(kind, num_bytes, factor, num_nodes, per_node, node):
    slow = price(kind, num_bytes, num_nodes, per_node, node, NDR)
    fast_nic = price(kind, num_bytes, num_nodes, per_node, node, NDR * factor)
    nvlink = node.nvlink.model_copy(
        update={"usable_bytes_per_s": node.nvlink.usable_bytes_per_s * factor}
    )
    faster = node.model_copy(update={"nvlink": nvlink})
    fast_nvlink = price(kind, num_bytes, num_nodes, per_node, faster, NDR)
    assert fast_nic.time_s <= slow.time_s * (1 + 1e-12)
    assert fast_nvlink.time_s <= slow.time_s * (1 + 1e-12)


@given(st.sampled_from(KINDS), SIZES, COUNTS, st.integers(1, 128), LOCAL, NODES)
@settings(max_examples=200, deadline=None)
def test_more_nodes_are_never_faster(kind, num_bytes, num_nodes, more, per_node, node):
    few = price(kind, num_bytes, num_nodes, per_node, node, NDR)
    many = price(kind, num_bytes, num_nodes + more, per_node, node, NDR)
    assert many.time_s >= few.time_s * (1 - 1e-12)


@given(SIZES, COUNTS, LOCAL, NODES)
@settings(max_examples=100, deadline=None)
def test_gather_and_scatter_cost_the_same(size, num_nodes, local, node):
    gather = price("all_gather", size, num_nodes, local, node, NDR)
    assert gather == price("reduce_scatter", size, num_nodes, local, node, NDR)


def test_a_ring_over_nics_that_are_slow_to_send_again():
    """16 GPUs of two p5.48xlarge: every link carries 15 messages 40 us apart, 30 in an all-reduce;
    inside a node nothing changes. The published curve: 1 GB at 75 GB/s over 256, 44 over 512."""
    p5, shape = load_node("p5-48xlarge"), GroupShape(16, 2, 8)
    short = collective_cost("all_gather", 1e6, shape, p5, NDR).time_s
    assert short == pytest.approx(15 * 40e-6, rel=0.05)
    assert short > 3 * collective_cost("all_gather", 1e6, shape, H100, NDR).time_s
    inside = GroupShape(8, 1, 8)
    assert collective_cost("all_gather", 1e6, inside, p5, NDR) == collective_cost(
        "all_gather", 1e6, inside, H100, NDR
    )
    for num_ranks, published in ((256, 75e9), (512, 44e9)):
        found = busbw("all_gather", 1e9, GroupShape(num_ranks, num_ranks // 8, 8), p5)
        assert found == pytest.approx(published, rel=0.2)


# switches that reduce, on and off


def test_nvls_off_leaves_rings_and_trees() -> None:
    """1 GiB over 8 H100: a ring moves 2 x 7/8 of it at 0.965 x 370.8 GB/s; NVLS is faster."""
    node, shape = load_node("dgx-h100"), GroupShape(8, 1, 0)
    on = collective_cost("all_reduce", 2.0**30, shape, node, 48e9)
    off = collective_cost("all_reduce", 2.0**30, shape, without_nvls(node), 48e9)
    assert (on.algorithm, off.algorithm) == ("nvls", "ring")
    assert off.time_s == pytest.approx(2**30 * 2 * 7 / 8 / (0.965 * 370.8e9), rel=0.05)
    assert on.time_s < 0.85 * off.time_s


def test_sharp_sends_each_byte_out_of_a_node_once() -> None:
    """Ring of one GPU on each of 16 nodes: 2 x 15/16 of the buffer over its NIC. SHARP: once."""
    node, shape = load_node("dgx-h100"), GroupShape(16, 16, 1)
    ring, sharp = (
        collective_cost("all_reduce", 2.0**32, shape, node, 48e9, sharp) for sharp in (False, True)
    )
    assert sharp.algorithm == "sharp"
    assert sharp.wire_bytes * sharp.nic_weight == pytest.approx(2**32)
    assert sharp.wire_bytes / sharp.rate_bytes_per_s == pytest.approx(2**32 / 48e9)
    assert ring.wire_bytes / ring.rate_bytes_per_s >= 2 * 15 / 16 * 2**32 / 48e9 * (1 - 1e-9)


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_to_all"])
def test_sharp_changes_all_reduces_only(kind: Kind) -> None:
    node, shape = load_node("dgx-h100"), GroupShape(32, 4, 8)
    costs = [collective_cost(kind, 2.0**30, shape, node, 48e9, sharp) for sharp in (False, True)]
    assert costs[0] == costs[1]


def test_sharp_between_whole_nodes_is_bound_by_nvls() -> None:
    """8 GPUs a node: the NICs would carry 8 x 48 GB/s of the buffer, NVLS 0.74 x 370.8."""
    node, shape = load_node("dgx-h100"), GroupShape(64, 8, 8)
    cost = collective_cost("all_reduce", 2.0**33, shape, node, 48e9, True)
    assert cost.algorithm == "sharp"
    assert cost.rate_bytes_per_s == pytest.approx(0.74 * 370.8e9 * 2 * 63 / 64)


def test_hops_of_a_rack_take_longer() -> None:
    """Short all-gathers of 8 and 32 GPUs: 24 more hops of 0.6 us, in a rack of 1.5 us."""
    for name, hop_s in (("dgx-b200", 0.6e-6), ("gb200-nvl72", 1.5e-6)):
        node = load_node(name).model_copy(update={"gpus_per_node": 8 if "dgx" in name else 72})
        near, far = (
            collective_cost("all_gather", 8.0, GroupShape(n, 1, 0), node, 48e9).time_s
            for n in (8, 32)
        )
        assert far - near == pytest.approx(24 * hop_s, rel=1e-3)
