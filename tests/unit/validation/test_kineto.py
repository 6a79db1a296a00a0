"""Profiler traces: a small one made here, and the kernels of a real step of ours."""

import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import ConfigError
from validation.json_stream import CHUNK, ArrayReader, BrokenJsonError
from validation.kernel_names import group_axis, kernel_class
from validation.kineto import KernelTrace, looks_like_trace, read_kineto

FIXTURES = Path(__file__).parents[2] / "fixtures"
GEMM = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT"
ADAM = (
    "void multi_tensor_apply_kernel<TensorListMetadata<4>, multi_tensor_adam::AdamFunctor<float>>"
)
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def kernel(name: str, start_us: float, duration_us: float, **args: Any) -> dict[str, Any]:
    return {
        "ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": start_us,
        "dur": duration_us, "args": {"device": 0, "stream": 7, **args},
    }  # fmt: skip


def mark(number: int, start_us: float, duration_us: float, gpu: bool = False) -> dict[str, Any]:
    category = "gpu_user_annotation" if gpu else "user_annotation"
    return {
        "ph": "X", "cat": category, "name": f"ProfilerStep#{number}", "ts": start_us,
        "dur": duration_us,
    }  # fmt: skip


NOISE = [
    {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python3"}},
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1.0, "dur": 5.0, "args": {}},
    {"ph": "f", "cat": "ac2g", "name": "ac2g", "ts": 2.0, "id": 4},
    {"ph": "i", "cat": "", "name": "Record Window End", "ts": 3.0},
]


def write(path: Path, events: list[Any], **head: Any) -> Path:
    text = json.dumps({"schemaVersion": 1, **head, "traceEvents": events, "traceName": "t.json"})
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def read(folder: Path, *events: Any, **head: Any) -> KernelTrace:
    return read_kineto(write(folder / "trace.json", [*NOISE, *events], **head))


def test_two_steps_are_averaged(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        kernel(GEMM, 5.0, 90.0),  # before the first step: of the one that is not recorded
        mark(1, 100.0, 900.0),
        mark(2, 1000.0, 1100.0),
        kernel(GEMM, 110.0, 300.0),
        kernel("Memset (Device)", 500.0, 1.0) | {"cat": "gpu_memset"},
        kernel(GEMM, 1010.0, 100.0),
        kernel(ADAM, 1500.0, 50.0),
    )
    assert trace.num_steps == 2
    # the first lasts until the second begins: 900 us; the second 1100
    assert trace.step_time_s == pytest.approx((900e-6 + 1100e-6) / 2)
    assert trace.seconds["gemm"] == pytest.approx((300e-6 + 100e-6) / 2)
    assert trace.seconds["optimizer"] == pytest.approx(50e-6 / 2)
    assert trace.seconds["fill"] == pytest.approx(1e-6 / 2)
    assert trace.calls["gemm"] == 1.0
    assert trace.busy_s == pytest.approx(451e-6 / 2)
    assert trace.idle_s == pytest.approx(1000e-6 - 451e-6 / 2)
    assert trace.heaviest[0].name == GEMM
    assert trace.heaviest[0].seconds == pytest.approx(200e-6)


def test_the_gpus_own_marks_tell_whose_a_late_kernel_is(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        mark(1, 0.0, 100.0),
        mark(1, 50.0, 130.0, gpu=True),
        kernel(GEMM, 150.0, 30.0),  # after the host's step has ended
    )
    assert trace.step_time_s == pytest.approx(100e-6)
    assert trace.seconds["gemm"] == pytest.approx(30e-6)


def test_overlapping_communication(tmp_path: Path) -> None:
    group = {"Process Group Description": "TENSOR_MODEL_PARALLEL_GROUP"}
    trace = read(
        tmp_path,
        mark(1, 0.0, 100.0),
        kernel(GEMM, 0.0, 40.0),
        kernel(ALL_REDUCE, 30.0, 30.0, **group),  # 10 us of it beside the GEMM
        kernel("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", 70.0, 5.0,
               **{"Collective name": "all_to_allv"}),
    )  # fmt: skip
    assert trace.seconds["all_reduce"] == pytest.approx(30e-6)
    assert trace.seconds["all_to_all"] == pytest.approx(5e-6)
    assert trace.communication_s == pytest.approx(35e-6)
    assert trace.busy_s == pytest.approx((40 + 20 + 5) * 1e-6)
    assert trace.exposed_communication_s == pytest.approx((20 + 5) * 1e-6)
    assert trace.idle_s == pytest.approx(35e-6)
    assert trace.axis_seconds == {"tp": pytest.approx(30e-6)}


def test_without_marks_the_whole_trace_is_a_step(tmp_path: Path) -> None:
    trace = read(tmp_path, kernel(GEMM, 1000.0, 10.0), kernel(ADAM, 1090.0, 10.0))
    assert trace.step_time_s == pytest.approx(100e-6)
    assert any("no ProfilerStep marks" in note for note in trace.notes)


