"""Settings laid over a run file: values first, factors on what then stands there."""

from pathlib import Path

import pytest

from simulator.errors import ConfigError
from simulator.loading import check_readable
from simulator.study.points import Point, load_point, own_values
from simulator.study.varied import Setting, Varied

RUN = str(Path(__file__).parents[4] / "examples/toy-2-nodes.yaml")
LINK = "cluster.fabric.link_bandwidth"


def point(*settings: tuple[str, str], over: tuple[str, ...] = ()) -> Point:
    return load_point(RUN, over, [Setting(*pair) for pair in settings])


def test_a_value_stands_in_si_units() -> None:
    found = point((LINK, "100Gb/s"))
    assert found.values == (100e9 / 8,)
    assert found.run is not None
    assert found.run.cluster.fabric.link_bandwidth == 100e9 / 8


def test_a_factor_holds_for_the_fabric_of_its_point() -> None:
    """The run's HDR links go at 200 Gb/s, NDR links at 400 Gb/s."""
    assert point((LINK, "x0.5")).values == (0.5 * 200e9 / 8,)
    both = point((LINK, "x0.5"), ("cluster.fabric", "ndr-fat-tree"))
    assert both.values == (0.5 * 400e9 / 8, "ndr-fat-tree")
    assert point((LINK, "x0.5"), over=(f"{LINK}=80Gb/s",)).values == (0.5 * 80e9 / 8,)


def test_a_factor_on_a_default_that_nobody_wrote() -> None:
    assert point(("cluster.fabric.core_oversubscription", "x4")).values == (4.0,)


def test_factors_of_whole_numbers_stay_whole() -> None:
    found = point(("cluster.num_nodes", "x2"), ("training.global_batch_size", "x2"))
    assert found.values == (4, 64)
    assert point(("cluster.num_nodes", "x0.3")).reason == (
        "cluster.num_nodes: 0.3 times 2 is no whole number"
    )


@pytest.mark.parametrize(
    ("path", "text", "reason"),
    [
        ("cluster.fabric", "x2", "cluster.fabric: no number stands there to multiply by 2"),
        ("parallelism.sequence_parallel", "x2", "no number stands there"),
        ("cluster.num_nods", "2", "cluster.num_nods: unknown key; did you mean 'num_nodes'?"),
        ("cluster.num_nodes", "3", "global_batch_size: 32 is not a multiple of"),
        ("cluster.node", "dgx-h1000", "unknown node 'dgx-h1000'; did you mean 'dgx-h100'"),
        (LINK, "fast", "cluster.fabric.link_bandwidth: 'fast' is not a quantity"),
    ],
)
def test_what_cannot_be_has_a_reason(path: str, text: str, reason: str) -> None:
    found = point((path, text))
    assert found.run is None
    assert reason in found.reason
    assert "--set" not in found.reason


def test_numbers_of_an_invalid_combination_are_still_known() -> None:
    assert point(("cluster.num_nodes", "3"), (LINK, "80Gb/s")).values == (3, 1e10)


def test_the_digest_tells_runs_apart() -> None:
    same = {point((LINK, "25GB/s")).digest, point((LINK, "200Gb/s")).digest, point().digest}
    assert len(same) == 1
    assert point((LINK, "201Gb/s")).digest not in same


def test_own_values() -> None:
    varied = [Varied(path, ("1",)) for path in (LINK, "cluster.node", "nothing.here")]
    assert own_values(RUN, (), varied)[0] == 25e9
    assert own_values(RUN, (), varied)[2] is None
    assert own_values("/nowhere.yaml", (), varied) == (None, None, None)


def test_a_file_that_is_not_there_is_a_reason() -> None:
    assert "cannot be read" in load_point("/nowhere.yaml", (), []).reason
    with pytest.raises(ConfigError):
        check_readable("/nowhere.yaml")
