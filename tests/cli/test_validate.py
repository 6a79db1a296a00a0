"""`clustersim validate`, as a user types it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from validation.cli import app

HEAD = (
    "id,model,num_layers,hidden_size,num_attention_heads,seq_length,vocab_size,gpu,num_gpus,"
    "precision,tensor_model_parallel_size,pipeline_model_parallel_size,micro_batch_size,"
    "global_batch_size,recompute_granularity,framework,step_time_s,task\n"
)
ROWS = (
    "one-1,GPT,4,1024,16,1024,51200,a100-sxm-80g,8,fp16,2,1,1,8,full,Megatron-LM 2021,0.2,\n"
    "one-2,GPT,4,1024,16,1024,51200,a100-sxm-80g,8,fp16,4,1,1,8,full,Megatron-LM 2021,0.3,\n"
    "one-3,GPT,4,1024,16,1024,51200,a100-sxm-80g,8,fp16,8,1,1,8,full,Megatron-LM 2021,0.4,\n"
    "two-1,GPT,4,1024,16,1024,51200,a100-sxm-80g,8,fp16,8,1,1,8,full,Megatron-LM 2021,0.4,lora\n"
)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    path = tmp_path / "runs.csv"
    path.write_text(HEAD + ROWS, encoding="utf-8")
    return path


def validate(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["validate", *map(str, arguments)])


def test_summary(runs: Path) -> None:
    found = validate(runs)
    assert found.exit_code == 0
    assert "one" in found.stdout
    assert "1 skipped: task lora" in found.stdout
    assert "Kendall" in found.stdout


def test_json_alone_on_stdout(runs: Path) -> None:
    found = validate(runs, "--json", "-")
    result = json.loads(found.stdout)
    assert [r["id"] for r in result["runs"]] == ["one-1", "one-2", "one-3", "two-1"]
    assert result["by_source"]["one"]["scored"] == 3
    assert result["by_source"]["two"]["skipped"] == 1
    for row in result["runs"][:3]:
        assert row["error"] == pytest.approx(
            row["predicted_step_time_s"] / row["measured_step_time_s"] - 1
        )


@pytest.mark.parametrize(("ending", "begins"), [("html", b"<!doctype html>"), ("png", b"\x89PNG")])
def test_report(runs: Path, tmp_path: Path, ending: str, begins: bytes) -> None:
    target = tmp_path / f"report.{ending}"
    assert validate(runs, "--report", target, "--quiet").exit_code == 0
    assert target.read_bytes().startswith(begins)


def test_collectives_and_kernels(tmp_path: Path) -> None:
    points = tmp_path / "points.csv"
    points.write_text(
        "gpu,gpus,nodes,nic,collective,bytes,time_us\n"
        "H100-SXM-80GB,8,1,NVLink4,all_reduce,1073741824,4000\n",
        encoding="utf-8",
    )
    gemms = tmp_path / "gemms.csv"
    gemms.write_text("op,dtype,M,N,K,time_us\nfwd,bf16,4096,4096,4096,200\n", encoding="utf-8")
    found = validate("--collectives", points, "--kernels", gemms, "--json", "-")
    assert found.exit_code == 0
    first, second = json.loads(found.stdout)["points"]
    assert first["predicted_s"] > 0
    assert second["measured_s"] == pytest.approx(2e-4)
    assert "fwd bf16" in validate("--kernels", gemms).stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["missing.csv"], "missing.csv"),
        (["{runs}", "--report", "x.pdf"], ".html"),
        (["{runs}", "--collectives", "{runs}"], "not both"),
        (["--collectives", "{runs}"], "no column"),
        (["--kernels", "{runs}", "--report", "x.html"], "--report is of runs"),
    ],
)
def test_wrong_input(runs: Path, arguments: list[str], words: str) -> None:
    found = validate(*(a.format(runs=runs) for a in arguments))
    assert found.exit_code == 2
    assert words in found.stderr
    assert "Traceback" not in found.output