def test_several_gpus_in_one_trace_are_averaged(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        mark(1, 0.0, 100.0),
        kernel(GEMM, 0.0, 40.0),
        kernel(GEMM, 0.0, 60.0, device=1),
    )
    assert trace.seconds["gemm"] == pytest.approx(50e-6)
    assert trace.busy_s == pytest.approx(50e-6)


def test_what_the_head_tells(tmp_path: Path) -> None:
    head = {
        "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "numSms": 132}],
        "distributedInfo": {"backend": "nccl", "rank": 12, "world_size": 16},
    }
    trace = read(tmp_path, mark(1, 0.0, 100.0), kernel(GEMM, 0.0, 40.0), **head)
    assert (trace.device, trace.rank) == ("NVIDIA H200", 12)


def test_memory_if_it_was_profiled(tmp_path: Path) -> None:
    def allocation(device_type: int, total: int) -> dict[str, Any]:
        args = {"Device Type": device_type, "Total Allocated": total}
        return {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": 1, "args": args}

    events = [allocation(0, 10**12), allocation(1, 300), allocation(1, 500), allocation(1, 100)]
    assert read(tmp_path, kernel(GEMM, 0.0, 1.0), *events).peak_allocated_bytes == 500


def test_gzip_a_bare_list_and_names_of_pytorch_1_8(tmp_path: Path) -> None:
    events = [mark(1, 0.0, 100.0), kernel(GEMM, 0.0, 40.0) | {"cat": "Kernel"}]
    packed = write(tmp_path / "trace.json.gz", events)
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps(events), encoding="utf-8")
    for path in (packed, bare):
        assert looks_like_trace(path)
        assert read_kineto(path).seconds == {"gemm": pytest.approx(40e-6)}


def test_events_larger_than_what_is_read_at_once(tmp_path: Path) -> None:
    long = kernel(GEMM, 0.0, 40.0, stack="x" * (2 * CHUNK))
    trace = read(tmp_path, mark(1, 0.0, 100.0), long, kernel(GEMM, 50.0, 10.0))
    assert trace.calls["gemm"] == 2.0


def test_control_characters_in_names(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", [kernel("gemm TAB", 0.0, 40.0)])
    path.write_bytes(path.read_bytes().replace(b"TAB", b"\t\x01"))
    assert read_kineto(path).seconds == {"gemm": pytest.approx(40e-6)}


def test_a_table_of_kernels_of_a_real_step() -> None:
    path = FIXTURES / "h200_70b_width_kernels.csv.gz"
    trace = read_kineto(path)
    rows = gzip.decompress(path.read_bytes()).decode().splitlines()[1:]
    attention_us = sum(
        float(row.rsplit(",", 6)[2])
        for row in rows
        if any(word in row for word in ("sdpa", "fmha", "cudnn::fusion", "fused_attn"))
    )
    assert trace.seconds["attention"] == pytest.approx(attention_us * 1e-6)
    assert trace.seconds.get("other", 0.0) == 0.0
    assert sum(trace.calls.values()) == len(rows)
    # 2 layers x 2 microbatches x (qkv, proj, fc1, fc2) x (forward, dgrad, wgrad), and logits x 3
    assert trace.calls["gemm"] >= 2 * (2 * 4 * 3 + 3)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (GEMM, "gemm"),
        ("ampere_bf16_s1688gemm_bf16_256x128_ldg8_f2f_stages_32x1_tn", "gemm"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "gemm"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16>", "gemm"),
        ("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_tn", "gemm"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float>(...)", "gemm"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7", "attention"),
        ("void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128>>(Flash_fwd_params)", "attention"),
        ("void cutlass::device_kernel<flash::FlashAttnFwdSm90<...>>", "attention"),
        ("void cudnn::fusion::compute_dot_do_o_specialized<true, 128>(void const*)", "attention"),
        ("fmha_v2_flash_attention_fp16_S_80_sm80_kernel", "attention"),
        (ADAM, "optimizer"),
        ("void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<...>", "norm"),
        ("void cuApplyLayerNorm<float, float, c10::BFloat16>(...)", "norm"),
        ("triton_poi_fused_add_cat_mul_rsub_sigmoid_silu_split_0", "activation"),
        ("triton_poi_fused_add_0", "elementwise"),
        ("void transformer_engine::fused_rope_forward_kernel<__nv_bfloat16>(...)", "rotary"),
        ("void scaled_upper_triang_masked_softmax_warp_forward<half, half, float, 11>", "softmax"),
        ("cast_transpose_optimized_kernel(__nv_bfloat16 const*, __nv_fp8_e4m3*)", "quantize"),
        ("_unpermute_kernel", "moe_routing"),
        ("Memcpy DtoH (Device -> Pinned)", "copy"),
        ("Memset (Device)", "fill"),
        ("void at::native::vectorized_elementwise_kernel<4, FillFunctor<float>>", "fill"),
        ("void at::native::vectorized_elementwise_kernel<8, at::native::bfloat16_copy_kernel_cuda("
         "at::TensorIteratorBase&)::{lambda(float)#1}>", "copy"),
        ("void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<float>>",
         "elementwise"),
        (ALL_REDUCE, "all_reduce"),
        ("ncclKernel_AllReduce_RING_LL_Sum_half(ncclWorkElem)", "all_reduce"),
        ("ncclAllReduceRingLLKernel_sum_f16(ncclColl)", "all_reduce"),
        ("ncclDevKernel_AllGather_RING_LL(...)", "all_gather"),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(...)", "reduce_scatter"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(...)", "send_recv"),
        ("ncclDevKernel_Broadcast_RING_LL(...)", "broadcast"),
        ("void userbuffers_fp16_sum_inplace_gpu_rr_rs<8>(...)", "reduce_scatter"),
        ("ncclDevKernel_Generic(...)", "other_communication"),
        ("k", "other"),
    ],
)  # fmt: skip
def test_names(name: str, expected: str) -> None:
    assert kernel_class(name) == expected


