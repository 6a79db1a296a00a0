"""Training logs in the wordings of several releases; two real ones of ours, trimmed."""

import gzip
from pathlib import Path
from statistics import median

import pytest

from simulator.errors import ConfigError
from validation.log_text import clean
from validation.megatron_log import MegatronLog, read_megatron_log

FIXTURES = Path(__file__).parents[2] / "fixtures"
MIB = 2**20


def read(folder: Path, *lines: str) -> MegatronLog:
    path = folder / "train.log"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return read_megatron_log(path)


def iterations(*milliseconds: float, first: int = 1, batch: int = 8) -> list[str]:
    return [
        f" iteration {n:8d}/     100 | consumed samples: {n * batch:12d} | elapsed time per "
        f"iteration (ms): {ms} | learning rate: 1.0E-04 | global batch size: {batch:5d} |"
        for n, ms in enumerate(milliseconds, first)
    ]


def test_a_log_of_2026() -> None:
    log = read_megatron_log(FIXTURES / "h200_7b_width.log")
    steady_ms = [718.0, 712.9, 1058.4, 691.8, 719.6, 715.8, 710.1, 712.4]
    assert log.step_time_s == pytest.approx(median(steady_ms) / 1e3)
    assert len(log.iterations) == 10
    assert log.iterations[0].seconds == pytest.approx(1.6931)
    assert log.tflops_per_gpu == pytest.approx((518.4 + 519.1) / 2, abs=0.5)
    assert log.max_allocated_bytes == pytest.approx(37982.69677734375 * MIB)
    assert log.max_reserved_bytes == pytest.approx(38870.0 * MIB)
    assert log.parameters[0].rank == (0, 0)
    assert log.parameters[0].parameters == 1882263552
    assert log.theoretical is not None
    assert log.theoretical.weights_and_optimizer_bytes == pytest.approx(32312.39 * MIB)
    assert log.theoretical.total_bytes == pytest.approx(37195.97 * MIB)
    told = {name: argument.value for name, argument in log.arguments.items()}
    assert told["num_microbatches"] == "8"
    assert told["seq_length"] == "4096"
    assert told["padded_vocab_size"] == "32128"
    assert told["tensor_model_parallel_size"] == told["world_size"] == "1"
    assert (told["bf16"], told["use_distributed_optimizer"]) == ("True", "False")
    assert told["inference_dynamic_batching_buffer_overflow_factor"] == "None"
    assert told["inference_dynamic_batching_unified_memory_level"] == "0"


def test_timers_of_the_iterations_that_count() -> None:
    log = read_megatron_log(FIXTURES / "h200_7b_width_timers.log")
    assert set(log.timers) >= {"forward-compute", "backward-compute", "optimizer"}
    assert "model-and-optimizer-setup" not in log.timers
    assert log.timers["optimizer"].max_s == pytest.approx(0.0275, rel=0.02)
    assert log.timers["forward-backward"].max_s < log.step_time_s


