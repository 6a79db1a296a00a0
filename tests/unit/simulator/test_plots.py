"""Gantt charts: the rows worked by hand, labels measured, files compared."""

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import combinations, pairwise
from math import dist
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from PIL import Image
from synthetic_trace import FORWARD_S, GATHER_S, SEND_S, synthetic_trace

from simulator.gantt_boxes import Scale, draw_boxes, draw_labels
from simulator.gantt_legend import build_legend
from simulator.gantt_rows import Box, Row, Window, busiest_rank, pipeline_rows, stage_rows
from simulator.palette import BUBBLE, CATEGORIES, is_ramp, relative_luminance, style, text_color
from simulator.plots import _draw, _subtitle, write_gantt
from simulator.trace import RankTrace, Span, Trace

TRACE = synthetic_trace(stages=4, microbatches=8)
ALL = (0.0, TRACE.step_time_s)


def passes(row: Row) -> list[tuple[float, float, str]]:
    return [(b.start_s, b.end_s, b.category[0] + b.label) for b in row.boxes if is_ramp(b.category)]


def boxes(row: Row, category: str) -> list[tuple[float, float]]:
    return sorted((b.start_s, b.end_s) for b in row.boxes if b.category == category)


# rows


def test_the_pipeline_has_a_row_per_stage_with_numbered_passes() -> None:
    rows = pipeline_rows(TRACE, ALL, 0.0)
    assert [row.label for row in rows] == ["stage 0", "stage 1", "stage 2", "stage 3"]
    # stage 0 waits for its parameters, then runs its warm-up of three and one more forward
    start = GATHER_S
    assert passes(rows[0])[:4] == [(start + i, start + i + 1, f"f{i}") for i in range(4)]
    for row in rows:
        names = [name for _, _, name in passes(row)]
        assert sorted(names) == sorted([f"f{i}" for i in range(8)] + [f"b{i}" for i in range(8)])


def test_a_wait_shows_the_communication_that_ended_it() -> None:
    rows = pipeline_rows(TRACE, ALL, 0.0)
    assert boxes(rows[0], "dp") == [(0.0, GATHER_S)]
    sent_s = GATHER_S + FORWARD_S
    assert boxes(rows[1], "pp")[0] == (sent_s, sent_s + SEND_S)
    assert boxes(rows[1], "dp") == []  # its own gather ended long before
    later_s = sent_s + SEND_S + FORWARD_S
    assert boxes(rows[2], "pp")[0] == (later_s, later_s + SEND_S)


def test_host_time_is_told_apart_from_the_optimizer() -> None:
    end_s = TRACE.step_time_s
    for row in pipeline_rows(TRACE, ALL, 0.0):
        assert boxes(row, "optimizer") == [(end_s - 2.0, end_s - 1.0)]
        assert boxes(row, "overhead") == [(end_s - 1.0, end_s)]


def test_boxes_of_a_row_do_not_overlap() -> None:
    trace = synthetic_trace("interleaved_1f1b", 4, 8, 3)
    for row in pipeline_rows(trace, (0.0, trace.step_time_s), 0.0):
        ordered = sorted(row.boxes, key=lambda b: b.start_s)
        for one, other in pairwise(ordered):
            assert one.end_s <= other.start_s


def test_a_window_keeps_what_meets_it() -> None:
    row = pipeline_rows(TRACE, (1.0, 2.0), 0.0)[0]
    assert passes(row) == [(0.5, 1.5, "f0"), (1.5, 2.5, "f1")]


def test_parts_of_a_pass_join_where_the_gap_is_not_seen() -> None:
    parts = [
        Span("compute", "forward 0.0", "forward", start, end, 0, 0)
        for start, end in ((0.0, 1.0), (1.01, 2.0), (2.5, 3.0))
    ]
    other = Span("compute", "forward 1.0", "forward", 3.0, 4.0, 1, 0)
    trace = Trace("t", 4.0, 1, (RankTrace(0, 0, 1, (*parts, other)),))
    row = pipeline_rows(trace, (0.0, 4.0), 0.1)[0]
    assert passes(row) == [(0.0, 2.0, "f0"), (2.5, 3.0, "f0"), (3.0, 4.0, "f1")]


