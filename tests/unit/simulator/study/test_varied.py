"""`--vary` read, and the points it makes."""

import pytest

from simulator.errors import ConfigError
from simulator.study.varied import MAX_POINTS, Setting, Varied, combine, parse_varied


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        ("a.b=1,2", ("1", "2")),
        ("a.b= 1 , x0.5", ("1", "x0.5")),
        ("a={preset: ndr, tiers: 2},hdr", ("{preset: ndr, tiers: 2}", "hdr")),
        ("a='1,2',3", ("'1,2'", "3")),
        ("a=[1, 2],[3]", ("[1, 2]", "[3]")),
        ("a=b=c", ("b=c",)),
    ],
)
def test_values_are_split_outside_of_brackets_and_quotes(text: str, texts: tuple[str, ...]) -> None:
    assert parse_varied(text).texts == texts


@pytest.mark.parametrize(
    ("text", "factor"),
    [("x0.5", 0.5), ("x2", 2.0), ("x.25", 0.25), ("x1e3", 1e3), ("'x2'", None), ("xl", None),
     ("2", None), ("x", None), ("x-1", None)],
)  # fmt: skip
def test_factors(text: str, factor: float | None) -> None:
    assert Setting("a", text).factor == factor


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a.b", "must read PATH=V1,V2,..."),
        ("=1", "must read PATH=V1,V2,..."),
        ("a.b=", "must read PATH=V1,V2,..."),
        ("a.b=1,,2", "must read PATH=V1,V2,..."),
        ("a..b=1", "must read PATH=V1,V2,..."),
        ("a=1,2,1", "the value 1 stands there twice"),
        ("a=[1", "the value [1 is not valid YAML"),
    ],
)
def test_what_cannot_be_read_is_told(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_varied(text)
    assert str(caught.value).startswith(f"--vary {text}: ")
    assert words in str(caught.value)


A, B = Varied("a", ("1", "2")), Varied("b", ("x", "y"))


def texts_of(points: tuple[tuple[Setting, ...], ...]) -> list[str]:
    return ["".join(setting.text for setting in point) for point in points]


def test_every_combination_and_together() -> None:
    assert texts_of(combine([A, B], zipped=False)) == ["1x", "1y", "2x", "2y"]
    assert texts_of(combine([A, B], zipped=True)) == ["1x", "2y"]


@pytest.mark.parametrize(
    ("varied", "zipped", "words"),
    [
        ([], False, "nothing to vary"),
        ([A, A], False, "a: is varied twice"),
        ([A, Varied("b", ("1",))], True, "there are a 2, b 1"),
        ([Varied(k, tuple(map(str, range(400)))) for k in "ab"], False, f"{MAX_POINTS:,}"),
    ],
)
def test_what_cannot_be_combined(varied: list[Varied], zipped: bool, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        combine(varied, zipped)
