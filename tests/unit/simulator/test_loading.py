"""Run files: what converts to what, and how faults of a whole file are told."""

import os
import re
from pathlib import Path

import pytest

from simulator.errors import ConfigError
from simulator.loading import load_run
from workloads.spec import TrainingSpec

GOOD = (Path(__file__).parent / "good_run.yaml").read_text(encoding="utf-8")


def write(directory: Path, text: str | bytes, name: str = "run.yaml") -> Path:
    path = directory / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refusal(path: Path, overrides: tuple[str, ...] = ()) -> list[str]:
    """The lines of the refusal, without the directory."""
    with pytest.raises(ConfigError) as caught:
        load_run(path, overrides)
    return [line.replace(f"{path.parent}/", "") for line in str(caught.value).splitlines()]


def test_values_arrive_in_si_units(tmp_path: Path) -> None:
    run = load_run(write(tmp_path, GOOD))
    assert run.cluster.fabric.link_bandwidth == 400e9 / 8
    assert run.cluster.node.gpu.memory_bytes == 80 * 2**30
    assert run.cluster.fabric.nic_latency_s == pytest.approx(1.5e-6, rel=1e-15)
    assert run.cluster.slow_gpus == {3: 0.8}
    assert run.optimizer.ddp_bucket_size == 40_000_000
    assert (run.name, run.seed) == ("good", 3)


def test_a_run_without_a_name_takes_that_of_its_file(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace("name: good\n", "", 1), "my run.yaml")
    assert load_run(path).name == "my run"


def test_sizes_that_follow(tmp_path: Path) -> None:
    run = load_run(write(tmp_path, GOOD))
    assert run.data_parallel_size == 2 * 8 // (2 * 2)
    assert run.num_microbatches == 32 // (1 * 4)


@pytest.mark.parametrize(
    ("line", "replacement", "read", "value"),
    [
        ("vocab_size: 32000", "vocab_size: 010", lambda run: run.model.vocab_size, 10),
        ("vocab_size: 32000", "vocab_size: 1_0", lambda run: run.model.vocab_size, 10),
        ("  num_layers: 8", "  num_layers: '8'", lambda run: run.model.num_layers, 8),
        ("  clip_grad: 1.0", "  clip_grad: 1e9", lambda run: run.optimizer.clip_grad, 1e9),
        ("  clip_grad: 1.0", "  clip_grad: 3e-6", lambda run: run.optimizer.clip_grad, 3e-6),
        ("name: good", "name: no", lambda run: run.name, "no"),
        ("name: good", "name: 12:30", lambda run: run.name, "12:30"),
        ("name: good", "name: 1e9", lambda run: run.name, "1e9"),
        (
            "  sequence_parallel: true", "  sequence_parallel: yes",
            lambda run: run.parallelism.sequence_parallel, True,
        ),
        (
            "  gated_linear_unit: false", "  gated_linear_unit: no",
            lambda run: run.model.gated_linear_unit, False,
        ),
        (
            "  ffn_hidden_size: 4096", "  ffn_hidden_size: null",
            lambda run: run.model.ffn_hidden_size, 4 * 1024,
        ),
        (
            "400Gb/s\n    tiers", "50_000_000_000\n    tiers",
            lambda run: run.cluster.fabric.link_bandwidth, 5e10,
        ),
        (
            "400Gb/s\n    tiers", "5e10\n    tiers",
            lambda run: run.cluster.fabric.link_bandwidth, 5e10,
        ),
    ],
)  # fmt: skip
def test_text_is_converted_by_the_type_of_its_field(
    tmp_path: Path, line: str, replacement: str, read: object, value: object
) -> None:
    assert line in GOOD
    run = load_run(write(tmp_path, GOOD.replace(line, replacement)))
    assert callable(read)
    assert read(run) == value


@pytest.mark.parametrize("written", ["12:30", "0x10", "1.5", "8 layers", "true", "[8]", "{a: 8}"])
def test_what_is_no_whole_number_is_refused(tmp_path: Path, written: str) -> None:
    path = write(tmp_path, GOOD.replace("num_layers: 8", f"num_layers: {written}"))
    [line] = refusal(path)
    assert line.startswith("run.yaml:5: model.num_layers: ")
    assert "is not a whole number above 0" in line


def test_an_exponent_in_a_whole_number_gets_its_spelling(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace("vocab_size: 32000", "vocab_size: 32e3"))
    assert refusal(path) == [
        "run.yaml:11: model.vocab_size: '32e3' is not a whole number above 0; write 32000"
    ]