def test_passes_meet_where_the_gap_is_not_seen_and_nothing_else_grows() -> None:
    spans = (
        Span("compute", "forward 0.0", "forward", 0.0, 1.0, 0, 0),
        Span("compute", "forward 1.0", "forward", 1.05, 2.0, 1, 0),
        Span("compute", "backward 0.0", "backward", 2.2, 3.0, 0, 0),
        Span("pp_next", "send forward 0.0", "pp", 1.0, 1.04, 0, 0),
        Span("pp_next", "send forward 1.0", "pp", 1.09, 1.13, 1, 0),
    )
    trace = Trace("t", 4.0, 1, (RankTrace(0, 0, 1, spans),))
    row = pipeline_rows(trace, (0.0, 4.0), 0.1)[0]
    assert passes(row) == [(0.0, 1.05, "f0"), (1.05, 2.0, "f1"), (2.2, 3.0, "b0")]
    sends = stage_rows(trace, 0, (0.0, 4.0), 0.1, operations=False)[1]
    assert boxes(sends, "pp") == [(1.0, 1.04), (1.09, 1.13)]


def test_the_row_of_a_stage_is_its_busiest_rank() -> None:
    fast, *others = TRACE.ranks
    slow_spans = tuple(replace(s, end_s=s.end_s + 0.1) for s in fast.spans)
    slow = replace(fast, rank=1, spans=slow_spans, num_ranks=1)
    trace = replace(TRACE, ranks=(replace(fast, num_ranks=1), slow, *others))
    assert busiest_rank(trace, 0).rank == 1
    assert busiest_rank(TRACE, 0).rank == 0


def test_the_stage_view_has_a_row_per_stream_and_one_for_operations() -> None:
    rows = stage_rows(TRACE, 1, ALL, 0.0, operations=True)
    assert [row.label for row in rows] == ["compute", "operations", "pp_next", "pp_prev", "dp"]
    first = stage_rows(TRACE, 0, (0.5, 1.5), 0.0, operations=True)[1]
    found = [(b.label, b.start_s, b.end_s, b.category) for b in first.boxes]
    # 1 s: half, a quarter, two eighths
    assert found == [
        ("qkv", 0.5, 1.0, "forward"), ("attention", 1.0, 1.25, "forward"),
        ("norm", 1.25, 1.375, "forward"), ("qkv input", 1.375, 1.5, "tp"),
    ]  # fmt: skip
    shades = [b.shade for b in first.boxes]
    assert shades == [0, 1, 2, 0]


def test_the_stage_view_names_ranks_where_there_are_several() -> None:
    ranks = [replace(TRACE.ranks[0], rank=i, num_ranks=1) for i in range(20)]
    rows = stage_rows(replace(TRACE, ranks=tuple(ranks)), 0, ALL, 0.0, operations=False)
    assert len({row.label.split()[1] for row in rows}) == 8  # the rest would not be readable
    assert rows[0].label.split() == ["rank", "0", "compute"]


@pytest.mark.parametrize(
    ("window", "notes"),
    [
        # a gather to 0.5, forwards of 1 s from then on, a quarter of a second to send each
        ((0.0, 3.0), ["83 % busy", "17 % busy", "0 % busy", "17 % busy"]),
        ((1.0, 1.4), ["100 % busy", "0 % busy", "0 % busy", "0 % busy"]),
        ((0.0, 0.501), ["<1 % busy", "0 % busy", "0 % busy", "100 % busy"]),
    ],
)
def test_streams_say_how_busy_they_are_within_the_window(window: Window, notes: list[str]) -> None:
    rows = stage_rows(synthetic_trace(), 0, window, 0.0, operations=False)
    by_name = {row.label: row.note for row in rows}
    assert [by_name[name] for name in ("compute", "pp_next", "pp_prev", "dp")] == notes


# labels


