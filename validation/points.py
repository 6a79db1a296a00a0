"""Measured collectives and kernels, each point predicted by the model of the hardware alone."""

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from hardware.collectives import GroupShape, collective_cost
from hardware.kernels import AttentionKernel, GemmKind, KernelModel, kernel_model
from hardware.nccl import Kind
from hardware.presets import load_gpu
from hardware.spec import NodeSpec, ProfileSpec, with_nvlink_share, without_nvls
from simulator.errors import ConfigError, Place, Problem
from validation.clusters import NODES, full_node
from validation.score import relative_error

Row = Mapping[str, str]
Point: TypeAlias = tuple[str, Row, float | None]
AS_SHIPPED = ProfileSpec()


@dataclass(frozen=True)
class ScoredPoint:
    """One measured time, and the predicted one or why there is none."""

    row: Row
    group: str
    measured_s: float | None
    predicted_s: float | None = None
    reason: str = ""

    @property
    def error(self) -> float | None:
        """Predicted over measured time, minus 1."""
        return relative_error(self.predicted_s, self.measured_s)

    def to_json(self) -> dict[str, Any]:
        """The point as plain data; the columns it came from under `row`."""
        return {
            "group": self.group,
            "predicted_s": self.predicted_s,
            "measured_s": self.measured_s,
            "error": self.error,
            "skipped": self.predicted_s is None,
            "reason": self.reason,
            "row": dict(self.row),
        }


class NoPredictionError(ValueError):
    """The point is of something that the hardware's model does not cover."""


# collectives

COLLECTIVE_COLUMNS = ("gpu", "gpus", "nodes", "nic", "collective", "bytes", "time_us")
KINDS: dict[str, Kind] = {
    "all_reduce": "all_reduce",
    "allreduce": "all_reduce",
    "all_gather": "all_gather",
    "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reducescatter": "reduce_scatter",
    "all_to_all": "all_to_all",
    "alltoall": "all_to_all",
}
GPU_ALIASES = {
    "a100-sxm": "a100-sxm-80g",
    "a100-sxm4-80gb": "a100-sxm-80g",
    "a100-sxm4-40gb": "a100-sxm-40g",
    "a100-sxm-80gb": "a100-sxm-80g",
    "a100-sxm-40gb": "a100-sxm-40g",
    "h100-sxm-80gb": "h100-sxm-80g",
    "h100-sxm5-80gb": "h100-sxm-80g",
    "h200-sxm-141gb": "h200-sxm-141g",
    "b200-sxm-180gb": "b200-sxm-180g",
    "b300-sxm-288gb": "b300-sxm-288g",
    "h20-96gb": "h20-sxm-96g",
    "b200": "b200-sxm-180g",
    "gb200": "gb200-nvl72",
    "gb300": "gb300-nvl72",
}
"""Names of nccl-tests tables -> names of runs tables."""


def score_collectives(path: Path) -> list[ScoredPoint]:
    """Predict each point of a table of nccl-tests results.

    Raises `ConfigError` for a file that cannot be read, lacks columns, or holds no numbers.
    """
    return [_scored(point, collective_seconds) for point in collective_rows(path)]


def collective_rows(path: Path) -> Iterator[Point]:
    """Group, row and measured seconds of each line of such a table."""
    return _points(path, COLLECTIVE_COLUMNS, _collective_group)


def _collective_group(row: Row) -> str:
    return f"{row['collective']} {row['gpus']} {row['gpu']} on {row['nodes']} nodes, {row['nic']}"


def collective_seconds(row: Row, profile: ProfileSpec = AS_SHIPPED) -> float:
    """What the model says of a row, with links as good as the profile has them.

    Raises `NoPredictionError` for what it does not cover.
    """
    kind = KINDS.get(row["collective"].lower())
    if kind is None:
        raise NoPredictionError(f"collective {row['collective']} is not built yet")
    gpus, nic, how = int(row["gpus"]), row["nic"], row.get("algo_proto", "")
    if "exclude" in how:
        raise NoPredictionError("the table says that the run was degraded")
    node, nic_rate = _node(row["gpu"], nic)
    if how.startswith("Ring"):
        node = without_nvls(node)
    nodes = _num_nodes(int(row["nodes"] or 1), nic)
    if gpus % nodes or gpus // nodes > node.gpus_per_node:
        raise NoPredictionError(f"{gpus} GPUs do not lie evenly on {nodes} nodes")
    local = gpus // nodes
    if nodes > 1 and "not recorded" in nic:
        raise NoPredictionError("the network was not recorded")
    shape = GroupShape(gpus, nodes, max(1, min(node.ports_per_node, local)) if nodes > 1 else 0)
    node = with_nvlink_share(node, profile.nvlink_efficiency)
    nic_rate *= profile.network_efficiency
    return collective_cost(kind, float(row["bytes"]), shape, node, nic_rate).time_s


def _num_nodes(nodes: int, nic: str) -> int:
    """NVLink domains: one rack of 72 counts as one node, whatever its trays."""
    if re.search(r"1 rack|same NVL72|NVL domain$|1 tray", nic):
        return 1
    racks = re.search(r"x(\d+) racks|^(\d+) NVL", nic)
    return int(racks[1] or racks[2]) if racks else nodes