def test_all_problems_at_once_with_exact_lines(tmp_path: Path) -> None:
    text = """\
parallelism:
  tensor_model_paralel_size: 2
  pipeline_schedule: zb-h1
  expert_model_parallel_size: 0
  seq_length: 7
training:
  micro_batch_size: -1
  micro_batch_size: 1
  global_batch_size: many
  precision: fp9
  no_such_thing_at_all: 1
optimizer: {clip_grad: -1, data_parallel_sharding: zero4}
"""
    start = GOOD.index("model:\n")
    model = GOOD[start : GOOD.index("training:\n")]
    cluster = GOOD[GOOD.index("cluster:\n") :].replace("80GiB", "80Q").replace("{3:", "{16:")
    lines = refusal(write(tmp_path, text + model + cluster))
    offset = text.count("\n") + model.count("\n")
    gpu_line = offset + 1 + cluster[: cluster.index("80Q")].count("\n")
    slow_line = offset + 1 + cluster[: cluster.index("{16:")].count("\n")
    assert lines == [
        "run.yaml:2: parallelism.tensor_model_paralel_size: unknown key; did you mean "
        "'tensor_model_parallel_size'?",
        "run.yaml:3: parallelism.pipeline_schedule: 'zb-h1' is not allowed; choose gpipe, 1f1b, "
        "interleaved_1f1b, zb_h1, zb_h2, zb_v, dualpipe_v; did you mean 'zb_h1'?",
        "run.yaml:4: parallelism.expert_model_parallel_size: '0' is not a whole number above 0",
        "run.yaml:5: parallelism.seq_length: unknown key here; it belongs under training",
        "run.yaml:6: training.seq_length: missing key; it takes a whole number above 0",
        "run.yaml:7: training.micro_batch_size: '-1' is not a whole number above 0",
        "run.yaml:8: training.micro_batch_size: repeated key; it is already set on line 7",
        "run.yaml:9: training.global_batch_size: 'many' is not a whole number above 0",
        "run.yaml:10: training.precision: 'fp9' is not allowed; choose bf16, fp16, fp8, nvfp4; "
        "did you mean 'fp8'?",
        "run.yaml:11: training.no_such_thing_at_all: unknown key; choose "
        + ", ".join(TrainingSpec.model_fields),
        "run.yaml:12: optimizer.data_parallel_sharding: 'zero4' is not allowed; choose none, "
        "zero1, zero2, zero3; did you mean 'zero3'?",
        "run.yaml:12: optimizer.clip_grad: '-1' is not a number of at least 0",
        f"run.yaml:{gpu_line}: cluster.node.gpu.memory_bytes: '80Q' has an unknown unit 'Q'; "
        "write, say, 80GiB",
        f"run.yaml:{slow_line}: cluster.slow_gpus.16: there is no such rank; 16 GPUs are ranks 0 "
        "to 15",
    ]


def test_a_misspelt_key_does_not_hide_what_the_layout_says(tmp_path: Path) -> None:
    text = GOOD.replace(
        "  tensor_model_parallel_size: 2", "  tensor_model_paralel_size: 3"
    ).replace("pipeline_schedule: interleaved_1f1b", "pipeline_schedule: interleaved-1f1b")
    lines = refusal(write(tmp_path, text))
    number = 1 + text[: text.index("tensor_model_paralel_size")].count("\n")
    assert (
        f"run.yaml:{number}: parallelism.tensor_model_paralel_size: unknown key; "
        "did you mean 'tensor_model_parallel_size'?"
    ) in lines
    assert any("interleaved-1f1b" in line and "'interleaved_1f1b'?" in line for line in lines)
    # told at the line where the size stands, under the wrong name
    told = f"run.yaml:{number}: parallelism.tensor_model_parallel_size: 3 does not divide"
    assert any(line.startswith(f"{told} num_attention_heads (16)") for line in lines)


def test_a_wrong_entry_of_a_list_is_told_and_hides_nothing(tmp_path: Path) -> None:
    modules = ("training.recompute_granularity=selective",
               "training.recompute_modules=[zzz, layernrom, moe]")  # fmt: skip
    lines = refusal(write(tmp_path, GOOD), modules)
    assert any("recompute_modules.0: 'zzz' is not allowed; choose core_attn" in x for x in lines)
    assert any("'layernrom'" in x and "did you mean 'layernorm'?" in x for x in lines)
    assert any(x.endswith("moe: the model has no experts") for x in lines)
    one = refusal(write(tmp_path, GOOD), ("training.recompute_modules=mlp",))
    assert one[-1].endswith("'mlp' is not a list")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "run.yaml:1: is empty; a run file has the keys model, training, parallelism"),
        (b"# nothing\n", "is empty"),
        (b"~\n", "is empty"),
        (b"just words\n", "run.yaml:1: must be a mapping with the keys model, training"),
        (b"- a\n- b\n", "run.yaml:1: must be a mapping"),
        (b"a: 1\n\tb: 2\n", "run.yaml:2: is not valid YAML: a tab; indent with spaces"),
        (b"a: [1\nb: 2\n", "run.yaml:"),
        (b"a: 'open\n", "is not valid YAML"),
        (b"a: 1\n--- \nb: 2\n", "run.yaml:2: is not valid YAML"),
        (b"a: *nowhere\n", "run.yaml:1: is not valid YAML: found undefined alias 'nowhere'"),
        (b"a: 1\nb: \x07\n", "run.yaml:2: is not valid YAML: the character '\\x07'"),
        (b'a: "\\UFFFFFFFF"\n', "is not valid YAML"),
        (b"a: 1\nb: \xff\n", "run.yaml:2: is not UTF-8 text: byte 0xff"),
        ("a: 1\n".encode("utf-16"), "is not UTF-8 text"),
        (b"a: !!python/object:os.system 1\n", "run.yaml:1: a: the tag"),
        (b"a: !own 1\n", "the tag !own is not allowed"),
        (b"? [a, b]\n: 1\n", "a key must be text, not a collection"),
        (b"<<: 5\n", "<< must name a mapping to merge"),
        (b"a: &x [*x]\n", "nested too deeply"),
        (b"a: " + b"[" * 5000 + b"]" * 5000, "nested too deeply"),
        (b"a: " + b"[" * 40 + b"]" * 40, "nested too deeply"),
        (b"a: " + b"x" * 20_000, "a value of more than 10,000 characters"),
        (b"a: " + b"x " * 200_000, "is larger than 256 KiB"),
    ],
)  # fmt: skip
def test_faults_of_a_whole_file(tmp_path: Path, content: bytes, expected: str) -> None:
    assert expected in "\n".join(refusal(write(tmp_path, content)))


