"""On which cluster an imported run goes: what options say, what the script says, defaults."""

import math
from dataclasses import dataclass

from hardware.spec import NodeSpec
from simulator.catalog import load_preset
from simulator.errors import ConfigError
from simulator.importing.launch import Launch
from simulator.importing.translation import Setting, Translation
from simulator.preset_loading import preset_names, read_preset
from simulator.spec_errors import nearest

DEFAULT_NODE = "dgx-h100"
USUAL_GPUS, USUAL_NIC = 8, 50e9
"""Of a node in the user's own file: GPUs, bytes/s of a NIC."""
SLOW_NIC = 40e9
"""Below this line rate (bytes/s) of a NIC the default fabric is one of HDR InfiniBand."""


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """What the command line says of the cluster; None where it says nothing."""

    gpu: str | None = None
    node: str | None = None
    fabric: str | None = None
    num_nodes: int | None = None
    gpus_per_node: int | None = None


def choose_cluster(t: Translation, launch: Launch, options: ClusterOptions) -> None:
    """Set the keys of `cluster`, each with where it comes from.

    Raises `ConfigError` for a GPU that no node of the catalog has.
    """
    node = _choose_node(t, options)
    own, nic = _node_size(node)
    per_node = _choose_gpus_per_node(t, launch, options, own)
    if per_node != own:
        setting = t.settings["cluster", "node"]
        value = {"preset": node, "gpus_per_node": str(per_node)}
        t.settings["cluster", "node"] = Setting(value, setting.origin, setting.place)
    _choose_num_nodes(t, launch, options, per_node)
    path = ("cluster", "fabric")
    if options.fabric is not None:
        t.settings[path] = Setting(options.fabric, "--fabric", t.source)
    else:
        fabric = "ndr-rail-optimized" if nic >= SLOW_NIC else "hdr-fat-tree"
        t.assume(path, fabric, "choose with --fabric")


def _choose_node(t: Translation, options: ClusterOptions) -> str:
    path = ("cluster", "node")
    if options.node is not None:
        t.settings[path] = Setting(options.node, "--node", t.source)
        return options.node
    if options.gpu is not None:
        node = _node_of_gpu(options.gpu)
        t.settings[path] = Setting(node, f"--gpu {options.gpu}", t.source)
        return node
    t.assume(path, DEFAULT_NODE, "scripts do not say which GPUs; choose with --gpu or --node")
    return DEFAULT_NODE


def _node_of_gpu(gpu: str) -> str:
    """A node of the catalog with such GPUs: NVIDIA's own first, then one of eight."""
    wanted = gpu.lower()
    found = {name: read_preset("nodes", name) for name in preset_names("nodes")}
    kinds = {name: str(values.get("gpu", "")) for name, values in found.items()}
    fitting = [n for n, kind in kinds.items() if wanted in (kind, kind.split("-")[0])]
    if not fitting:
        near = nearest(wanted, preset_names("gpus"))
        hint = f"; did you mean {near!r}?" if near else ""
        raise ConfigError(f"--gpu {gpu}: no node of the catalog has it{hint}")
    return max(
        fitting, key=lambda n: (n.startswith("dgx"), found[n]["gpus_per_node"] == 8, -len(n))
    )


def _node_size(node: str) -> tuple[int, float]:
    if node not in preset_names("nodes"):
        return USUAL_GPUS, USUAL_NIC
    spec = load_preset("nodes", node)
    assert isinstance(spec, NodeSpec)
    return spec.gpus_per_node, spec.nic_bandwidth_bytes_per_s


def _choose_gpus_per_node(t: Translation, launch: Launch, options: ClusterOptions, own: int) -> int:
    if options.gpus_per_node is not None:
        return options.gpus_per_node
    told = launch.gpus_per_node
    if told is not None:
        return told.value
    if launch.world_size is not None and launch.world_size.value < own:
        return launch.world_size.value
    t.assumed.append(f"{own} GPUs in each node: the script does not say; set with --gpus-per-node")
    return own


def _choose_num_nodes(
    t: Translation, launch: Launch, options: ClusterOptions, per_node: int
) -> None:
    """Nodes by option or launcher; enough for one replica of the model where those are too few."""
    path = ("cluster", "num_nodes")
    if options.num_nodes is not None:
        t.settings[path] = Setting(str(options.num_nodes), "--num-nodes", t.source)
        return
    replica = _replica(t)
    enough = _enough_nodes(t, replica, per_node)
    told, world = launch.num_nodes, launch.world_size
    if told is not None and told.value * per_node >= replica:
        t.settings[path] = Setting(str(told.value), told.origin, told.place)
    elif told is None and world is not None and world.value >= replica:
        nodes = max(1, world.value // per_node)
        t.settings[path] = Setting(str(nodes), world.origin, world.place)
    else:
        size = told or world
        said = "the script does not say how many"
        if size is not None:
            said = f"{size.origin} says {size.value}, too few for one replica of {replica} GPUs"
        t.assume(path, str(enough), f"{said}; set with --num-nodes")


def _replica(t: Translation) -> int:
    """GPUs that hold one copy of the model and one of each expert, both grids whole."""
    tensor = t.whole("parallelism", "tensor_model_parallel_size")
    stages = t.whole("parallelism", "pipeline_model_parallel_size")
    context = t.whole("parallelism", "context_parallel_size")
    experts = t.whole("parallelism", "expert_model_parallel_size")
    of_expert = t.whole("parallelism", "expert_tensor_parallel_size", tensor)
    return math.lcm(tensor * context, experts * of_expert) * stages


def _enough_nodes(t: Translation, replica: int, per_node: int) -> int:
    """The fewest nodes that hold whole replicas among which the batch can be divided."""
    batch = t.whole("training", "global_batch_size", 0)
    micro = t.whole("training", "micro_batch_size")
    own = data_parallel_unit(t)
    first = max(1, -(-replica // per_node))
    for nodes in range(first, first + 64):
        gpus = nodes * per_node
        if gpus % replica == 0 and (not batch or batch % (micro * (gpus // own)) == 0):
            return nodes
    return first


def data_parallel_unit(t: Translation) -> int:
    """GPUs that work on one replica's batch together."""
    names = ("tensor_model", "pipeline_model", "context")
    return math.prod(t.whole("parallelism", f"{name}_parallel_size") for name in names)
