"""Small runs for tests: a few layers on a few nodes; a step is simulated in milliseconds."""

from typing import Any

from hardware.presets import load_fabric, load_node
from hardware.spec import ClusterSpec, ProfileSpec
from simulator.runspec import RunSpec
from workloads.spec import ModelSpec, OptimizerSpec, ParallelismSpec, TrainingSpec

H100_NODE = load_node("dgx-h100")
RAIL = load_fabric("ndr-rail-optimized")
TREE = load_fabric("ndr-fat-tree")


def small_model(**changes: Any) -> ModelSpec:
    """Two layers of hidden size 512, 8 heads, 8,192 words."""
    fields = {
        "num_layers": 2, "hidden_size": 512, "num_attention_heads": 8, "vocab_size": 8192,
    } | changes  # fmt: skip
    return ModelSpec.model_validate(fields)


def small_cluster(num_nodes: int = 1, gpus_per_node: int = 8, **changes: Any) -> ClusterSpec:
    """H100 nodes on rails, a NIC for each GPU, all GPUs equally fast. Names in `changes` that start
    with `node_` or `fabric_` go to the node or the fabric, `fabric` is one, others go to the
    cluster."""
    node_changes = {k[5:]: v for k, v in changes.items() if k.startswith("node_")}
    node_changes = {"gpus_per_node": gpus_per_node, "nics_per_node": gpus_per_node} | node_changes
    fabric_changes = {k[7:]: v for k, v in changes.items() if k.startswith("fabric_")}
    fabric = changes.get("fabric", RAIL).model_copy(update=fabric_changes)
    others = {k: v for k, v in changes.items() if not k.startswith(("node_", "fabric"))}
    node = H100_NODE.model_copy(update=node_changes)
    others = {"profile": ProfileSpec(gpu_speed_deviation=0.0)} | others
    return ClusterSpec(node=node, num_nodes=num_nodes, fabric=fabric, **others)


def small_run(
    cluster: ClusterSpec,
    *,
    tp: int = 1,
    cp: int = 1,
    pp: int = 1,
    vpp: int = 1,
    num_microbatches: int = 4,
    model: ModelSpec | None = None,
    training: dict[str, Any] | None = None,
    parallelism: dict[str, Any] | None = None,
    optimizer: dict[str, Any] | None = None,
) -> RunSpec:
    """A run on all of `cluster`, microbatches of one sequence of 512 tokens."""
    cp = (parallelism or {}).get("context_parallel_size", cp)
    dp = cluster.num_gpus // (tp * cp * pp)
    fields = {
        "seq_length": 512, "micro_batch_size": 1, "global_batch_size": dp * num_microbatches,
    }  # fmt: skip
    layout = {
        "tensor_model_parallel_size": tp,
        "context_parallel_size": cp,
        "pipeline_model_parallel_size": pp,
        "virtual_pipeline_model_parallel_size": vpp,
    }
    return RunSpec(
        model=model or small_model(num_layers=2 * pp * vpp),
        training=TrainingSpec.model_validate(fields | (training or {})),
        parallelism=ParallelismSpec.model_validate(layout | (parallelism or {})),
        optimizer=OptimizerSpec.model_validate(optimizer or {}),
        cluster=cluster,
    )
