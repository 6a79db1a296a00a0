"""What a cluster is made of: GPU, node, fabric, cluster. Frozen, checked, plain numbers in SI.

Bandwidths are per direction; peaks are dense. Where each shipped number comes from stands in the
`source` of its catalog file (`hardware/catalog/`).
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from hardware.quantities import (
    MAX_NODES,
    Bytes,
    BytesPerSecond,
    FlopsPerSecond,
    Hertz,
    NodeList,
    Seconds,
    Watts,
)

Precision = Literal["bf16", "fp16", "fp8", "tf32", "fp32"]


class Spec(BaseModel):
    """Base of all specs of this folder: frozen, no unknown keys."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


class PeakFlops(Spec):
    """Dense peak rates by operand type, without sparsity."""

    bf16: FlopsPerSecond
    fp16: FlopsPerSecond
    tf32: FlopsPerSecond | None = None
    fp32: FlopsPerSecond | None = None
    fp8: FlopsPerSecond | None = None
    fp4: FlopsPerSecond | None = None


class GpuSpec(Spec):
    """One accelerator: what the kernel model needs to know of it."""

    name: str
    architecture: Literal["ampere", "hopper", "blackwell", "ada"]
    """Chooses the kernel model's family (`hardware/kernels.py`) and NCCL's constants."""
    num_sms: Annotated[int, Field(gt=0)]
    boost_clock_hz: Hertz
    peak_flops_per_s: PeakFlops
    memory_bytes: Bytes
    """Device memory as the driver reports it for the whole card, bytes."""
    memory_bandwidth_bytes_per_s: BytesPerSecond
    l2_bytes: Bytes
    tdp_w: Watts
    price_usd_per_hour: Annotated[float, Field(ge=0)] | None = None
    """A middle rental price, if one was published; for the cost estimate only."""
    source: str


class NvlinkSpec(Spec):
    """The scale-up links of one GPU."""

    bandwidth_bytes_per_s: BytesPerSecond
    """Nominal, per GPU and direction, all links together."""
    usable_bytes_per_s: BytesPerSecond
    """Rate NCCL's rings reach on it, per GPU and direction."""
    latency_s: Seconds
    """One hop GPU to GPU as NCCL's Simple protocol sees it."""
    in_switch_reduction: bool = False
    """NVLS: the switch reduces and multicasts (NVLink 4 and later with NVSwitch)."""
    source: str = ""


class NodeSpec(Spec):
    """One server: GPUs behind one NVSwitch plane and the NICs that lead out of it."""

    name: str
    gpu: GpuSpec
    gpus_per_node: Annotated[int, Field(gt=0, le=1024)]
    nvlink: NvlinkSpec
    nics_per_node: Annotated[int, Field(gt=0, le=1024)]
    """GPU i uses NIC i * nics_per_node // gpus_per_node; more NICs than GPUs are spread evenly over
    them, and a GPU's bytes over its NICs."""
    nic_bandwidth_bytes_per_s: BytesPerSecond
    """Line rate of one NIC, per direction."""
    nic_message_s: Seconds = 0.0
    """Least time from one message of a ring to the next, between nodes. Each of its links carries
    one for every other rank (two in an all-reduce), which bounds short collectives of many ranks.
    0: NCCL's own hop latencies, InfiniBand's, bound them."""
    pcie_bandwidth_bytes_per_s: BytesPerSecond
    """Achieved GPU to NIC or host, per GPU and direction."""
    host_link_bandwidth_bytes_per_s: BytesPerSecond | None = None
    """GPU to host where that is not PCIe (NVLink-C2C), per GPU and direction."""
    host_memory_bandwidth_bytes_per_s: BytesPerSecond = 409.6e9
    """Of all sockets together, nominal; where left out, two sockets of eight DDR4-3200."""
    power_overhead_w: Annotated[float, Field(ge=0)] = 0.0
    """Node power that is not the GPUs': CPUs, fans, NICs, switches."""
    source: str

    @property
    def ports_per_node(self) -> int:
        """Ways out: NICs, those of one GPU counted as one."""
        return min(self.nics_per_node, self.gpus_per_node)

    @property
    def nics_per_port(self) -> float:
        """NICs that a GPU has to itself; 1 where GPUs share NICs."""
        return self.nics_per_node / self.ports_per_node


class DegradedLink(Spec):
    """A part of the network that carries less than it should, in both directions."""

    link: str
    """`leaf-3/spine-1` or `spine-0/core-2`: all cables between two switches; `node-4/nic-0`: a NIC
    with its cable; `node-4/gpu-1`: a GPU's NVLink port; `spine-1`, `core-2`: a whole switch.
    Nodes, NICs and GPUs count from 0 in their order, switches over the whole fabric: unit by unit,
    rail by rail; spines pod by pod, group by group, beside a leaf also from its first."""
    factor: Annotated[float, Field(ge=0, le=1)]
    """What is left of its capacity; 0 is dead. The GPUs of a dead NIC use the next one in the
    node; traffic keeps off dead cables."""


