"""What a change of the network does to a step, each value worked by hand.

Nodes of 8 H100 on rails, a NIC of 400 Gb/s each of which long messages reach 0.96: 48 GB/s.
"""

from pathlib import Path
from typing import Any

import pytest
from small_runs import TREE, small_cluster, small_model, small_run

from hardware.links import Link
from hardware.routing import hashing_share
from hardware.spec import BackgroundJob, ClusterSpec, DegradedLink
from hardware.topology import Topology
from simulator.engine import Task
from simulator.errors import ConfigError
from simulator.feeds import Feeds
from simulator.loading import load_run
from simulator.placement import FoldedRanks, rank_gpus
from simulator.simulate import Result, simulate
from workloads.layout import RankGrid

NIC = 0.96 * 400e9 / 8
MODEL = small_model(hidden_size=2048, num_attention_heads=32, num_layers=4)


def step(cluster: ClusterSpec, **layout: Any) -> Result:
    """Tensor parallel 8: a node; gradients are reduced when all passes are done."""
    return simulate(small_run(cluster, tp=8, model=MODEL, **layout))


def reduction_s(result: Result) -> dict[int, float]:
    """Seconds of the first bucket's reduction, by the lowest rank of each class."""

    def first(tasks: list[Task]) -> Task:
        return next(t for t in tasks if t.name == "reduce gradients 0.0")

    found: dict[int, float] = {}
    for rank in result.program.ranks:
        exchange = first(rank.streams["compute"]).exchange
        assert exchange is not None
        found[rank.rank] = exchange.end_s - exchange.start_s
    return found


def gradient_bytes(result: Result, ranks: int) -> float:
    """Bus bytes of the first bucket's all-reduce: 4 bytes a parameter, 2 (n - 1) / n."""
    return result.work.stages[0].buckets[0][0] * 4 * 2 * (ranks - 1) / ranks


# oversubscription