def _node(gpu: str, nic: str) -> tuple[NodeSpec, float]:
    """The node of the catalog with this GPU and these NICs, and what one NIC sends."""
    name = GPU_ALIASES.get(gpu.lower(), gpu.lower())
    if name not in NODES:
        raise NoPredictionError(f"no node of the catalog has the GPU {gpu}")
    node, fabric = full_node(name, nic)
    rate = min(node.nic_bandwidth_bytes_per_s, fabric.link_bandwidth) * fabric.link_efficiency
    return node, rate * node.nics_per_port


# kernels

KERNEL_GPU = "h200-sxm-141g"
"""Whose kernels a table without a `gpu` column is taken to hold."""
GEMM_KINDS = ("fwd", "dgrad", "wgrad", "wgrad_acc_fp32")


def score_kernels(path: Path) -> list[ScoredPoint]:
    """Predict each row of a table of GEMMs (op, M, N, K) or attention kernels (dir, seq, ...).

    Raises `ConfigError` as `score_collectives` does.
    """
    return [_scored(point, kernel_seconds) for point in kernel_rows(path)]


def kernel_rows(path: Path) -> Iterator[Point]:
    """Group, row and measured seconds of each line of such a table."""
    columns = _header(path)
    if {"M", "N", "K"} <= set(columns):
        return _points(path, ("op", "dtype", "M", "N", "K", "time_us"), _op)
    needed = ("dir", "dtype", "causal", "batch", "heads", "kv_heads", "seq", "head_dim", "time_us")
    return _points(path, needed, _implementation)


def kernel_class(row: Row) -> str:
    """gemm or attention."""
    return "gemm" if "M" in row else "attention"


def kernel_seconds(row: Row, profile: ProfileSpec = AS_SHIPPED) -> float:
    """What the model says of a row, at the efficiency that the profile gives its class.

    Raises `NoPredictionError` for what it does not cover.
    """
    if kernel_class(row) == "gemm":
        return _gemm_s(row) / profile.gemm_efficiency
    return _attention_s(row) / profile.attention_efficiency


def _op(row: Row) -> str:
    return f"{row['op']} {row['dtype']}"


def _implementation(row: Row) -> str:
    return f"{row.get('impl', '')} attention {row['dir']} {row['dtype']}".strip()


def _gemm_s(row: Row) -> float:
    op = row["op"]
    if op not in GEMM_KINDS:
        raise NoPredictionError(f"operation {op}")
    kind: GemmKind = "wgrad" if op.startswith("wgrad") else "dgrad" if op == "dgrad" else "fwd"
    m, n, k = (int(row[name]) for name in ("M", "N", "K"))
    time = _kernels(row).gemm(
        m, n, k, kind, row["dtype"], int(row.get("batch") or 1), op.endswith("_acc_fp32")
    )
    return time.seconds


ATTENTION_KERNELS: dict[str, AttentionKernel] = {"cudnn": "fused", "flash": "flash"}
"""Name in kernel tables -> kernel."""


def _attention_s(row: Row) -> float:
    implementation = row.get("impl") or "cudnn"
    if implementation not in ATTENTION_KERNELS:
        raise NoPredictionError(f"attention by {implementation} is priced kernel by kernel")
    sizes = (int(row[name]) for name in ("batch", "heads", "kv_heads", "seq"))
    batch, heads, kv_heads, seq = sizes
    time = _kernels(row).attention(
        row["dir"], batch, heads, kv_heads, seq, seq, int(row["head_dim"]),  # type: ignore[arg-type]
        row["causal"] == "1", row["dtype"], ATTENTION_KERNELS[implementation],
    )  # fmt: skip
    return time.seconds


def _kernels(row: Row) -> KernelModel:
    return kernel_model(load_gpu(row.get("gpu") or KERNEL_GPU))


# tables


def _header(path: Path) -> Sequence[str]:
    return next(_read(path), {}).keys()  # type: ignore[return-value]


def _points(path: Path, columns: Sequence[str], group: Callable[[Row], str]) -> Iterator[Point]:
    for row in _read(path, columns):
        yield group(row), row, float(row["time_us"]) * 1e-6 if row["time_us"] else None


def _scored(point: Point, seconds: Callable[[Row], float]) -> ScoredPoint:
    group, row, measured_s = point
    if measured_s is None:
        return ScoredPoint(row, group, None, None, "no time was measured")
    try:
        return ScoredPoint(row, group, measured_s, seconds(row))
    except ValueError as error:
        return ScoredPoint(row, group, measured_s, None, str(error))


def _read(path: Path, columns: Sequence[str] = ()) -> Iterator[Row]:
    place = Place(str(path))
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            absent = [name for name in columns if name not in (reader.fieldnames or ())]
            if absent:
                raise ConfigError(Problem(f"has no column {', '.join(absent)}", place=place))
            yield from ({k: v or "" for k, v in row.items() if k} for row in reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(Problem(f"cannot be read: {reason}", place=place)) from None
