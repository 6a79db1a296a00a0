"""Fitting a profile: planted values are found again, what cannot be told apart is refused."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import yaml
from small_runs import small_cluster, small_model, small_run

from hardware.kernels import kernel_model
from hardware.presets import load_gpu
from hardware.spec import ProfileSpec
from simulator.errors import ConfigError
from simulator.loading import dump_run, load_run
from simulator.simulate import simulate
from validation.calibration.calibrate import Calibration, calibrate
from validation.calibration.fit import Floats, Problem, cross_validate, fit
from validation.calibration.observations import MeasuredStep, Observations, read_observations
from validation.calibration.parameters import PARAMETERS, Parameter, chosen_parameters
from validation.calibration.report import write_profile
from validation.profiles import profile_fields, with_profile

BY_NAME = {parameter.name: parameter for parameter in PARAMETERS}


@pytest.mark.parametrize("parameter", PARAMETERS, ids=lambda p: p.name)
def test_distances(parameter: Parameter) -> None:
    """0 is what ships; bounds lie on either side; values come back."""
    assert parameter.value(0.0) == getattr(ProfileSpec(), parameter.name)
    assert parameter.low <= parameter.likely < parameter.high
    assert parameter.value(parameter.distance(parameter.high)) == pytest.approx(parameter.high)
    assert parameter.why


def problem_of(slopes: Sequence[Sequence[float]], truth: Sequence[float], noise: float) -> Problem:
    """Linear times of `len(slopes)` groups, with a wave of noise."""
    matrix = np.array(slopes)
    off = noise * np.sin(np.arange(len(matrix)) * 2.4)

    def log_ratios(points: Sequence[Floats]) -> list[Floats]:
        return [matrix @ (point - np.array(truth)) + off for point in points]

    parameters = [BY_NAME["gemm_efficiency"], BY_NAME["network_efficiency"]][: len(truth)]
    count = len(matrix)
    return Problem(parameters, log_ratios, np.ones(count), np.arange(count))


MIXED = [[-0.10, -0.01], [-0.02, -0.12], [-0.08, -0.06], [-0.11, -0.02], [-0.03, -0.10]] * 8


def test_planted_values_are_found() -> None:
    found = fit(problem_of(MIXED, (0.7, -0.5), 0.0))
    assert found.z == pytest.approx([0.7, -0.5], abs=0.03)  # drawn a little to what was likely
    assert np.abs(found.after).max() < 0.01 < np.abs(found.before).max()
    assert (found.deviation < 0.2).all()


def test_a_misprinted_row_does_not_turn_the_fit() -> None:
    plain = problem_of(MIXED, (0.5, -0.5), 0.01)

    def misprinted(points: Sequence[Floats]) -> list[Floats]:
        return [np.where(np.arange(40) == 7, 3.0, row) for row in plain.log_ratios(points)]

    wrong = Problem(plain.parameters, misprinted, plain.weights, plain.groups)
    assert fit(wrong).z == pytest.approx(fit(plain).z, abs=0.15)


def test_a_fit_without_a_fold_scores_the_fold() -> None:
    """Noise that no parameter explains stays; two runs with one seed agree, a fold is not its own
    judge: held-out errors are no smaller than those of the fit."""
    problem = problem_of(MIXED, (0.7, -0.5), 0.05)
    found = fit(problem)
    held_out = cross_validate(problem, found, 5, 0)
    assert held_out is not None
    assert np.square(held_out).sum() >= np.square(found.after).sum()
    again = cross_validate(problem, found, 5, 0)
    assert again is not None
    assert np.array_equal(held_out, again)


def test_two_times_are_too_few_to_hold_one_out() -> None:
    problem = problem_of(MIXED[:2], (0.1, 0.1), 0.0)
    found = fit(problem_of(MIXED, (0.1, 0.1), 0.0))
    assert cross_validate(problem, found, 5, 0) is None


def test_parameters_that_move_all_times_alike_are_refused() -> None:
    with pytest.raises(ConfigError) as refused:
        fit(problem_of([[-0.1, -0.05], [-0.2, -0.1]] * 9, (0.3, 0.3), 0.0))
    message = str(refused.value)
    assert "cannot tell gemm_efficiency from network_efficiency" in message
    assert "could be fitted: --fit gemm_efficiency" in message


def test_parameters_that_no_time_reacts_to_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"hardly react to network_efficiency; these could"):
        fit(problem_of([[-0.1, 0.0]] * 9, (0.3, 0.3), 0.0))


# kernels, collectives and runs


def table(path: Path, rows: Sequence[dict[str, object]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def one(found: Calibration) -> float:
    (moved,) = found.moved
    return moved.value


def test_slow_kernels(tmp_path: Path) -> None:
    """Products that all take 1 / 0.9 of the model's time, in a table of 60 (more than count)."""
    model = kernel_model(load_gpu("h100-sxm-80g"))
    sizes = [(1024 * i, 2048, 512 * j) for i in range(1, 11) for j in range(1, 7)]
    rows: list[dict[str, object]] = [
        {
            "op": "fwd", "dtype": "bf16", "M": m, "N": n, "K": k, "gpu": "h100-sxm-80g",
            "time_us": model.gemm(m, n, k, "fwd").seconds * 1e6 / 0.9,
        }
        for m, n, k in sizes
    ]  # fmt: skip
    observations = read_observations(kernels=[table(tmp_path / "kernels.csv", rows)])
    assert observations.weights()[0] == pytest.approx((50 / 60) ** 0.5)
    found = calibrate(observations, chosen_parameters(["gemm_efficiency"]), processes=1)
    assert one(found) == pytest.approx(0.9, abs=0.003)
    assert found.to_json()["cross_validated"]["mean_absolute_error"] < 0.01
    assert found.to_json()["before"]["mean_absolute_error"] == pytest.approx(0.1)
    assert found.moved[0].error_without == pytest.approx(0.1)