class FabricSpec(Spec):
    """The network between nodes.

    `single_switch`: every NIC on one switch. `rail_optimized`: leaf r of a scalable unit carries
    NIC r of each of its nodes. `fat_tree`: a leaf carries all NICs of its nodes. Two tiers (leaf,
    spine) or three (core above) by `tiers`.
    """

    name: str
    kind: Literal["single_switch", "rail_optimized", "fat_tree"]
    link_bandwidth: BytesPerSecond
    """Of each cable, per direction; a NIC runs at the lower of this and its own line rate."""
    spine_link_bandwidth: BytesPerSecond | None = None
    """Of each cable between leaf and spine; link_bandwidth when left out."""
    core_link_bandwidth: BytesPerSecond | None = None
    """Of each cable between spine and core; link_bandwidth when left out."""
    num_nodes: Annotated[int, Field(gt=0, le=MAX_NODES)] | None = None
    """Nodes that are cabled to it; as many as runs and background jobs need when left out."""
    tiers: Annotated[int, Field(ge=1, le=3)] = 2
    nodes_per_unit: Annotated[int, Field(gt=0, le=MAX_NODES)] = 32
    """Nodes under one set of leaves (a SuperPOD's scalable unit)."""
    units_per_pod: Annotated[int, Field(gt=0, le=MAX_NODES)] = 8
    """Scalable units under one set of spines, when there is a core tier."""
    oversubscription: Annotated[float, Field(ge=1)] = 1.0
    """Leaf: cables down over cables up."""
    num_spines: Annotated[int, Field(gt=0, le=MAX_NODES)] | None = None
    """Spines that each leaf is wired to; the fewest with ports for all its cables when left out.
    Fewer leave cables out: a spine has no more ports for each leaf."""
    core_oversubscription: Annotated[float, Field(ge=1)] = 1.0
    """Spine: cables down over cables up, when there is a core tier."""
    routing: Literal["adaptive", "ecmp"] = "adaptive"
    """`adaptive`: equal cables carry equal shares. `ecmp`: each queue pair keeps to the cable that
    its hash gives, and the fullest sets the pace (`hardware/routing.py`)."""
    queue_pairs: Annotated[int, Field(gt=0, le=1024)] = 1
    """Under ECMP, queue pairs that each NIC sends on, hashed one by one."""
    degraded: tuple[DegradedLink, ...] = ()
    in_network_reduction: bool = False
    """SHARP: InfiniBand switches add up all-reduces between nodes, so that each byte leaves a node
    once. NCCL takes it where that is faster and its plugin is installed."""
    link_efficiency: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the line rate that long messages reach."""
    switch_latency_s: Seconds
    """Port to port, of one switch."""
    spine_latency_s: Seconds | None = None
    """The same of a spine; switch_latency_s when left out."""
    core_latency_s: Seconds | None = None
    """The same of a core switch; switch_latency_s when left out."""
    nic_latency_s: Seconds
    """Software and NIC, both ends together, before the first byte arrives."""
    source: str

    @property
    def cable_bytes_per_s(self) -> tuple[float, float, float]:
        """What a cable carries that ends at a leaf from below, at a spine, at a core."""
        rates = (self.link_bandwidth, self.spine_link_bandwidth, self.core_link_bandwidth)
        down, middle, top = ((r or self.link_bandwidth) * self.link_efficiency for r in rates)
        return down, middle, top

    @property
    def tier_latencies_s(self) -> tuple[float, float, float]:
        """Port to port of a leaf, a spine and a core."""
        own = (self.switch_latency_s, self.spine_latency_s, self.core_latency_s)
        leaf, spine, core = (self.switch_latency_s if s is None else s for s in own)
        return leaf, spine, core


class ProfileSpec(Spec):
    """What real runs of one cluster tell beyond the catalog: a few physical parameters, each
    relative to the model that ships unless it has a unit. `clustersim calibrate` writes them."""

    name: str = "as shipped"
    gemm_efficiency: Annotated[float, Field(gt=0, le=2)] = 1.0
    """GEMM rate over the kernel model's: older libraries, lower clocks."""
    attention_efficiency: Annotated[float, Field(gt=0, le=2)] = 1.0
    memory_bound_efficiency: Annotated[float, Field(gt=0, le=2)] = 1.0
    nvlink_efficiency: Annotated[float, Field(gt=0, le=2)] = 1.0
    """Rate of transfers and collectives inside a node over the model's."""
    network_efficiency: Annotated[float, Field(gt=0, le=2)] = 1.0
    """The same between nodes."""
    step_overhead_s: Seconds = 0.018
    """Data loading, Python and logging between two steps, during which the GPU has nothing to do.
    As shipped: median of measured minus simulated step over 11 GPU-bound Megatron-LM runs on one
    H200 (2.7B to 70B widths; 6 to 23 ms, one 65); its host is slow, others may take less."""
    host_operation_s: Seconds = 0.0
    """What the host takes to issue one operation of a layer (Python, autograd, launch: a kernel or
    a few): small kernels go at this pace. 0 where CUDA graphs replay them, and as shipped, since
    hosts differ: 60 us tells Megatron-LM on a DGX A100, 167 us our H200's slow host."""
    launch_blocking: bool = False
    """CUDA_LAUNCH_BLOCKING=1: the host issues an operation when the one before it has ended, so
    that its time and the GPU's add up."""
    collective_check_s: Seconds = 0.0
    """What the host takes, per rank of the group, before it lets a collective go: PyTorch under
    TORCH_DISTRIBUTED_DEBUG=DETAIL gathers a fingerprint from every rank first
    (ProcessGroupWrapper). In a group inside a node, and
    network_collective_check_s, in one across nodes. 0 in production."""
    network_collective_check_s: Seconds = 0.0
    host_copy_s: Seconds = 0.0
    """What the host takes, per weight and rank, to copy the parts of sharded gradients or weights
    into a collective's buffer or out of it; of trainers without flat buffers."""
    host_transfer_s: Seconds = 0.0
    """What the host takes for each send and each receive between pipeline stages while its GPU
    waits: a trainer that makes host and GPU meet there."""
    gpu_speed_deviation: Annotated[float, Field(ge=0, le=0.2)] = 0.012
    """Relative standard deviation of compute speed among GPUs of one kind under their power limit;
    a stage goes at the pace of its slowest. As shipped: the same two runs on two of our H200 each
    differed by 0.1 and 2.4 %, a root mean square of 1.7 %, over the square root of 2."""
    source: str = ""
    """What it was fitted to."""


