"""Tables of measured collectives and kernels."""

from pathlib import Path

import pytest

from hardware.collectives import GroupShape, collective_cost
from hardware.kernels import kernel_model
from hardware.presets import load_fabric, load_gpu, load_node
from hardware.spec import without_nvls
from simulator.errors import ConfigError
from validation.points import score_collectives, score_kernels

HEAD = "gpu,gpus,nodes,nic,collective,bytes,time_us\n"


def table(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "points.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_collective_inside_a_node(tmp_path: Path) -> None:
    line = "H100-SXM-80GB,8,1,NVLink4+NVSwitch,all_reduce,1073741824,4000\n"
    (point,) = score_collectives(table(tmp_path, HEAD + line))
    node = load_node("dgx-h100")
    cost = collective_cost("all_reduce", 2.0**30, GroupShape(8, 1, 0), node, 1.0)
    assert point.predicted_s == pytest.approx(cost.time_s)
    assert point.measured_s == pytest.approx(4e-3)
    assert point.error == pytest.approx(cost.time_s / 4e-3 - 1)


def test_a_collective_between_nodes_goes_by_the_printed_nics(tmp_path: Path) -> None:
    line = "A100-SXM-80GB,24,3,4x200G HDR IB,all_gather,1073741824,9000\n"
    (point,) = score_collectives(table(tmp_path, HEAD + line))
    rate = 200e9 / 8 * load_fabric("hdr-rail-optimized").link_efficiency
    cost = collective_cost("all_gather", 2.0**30, GroupShape(24, 3, 4), load_node("dgx-a100"), rate)
    assert point.predicted_s == pytest.approx(cost.time_s)


def test_a_rack_is_one_node(tmp_path: Path) -> None:
    line = "GB200,32,8,same NVL72 domain,all_gather,1073741824,3000\n"
    (point,) = score_collectives(table(tmp_path, HEAD + line))
    cost = collective_cost(
        "all_gather", 2.0**30, GroupShape(32, 1, 0), load_node("gb200-nvl72"), 1.0
    )
    assert point.predicted_s == pytest.approx(cost.time_s)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("H100-SXM-80GB,8,1,NVLink,sendrecv,8,10", "sendrecv"),
        ("MI355X,8,1,XGMI,all_reduce,8,10", "MI355X"),
        ("H100-SXM-80GB,9,2,8x400G,all_reduce,8,10", "evenly"),
        ("H20-96GB,16,2,NIC not recorded,all_reduce,8,10", "not recorded"),
        ("H100-SXM-80GB,8,1,NVLink,all_reduce,8,", "no time"),
    ],
)
def test_points_without_a_prediction_say_why(tmp_path: Path, line: str, reason: str) -> None:
    (point,) = score_collectives(table(tmp_path, HEAD + line + "\n"))
    assert point.predicted_s is None
    assert point.error is None
    assert reason in point.reason
    assert point.to_json()["skipped"]


def test_gemms(tmp_path: Path) -> None:
    text = (
        "op,dtype,layout,M,N,K,time_us\nfwd,bf16,TN,4096,4096,4096,200\n"
        "wgrad_acc_fp32,bf16,NT,4096,4096,4096,250\namax,fp8,,4096,4096,1,9\n"
    )
    first, second, third = score_kernels(table(tmp_path, text))
    model = kernel_model(load_gpu("h200-sxm-141g"))
    assert first.predicted_s == pytest.approx(model.gemm(4096, 4096, 4096, "fwd").seconds)
    accumulated = model.gemm(4096, 4096, 4096, "wgrad", accumulate_fp32=True)
    assert second.predicted_s == pytest.approx(accumulated.seconds)
    assert third.reason == "operation amax"


def test_attention(tmp_path: Path) -> None:
    text = (
        "impl,dir,dtype,causal,batch,heads,kv_heads,seq,head_dim,time_us\n"
        "cudnn,bwd,bf16,1,2,32,8,4096,128,900\nflash,bwd,bf16,1,2,32,8,4096,128,900\n"
        "unfused_softmax,fwd,bf16,1,2,32,8,4096,128,900\n"
    )
    first, flash, second = score_kernels(table(tmp_path, text))
    model = kernel_model(load_gpu("h200-sxm-141g"))
    expected = model.attention("bwd", 2, 32, 8, 4096, 4096, 128, True)
    assert first.predicted_s == pytest.approx(expected.seconds)
    older = model.attention("bwd", 2, 32, 8, 4096, 4096, 128, True, kernel="flash")
    assert flash.predicted_s == pytest.approx(older.seconds)
    assert older.seconds > 1.4 * expected.seconds
    assert "kernel by kernel" in second.reason


@pytest.mark.parametrize("score", [score_collectives, score_kernels])
def test_what_is_no_table(tmp_path: Path, score: object) -> None:
    with pytest.raises(ConfigError, match="no column"):
        score(table(tmp_path, "a,b\n1,2\n"))  # type: ignore[operator]
    with pytest.raises(ConfigError, match="cannot be read"):
        score(tmp_path / "none.csv")  # type: ignore[operator]


def test_the_recorded_algorithm_is_priced(tmp_path: Path) -> None:
    """Rings that were asked for; the same size by NVLS beside it."""
    head = HEAD.replace("time_us", "time_us,algo_proto")
    line = "H200-SXM-141GB,8,1,NVLink4,all_reduce,8589934592,41117,"
    nvls, ring = score_collectives(
        table(tmp_path, head + line + "NVLS\n" + line + "Ring (NVLS off)\n")
    )
    cost = collective_cost(
        "all_reduce", 2.0**33, GroupShape(8, 1, 0), without_nvls(load_node("dgx-h200")), 1.0
    )
    assert ring.predicted_s == pytest.approx(cost.time_s)
    assert nvls.predicted_s is not None
    assert nvls.predicted_s < 0.85 * cost.time_s


def test_a_run_that_its_table_calls_degraded_is_left_out(tmp_path: Path) -> None:
    head = HEAD.replace("time_us", "time_us,algo_proto")
    line = "B200-SXM-180GB,16,2,8x400G,all_gather,8,9,auto; DEGRADED (exclude from fits)\n"
    (point,) = score_collectives(table(tmp_path, head + line))
    assert point.predicted_s is None
    assert "degraded" in point.reason