@pytest.mark.parametrize("width_px", [60, 100, 200, 400, 1600])
def test_labels_stay_inside_their_boxes(width_px: int) -> None:
    many = tuple(
        Box(float(i), i + 0.4 + 0.6 * (i % 2), "forward", label=str(i * 37)) for i in range(20)
    )
    scale = Scale((0.0, 20.0), width_px, 40, 100)
    figure = Figure(figsize=(width_px / 100, 0.4), dpi=100)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, 20)
    axes.set_ylim(0.5, -0.5)
    draw_labels(axes, [Row("r", many)], scale, 9.0)
    figure.canvas.draw()
    drawn = 0
    for text in axes.collections:
        assert isinstance(text, PathCollection)
        extent = text.get_paths()[0].get_extents(text.get_transform())
        for x, _ in np.asarray(text.get_offsets(), dtype=float):
            middle_px = x * width_px / 20
            box = next(b for b in many if b.start_s < x < b.end_s)
            px = (box.start_s * width_px / 20, box.end_s * width_px / 20)
            assert px[0] < middle_px + extent.x0
            assert middle_px + extent.x1 < px[1]
            assert 0 < extent.height < 40
            drawn += 1
    assert drawn == {60: 0, 1600: 20}.get(width_px, drawn)


def drawn_labels(
    row: Row, window: Window, width_px: int, largest: float = 9.0
) -> tuple[int, float]:
    """How many labels, and the size of their letters in pixels."""
    figure = Figure(figsize=(width_px / 100, 0.4), dpi=100)
    axes = figure.add_axes((0, 0, 1, 1))
    draw_labels(axes, [row], Scale(window, width_px, 40, 100), largest)
    stamps = [c for c in axes.collections if isinstance(c, PathCollection)]
    count = sum(len(np.asarray(stamp.get_offsets())) for stamp in stamps)
    return count, stamps[0].get_transform().get_matrix()[0, 0] if stamps else 0.0


def test_equal_boxes_are_labelled_all_or_none() -> None:
    """11 is narrower than 10, which must not decide."""
    row = Row("r", tuple(Box(float(i), i + 1.0, "forward", label=str(10 + i)) for i in range(10)))
    counts = {drawn_labels(row, (0.0, 10.0), width)[0] for width in range(60, 260, 3)}
    assert counts == {0, 10}


def test_a_box_that_the_window_cuts_does_not_shrink_all_labels() -> None:
    row = Row("r", tuple(Box(float(i), i + 1.0, "forward", label="7") for i in range(4)))
    assert drawn_labels(row, (0.0, 4.0), 400) == (4, 9.0 * 100 / 72)
    assert drawn_labels(row, (0.9, 4.0), 400) == (4, 9.0 * 100 / 72)
    assert drawn_labels(row, (0.93, 4.0), 400) == (3, 9.0 * 100 / 72)


@pytest.mark.parametrize(("least_px", "expected"), [(0.0, 0.01), (0.5, 0.05)])
def test_short_boxes_may_leave_a_trace(least_px: float, expected: float) -> None:
    axes = Figure().add_axes((0, 0, 1, 1))
    row = Row("r", (Box(3.0, 3.01, "pp"),))
    draw_boxes(axes, [row], Scale((0.0, 10.0), 100, 40, 100, least_px))
    extents = [patch.get_path().get_extents() for patch in axes.patches]
    assert [e.width for e in extents] == pytest.approx([10.0, expected])  # idle first


# colours