class BackgroundJob(Spec):
    """Another job on the same fabric, as the traffic that it puts there all the time."""

    hosts: Annotated[NodeList, Field(min_length=2)]
    """Its nodes, in the order of its ring: a list, or text as `32-63` or `node[8,12-15]`."""
    traffic: Literal["ring", "all_to_all"] = "ring"
    """`ring`: each NIC sends to that of its rail on the next node. `all_to_all`: to all nodes."""
    rate: BytesPerSecond
    """What each of its NICs sends where nothing is in the way; on a full link it gets the same
    share as each of the run's own flows."""


class ClusterSpec(Spec):
    """Equal nodes on one fabric."""

    node: NodeSpec
    num_nodes: Annotated[int, Field(gt=0, le=MAX_NODES)]
    fabric: FabricSpec
    slow_gpus: dict[Annotated[int, Field(ge=0)], Annotated[float, Field(gt=0, le=1)]] = {}
    """Global rank -> speed of that GPU's compute as a fraction of a healthy one's."""
    hosts: NodeList = ()
    """Nodes of the fabric that the run has, in the scheduler's order: a list, or text as `0-3,8`
    or `node[0-3,8]`; the first num_nodes when left out."""
    placement: Literal["packed", "striped"] = "packed"
    """`packed`: ranks fill one node after the other. `striped`: rank r lies on node r modulo
    num_nodes."""
    background: tuple[BackgroundJob, ...] = ()
    profile: ProfileSpec = ProfileSpec()
    """Calibration to real runs: a preset, the path of a YAML file (`clustersim calibrate` writes
    them), or a mapping."""

    @property
    def num_gpus(self) -> int:
        return self.num_nodes * self.node.gpus_per_node

    @property
    def node_order(self) -> Sequence[int]:
        """Nodes of the fabric that the run has, in its order."""
        return self.hosts or range(self.num_nodes)

    @property
    def fabric_nodes(self) -> int:
        """Nodes that are cabled to the fabric."""
        if self.fabric.num_nodes is not None:
            return self.fabric.num_nodes
        jobs = [self.node_order, *(job.hosts for job in self.background)]
        return max(max(nodes) for nodes in jobs) + 1

    @property
    def nic_rate_bytes_per_s(self) -> float:
        """What one NIC sends on this fabric, per direction; the NICs that a GPU has to itself
        together."""
        line = min(self.node.nic_bandwidth_bytes_per_s, self.fabric.link_bandwidth)
        achieved = self.fabric.link_efficiency * self.profile.network_efficiency
        return line * achieved * self.node.nics_per_port

    def calibrated(self) -> "ClusterSpec":
        """This cluster with its NVLink at the rate that the profile says."""
        node = with_nvlink_share(self.node, self.profile.nvlink_efficiency)
        return self.model_copy(update={"node": node})


def without_nvls(node: NodeSpec) -> NodeSpec:
    """The node with its switches' reductions off, as NCCL_NVLS_ENABLE=0 has it."""
    nvlink = node.nvlink.model_copy(update={"in_switch_reduction": False})
    return node.model_copy(update={"nvlink": nvlink})


def with_nvlink_share(node: NodeSpec, share: float) -> NodeSpec:
    """The node with `share` of its NVLink rate."""
    if share == 1.0:
        return node
    nvlink = node.nvlink
    usable = nvlink.usable_bytes_per_s * share
    changed = nvlink.model_copy(update={"usable_bytes_per_s": usable})
    return node.model_copy(update={"nvlink": changed})
