"""Rows of runs tables: what is read, what is filled in, what is refused and why."""

from pathlib import Path

import pytest

from simulator.errors import ConfigError
from validation.measured import NotModelledError, measured_run, read_runs, run_specs

ROW = {
    "id": "made-up-1", "model": "GPT", "num_layers": "8", "hidden_size": "1024",
    "num_attention_heads": "16", "seq_length": "2048", "vocab_size": "51200",
    "gpu": "a100-sxm-80g", "num_gpus": "16", "gpus_per_node": "8", "precision": "fp16",
    "tensor_model_parallel_size": "8", "pipeline_model_parallel_size": "1",
    "micro_batch_size": "1", "global_batch_size": "8", "recompute_granularity": "full",
    "framework": "Megatron-LM 2021", "step_time_s": "1.5",
}  # fmt: skip


def row(**changes: str) -> dict[str, str]:
    return {**ROW, **changes}


def test_what_megatron_did_in_2021() -> None:
    (run,) = run_specs(ROW)
    assert run.training.attention_backend == "unfused"
    assert not run.training.accumulate_allreduce_grads_in_fp32
    assert not run.training.gradient_accumulation_fusion
    assert not run.parallelism.sequence_parallel
    assert not run.parallelism.async_tensor_model_parallel_allreduce
    assert run.model.position_embedding_type == "learned_absolute"
    assert not run.model.untie_embeddings_and_output_weights
    assert run.model.hidden_dropout == run.model.attention_dropout == 0.1
    assert run.model.add_bias_linear


def test_a_year_later_gradients_accumulate_in_the_product() -> None:
    (run,) = run_specs(row(framework="Megatron-LM 2022"))
    assert run.training.gradient_accumulation_fusion
    assert run.training.accumulate_allreduce_grads_in_fp32
    assert run.parallelism.async_tensor_model_parallel_allreduce


def test_columns_win_over_defaults() -> None:
    (run,) = run_specs(
        row(sequence_parallel="1", overlap_grad_reduce="1", data_parallel_sharding="1")
    )
    assert run.parallelism.sequence_parallel
    assert run.optimizer.use_distributed_optimizer
    assert run.optimizer.overlap_grad_reduce
    assert not run.optimizer.overlap_param_gather


def test_arguments_in_the_notes_win_over_both() -> None:
    notes = (
        "max reserved 3 MiB; arguments: --swiglu --disable-bias-linear --normalization RMSNorm "
        "--position-embedding-type rope --untie-embeddings-and-output-weights "
        "--attention-dropout 0.0 --hidden-dropout 0.2 --transformer-impl local "
        "--cross-entropy-loss-fusion"
    )
    (run,) = run_specs(row(framework="Megatron-LM core_v0.15.3, TE", notes=notes))
    model = run.model
    assert model.gated_linear_unit
    assert model.activation_function == "silu"
    assert not model.add_bias_linear
    assert model.normalization == "RMSNorm"
    assert model.untie_embeddings_and_output_weights
    assert (model.attention_dropout, model.hidden_dropout) == (0.0, 0.2)
    assert run.training.attention_backend == "unfused"
    assert run.training.cross_entropy_loss_fusion


def test_unpublished_settings_become_several_specs() -> None:
    """Micro-batches of 1 in a pipeline; 8 layers on 2 stages in 1, 2 or 4 chunks; three
    recomputations."""
    specs = run_specs(
        row(
            framework="Megatron-Core r0.8.0", precision="bf16", micro_batch_size="",
            recompute_granularity="", pipeline_model_parallel_size="2",
            virtual_pipeline_model_parallel_size="",
        )
    )  # fmt: skip
    tried = {
        (
            s.training.micro_batch_size,
            s.parallelism.virtual_pipeline_model_parallel_size,
            s.training.recompute_granularity,
        )
        for s in specs
    }
    assert len(tried) == len(specs) == 3 * 3
    assert {micro for micro, _, _ in tried} == {1}


def test_unpublished_micro_batches_without_a_pipeline() -> None:
    specs = run_specs(row(framework="Megatron-Core r0.8.0", precision="bf16", micro_batch_size=""))
    assert {s.training.micro_batch_size for s in specs} == {1, 2, 4}


