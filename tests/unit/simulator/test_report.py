"""Summaries on a terminal: numbers as printed, lines that fit, bars that hang together."""

import io
import re
from typing import Any

import pytest
from rich.console import Console
from sample_result import GB, RESULT, StandIn

from simulator.report import print_explain, print_memory, print_summary
from simulator.summary_rows import (
    breakdown_rows,
    communication_rows,
    cost_rows,
    layout_parts,
    memory_verdict,
    waterfall,
)
from simulator.summary_text import (
    count_text,
    gib_text,
    money_text,
    percent_text,
    scaled_text,
    seconds_text,
)

PRINTERS = [print_summary, print_memory, print_explain]


def printed(show: Any, result: dict[str, Any] = RESULT, width: int = 80, **options: Any) -> str:
    out = io.StringIO()
    show(StandIn(result), Console(file=out, width=width, **options))
    return out.getvalue()


# numbers


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 s"), (12.3284, "12.33 s"), (0.0840552, "84.06 ms"), (3.25e-6, "3.25 µs"),
     (4321.4, "4,321 s"), (0.99999, "1 s"), (0.00099999, "1 ms"), (1e-13, "0 s")],
)  # fmt: skip
def test_seconds(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(64.367e9, "B", "64.4 GB"), (336.7e9, "B/s", "337 GB/s"), (0.0, "B", "0 B"),
     (999.96e9, "B", "1.00 TB"), (999.4e9, "B", "999 GB"), (1024, "B", "1.02 kB"),
     (0.39, "Wh", "0.39 Wh"), (5e21, "B", "5,000 EB")],
)  # fmt: skip
def test_prefixes_are_decimal(value: float, unit: str, text: str) -> None:
    assert scaled_text(value, unit) == text


def test_other_numbers() -> None:
    assert gib_text(80 * 1024**3) == "80.0 GiB"
    assert percent_text(0.4796) == "48.0 %"
    assert [count_text(x) for x in (48729.86, 166.12, 21.04, 0.000374)] == [
        "48,730", "166", "21.0", "0.000374",
    ]  # fmt: skip
    assert [money_text(x) for x in (4932842.4, 62.07, 0.0011)] == [
        "$4,932,842",
        "$62.07",
        "$0.0011",
    ]


# rows


def test_the_waterfall_descends_from_peak_to_the_mfu() -> None:
    steps = waterfall(RESULT)
    assert [s.name for s in steps] == [
        "peak", "GEMM, attention below peak", "exposed tensor parallel", "novel term",
        "pipeline bubble", "achieved MFU",
    ]  # fmt: skip
    ends = [1 - 0.295, 1 - 0.295 - 0.15, 1 - 0.295 - 0.15 - 0.06, 0.455]
    assert [s.low for s in steps[1:-1]] == pytest.approx(ends)
    assert [s.high for s in steps[1:-1]] == pytest.approx([1.0, *ends[:-1]])
    assert (steps[-1].low, steps[-1].high) == (0.0, 0.455)
    assert steps[-1].seconds == pytest.approx(0.455 * 10.0)  # the step at peak would take this


def test_what_the_terms_leave_open_is_shown() -> None:
    steps = waterfall({**RESULT, "mfu": 0.43})
    assert (steps[-2].name, steps[-2].points_text) == ("other", "−2.5 %")
    gains = [{"term": "sparsity", "seconds": -1.0, "mfu_points": -0.1}]
    gain = waterfall({**RESULT, "explain": gains, "mfu": 1.1})[1]
    assert (gain.is_gain, gain.points_text) == (True, "+10.0 %")
    assert waterfall({"step_time_s": 1.0}) == []


