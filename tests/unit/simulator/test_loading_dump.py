"""A run written back as a run file loads to an equal run."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator.loading import dump_run, load_run
from simulator.runspec import RunSpec

RUN = load_run(Path(__file__).parent / "good_run.yaml")


def dumped_and_loaded(run: RunSpec, directory: Path) -> RunSpec:
    path = directory / "again.yaml"
    path.write_text(dump_run(run), encoding="utf-8")
    return load_run(path)


def test_every_field_comes_back(tmp_path: Path) -> None:
    assert dumped_and_loaded(RUN, tmp_path) == RUN


def test_fields_left_empty_come_back(tmp_path: Path) -> None:
    gpu = RUN.cluster.node.gpu.model_copy(update={"price_usd_per_hour": None})
    node = RUN.cluster.node.model_copy(update={"gpu": gpu})
    cluster = RUN.cluster.model_copy(update={"node": node, "slow_gpus": {}})
    run = RUN.model_copy(update={"cluster": cluster})
    assert dumped_and_loaded(run, tmp_path) == run


@pytest.mark.parametrize(
    "name",
    ["no", "~", "null", "1e9", "010", "", " a: b ", "x\ty\n", "é 日本", "'", "#", "\x07", "<<"],
)
def test_any_name_comes_back(tmp_path: Path, name: str) -> None:
    run = RUN.model_copy(update={"name": name})
    assert dumped_and_loaded(run, tmp_path) == run


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.floats(min_value=1e-300, max_value=1e300),
    st.floats(min_value=0, max_value=1e6),
    st.dictionaries(st.integers(0, 15), st.floats(min_value=1e-9, max_value=1), max_size=3),
)
def test_any_number_comes_back_to_the_last_digit(
    tmp_path: Path, rate: float, clip: float, slow: dict[int, float]
) -> None:
    fabric = RUN.cluster.fabric.model_copy(update={"link_bandwidth": rate})
    cluster = RUN.cluster.model_copy(update={"fabric": fabric, "slow_gpus": slow})
    optimizer = RUN.optimizer.model_copy(update={"clip_grad": clip})
    run = RUN.model_copy(update={"cluster": cluster, "optimizer": optimizer})
    assert dumped_and_loaded(run, tmp_path) == run
