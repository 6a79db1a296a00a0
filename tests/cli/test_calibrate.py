"""`clustersim calibrate` and `--profile` on the command line."""

import csv
import json
from pathlib import Path

import yaml
from typer.testing import CliRunner, Result

from validation.cli import app

ROOT = Path(__file__).parents[2]
TOY = ROOT / "examples" / "toy-2-nodes.yaml"


def clustersim(*arguments: object) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


def kernels(path: Path, factor: float) -> Path:
    """Times of twenty products on an H200, a little apart from each other."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["op", "dtype", "M", "N", "K", "time_us"])
        for i in range(1, 21):
            writer.writerow(["fwd", "bf16", 4096, 4096, 512 * i, factor * (18.0 + 12.5 * i)])
    return path


def test_from_a_table_to_a_prediction(tmp_path: Path) -> None:
    profile, result = tmp_path / "slow.yaml", tmp_path / "fit.json"
    table = kernels(tmp_path / "kernels.csv", 2.0)
    done = clustersim(
        "calibrate", "--kernels", table, "--fit", "gemm_efficiency", "-o", profile,
        "--json", result, "--processes", 1,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "gemm_efficiency" in done.output
    assert "held out, 5 folds" in done.output
    fields = yaml.safe_load(profile.read_text(encoding="utf-8"))
    report = json.loads(result.read_text(encoding="utf-8"))
    assert fields["gemm_efficiency"] < 0.95
    assert report["after"]["mean_absolute_error"] < report["before"]["mean_absolute_error"]
    plain, slow = (
        json.loads(clustersim("simulate", TOY, "--json", "-", *options).stdout)["step_time_s"]
        for options in ((), ("--profile", profile))
    )
    assert slow > plain


def test_wrong_input(tmp_path: Path) -> None:
    out = tmp_path / "p.yaml"
    table = kernels(tmp_path / "kernels.csv", 1.0)
    for arguments, words in (
        (["-o", out], "no input"),
        (["-o", tmp_path / "p.txt", "--kernels", table], ".yaml"),
        (["-o", out, "--kernels", tmp_path / "none.csv"], "cannot be read"),
        (["-o", out, "--log", "run.yaml"], "must read RUN.yaml=LOG"),
        (["-o", out, "--kernels", table, "--fit", "gem_efficiency"], "did you mean"),
        (["-o", out, "--kernels", table], "hardly react to"),
    ):
        done = clustersim("calibrate", *arguments)
        assert done.exit_code == 2, (arguments, done.output)
        assert words in done.output
        assert not out.exists()
    missing = clustersim("simulate", TOY, "--profile", tmp_path / "none.yaml")
    assert missing.exit_code == 2
    assert "none.yaml" in missing.output