def test_rows_leave_out_what_is_next_to_nothing() -> None:
    assert [(name, share) for name, _, share in breakdown_rows(RESULT)] == [
        ("GEMM", "65.0 %"), ("attention", "10.0 %"), ("exposed tensor parallel", "15.0 %"),
        ("novel term", "6.0 %"), ("pipeline bubble", "4.0 %"),
    ]  # fmt: skip
    assert communication_rows(RESULT["communication"]) == [
        ("tensor parallel", "600 GB", "2 s", "1.5 s", "300 GB/s")
    ]
    # 7.2e7 J / 3600 = 20,000 Wh
    assert cost_rows(RESULT["cost"]) == [
        ("GPU-hours", "17.1", "1,356,000"), ("energy", "20.0 kWh", "-"),
    ]  # fmt: skip


def test_layout_and_memory_in_words() -> None:
    assert layout_parts(RESULT["layout"]) == [
        "6,144 × h100", "tp 8", "pp 16 × 7 chunks", "dp 48", "64 microbatches of 1",
    ]  # fmt: skip
    assert layout_parts({}) == []
    verdict = memory_verdict(RESULT["memory"])
    # 66.8e9 / 2^30 = 62.2; 66.8e9 / (80 * 2^30) = 0.778
    assert verdict == "stage 0, the fullest: 62.2 GiB of 80.0 GiB, 77.8 %: fits, 17.8 GiB free"
    assert "DOES NOT FIT" in memory_verdict({**RESULT["memory"], "fits": False})


# terminal


@pytest.mark.parametrize("show", PRINTERS)
@pytest.mark.parametrize("width", [20, 60, 80, 200])
def test_lines_fit_the_console(show: Any, width: int) -> None:
    text = printed(show, width=width)
    assert max(len(line) for line in text.splitlines()) <= min(width, 100)
    assert "\x1b" not in text  # no colour in a pipe
    assert not any(line != line.rstrip() for line in text.splitlines())


@pytest.mark.parametrize("show", PRINTERS)
def test_markup_in_a_name_is_text(show: Any) -> None:
    assert printed(show).splitlines()[0] == RESULT["name"]


@pytest.mark.parametrize("show", PRINTERS)
def test_a_terminal_gets_the_same_words_in_colour(show: Any) -> None:
    coloured = printed(show, force_terminal=True, color_system="truecolor", legacy_windows=False)
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == printed(show)


@pytest.mark.parametrize("show", PRINTERS)
def test_an_ascii_terminal_gets_ascii(show: Any) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")
    show(StandIn({**RESULT, "name": "größer"}), Console(file=out, width=80))
    out.flush()
    assert "gr??er" in out.buffer.getvalue().decode("ascii")  # type: ignore[attr-defined]


@pytest.mark.parametrize("show", PRINTERS)
@pytest.mark.parametrize("missing", [None, *sorted(set(RESULT) - {"step_time_s"})])
def test_every_key_but_the_step_time_may_be_missing(show: Any, missing: str | None) -> None:
    if missing is None:
        result: dict[str, Any] = {"step_time_s": 1.0}
    else:
        result = {key: value for key, value in RESULT.items() if key != missing}
    assert printed(show, result)


def test_the_summary_says_what_is_asked_first() -> None:
    text = printed(print_summary)
    assert re.search(r"step time +10 s +tokens/s per GPU +205$", text, re.MULTILINE)
    assert re.search(r"MFU +45\.5 % +model TFLOP/s per GPU +450$", text, re.MULTILINE)
    assert "Where the step goes (stage 3, the busiest)" in text
    assert "62.2 GiB of 80.0 GiB, 77.8 %: fits" in text
    assert "simulated in 1.25 s: 6,144 GPUs, 16 classes of ranks, 30,371 operations" in text


def bars(text: str) -> dict[str, tuple[int, int]]:
    """Name of each line with a bar -> the columns in which it starts and ends."""
    found = {}
    for line in text.splitlines():
        match = re.search("[█▌]+$", line)
        if match:
            found[line[:28].strip()] = match.span()
    return found


