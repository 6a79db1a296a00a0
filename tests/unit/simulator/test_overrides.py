"""`--set PATH=VALUE`: faults, and the property that one setting changes one value."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator.errors import ConfigError, Place
from simulator.loading import load_run
from simulator.overrides import apply_override, parse_override
from simulator.yaml_lines import Located, locate

GOOD = Path(__file__).parent / "good_run.yaml"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model", "--set model: must read PATH=VALUE"),
        ("=3", "--set =3: must read PATH=VALUE"),
        ("a..b=3", "--set a..b=3: must read PATH=VALUE"),
        ("model.num_layers=[", "--set model.num_layers=[: is not valid YAML"),
        ("model.num_layers=x", "--set model.num_layers=x: 'x' is not a whole number above 0"),
        ("model.num_layers=", "--set model.num_layers=: nothing is set"),
        ("model.num_layrs=3", "--set model.num_layrs=3: unknown key; did you mean 'num_layers'?"),
        ("modle.num_layers=3", "modle: unknown key; did you mean 'model'?"),
        ("training={seq_length: 1}", "training.micro_batch_size: missing key"),
        ("training.seq_length.x=3", "training.seq_length: a mapping is not a whole number"),
        ("cluster.slow_gpus={1: 0.5, 1: 0.6}", "cluster.slow_gpus.1: repeated key"),
        ("cluster.slow_gpus.16=0.5", "--set cluster.slow_gpus.16=0.5: there is no such rank"),
        (".".join("a" * 2000) + "=1", "has more than 32 levels"),
    ],
)
def test_faults_are_told_with_the_option(text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_run(GOOD, [text])
    assert expected in str(caught.value)
    assert all(line.startswith(f"--set {text}: ") for line in str(caught.value).splitlines())


def test_all_options_are_checked_at_once_after_the_file() -> None:
    with pytest.raises(ConfigError) as caught:
        load_run(GOOD, ["model.num_layers=x", "seed", "training.precision=int4"])
    assert len(caught.value.problems) == 3


def test_the_last_of_two_options_counts() -> None:
    assert load_run(GOOD, ["model.num_layers=12", "model.num_layers=16"]).model.num_layers == 16


def test_a_value_replaces_what_stood_there() -> None:
    assert load_run(GOOD, ["cluster.slow_gpus={}"]).cluster.slow_gpus == {}
    assert load_run(GOOD, ["cluster.slow_gpus={7: 0.5}"]).cluster.slow_gpus == {7: 0.5}
    assert load_run(GOOD, ["cluster.slow_gpus.7=0.5"]).cluster.slow_gpus == {3: 0.8, 7: 0.5}


# on two busy cores drawing may be slow, which says nothing of the code
settings.register_profile(
    "patient", max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("patient")

KEYS = st.text("abcdef_", min_size=1, max_size=4)
TREES = st.recursive(
    st.integers(-5, 5) | KEYS,
    lambda child: st.dictionaries(KEYS, child, max_size=3),
    max_leaves=10,
)


def value_at(node: Located, path: list[str]) -> object:
    for key in path:
        assert node.mapping is not None
        node = node.mapping[key]
    return node.plain()


@given(st.dictionaries(KEYS, TREES, max_size=4), st.lists(KEYS, min_size=1, max_size=4))
def test_a_setting_changes_its_path_and_nothing_beside_it(
    tree: dict[str, object], path: list[str]
) -> None:
    before = locate(tree, Place("run.yaml", 1))
    after = apply_override(before, parse_override(".".join(path) + "=new value", []))
    assert value_at(after, path) == "new value"
    assert after.mapping is not None
    for key, child in tree.items():
        if key != path[0]:
            assert after.mapping[key].plain() == child
    assert before.plain() == tree
    again = apply_override(after, parse_override(".".join(path) + "=new value", []))
    assert again.plain() == after.plain()


@given(
    st.floats(min_value=1e-3, max_value=1e6, allow_nan=False),
    st.sampled_from([("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12), ("Gi", 2.0**30)]),
    st.sampled_from([("B/s", 1.0), ("b/s", 1 / 8), ("Bps", 1.0), ("bps", 1 / 8)]),
    st.sampled_from(["", " "]),
)
def test_quantities_of_every_prefix_and_unit(
    number: float, prefix: tuple[str, float], unit: tuple[str, float], space: str
) -> None:
    written = f"{number!r}{space}{prefix[0]}{unit[0]}"
    run = load_run(GOOD, [f"cluster.fabric.link_bandwidth={written}"])
    assert run.cluster.fabric.link_bandwidth == pytest.approx(
        number * prefix[1] * unit[1], rel=1e-12
    )


@given(st.text("0123456789.eE+-_ kMGTib/sBps[]{}:,#'\"&*!|>%@\t\néµ\0\x07", max_size=30))
def test_any_text_as_a_value_loads_or_is_refused_with_its_option(text: str) -> None:
    option = f"cluster.fabric.link_bandwidth={text}"
    place = Place(f"--set {option}")
    try:
        assert load_run(GOOD, [option]).cluster.fabric.link_bandwidth > 0
    except ConfigError as error:
        elsewhere = [problem for problem in error.problems if problem.place != place]
    else:
        elsewhere = []
    assert elsewhere == []
