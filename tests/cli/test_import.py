"""`clustersim import`: from a user's file to a run that `simulate` takes."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from simulator.loading import load_run
from validation.cli import app

ROOT = Path(__file__).parents[2]
LAUNCH = ROOT / "tests/fixtures/launch"
RUNNER = CliRunner()


def run(*arguments: str) -> Result:
    return RUNNER.invoke(app, list(arguments))


def test_script_to_run_file_to_prediction(tmp_path: Path) -> None:
    path, out = tmp_path / "run.yaml", tmp_path / "out.json"
    done = run("import", "megatron", str(LAUNCH / "llama3_70b.slurm"), "-o", str(path))
    assert done.exit_code == 0
    for words in ("understood", "ignored on purpose", "assumed", "cluster.node = dgx-h100"):
        assert words in done.stdout
    assert run("simulate", str(path), "--json", str(out), "--quiet").exit_code == 0
    assert json.loads(out.read_text())["simulation"]["num_gpus"] == 64


def test_the_example_script(tmp_path: Path) -> None:
    """On 4 nodes as written; on 8 with the variable that it reads."""
    script, path = str(ROOT / "examples/train-llama3-8b.sh"), str(tmp_path / "run.yaml")
    assert run("import", "megatron", script, "--gpu", "h200", "-o", path).exit_code == 0
    done = run("simulate", path, "--json", "-")
    assert json.loads(done.stdout)["simulation"]["num_gpus"] == 32
    options = ["--env", "NNODES=8", "--env", "TP=1", "--json", "-"]
    account = json.loads(run("import", "megatron", script, *options).stdout)
    assert account["run"]["cluster"]["num_nodes"] == 8
    assert account["run"]["training"]["global_batch_size"] == 8 * 8 * 4
    assert not account["run"]["parallelism"]["sequence_parallel"]
    assert account["unknown"] == account["not_modelled"] == []


def test_without_output_the_run_file_goes_to_stdout() -> None:
    done = run("import", "megatron", str(LAUNCH / "by_size.sh"), "--gpu", "h200")
    assert done.exit_code == 0
    assert done.stdout.startswith("# Imported from by_size.sh")
    assert "node: dgx-h200" in done.stdout
    assert "--tokenizer-modle" in done.stderr
    quiet = run("import", "megatron", str(LAUNCH / "by_size.sh"), "--quiet")
    assert quiet.stdout.startswith("# Imported")
    assert quiet.stderr == ""


def test_own_fabric_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative to where the command is run, wherever script and run file are."""
    (tmp_path / "fabric.yaml").write_text("preset: ndr-fat-tree\noversubscription: 3\n")
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    script = str(LAUNCH / "by_size.sh")
    done = run("import", "megatron", script, "--fabric", "fabric.yaml", "-o", "runs/run.yaml")
    assert done.exit_code == 0, done.output
    assert load_run("runs/run.yaml").cluster.fabric.oversubscription == 3


def test_account_as_data() -> None:
    done = run("import", "megatron", str(LAUNCH / "by_size.sh"), "--json", "-")
    account = json.loads(done.stdout)
    assert account["run"]["model"]["num_layers"] == 32
    assert account["unknown"][0]["argument"] == "--tokenizer-modle"
    assert account["unknown"][0]["line"] == 41


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.sh"], "nowhere.sh: cannot be read"),
        ([str(LAUNCH)], "is a directory, not a launch script"),
        ([str(LAUNCH / "by_size.sh"), "--env", "TP"], "must read NAME=VALUE"),
        ([str(LAUNCH / "by_size.sh"), "--node", "dgx-h101"], "unknown node 'dgx-h101'"),
        ([str(LAUNCH / "by_size.sh"), "--set", "model.layers=3"], "unknown key"),
        ([str(LAUNCH / "by_size.sh"), "-o", "/nowhere/run.yaml"], "does not exist"),
    ],
)
def test_wrong_input(arguments: list[str], words: str) -> None:
    done = run("import", "megatron", *arguments)
    assert done.exit_code == 2
    assert words in done.output
    assert "Traceback" not in done.output


def test_the_script_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text((LAUNCH / "arguments.txt").read_text())
    assert run("import", "megatron", str(path), "-o", str(path)).exit_code == 2
    assert path.read_text().startswith("--num-layers")


def test_config_to_model_file_to_prediction(tmp_path: Path) -> None:
    config, model = ROOT / "tests/fixtures/huggingface/llama3-8b.json", tmp_path / "model.yaml"
    done = run("import", "hf", str(config), "-o", str(model))
    assert done.exit_code == 0
    assert "in all 8.030e9 parameters" in done.stdout
    example = str(ROOT / "examples/llama3-70b-64xh100.yaml")
    settings = ["parallelism.virtual_pipeline_model_parallel_size=2", f"model={model}"]
    options = [word for setting in settings for word in ("--set", setting)]
    done = run("simulate", example, *options, "--json", "-")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["step_time_s"] > 0


def test_config_as_data_and_refused() -> None:
    folder = ROOT / "tests/fixtures/huggingface"
    account = json.loads(run("import", "hf", str(folder / "gpt2.json"), "--json", "-").stdout)
    assert account["num_parameters"] == 124_439_808
    done = run("import", "hf", str(folder / "nothing.json"))
    assert done.exit_code == 2
    assert "cannot be read" in done.output