def test_bars_of_the_waterfall_hang_together() -> None:
    places = bars(printed(print_explain))
    first, end = places["peak"]
    assert end == 80
    width = end - first
    level = 1.0
    for name, points in (
        ("GEMM, attention below peak", 0.295),
        ("exposed tensor parallel", 0.15),
        ("pipeline bubble", 0.04),
    ):
        start, stop = places[name]
        level -= points + (0.06 if name == "pipeline bubble" else 0.0)
        assert start - first == pytest.approx(level * width, abs=1.0)
        assert stop - start == pytest.approx(points * width, abs=1.0)
    assert places["achieved MFU"] == pytest.approx((first, first + 0.455 * width), abs=1.0)


def test_explain_names_the_largest_loss() -> None:
    assert "GEMM, attention below peak, 29.5 points" in printed(print_explain)
    assert "no waterfall" in printed(print_explain, {"step_time_s": 1.0})


def test_memory_lists_each_stage_in_gib() -> None:
    lines = printed(print_memory).splitlines()
    row = next(line.split() for line in lines if line.startswith("      1 "))
    gigabytes = (8, 16, 1, 30, 0.2, 1.6, 8 + 16 + 1 + 30 + 0.2 + 1.6)
    assert row[:8] == ["1", *(f"{x * GB / 2**30:.2f}" for x in gigabytes)]


SUMMARY = """\
a [bold]run[/bold] <b>& more</b>
6,144 × h100 · tp 8 · pp 16 × 7 chunks · dp 48 · 64 microbatches of 1

  step time           10 s      tokens/s per GPU               205
  MFU               45.5 %      model TFLOP/s per GPU          450
  HFU               46.0 %      bubble, mean of stages       4.0 %

Where the step goes (stage 3, the busiest)
  GEMM                              6.5 s   65.0 %  ████████████████████████████
  attention                           1 s   10.0 %  ████▌
  exposed tensor parallel           1.5 s   15.0 %  ██████▌
  novel term                       600 ms    6.0 %  ██▌
  pipeline bubble                  400 ms    4.0 %  █▌

Communication of one GPU
                          sent        busy     exposed    bus bandwidth
  tensor parallel       600 GB         2 s       1.5 s         300 GB/s

Memory per GPU
  stage 0, the fullest: 62.2 GiB of 80.0 GiB, 77.8 %: fits, 17.8 GiB free

Cost
                          per step     per trillion tokens
  GPU-hours                   17.1               1,356,000
  energy                  20.0 kWh                       -

simulated in 1.25 s: 6,144 GPUs, 16 classes of ranks, 30,371 operations

Assumed or extrapolated
  one thing
"""
"""Bars by hand, 28 columns for the longest: 28 / 6.5 = 4.31, 28 * 1.5 / 6.5 = 6.46, 28 * 0.6 / 6.5
= 2.58, 28 * 0.4 / 6.5 = 1.72, each to the nearest half."""


def test_a_summary_of_80_columns() -> None:
    assert printed(print_summary, {**RESULT, "warnings": ["one thing"]}) == SUMMARY


def test_a_run_that_does_not_fit_says_by_how_much() -> None:
    memory = RESULT["memory"] | {"capacity_bytes": 40 * 2.0**30, "fits": False}
    text = printed(print_memory, {**RESULT, "memory": memory})
    # 66.8e9 / 2^30 = 62.21
    assert "stage 0, the fullest: 62.2 GiB of 40.0 GiB, 155.5 %: DOES NOT FIT" in text
    assert "22.2 GiB too much" in text.replace("\n", " ")


def test_explain_tells_what_large_terms_are_the_largest_first() -> None:
    text = printed(print_explain)
    sentences = text[text.index("What the large terms are") :]
    names = re.findall(r"^  (\S.*), [\d.]+ points$", sentences, re.MULTILINE)
    assert names == ["GEMM, attention below peak", "exposed tensor parallel", "pipeline bubble"]
    assert "a smaller parallelism.tensor_model_parallel_size." in " ".join(sentences.split())