@pytest.mark.parametrize("pp", [1, 2])
def test_oversubscribed_spines_leave_rail_local_gradients_alone(pp: int) -> None:
    """4 nodes in 2 units. pp 2: data groups of 2 nodes stay under their leaf, whatever its trunk.
    pp 1: a ring over 4 nodes crosses each trunk once, and 2 : 1 leaves it a whole NIC's rate."""
    steps = {
        over: step(small_cluster(4, fabric_nodes_per_unit=2, fabric_oversubscription=over), pp=pp)
        for over in ((1.0, 2.0, 4.0) if pp == 2 else (1.0, 2.0))
    }
    times = [reduction_s(result)[0] for result in steps.values()]
    assert times == pytest.approx([times[0]] * len(times), rel=1e-12)
    moving_s = gradient_bytes(steps[1.0], 4 // pp) / NIC
    assert times[0] == pytest.approx(moving_s, rel=0.1)
    assert times[0] > moving_s


def test_a_ring_over_a_trunk_of_half_a_nic_takes_twice_as_long() -> None:
    """The same ring of 4 nodes at 4 : 1: the trunk of 2 NICs has half of one left."""
    free, half = (
        step(small_cluster(4, fabric_nodes_per_unit=2, fabric_oversubscription=over))
        for over in (1.0, 4.0)
    )
    longer_s = reduction_s(half)[0] - reduction_s(free)[0]
    assert longer_s == pytest.approx(gradient_bytes(free, 4) / NIC)


def test_oversubscription_slows_an_all_to_all_by_the_ratio_of_capacities() -> None:
    """Context parallel 4 over 4 nodes in 2 units, by all-to-all: each member sends 1/3 of its bytes
    to each of the others, so that the 2 under a leaf put 2 x 2/3 over its trunk. The trunk is 2
    NICs over the oversubscription: at 2 it leaves 1 / (4/3) = 3/4 of a NIC, at 4 half of that."""
    shares = {}
    for over in (1.0, 2.0, 4.0):
        cluster = small_cluster(4, fabric_nodes_per_unit=2, fabric_oversubscription=over)
        ranks = FoldedRanks(cluster, RankGrid(tp=8, cp=4, cp_a2a=4), wraps=False)
        shares[over] = ranks.place(0).group("cp_a2a").network_share
    assert shares == pytest.approx({1.0: 1.0, 2.0: 3 / 4, 4.0: 3 / 8})


def test_and_the_step_shows_it() -> None:
    """Latency L, moving time M of the step's all-to-alls: L + M, L + M / (3/4), L + M / (3/8)."""
    busy = []
    for over in (1.0, 2.0, 4.0):
        cluster = small_cluster(4, fabric_nodes_per_unit=2, fabric_oversubscription=over)
        layout = {"context_parallel_size": 4, "cp_comm_type": "a2a", "sequence_parallel": True}
        result = step(cluster, parallelism=layout)
        busy.append(result.metrics["communication"]["cp"]["busy_s"])
    assert (busy[2] - busy[0]) / (busy[1] - busy[0]) == pytest.approx(
        (8 / 3 - 1) / (4 / 3 - 1), rel=0.01
    )


# rates of NICs and tiers


def test_half_the_nic_rate_doubles_the_exposed_gradient_time() -> None:
    """Nothing hides it: one all-reduce over 2 nodes after the last backward; each member's bytes
    once over its NIC (2 x 1/2), at 48 and at 24 GB/s."""
    fast, slow = (
        step(small_cluster(2, fabric_link_bandwidth=rate)) for rate in (400e9 / 8, 200e9 / 8)
    )
    exposed_fast, exposed_slow = (
        r.metrics["communication"]["dp"]["exposed_s"] for r in (fast, slow)
    )
    assert exposed_slow == pytest.approx(2 * exposed_fast, rel=0.02)
    moving_s = gradient_bytes(fast, 2) / NIC
    assert reduction_s(slow)[0] - reduction_s(fast)[0] == pytest.approx(moving_s, rel=1e-3)
    step_s = [r.metrics["step_time_s"] for r in (fast, slow)]
    assert step_s[1] - step_s[0] == pytest.approx(exposed_slow - exposed_fast)


def test_slow_cables_between_switches_slow_what_crosses_them() -> None:
    """Cables to the spines at 25 Gb/s: the trunk of 2 has 1/8 of one NIC's rate."""
    free = step(small_cluster(4, fabric_nodes_per_unit=2))
    cables = {"fabric_nodes_per_unit": 2, "fabric_spine_link_bandwidth": 25e9 / 8}
    across, within = step(small_cluster(4, **cables)), step(small_cluster(4, **cables), pp=2)
    longer_s = reduction_s(across)[0] - reduction_s(free)[0]
    assert longer_s == pytest.approx((8 - 1) * gradient_bytes(free, 4) / NIC)
    alone = step(small_cluster(4, fabric_nodes_per_unit=2), pp=2)
    assert reduction_s(within)[0] == pytest.approx(reduction_s(alone)[0], rel=1e-12)


def test_two_nics_per_gpu_carry_twice_as_much() -> None:
    one, two = step(small_cluster(2)), step(small_cluster(2, node_nics_per_node=16))
    shorter_s = reduction_s(one)[0] - reduction_s(two)[0]
    assert shorter_s == pytest.approx(gradient_bytes(one, 2) / NIC / 2, rel=0.01)


# damage


def degraded(**links: float) -> tuple[DegradedLink, ...]:
    """`node_1__nic_2=0.0` for {link: node-1/nic-2, factor: 0}."""
    names = {name.replace("__", "/").replace("_", "-"): factor for name, factor in links.items()}
    return tuple(DegradedLink(link=name, factor=factor) for name, factor in names.items())


def test_a_dead_nic_slows_exactly_the_ranks_that_can_tell() -> None:
    """GPU 2 of node 1 goes by NIC 3, which GPU 3 uses too: their two data groups, 8 ranks on 4
    nodes, take twice the time; the 24 others take theirs."""
    whole = step(small_cluster(4))
    dead = step(small_cluster(4, fabric_degraded=degraded(node_1__nic_2=0.0)))
    assert [(r.rank, r.num_ranks) for r in dead.program.ranks] == [(0, 24), (2, 8)]
    times, usual_s = reduction_s(dead), reduction_s(whole)[0]
    assert times[0] == pytest.approx(usual_s, rel=1e-12)
    assert times[2] - usual_s == pytest.approx(gradient_bytes(whole, 4) / NIC)
    longer_s = dead.metrics["step_time_s"] - whole.metrics["step_time_s"]
    assert longer_s == pytest.approx(gradient_bytes(whole, 4) / NIC)


def test_unfolded_the_same_ranks_are_slow() -> None:
    cluster = small_cluster(4, fabric_degraded=degraded(node_1__nic_2=0.0))
    result = simulate(small_run(cluster, tp=8, model=MODEL), fold=False)
    times = reduction_s(result)
    slow = {rank for rank, seconds in times.items() if seconds > 1.5 * times[0]}
    assert slow == {rank for rank in range(32) if rank % 8 in (2, 3)}


def test_half_a_nic_slows_its_own_data_group() -> None:
    whole = step(small_cluster(4))
    half = step(small_cluster(4, fabric_degraded=degraded(node_1__nic_2=0.5)))
    assert [(r.rank, r.num_ranks) for r in half.program.ranks] == [(0, 28), (2, 4)]
    longer_s = reduction_s(half)[2] - reduction_s(whole)[0]
    assert longer_s == pytest.approx(gradient_bytes(whole, 4) / NIC)


def test_one_of_two_nics_of_a_gpu() -> None:
    """NIC 4 of 16 is one of GPU 2's two: half of its rate is left, no other GPU is touched."""
    whole = step(small_cluster(2, node_nics_per_node=16))
    changes = {"node_nics_per_node": 16, "fabric_degraded": degraded(node_1__nic_4=0.0)}
    dead = step(small_cluster(2, **changes))
    assert [(r.rank, r.num_ranks) for r in dead.program.ranks] == [(0, 14), (2, 2)]
    longer_s = reduction_s(dead)[2] - reduction_s(whole)[0]
    assert longer_s == pytest.approx(gradient_bytes(whole, 2) / (2 * NIC))


@pytest.mark.parametrize(
    ("routing", "left"),
    [("adaptive", 0.75), ("ecmp", 0.5)],
)
def test_a_degraded_cable_of_a_trunk(routing: str, left: float) -> None:
    """2 nodes under the leaf of rail 3, one cable to each of 2 spines: one at half leaves 3/4 of
    the sum; flows that keep to their cables go at the pace of the slower one."""
    changes = {"fabric_nodes_per_unit": 2, "fabric_num_spines": 2, "fabric_routing": routing}
    cluster = small_cluster(4, **changes, fabric_degraded=degraded(leaf_3__spine_1=0.5))
    whole, ranks = Topology(small_cluster(4, **changes)), Topology(cluster)
    up = Link("leaf_up", 0, 3)
    ratio = ranks.capacity(up) / whole.capacity(up)
    assert ratio == pytest.approx(left)


def test_a_weak_nvlink_port_slows_its_tensor_group() -> None:
    """All tensor-parallel traffic of node 0 goes at half the rate; node 1 only waits for it."""
    whole = step(small_cluster(2))
    weak = step(small_cluster(2, fabric_degraded=degraded(node_0__gpu_5=0.5)))
    places = [FoldedRanks(small_cluster(2, fabric_degraded=degraded(node_0__gpu_5=0.5)),
                          RankGrid(tp=8, dp=2), wraps=False)]  # fmt: skip
    shares = {places[0].place(c).group("tp").nvlink_share for c in range(len(places[0]))}
    assert shares == {0.5, 1.0}
    assert weak.metrics["step_time_s"] > whole.metrics["step_time_s"]


# placement and neighbours


def test_where_ranks_lie() -> None:
    cluster = small_cluster(2, 2, hosts=(3, 1))
    assert rank_gpus(cluster).tolist() == [6, 7, 2, 3]
    striped = small_cluster(2, 2, hosts=(3, 1), placement="striped")
    assert rank_gpus(striped).tolist() == [6, 2, 7, 3]


def test_striped_ranks_take_tensor_groups_apart() -> None:
    """4 nodes: ranks 0 to 7 lie 2 on each; their data group, every eighth rank, in one node."""
    ranks = FoldedRanks(small_cluster(4, placement="striped"), RankGrid(tp=8, dp=4), wraps=False)
    assert ranks.shape("tp", 0).num_nodes == 4
    assert ranks.shape("dp", 0).num_nodes == 1


def test_a_host_list_that_jumps_between_units_crosses_their_trunks_more_often() -> None:
    """2 units of 2 nodes at 4 : 1. In order the ring crosses each trunk once, half a NIC for one
    flow; as 0 2 1 3 it crosses with every hop, two flows on the same trunk."""
    changes = {"fabric_nodes_per_unit": 2, "fabric_oversubscription": 4.0}
    near, far = (
        step(small_cluster(4, **changes, hosts=hosts)) for hosts in ((0, 1, 2, 3), (0, 2, 1, 3))
    )
    longer_s = reduction_s(far)[0] - reduction_s(near)[0]
    assert longer_s == pytest.approx((4 - 2) * gradient_bytes(near, 4) / NIC)


@pytest.mark.parametrize(("rate", "left"), [(6e9, 48e9 - 6e9), (48e9, 24e9)])
def test_another_job_on_the_same_trunk(rate: float, left: float) -> None:
    """Run on nodes 0 and 2, another on 1 and 3, of 2 units at 2 : 1: a trunk of 48 GB/s for a ring
    of each. What the other does not need is the run's; both at full speed get half."""
    changes = {"fabric_nodes_per_unit": 2, "fabric_oversubscription": 2.0, "hosts": (0, 2)}
    alone = step(small_cluster(2, **changes, fabric_num_nodes=4))
    other = BackgroundJob(hosts=(1, 3), rate=rate)
    beside = step(small_cluster(2, **changes, background=(other,)))
    longer_s = reduction_s(beside)[0] - reduction_s(alone)[0]
    assert longer_s == pytest.approx(gradient_bytes(alone, 2) * (1 / left - 1 / NIC))


def test_a_job_under_other_leaves_is_not_felt() -> None:
    alone = step(small_cluster(2, fabric_nodes_per_unit=2, fabric_num_nodes=6))
    other = BackgroundJob(hosts=(2, 3, 4, 5), rate=48e9, traffic="all_to_all")
    beside = step(small_cluster(2, fabric_nodes_per_unit=2, background=(other,)))
    assert beside.metrics["step_time_s"] == alone.metrics["step_time_s"]


# routing


def test_hashed_flows_bind_a_trunk_that_even_ones_do_not() -> None:
    """A tree with 4 nodes in 2 units of 16 NICs: 16 flows on 16 cables fit when even; hashed, the
    fullest cable is expected to hold 3.1 and the trunk carries as if all did."""

    even, hashed, many = (
        Topology(small_cluster(4, fabric=TREE, fabric_nodes_per_unit=2, **changes))
        for changes in (
            {},
            {"fabric_routing": "ecmp"},
            {"fabric_routing": "ecmp", "fabric_queue_pairs": 16},
        )
    )
    up = Link("leaf_up", 0, 0)
    assert not even.can_bind(up)
    assert hashed.can_bind(up)
    assert hashed.capacity(up) == pytest.approx(16 * NIC * hashing_share(16, 16))
    assert hashed.capacity(up) < 0.4 * even.capacity(up)
    assert hashed.capacity(up) < many.capacity(up) < even.capacity(up)


# rank order


def test_pipelines_before_replicas_keep_transfers_inside_nodes() -> None:
    """2 nodes, TP 2, PP 4, DP 2. By default stages are 4 ranks apart, so that stage 1 sends to the
    other node; with replicas last each lies on a node, and gradients cross instead."""
    cluster, sizes = small_cluster(2), {"tp": 2, "pp": 4, "dp": 2}
    usual = FoldedRanks(cluster, RankGrid(**sizes), wraps=False)
    replicas_last = FoldedRanks(cluster, RankGrid(**sizes, order="tp-cp-ep-pp-dp"), wraps=False)
    for ranks, dp_nodes, crossing in ((usual, 1, [1]), (replicas_last, 2, [])):
        assert ranks.shape("dp", 0).num_nodes == dp_nodes
        sends = [ranks.transfers(c, 1e6) for c in range(len(ranks))]
        rates = [t[True][0].rate_bytes_per_s for t in sends if True in t]
        assert [c for c, rate in enumerate(rates) if rate == pytest.approx(NIC)] == crossing


def test_arrows_of_a_trace_follow_the_order() -> None:
    """Every rank unfolded: each pass of stage 1 is fed by the rank two before it."""
    layout = {"rank_order": "tp-cp-ep-pp-dp"}
    run = small_run(small_cluster(1), tp=2, pp=2, parallelism=layout)
    trace = simulate(run, fold=False).trace
    feeds = Feeds(trace)
    found = {
        (send.rank, rank.rank)
        for rank in trace.ranks
        for span in rank.spans
        if span.category == "forward"
        for send in [feeds.of(rank, span)]
        if send is not None
    }
    assert found == {(0, 2), (1, 3), (4, 6), (5, 7)}


# NVLink


@pytest.mark.parametrize("domain", [8, 32, 72, 576])
def test_data_groups_inside_an_nvlink_domain_need_no_nic(domain: int) -> None:
    """TP 8: data groups of 1, 4, 9 and 72 GPUs lie in a domain of 8, 32, 72 and 576."""
    cluster = small_cluster(1, domain)
    ranks = FoldedRanks(cluster, RankGrid(tp=8, dp=domain // 8), wraps=False)
    assert len(ranks) == 1
    assert ranks.shape("tp", 0).num_nodes == 1
    if domain > 8:
        assert ranks.shape("dp", 0).num_nodes == 1


def test_a_larger_domain_takes_gradients_off_the_network() -> None:
    """64 GPUs as 8 nodes of 8, and as 2 domains of 32: a data group of 8 has 1 or 4 GPUs in each,
    and so 1 NIC or 4; between domains goes what did between nodes, four times as fast."""
    small, large = small_cluster(8), small_cluster(2, 32)
    rates = [reduction_s(step(cluster))[0] for cluster in (small, large)]
    assert rates[0] == pytest.approx(gradient_bytes(step(small), 8) / NIC, rel=0.1)
    assert rates[1] == pytest.approx(gradient_bytes(step(small), 8) / (4 * NIC), rel=0.15)


def test_a_newer_nvlink_by_name(tmp_path: Path) -> None:
    """Usable 721.8 instead of 370.8 GB/s; the rest of the node stays."""
    file = tmp_path / "run.yaml"
    file.write_text(
        "model: gpt3-175b\n"
        "training: {seq_length: 2048, micro_batch_size: 1, global_batch_size: 8}\n"
        "parallelism: {tensor_model_parallel_size: 8}\n"
        "cluster: {node: dgx-h100, num_nodes: 1, fabric: single-switch}\n",
        encoding="utf-8",
    )
    run = load_run(file, ["cluster.node.nvlink=nvlink5"])
    assert run.cluster.node.nvlink.usable_bytes_per_s == 721.8e9
    assert run.cluster.node.gpu.name == "h100-sxm-80g"
    mapping = load_run(file, ["cluster.node.nvlink={preset: nvlink5, in_switch_reduction: no}"])
    assert not mapping.cluster.node.nvlink.in_switch_reduction
    with pytest.raises(ConfigError, match="unknown nvlink 'nvlink55'; did you mean 'nvlink5'"):
        load_run(file, ["cluster.node.nvlink=nvlink55"])