@pytest.mark.parametrize(
    ("line", "seconds", "tflops", "batch"),
    [
        # Megatron-LM 2019
        (
            " iteration      300/  320000 | elapsed time per iteration (ms): 512.5 | learning rate "
            "1.485E-04 | lm loss 6.567E+00 | loss scale 65536.0 |",
            0.5125, None, None,
        ),
        # before that word was added
        (
            " iteration      300/  320000 | time per iteration (ms): 512.5 | lm loss 6.567E+00 |",
            0.5125, None, None,
        ),
        # Megatron-LM 2024
        (
            " [2024-04-06 02:59:36] iteration       43/     100 | consumed samples:         5504 | "
            "elapsed time per iteration (ms): 5444.9 | throughput per GPU (TFLOP/s/GPU): 239.8 | "
            "learning rate: 8.6E-06 | global batch size:   128 | lm loss: 1.8E+00 |",
            5.4449, 239.8, 128,
        ),
        # torchrun --tee, Megatron-DeepSpeed: seconds
        (
            "[default7]: iteration    12695/  115311 | consumed samples:      9841584 | consumed "
            "tokens:  20155564032 | elapsed time per iteration (s): 105.22 | "
            "global batch size:  2048 | samples per second: 19.463 | TFLOPs: 149.02 |",
            105.22, 149.02, 2048,
        ),
        # a fork with = and underscores
        (
            "[2024-09-16 22:59:19][INFO][training_log:661] -  iteration=       1/  635782 | "
            "elapsed_time_per_iteration_ms=29570.0 | global_batch_size=768 | lm loss=11.1 | "
            "tokens_per_gpu_per_second_tgs=4432.597 | [LM]TFLOPs=20.30 | [DS]TFLOPs=26.18 |",
            29.57, 20.30, 768,
        ),
        # srun --label and colours
        (
            "3: \x1b[32m iteration        4/      10 | elapsed time per iteration (ms): 1.5e+03 | "
            "global batch size:     4 |\x1b[0m",
            1.5, None, 4,
        ),
        # NeMo 2
        (
            "retraining/0 [default0]:Training epoch 0, iteration 49/49 | lr: 7.496e-06 | "
            "global_batch_size: 128 | global_step: 49 | reduced_train_loss: 11.96 | "
            "train_step_timing in s: 12.39 | TFLOPS_per_GPU: 412.5 | consumed_samples: 6400",
            12.39, 412.5, 128,
        ),
        # Primus: now / average
        (
            " iteration        7/      10 | elapsed time per iteration (ms): 700.5/713.2 | "
            "throughput per GPU (TFLOP/s/GPU): 610.1/600.2 | global batch size:   16 |",
            0.7005, 610.1, 16,
        ),
    ],
    ids=["2019", "older", "2024", "deepspeed", "underscores", "srun", "nemo", "primus"],
)  # fmt: skip
def test_wordings(
    tmp_path: Path, line: str, seconds: float, tflops: float | None, batch: int | None
) -> None:
    log = read(tmp_path, line)
    assert log.step_time_s == pytest.approx(seconds)
    assert log.tflops_per_gpu == tflops
    assert log.iterations[0].global_batch_size == batch


def test_megatron_bridge_puts_tflops_on_a_line_before(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        "Step Time : 9.09s GPU utilization: 663.5MODEL_TFLOP/s/GPU",
        *iterations(9089.0, first=50, batch=512),
        "[Rank 1] (after 2 iterations) memory (GB) | mem-allocated-gigabytes: 63.66 | "
        "mem-reserved-gigabytes: 182.2 | mem-max-allocated-gigabytes: 153.4 | "
        "mem-max-active-gigabytes: 169.96 | mem-max-reserved-gigabytes: 182.3 | "
        "mem-alloc-retires: 0",
    )
    assert log.tflops_per_gpu == 663.5
    assert log.max_allocated_bytes == pytest.approx(153.4e9)
    assert log.max_reserved_bytes == pytest.approx(182.3e9)


def test_memory_is_that_of_the_fullest_rank(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        *iterations(1.0, 1.0, 1.0),
        "[Rank 0] (after 2 iterations) memory (MB) | allocated: 100.0 | max allocated: 300.5 | "
        "reserved: 400.0 | max reserved: 500.0",
        "[Rank 4] (after 2 iterations) memory (MB) | allocated: 100.0 | max allocated: 310.25 | "
        "reserved: 400.0 | max reserved: 450.0",
    )
    assert [report.rank for report in log.memory] == [0, 4]
    assert log.max_allocated_bytes == 310.25 * MIB
    assert log.max_reserved_bytes == 500.0 * MIB


def test_memory_of_2019_says_cached(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        *iterations(1.0),
        " after 100 iterations memory (MB) | allocated: 6784.88 | max allocated: 8927.5 | "
        "cached: 12136.0 | max cached: 12200.0",
    )
    assert log.max_allocated_bytes == 8927.5 * MIB
    assert log.max_reserved_bytes == 12200.0 * MIB


