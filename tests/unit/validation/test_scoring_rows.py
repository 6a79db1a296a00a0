"""Predicting the rows of tables, one process or several."""

from pathlib import Path

import pytest

from simulator.simulate import simulate
from validation.measured import measured_run, run_specs
from validation.score import Scored
from validation.validate import report_json, score_run, score_runs, shipped_tables, validate_tables

ROW = {
    "id": "tiny-1", "model": "GPT", "num_layers": "4", "hidden_size": "1024",
    "num_attention_heads": "16", "seq_length": "1024", "vocab_size": "51200",
    "gpu": "a100-sxm-80g", "num_gpus": "8", "gpus_per_node": "8", "precision": "fp16",
    "tensor_model_parallel_size": "2", "pipeline_model_parallel_size": "2",
    "micro_batch_size": "2", "global_batch_size": "16", "recompute_granularity": "full",
    "framework": "Megatron-LM 2021", "step_time_s": "0.2", "peak_memory_gb": "3",
    "peak_memory_basis": "max allocated", "task": "pretrain",
}  # fmt: skip


def scored(**changes: str) -> Scored:
    return score_run(measured_run({**ROW, **changes}))


def test_a_row_is_simulated() -> None:
    (run,) = run_specs(ROW)
    metrics = simulate(run).metrics
    found = scored()
    assert found.predicted_step_time_s == pytest.approx(metrics["step_time_s"])
    assert found.error == pytest.approx(metrics["step_time_s"] / 0.2 - 1)
    memory = metrics["memory"]
    assert found.predicted_peak_memory_bytes == pytest.approx(
        memory["peak_bytes"] - memory["framework"]
    )
    assert found.predicted_fits
    assert found.settings["data_parallel_size"] == 2


def test_memory_that_the_driver_sees_includes_the_framework() -> None:
    allocated, seen = scored(), scored(peak_memory_basis="nvidia-smi")
    assert allocated.predicted_peak_memory_bytes is not None
    assert seen.predicted_peak_memory_bytes is not None
    assert seen.predicted_peak_memory_bytes > allocated.predicted_peak_memory_bytes


def test_a_row_that_cannot_be_is_skipped_with_its_reason() -> None:
    found = scored(task="lora")
    assert found.skipped
    assert found.reason == "task lora"
    assert found.predicted_step_time_s is None


def test_out_of_memory_needs_no_time() -> None:
    found = scored(step_time_s="", oom="1", peak_memory_gb="", micro_batch_size="8", num_gpus="4",
                   hidden_size="16384", num_layers="40")  # fmt: skip
    assert found.predicted_step_time_s is None
    assert found.predicted_fits is False
    assert found.measured_oom


def test_nothing_measured() -> None:
    found = scored(step_time_s="", peak_memory_gb="")
    assert found.skipped
    assert found.reason == "nothing was measured"


def test_the_best_of_what_was_not_published() -> None:
    blank = {
        "framework": "Megatron-Core r0.8.0", "precision": "bf16", "gpu": "h100-sxm-80g",
        "micro_batch_size": "", "recompute_granularity": "",
    }  # fmt: skip
    found = scored(**blank)
    (note,) = found.notes
    assert note.startswith("not published: micro-batch")
    times = [
        simulate(s).metrics["step_time_s"]
        for s in run_specs({**ROW, **blank})
        if s.training.recompute_granularity == "none"
    ]
    assert found.predicted_step_time_s == pytest.approx(min(times))


def test_several_processes_give_the_same_in_the_same_order() -> None:
    runs = [
        measured_run({**ROW, "id": f"tiny-{i}", "num_layers": str(2 * i)}) for i in range(1, 13)
    ]
    seen: list[tuple[int, int]] = []
    together = score_runs(runs, lambda done, total: seen.append((done, total)), processes=2)
    assert [s.id for s in together] == [r.id for r in runs]
    assert together == tuple(map(score_run, runs))
    assert seen == [(i, 12) for i in range(1, 13)]


def test_json_has_rows_and_sources() -> None:
    found = report_json([scored(), scored(task="lora")])
    assert len(found["runs"]) == 2
    assert found["by_source"]["tiny"]["skip_reasons"] == {"task lora": 1}


def test_shipped_tables_can_be_simulated_whole(tmp_path: Path) -> None:
    """Every row of every shipped table becomes a spec."""
    from validation.measured import read_runs

    tables = shipped_tables()
    assert len(tables) >= 8
    for path in tables:
        for run in read_runs(path):
            assert run_specs(run.row)


def test_tables_are_read_in_their_order(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / f"{name}.csv").write_text(
            ",".join(ROW) + "\n" + ",".join({**ROW, "id": f"{name}-1"}.values()) + "\n",
            encoding="utf-8",
        )
    found = validate_tables([tmp_path / "b.csv", tmp_path / "a.csv"])
    assert [s.id for s in found] == ["b-1", "a-1"]