def test_runs_of_a_slow_host_and_slow_kernels(tmp_path: Path) -> None:
    """Steps of other batches, simulated under a profile, give that profile back; written and read
    again it predicts the same."""
    hidden = {"gemm_efficiency": 0.85, "step_overhead_s": 0.06}
    runs = [
        small_run(
            small_cluster(1), num_microbatches=n, training={"seq_length": s, "micro_batch_size": 4},
            model=small_model(num_layers=8, hidden_size=2048),
        )
        for n in (4, 16, 64) for s in (512, 4096)
    ]  # fmt: skip
    used = tuple(
        MeasuredStep("log", f"run {i}", run,
                     simulate(with_profile(run, hidden)).metrics["step_time_s"])
        for i, run in enumerate(runs)
    )  # fmt: skip
    chosen = chosen_parameters(["gemm_efficiency", "step_overhead_s"])
    found = calibrate(Observations(used, {}), chosen, processes=1)
    values = {m.parameter.name: m.value for m in found.moved}
    assert values == pytest.approx(hidden, rel=0.05)  # drawn a little to what was likely
    write_profile(tmp_path / "mine.yaml", found)
    fields = profile_fields(str(tmp_path / "mine.yaml"))
    assert fields == pytest.approx(values, rel=1e-5)
    (tmp_path / "run.yaml").write_text(dump_run(runs[0]), encoding="utf-8")
    loaded = load_run(tmp_path / "run.yaml", ["cluster.profile=mine.yaml"])
    assert loaded.cluster.profile.name == "mine"
    predicted = simulate(with_profile(runs[0], fields)).metrics["step_time_s"]
    assert simulate(loaded).metrics["step_time_s"] == pytest.approx(
        simulate(with_profile(runs[0], dict(loaded.cluster.profile))).metrics["step_time_s"]
    )
    assert predicted == pytest.approx(used[0].step_time_s, rel=0.05)


def test_the_profile_says_where_it_is_from(tmp_path: Path) -> None:
    run = small_run(
        small_cluster(1), num_microbatches=64, training={"micro_batch_size": 8},
        model=small_model(num_layers=8, hidden_size=2048),
    )  # fmt: skip
    slow = simulate(with_profile(run, {"gemm_efficiency": 0.8})).metrics["step_time_s"]
    steps = tuple(MeasuredStep("a.log", str(i), run, slow * (1 + i / 100)) for i in range(3))
    found = calibrate(Observations(steps, {}), chosen_parameters(["gemm_efficiency"]), processes=1)
    write_profile(tmp_path / "p.yaml", found)
    text = yaml.safe_load((tmp_path / "p.yaml").read_text(encoding="utf-8"))
    assert text["source"].startswith("fitted to 3 times of a.log, mean absolute error")
    assert "held out" in text["source"]


# wrong input


def test_unknown_and_repeated_parameters() -> None:
    with pytest.raises(ConfigError, match="did you mean 'gemm_efficiency'"):
        chosen_parameters(["gem_efficiency"])
    with pytest.raises(ConfigError, match="gemm_efficiency twice"):
        chosen_parameters(["gemm_efficiency", "gemm_efficiency"])
    assert chosen_parameters([]) == PARAMETERS


def test_nothing_to_fit_to(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no input"):
        read_observations()
    rows: list[dict[str, object]] = [
        {"op": "amax", "dtype": "fp8", "M": 1, "N": 1, "K": 1, "time_us": 3}
    ]
    with pytest.raises(ConfigError, match="operation amax"):
        read_observations(kernels=[table(tmp_path / "k.csv", rows)])


def test_profiles_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("name: x\ngem_efficiency: 0.9\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"p.yaml:2: .*did you mean 'gemm_efficiency'"):
        profile_fields(str(path))
    path.write_text("gemm_efficiency: 7\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="gemm_efficiency"):
        profile_fields(str(path))
    path.write_text("- 1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="not a mapping"):
        profile_fields(str(path))
    assert profile_fields("h200-lab-host")["host_operation_s"] == 125e-6