def test_memory_after_the_first_iteration_only_is_noted(tmp_path: Path) -> None:
    report = "[Rank 0] (after 1 iterations) memory (MB) | allocated: 1.0 | max allocated: 2.0"
    assert any("first iteration" in note for note in read(tmp_path, *iterations(1.0), report).notes)
    later = report.replace("after 1 ", "after 100 ")
    assert not any("only, whose" in note for note in read(tmp_path, *iterations(1.0), later).notes)


def test_the_warm_up_does_not_count(tmp_path: Path) -> None:
    log = read(tmp_path, *iterations(9000.0, 5000.0, 100.0, 101.0, 400.0))
    assert log.step_time_s == pytest.approx(0.101)
    assert "median of 3 iterations; the first 2 are warm-up" in log.notes


def test_one_line_of_warm_up_where_lines_are_means(tmp_path: Path) -> None:
    lines = [iterations(ms, first=n)[0] for n, ms in ((100, 300.0), (200, 200.0), (300, 202.0))]
    assert read(tmp_path, *lines).step_time_s == pytest.approx(0.201)


def test_a_single_iteration_is_used_and_noted(tmp_path: Path) -> None:
    log = read(tmp_path, *iterations(900.0))
    assert log.step_time_s == pytest.approx(0.9)
    assert any("only 1 iterations" in note for note in log.notes)


def test_each_start_has_its_warm_up(tmp_path: Path) -> None:
    first, second = iterations(900.0, 800.0, 100.0), iterations(900.0, 800.0, 102.0, first=3)
    log = read(tmp_path, *first, "done with setup ...", "training ...", *second)
    assert log.step_time_s == pytest.approx(0.101)
    assert "training starts 2 times in this log" in log.notes


def test_batch_size_ramp_up_uses_the_size_of_most(tmp_path: Path) -> None:
    ramp = iterations(9.0, 9.0, 50.0, batch=8)
    log = read(tmp_path, *ramp, *iterations(100.0, 102.0, first=4, batch=16))
    assert log.step_time_s == pytest.approx(0.101)
    assert any("2 global batch sizes" in note for note in log.notes)


def test_the_same_line_from_several_ranks_counts_once(tmp_path: Path) -> None:
    lines = [line for line in iterations(9.0, 9.0, 1.0, 3.0) for _ in range(2)]
    assert len(read(tmp_path, *lines).iterations) == 4


def test_a_cut_last_line_is_left_out(tmp_path: Path) -> None:
    log = read(tmp_path, *iterations(9.0, 9.0, 2.0), " iteration        4/     100 | consumed sa")
    assert len(log.iterations) == 3
    assert any("cut off" in note for note in log.notes)


def test_arguments_of_the_dump_win(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        "using world size: 16, data-parallel-size: 2, tensor-model-parallel size: 4, "
        "pipeline-model-parallel size: 2",
        "------------------------ arguments ------------------------",
        "[default0]:  tensor_model_parallel_size ...................... 8",
        "  virtual_pipeline_model_parallel_size ............ None",
        "  data_path ....................................... ['a b', 'c']",
        "  inference_dynamic_batching_buffer_guaranteed_fraction  0.2",
        "-------------------- end of arguments ---------------------",
        *iterations(1.0),
    )
    told = {name: argument.value for name, argument in log.arguments.items()}
    assert told == {
        "world_size": "16", "data_parallel_size": "2", "pipeline_model_parallel_size": "2",
        "tensor_model_parallel_size": "8", "virtual_pipeline_model_parallel_size": "None",
        "data_path": "['a b', 'c']",
        "inference_dynamic_batching_buffer_guaranteed_fraction": "0.2",
    }  # fmt: skip
    assert log.arguments["tensor_model_parallel_size"].line == 3