COLOUR_VISION = {  # Machado, Oliveira, Fernandes 2009 (IEEE TVCG 15:6), severity 1.0
    "normal": [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
    "protanopia": [
        [0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}  # fmt: skip


def shades(category: str) -> list[str]:
    return [style(category, i, 7).fill for i in range(7)]


def test_passes_and_bubble_differ_in_lightness_alone() -> None:
    forward, backward = (
        [relative_luminance(fill) for fill in shades(c)] for c in ("forward", "backward")
    )
    assert forward == sorted(forward)
    assert backward == sorted(backward)
    assert (min(backward) + 0.05) / (max(forward) + 0.05) > 1.4
    assert max(backward) + 0.05 < relative_luminance(BUBBLE)


def test_what_is_no_pass_has_a_hatch_or_is_black() -> None:
    flat = [style(c) for c in CATEGORIES if not is_ramp(c)]
    hatches = Counter(s.hatch for s in flat)
    assert hatches[""] == 1  # the optimizer
    assert max(hatches.values()) == 1
    assert relative_luminance(style("optimizer").fill) < 0.02


@pytest.mark.parametrize("category", ["forward", "backward", "recompute", "optimizer"])
def test_labels_can_be_read(category: str) -> None:
    for fill in shades(category):
        light = sorted([relative_luminance(fill), relative_luminance(text_color(fill))])
        assert (light[1] + 0.05) / (light[0] + 0.05) >= 4.5  # WCAG 2.2, level AA


@pytest.mark.parametrize("matrix", COLOUR_VISION.values(), ids=COLOUR_VISION)
def test_colours_differ_for_every_kind_of_colour_vision(matrix: list[list[float]]) -> None:
    """10 in CIE 1976 is several times what can be told apart side by side; hatches add to it."""
    seen = {"idle": [_lab(BUBBLE, matrix)]}
    for category in CATEGORIES:
        seen[category] = [_lab(fill, matrix) for fill in shades(category)[::3]]
    for one, other in combinations(seen.values(), 2):
        assert min(dist(a, b) for a in one for b in other) > 10.0


def _lab(color: str, matrix: list[list[float]]) -> list[float]:
    """CIE L*a*b* (white D65) of an sRGB colour, seen through `matrix` in linear RGB."""
    srgb = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    xyz = to_xyz @ np.clip(np.array(matrix) @ linear, 0, 1) / to_xyz.sum(axis=1)
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116).tolist()
    return [116 * y - 16, 500 * (x - y), 200 * (y - z)]


def test_luminance_of_known_colours() -> None:
    assert relative_luminance("#000000") == 0.0
    assert relative_luminance("#ffffff") == pytest.approx(1.0)
    assert relative_luminance("#ff0000") == pytest.approx(0.2126)


def test_the_legend_lists_what_the_chart_holds() -> None:
    trace = synthetic_trace("interleaved_1f1b", 4, 8, 3)
    rows = pipeline_rows(trace, (0.0, trace.step_time_s), 0.0)
    legend = build_legend(rows, 3, 11.0, 9.0)
    assert [label for _, label in legend.entries] == [
        "forward, chunk 0 to 2", "backward, chunk 0 to 2", "pipeline communication",
        "data-parallel communication", "optimizer", "host time", "idle (bubble)",
    ]  # fmt: skip
    only = [Row("r", (Box(0.0, 1.0, "forward"), Box(1.0, 2.0, "novel")))]
    labels = [label for _, label in build_legend(only, 1, 11.0, 9.0).entries]
    assert labels == ["forward", "novel", "idle (bubble)"]


def test_the_legend_leaves_out_what_cannot_be_seen() -> None:
    rare = [Box(9.0, 9.01, "tp")]
    often = [Box(i + 0.5, i + 0.51, "pp") for i in range(8)]
    row = Row("r", (Box(0.0, 0.5, "forward"), *rare, *often))
    legend = build_legend([row], 1, 11.0, 9.0, "idle", visible_s=0.05)
    assert [label for _, label in legend.entries] == [
        "forward", "pipeline communication", "idle",
    ]  # fmt: skip


# files


@pytest.mark.parametrize("ending", ["png", "svg", "PNG"])
def test_same_trace_same_bytes_whatever_the_readers_settings(ending: str, tmp_path: Path) -> None:
    one, other = tmp_path / f"one.{ending}", tmp_path / f"other.{ending}"
    write_gantt(TRACE, one)
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red", "savefig.dpi": 10}):
        write_gantt(TRACE, other)
        assert mpl.rcParams["font.size"] == 30
    assert one.read_bytes() == other.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([one.name, other.name])


def test_svg_is_sound_and_without_a_date(tmp_path: Path) -> None:
    write_gantt(TRACE, tmp_path / "g.svg", stage=1, window=(1.0, 9.0), title="<&> $title$")
    text = (tmp_path / "g.svg").read_text(encoding="utf-8")
    ElementTree.fromstring(text)
    assert "dc:date" not in text


def test_titles_in_any_script_and_of_any_length(tmp_path: Path) -> None:
    """Warnings are errors here."""
    write_gantt(TRACE, tmp_path / "g.png", title="大きな \n $模型 " + "long " * 99)
    write_gantt(replace(TRACE, name=""), tmp_path / "h.svg")
    assert _draw(TRACE, ALL, None, "two\nlines").texts[0].get_text() == "two lines"


def test_the_window_is_said_with_the_digits_it_needs(tmp_path: Path) -> None:
    said = _subtitle(TRACE, (2.0, 2.0 + 16e-6), 1).split("  ·  ")[-1]
    assert said == "shown: 2000000.00 to 2000016.00 µs"
    assert _subtitle(TRACE, (1.0, 1.5), None).endswith("shown: 1000.0 to 1500.0 ms")
    assert "shown" not in _subtitle(TRACE, ALL, None)
    assert _subtitle(TRACE, ALL, None).startswith(f"step time {TRACE.step_time_s:g} s  ·  4 pipe")


@pytest.mark.parametrize("window", [ALL, (5.0, 5.004), (39.0, 39.0 + 2.7e-6)])
def test_tick_labels_do_not_touch(window: Window) -> None:
    figure = _draw(TRACE, window, 0, None)
    figure.canvas.draw()
    ticks = [t.get_window_extent() for t in figure.axes[0].get_xticklabels() if t.get_text()]
    assert len(ticks) >= 2
    assert all(one.x1 + 4 < other.x0 for one, other in pairwise(ticks))
    names = [t.get_window_extent() for t in figure.axes[0].get_yticklabels()]
    assert min(name.x0 for name in names) > 0


def test_nothing_leaves_the_sheet() -> None:
    for window, stage in ((ALL, None), (ALL, 2), ((3.0, 9.0), 0), ((3.0, 4.0), 3)):
        figure = _draw(TRACE, window, stage, None)
        figure.canvas.draw()
        page = figure.bbox
        legend = figure.legends[0].get_window_extent()
        axis_label = figure.axes[0].xaxis.label.get_window_extent()
        assert legend.y1 <= axis_label.y0
        for item in (legend, *(text.get_window_extent() for text in figure.texts)):
            assert page.x0 <= item.x0
            assert item.x1 <= page.x1
            assert page.y0 <= item.y0
            assert item.y1 <= page.y1


@pytest.mark.parametrize(
    ("stages", "microbatches", "chunks"), [(1, 1, 1), (4, 8, 1), (16, 32, 2), (64, 8, 1)]
)
def test_pictures_have_a_size_that_can_be_viewed(
    stages: int, microbatches: int, chunks: int, tmp_path: Path
) -> None:
    schedule = "interleaved_1f1b" if chunks > 1 else "1f1b"
    write_gantt(synthetic_trace(schedule, stages, microbatches, chunks), tmp_path / "g.png")
    with Image.open(tmp_path / "g.png") as picture:
        width, height = picture.size
    assert 1000 <= width <= 2700
    assert 200 <= height <= 2000


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("g.pdf", {}, "ends in .png or .svg, not .pdf"),
        ("g", {}, "ends in .png or .svg, not nothing"),
        ("g.png", {"window": (99.0, 100.0)}, f"choose within 0 to {ALL[1]:g} s"),
        ("g.png", {"window": (float("nan"), 1.0)}, "nothing of the step lies in it"),
        ("g.png", {"window": (2.0, 2.0)}, "nothing of the step lies in it"),
        ("g.png", {"window": (3.0, 2.0)}, "nothing of the step lies in it"),
        ("g.png", {"stage": 4}, "no stage 4; choose 0 to 3"),
        ("g.svg", {"stage": -1}, "no stage -1"),
    ],
)
def test_wrong_requests_leave_no_file(
    name: str, options: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        write_gantt(TRACE, tmp_path / name, **options)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.benchmark
@pytest.mark.parametrize("ending", ["png", "svg"])
def test_fourteen_thousand_passes_take_two_seconds(ending: str, tmp_path: Path) -> None:
    """Of one core, with the import of matplotlib: measured in a fresh process."""
    code = (
        "import sys; from time import process_time; from synthetic_trace import synthetic_trace\n"
        "trace = synthetic_trace('interleaved_1f1b', 16, 64, 7); begin = process_time()\n"
        "from simulator.plots import write_gantt; write_gantt(trace, sys.argv[1])\n"
        "print(process_time() - begin)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / f"g.{ending}")],
        env={"PYTHONPATH": f"{Path(__file__).parent}:{Path(__file__).parents[3]}"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    print(f"{ending}: {float(done.stdout):.2f} s")
    assert float(done.stdout) < 2.0
