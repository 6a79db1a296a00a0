"""Summaries and the web page: numbers as printed, lines that fit, nothing fetched from outside."""

import io
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from synthetic_trace import synthetic_trace

from simulator.report import print_explain, print_memory, print_summary, write_html
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

GB = 1e9


def stage(number: int, activations: float) -> dict[str, float]:
    terms = {"weights": 8 * GB, "gradients": 16 * GB, "optimizer": 1 * GB,
             "activations": activations, "buffers": 0.2 * GB, "framework": 1.6 * GB}  # fmt: skip
    return {"stage": number, **terms, "total_bytes": sum(terms.values())}


RESULT: dict[str, Any] = {
    "name": "a [bold]run[/bold] <b>& more</b>",
    "layout": {"num_gpus": 6144, "gpu": "h100", "tp": 8, "pp": 16, "vpp": 7, "dp": 48,
               "micro_batch_size": 1, "num_microbatches": 64},
    "step_time_s": 10.0,
    "tokens_per_s_per_gpu": 204.8,
    "model_tflops_per_gpu": 450.25,
    "mfu": 0.455,
    "hfu": 0.46,
    "bubble_fraction": 0.04,
    "critical_stage": 3,
    "breakdown_s": {"gemm": 6.5, "attention": 1.0, "recompute": 0.0, "tp_exposed": 1.5,
                    "novel_term": 0.6, "bubble": 0.4},
    "explain": [
        {"term": "kernel_efficiency", "seconds": 2.95, "mfu_points": 0.295},
        {"term": "recompute", "seconds": 0.0, "mfu_points": 0.0},
        {"term": "tp_exposed", "seconds": 1.5, "mfu_points": 0.15},
        {"term": "novel_term", "seconds": 0.6, "mfu_points": 0.06},
        {"term": "bubble", "seconds": 0.4, "mfu_points": 0.04},
    ],
    "communication": {
        "tp": {"bytes": 6e11, "busy_s": 2.0, "exposed_s": 1.5, "busbw": 3e11},
        "pp": {"bytes": 0.0, "busy_s": 0.0, "exposed_s": 0.0, "busbw": 0.0},
    },
    "memory": {"peak_bytes": 66.8 * GB, "capacity_bytes": 80 * 2.0**30, "fits": True,
               "per_stage": [stage(0, 40 * GB), stage(1, 30 * GB)]},
    "cost": {"gpu_hours_per_step": 17.066, "energy_j_per_step": 7.2e7, "usd_per_step": None,
             "gpu_hours_per_trillion_tokens": 1.356e6},
    "simulation": {"num_gpus": 6144, "rank_classes": 16, "operations": 30371, "events": 132847,
                   "wall_time_s": 1.25},
    "warnings": ["outside the measured tables, extrapolated: " + ", ".join(["fc2 wgrad"] * 12)],
}  # fmt: skip
PRINTERS = [print_summary, print_memory, print_explain]


def printed(show: Any, result: dict[str, Any] = RESULT, width: int = 80, **options: Any) -> str:
    out = io.StringIO()
    show(result, Console(file=out, width=width, **options))
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
        "pipeline bubble", "achieved (MFU)",
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
    # 66.8e9 / 2^30 = 62.2; 80 * 2^30 = 85.9e9; 66.8 / 85.9 = 0.778
    assert verdict == "peak 66.8 GB (62.2 GiB) of 85.9 GB (80.0 GiB), 77.8 %: fits"
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
    show({**RESULT, "name": "größer"}, Console(file=out, width=80))
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
    assert "66.8 GB (62.2 GiB) of 85.9 GB (80.0 GiB), 77.8 %: fits" in text
    assert "132,847 events, in 1.25 s" in " ".join(text.split())


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
    assert places["achieved (MFU)"] == pytest.approx((first, first + 0.455 * width), abs=1.0)


def test_explain_names_the_largest_loss() -> None:
    assert "Largest loss: GEMM, attention below peak, 29.5 points of MFU." in printed(print_explain)
    assert "no waterfall" in printed(print_explain, {"step_time_s": 1.0})


def test_memory_lists_each_stage_in_gb() -> None:
    lines = printed(print_memory).splitlines()
    row = next(line.split() for line in lines if line.startswith("    1 "))
    assert row[:8] == ["1", "8.00", "16.00", "1.00", "30.00", "0.20", "1.60", "56.80"]


# web page


class Page(HTMLParser):
    """Checks that tags close in order and gathers what they refer to."""

    VOID = ("meta", "link", "img", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self.links += [value or "" for key, value in attrs if key in ("src", "href")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("result", [RESULT, {"step_time_s": 1.0}])
def test_the_page_is_sound_and_stands_alone(result: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    write_html(result, synthetic_trace(stages=2, microbatches=2), path)
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    page.close()
    assert page.open == []
    assert all(link.startswith("data:") for link in page.links)
    assert "url(" not in path.read_text(encoding="utf-8")
    assert str(result.get("name", "a <synthetic> run $x$")) in page.text
    assert [p.name for p in tmp_path.iterdir()] == ["r.html"]


def test_the_page_shows_every_part(tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    write_html(RESULT, synthetic_trace(stages=2, microbatches=40), path)
    text = path.read_text(encoding="utf-8")
    assert text.count("data:image/png;base64,") == 2  # the step, and a close-up
    assert text.count("<svg") == 2
    for words in ("45.5 %", "−29.5 %", "66.8 GB (62.2 GiB)", "capacity 85.9 GB", "30,371"):
        assert words in text


def test_the_page_is_the_same_each_time(tmp_path: Path) -> None:
    for name in ("a.html", "b.html"):
        write_html(RESULT, synthetic_trace(stages=2, microbatches=2), tmp_path / name)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