def test_parameters_by_rank(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        " > number of parameters on (tensor, pipeline) model parallel rank (0, 1): 20",
        " > number of parameters on (tensor, pipeline) model parallel rank (0, 0): 10",
        " > number of parameters on model parallel rank 3: 178100224",
        *iterations(1.0),
    )
    assert {c.rank: c.parameters for c in log.parameters} == {
        (0, 0): 10, (0, 1): 20, (3,): 178100224,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("report", "min_s", "max_s"),
    [
        (("(min, max) time across ranks (ms):",
          "    optimizer ......................................: (3407.56, 3409.92)"),
         3.40756, 3.40992),
        (("max time across ranks (ms):",
          "    optimizer ......................................: 3409.92"), 3.40992, 3.40992),
        (("times across ranks (ms):", "  optimizer:", "     rank  0: 10.00", "     rank  1: 12.00"),
         0.010, 0.012),
        (("time (ms) | forward-compute: 879.94 | optimizer: 19.12 | batch-generator: 8.39",),
         0.01912, 0.01912),
    ],
    ids=["min-max", "max", "ranks", "one-line"],
)  # fmt: skip
def test_layouts_of_timers(
    tmp_path: Path, report: tuple[str, ...], min_s: float, max_s: float
) -> None:
    warm = [line.replace("3", "9").replace("1", "9") for line in report]
    lines = iterations(9.0, 9.0, 1.0)
    log = read(tmp_path, lines[0], *warm, lines[1], *warm, lines[2], *report)
    assert log.timers["optimizer"].min_s == pytest.approx(min_s)
    assert log.timers["optimizer"].max_s == pytest.approx(max_s)


def test_gzipped_and_utf16(tmp_path: Path) -> None:
    text = "\n".join(iterations(9.0, 9.0, 2.0))
    (tmp_path / "a.log.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "b.log").write_text(text, encoding="utf-16")
    assert read_megatron_log(tmp_path / "a.log.gz").step_time_s == pytest.approx(0.002)
    assert read_megatron_log(tmp_path / "b.log").step_time_s == pytest.approx(0.002)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"\x7fELF\x00\x01\x02", "is binary"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", "is binary"),
        (gzip.compress(b"iteration 1/ 2 | elapsed time per iteration (ms): 1 |" * 99)[:-20],
         "cut off"),
        (b"\x1f\x8b this is no gzip", "damaged"),
        (b"hello\nworld\n", "has no iteration; looked for 'iteration N/ M"),
        (b"hello\nworld\n", "ends with 'world'"),
        (b" iteration        1/      10 | consumed sam", "no iteration has a time"),
        (b"  num_layers ...................... 8\nbye\n", "has 1 arguments, but no iteration"),
        (b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n",
         "ended out of memory (line 1)"),
        (b"#                 out-of-place           in-place\n", "is output of nccl-tests"),
        (b" iteration 1/ 2 | elapsed time per iteration (ms): 0.0 |\n", "no iteration has a time"),
    ],
)  # fmt: skip
def test_what_is_no_log(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_megatron_log(path)
    assert words in str(caught.value)
    assert str(caught.value).startswith(str(path))


def test_an_untimed_line_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.log:2: "):
        read(tmp_path, "hello", " iteration        1/      10 | consumed sam")


@pytest.mark.parametrize("name", ["missing.log", "."])
def test_what_cannot_be_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_megatron_log(tmp_path / name)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("[default0]:    optimizer ..: (1.0, 2.0)\n", "   optimizer ..: (1.0, 2.0)"),
        ("[rank3]: hello", "hello"),
        ("[1,0]<stdout>:  hello", " hello"),
        ("12:  hello", " hello"),
        ("  hello\r\n", "  hello"),
        ("\x1b[1;31mred\x1b[0m", "red"),
    ],
)
def test_prefixes(line: str, text: str) -> None:
    assert clean(line) == text