def test_a_bomb_of_aliases_is_refused_at_once(tmp_path: Path) -> None:
    levels = [f"k{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    path = write(tmp_path, "k0: &a0 [x]\n" + "\n".join(levels) + "\n")
    assert "unfolds to more than 20,000 values" in refusal(path)[0]


def test_a_directory_and_a_missing_and_a_closed_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a directory"):
        load_run(tmp_path)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_run(tmp_path / "absent.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_run("a\0b")
    closed = write(tmp_path, GOOD)
    closed.chmod(0)
    if not os.access(closed, os.R_OK):  # root reads everything
        with pytest.raises(ConfigError, match="cannot be read: Permission denied"):
            load_run(closed)


def test_anchors_and_merge_keys(tmp_path: Path) -> None:
    text = GOOD.replace("training:\n", "training: &base\n").replace(
        "optimizer:\n", "optimizer:\n  <<: {clip_grad: 5, overlap_grad_reduce: false}\n"
    )
    run = load_run(write(tmp_path, text))
    # a key of the mapping itself wins over a merged one
    assert run.optimizer.clip_grad == 1.0
    assert run.optimizer.overlap_grad_reduce is True


def test_an_empty_section_is_an_empty_mapping(tmp_path: Path) -> None:
    start, end = GOOD.index("optimizer:\n"), GOOD.index("cluster:\n")
    run = load_run(write(tmp_path, GOOD[:start] + "optimizer:\n" + GOOD[end:]))
    assert run.optimizer.use_distributed_optimizer is False
    start, end = GOOD.index("training:\n"), GOOD.index("parallelism:\n")
    path = write(tmp_path, GOOD[:start] + "training:\n" + GOOD[end:].replace("zz", ""))
    number = 1 + GOOD[:start].count("\n")
    assert f"run.yaml:{number}: training.seq_length: missing key" in "\n".join(refusal(path))


def test_one_rank_named_twice(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace("{3: 0.8}", "{3: 0.8, 03: 0.9, x: 1, -1: 1, 4: 0}"))
    text = "\n".join(refusal(path))
    assert "cluster.slow_gpus.03: rank 3 twice" in text
    assert "cluster.slow_gpus.x: the key 'x' is not a whole number of at least 0" in text
    assert "cluster.slow_gpus.-1: the key '-1' is not a whole number of at least 0" in text
    assert "cluster.slow_gpus.4: '0' is not a number above 0 and at most 1" in text


@pytest.mark.parametrize(
    ("precision", "words"),
    [
        ("{recipe: tensrwise}", "precision.recipe: 'tensrwise' is not allowed; choose delayed, "
         "tensorwise, blockwise, mxfp8, nvfp4; did you mean 'tensorwise'?"),
        ("{recip: delayed}", "precision.recip: unknown key; did you mean 'recipe'?"),
        ("{recipe: mxfp8}", "has no matrix units for mxfp8; it has bf16, fp16, tf32, fp32, fp8"),
        ("nvfp4", "(hopper) has no matrix units for nvfp4"),
        ("{recipe: nvfp4, format: hybrid}", "precision.format: 'hybrid' does not go with recipe "
         "nvfp4; choose e2m1"),
        ("{format: e2m1}", "'e2m1' does not go with recipe delayed; choose hybrid or e4m3"),
    ],
)  # fmt: skip
def test_precisions_that_cannot_be(tmp_path: Path, precision: str, words: str) -> None:
    text = re.sub(r"  precision: \w+", f"  precision: {precision}", GOOD)
    assert text != GOOD
    assert any(words in line for line in refusal(write(tmp_path, text)))