def test_layout_from_the_notes() -> None:
    blank = {"tensor_model_parallel_size": "", "pipeline_model_parallel_size": ""}
    (run,) = run_specs(row(**blank, notes="TP4 PP2 is the natural assumption"))
    assert run.parallelism.tensor_model_parallel_size == 4
    assert run.parallelism.pipeline_model_parallel_size == 2
    with pytest.raises(NotModelledError, match="parallel layout"):
        run_specs(row(**blank))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"task": "lora"}, "task lora"),
        ({"precision": "fp8-delayed"}, "fp8-delayed"),
        ({"data_parallel_sharding": "4"}, "sharding 4"),
        ({"framework": "Fortran"}, "Fortran"),
        ({"gpu": "abacus"}, "abacus"),
        ({"num_layers": ""}, "num_layers"),
        ({"pipeline_model_parallel_size": "2", "num_layers": "9"}, "do not divide num_layers"),
        ({"micro_batch_size": "3"}, "not a multiple"),
        ({"notes": "JAX stack"}, "not a Megatron-like trainer"),
    ],
)
def test_rows_that_cannot_be_simulated_say_why(changes: dict[str, str], reason: str) -> None:
    with pytest.raises(NotModelledError, match=reason):
        run_specs(row(**changes))


@pytest.mark.parametrize(
    ("cell", "captured"),
    [
        ("", "none"), ("none:attn+mamba", "none"), ("local", "per_layer"),
        ("transformer_engine:attn+moe_router", "per_layer"), ("full iteration", "full_iteration"),
        ("local:full_iteration", "full_iteration"),
    ],
)  # fmt: skip
def test_what_a_cuda_graph_captures(cell: str, captured: str) -> None:
    (run,) = run_specs(row(cuda_graph=cell, recompute_granularity="none"))
    assert run.training.cuda_graph == captured
    assert run.cluster.profile.host_operation_s > 0


def test_memory_in_its_unit() -> None:
    printed = measured_run(row(peak_memory_gb="2", peak_memory_basis="as printed"))
    assert printed.peak_memory_bytes == 2e9
    assert not printed.memory_is_allocated
    binary = measured_run(row(peak_memory_gb="2", peak_memory_basis="allocated (GiB)"))
    assert binary.peak_memory_bytes == 2 * 2**30
    assert binary.memory_is_allocated


def test_source_key_and_oom() -> None:
    found = measured_run(row(id="hf-0001", oom="1", step_time_s=""))
    assert found.source_key == "hf"
    assert found.oom
    assert found.step_time_s is None


def table(path: Path, rows: list[dict[str, str]]) -> Path:
    lines = [",".join(rows[0]), *(",".join(r.values()) for r in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_table_is_read(tmp_path: Path) -> None:
    (found,) = read_runs(table(tmp_path / "runs.csv", [ROW]))
    assert found.id == "made-up-1"
    assert found.step_time_s == 1.5


def test_all_bad_numbers_at_once_with_their_lines(tmp_path: Path) -> None:
    path = table(tmp_path / "runs.csv", [row(step_time_s="fast"), ROW, row(step_time_s="slow")])
    with pytest.raises(ConfigError) as error:
        read_runs(path)
    assert [p.place.line for p in error.value.problems if p.place] == [2, 4]
    assert "'fast' is not a number" in str(error.value)


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "\x00\x01"])
def test_what_is_no_table(tmp_path: Path, text: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"runs\.csv"):
        read_runs(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_runs(tmp_path / "none.csv")


def test_nanotron_before_its_pipeline_was_fixed() -> None:
    """Several stages tell no time then; one stage does, and several after the fix."""
    common = {"framework": "nanotron v0.5", "recompute_granularity": "none",
              "pipeline_model_parallel_size": "2", "tensor_model_parallel_size": "4"}  # fmt: skip
    before = row(**common, notes="after_pp_fix=False")
    after = row(**common, notes="after_pp_fix=True")
    one = row(**common | {"pipeline_model_parallel_size": "1"}, notes="after_pp_fix=False")
    assert measured_run(before).step_time_s is None
    assert measured_run(after).step_time_s == measured_run(one).step_time_s is not None
