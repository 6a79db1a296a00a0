"""The cluster of a measured run, from the names and texts that runs tables use.

The GPU's name picks a node and a fabric of the catalog; `gpus_per_node` and the text of
`internode` ("4x100Gb Omni-Path per node") set what they print.
"""

import re
from collections.abc import Mapping
from functools import lru_cache

from hardware.presets import load_fabric, load_node
from hardware.spec import ClusterSpec, FabricSpec, NodeSpec

NODES = {
    "a100-sxm-80g": ("dgx-a100", "hdr-rail-optimized"),
    "a100-sxm-40g": ("dgx-a100-40g", "hdr-rail-optimized"),
    "a800-sxm-80g": ("hgx-a800", "hdr-rail-optimized"),
    "h100-sxm-80g": ("dgx-h100", "ndr-rail-optimized"),
    "h800-sxm-80g": ("hgx-h800", "ndr-rail-optimized"),
    "h20-sxm-96g": ("hgx-h20", "ndr-rail-optimized"),
    "h200-sxm-141g": ("dgx-h200", "ndr-rail-optimized"),
    "b200-sxm-180g": ("dgx-b200", "ndr-rail-optimized"),
    "b300-sxm-288g": ("dgx-b300", "spectrum-x-b300"),
    "gb200-nvl72": ("gb200-nvl72", "ndr-rail-optimized"),
    "gb300-nvl72": ("gb300-nvl72", "spectrum-x-b300"),
}
"""GPU, as runs tables name it -> node and fabric of the catalog that it is usually bought with."""

NAMED_NODES = (("h100-sxm-80g", "hopper-prod", "p5-48xlarge"),)
"""GPU, what the text of `internode` says, node: Hugging Face's cluster is on AWS (its job scripts
name EC2 hosts and FSx; huggingface/nanotron, run_multinode.sh)."""

DOMAIN_GPUS = (72, 64, 32, 16, 8, 4)
"""GPUs of an NVLink domain of 72 that a job takes: the most that divide the job (whole trays)."""

_NICS = re.compile(r"(\d+)\s*x\s*(\d+)\s*G(?:b|b/s)?", re.IGNORECASE)
_PER_GPU = re.compile(r"(\d+)\s*G(?:b/s)?(?: IB| RoCE)? per GPU")
_BITS = 1e9 / 8


def cluster_of(row: Mapping[str, str]) -> ClusterSpec:
    """The cluster of a row. Raises `ValueError` where the catalog has nothing like it."""
    gpu, num_gpus = row["gpu"], int(row["num_gpus"])
    if gpu not in NODES:
        raise ValueError(f"no node of the catalog has the GPU {gpu!r}")
    node, fabric = full_node(gpu, row.get("internode", ""))
    per_node = _gpus_per_node(node, gpu, num_gpus)
    if per_node != node.gpus_per_node:
        nics = max(1, node.nics_per_node * per_node // node.gpus_per_node)
        node = node.model_copy(update={"gpus_per_node": per_node, "nics_per_node": nics})
    if num_gpus % per_node:
        raise ValueError(f"{num_gpus} GPUs do not fill nodes of {per_node}")
    return ClusterSpec(node=node, num_nodes=num_gpus // per_node, fabric=fabric)


def full_node(gpu: str, internode: str) -> tuple[NodeSpec, FabricSpec]:
    """A node full of `gpu` with the NICs that the text prints, and its fabric."""
    usual, fabric_name = NODES[gpu]
    named = (n for known, text, n in NAMED_NODES if known == gpu and text in internode)
    node, fabric = _parts(next(named, usual), fabric_name)
    return _with_nics(node, internode), fabric


@lru_cache(maxsize=32)
def _parts(node: str, fabric: str) -> tuple[NodeSpec, FabricSpec]:
    return load_node(node), load_fabric(fabric)


def _gpus_per_node(node: NodeSpec, gpu: str, num_gpus: int) -> int:
    if num_gpus <= node.gpus_per_node:
        return num_gpus
    if gpu.endswith("nvl72"):
        return next((n for n in DOMAIN_GPUS if num_gpus % n == 0), node.gpus_per_node)
    return node.gpus_per_node


def _with_nics(node: NodeSpec, internode: str) -> NodeSpec:
    """NICs as the text prints them, where it does: "4x100Gb", "400Gb/s per GPU"."""
    found = _NICS.search(internode)
    if found and "NVLink" not in internode[found.start() : found.end() + 8]:
        nics, rate = int(found[1]), float(found[2]) * _BITS
    elif per_gpu := _PER_GPU.search(internode):
        nics, rate = node.gpus_per_node, float(per_gpu[1]) * _BITS
    else:
        return node
    return node.model_copy(update={"nics_per_node": nics, "nic_bandwidth_bytes_per_s": rate})