@pytest.mark.parametrize(
    ("collective", "expected"),
    [("all_to_allv", "all_to_all"), ("send", "send_recv"), ("_allgather_base", "all_gather"),
     ("_reduce_scatter_base", "reduce_scatter"), ("allreduce", "all_reduce")],
)  # fmt: skip
def test_the_trace_knows_the_collective_better(collective: str, expected: str) -> None:
    assert kernel_class("ncclDevKernel_SendRecv(...)", collective) == expected


@pytest.mark.parametrize(
    ("description", "axis"),
    [("TENSOR_MODEL_PARALLEL_GROUP", "tp"), ("DATA_PARALLEL_GROUP_WITH_CP", "dp"),
     ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"), ("CONTEXT_PARALLEL_GROUP", "cp"),
     ("EXPERT_MODEL_PARALLEL_GROUP", "ep"), ("EXPERT_DATA_PARALLEL_GROUP", "dp"),
     ("EMBEDDING_GROUP", "dp"), ("mesh_tp", "tp"), ("default_pg", "")],
)  # fmt: skip
def test_axis_of_a_group(description: str, axis: str) -> None:
    assert group_axis(description) == axis


GOOD = json.dumps({"traceEvents": [kernel(GEMM, 0.0, 1.0), kernel(GEMM, 2.0, 1.0)]})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"\x00\x01", "is binary"),
        (b"{}", "there is no list of events"),
        (b'{"a": 1', "there is no list of events"),
        (GOOD[:-20].encode(), "the file ends inside event 2"),
        (GOOD[: GOOD.index("}, {") + 3].encode(), "the file ends inside the list of events"),
        (gzip.compress(GOOD.encode() * 50)[:-30], "cut off"),
        (b'{"traceEvents": [{"ph": "X"} oops', "event 2"),
        (b'{"traceEvents": []}', "holds no GPU kernels"),
        (json.dumps({"traceEvents": NOISE}).encode(), "1 of cpu_op"),
        (b'{"traceEvents": [1, "a", null, {"ph": "X", "cat": "kernel", "name": 3, "ts": "b"}]}',
         "holds no GPU kernels"),
        (b"name,cat,start_us,dur_us\nk,kernel,zero,1\n", "start_us and dur_us must be numbers"),
        (b"name,cat,start_us,dur_us\n", "holds no GPU kernels"),
        (b'{"traceEvents": ' + b"[" * 100_000, "nested too deep"),
    ],
)  # fmt: skip
def test_what_is_no_trace(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_kineto(path)
    assert words in str(caught.value)
    assert str(caught.value).startswith(str(path))


def test_kernels_outside_all_marks(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none of its 1 kernels lies in a marked step"):
        read(tmp_path, mark(1, 100.0, 10.0), kernel(GEMM, 0.0, 1.0))


@pytest.mark.parametrize(
    ("start", "is_trace"),
    [('{"schemaVersion"', True), ('[\n  {"ph"', True), ("name,cat,start_us,dur_us,stream\n", True),
     ("[2024-04-06 02:59:36] iteration 1/ 2 |", False), ("[Rank 0] (after", False), ("a\n", False)],
)  # fmt: skip
def test_telling_traces_from_logs(tmp_path: Path, start: str, is_trace: bool) -> None:
    path = tmp_path / "file"
    path.write_text(start, encoding="utf-8")
    assert looks_like_trace(path) is is_trace


def test_the_reader_holds_little(tmp_path: Path) -> None:
    """10 MB of events pass through a buffer of a few MB, in reasonable time."""
    path = tmp_path / "trace.json"
    event = json.dumps(kernel(GEMM, 0.0, 1.0, padding="x" * 800))
    with path.open("w", encoding="utf-8") as file:
        file.write('{"traceEvents": [' + ",".join([event] * 10_000) + "]}")
    began = time.perf_counter()
    largest = 0
    with path.open(encoding="utf-8") as text:
        reader = ArrayReader(text, "traceEvents")
        for _ in reader.items():
            largest = max(largest, reader.num_buffered)
    assert reader.num_items == 10_000
    assert largest <= 3 * CHUNK
    assert time.perf_counter() - began < 10


def test_no_end_of_an_array(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("[1, 2", encoding="utf-8")
    with path.open(encoding="utf-8") as text:
        items = ArrayReader(text, "k").items()
        assert next(items) == 1
        with pytest.raises(BrokenJsonError, match="ends inside"):
            list(items)
