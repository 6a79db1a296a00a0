"""The web page: sound, whole, in need of nothing from outside, safe with any name."""

import base64
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from sample_result import RESULT, StandIn
from synthetic_trace import synthetic_trace

from simulator.html_charts import memory_svg, waterfall_svg
from simulator.report import write_html
from simulator.summary_rows import waterfall

HEADINGS = [
    "Timeline", "From peak to achieved", "Where the step goes (stage 3, the busiest)",
    "Communication of one GPU", "Memory per GPU", "Cost", "Simulation", "Assumed or extrapolated",
]  # fmt: skip
HOSTILE = "<script>alert('x')</script> & \"q\""


class Page(HTMLParser):
    """Checks that tags close in order and gathers what they refer to."""

    VOID = ("meta", "link", "img", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.headings: list[str] = []
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        self.links += [value or "" for key, value in attrs if key in ("src", "href")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)


def written(result: StandIn, path: Path) -> tuple[str, Page]:
    """The page's text, and what a parser finds in it."""
    write_html(result, path)  # type: ignore[arg-type]
    text, page = path.read_text(encoding="utf-8"), Page()
    page.feed(text)
    page.close()
    return text, page


@pytest.mark.parametrize("result", [RESULT, {"step_time_s": 1.0}])
def test_the_page_is_sound_and_stands_alone(result: dict[str, Any], tmp_path: Path) -> None:
    text, page = written(StandIn(result), tmp_path / "r.html")
    assert page.open == []
    assert page.links
    assert all(link.startswith("data:") for link in page.links)
    assert "url(" not in text
    assert "@import" not in text
    addresses = re.findall(r"https?://[^\s\"'<>]*", text)
    assert set(addresses) <= {"http://www.w3.org/2000/svg"}
    assert page.tags.isdisjoint({"script", "iframe", "object", "embed", "form"})
    assert "default-src 'none'" in text
    assert str(result.get("name", "a <synthetic> run $x$")) in page.text
    assert [p.name for p in tmp_path.iterdir()] == ["r.html"]


def test_names_are_escaped(tmp_path: Path) -> None:
    hostile = {
        **RESULT,
        "name": HOSTILE,
        "layout": {**RESULT["layout"], "gpu": HOSTILE},
        "warnings": [HOSTILE],
        "breakdown_s": {HOSTILE: 1.0},
        "explain": [{"term": HOSTILE, "seconds": 5.0, "mfu_points": 0.5}],
        "communication": {HOSTILE: RESULT["communication"]["tp"]},
    }
    text, page = written(StandIn(hostile), tmp_path / "r.html")
    assert "<script" not in text
    assert "script" not in page.tags
    # title, heading, layout, waterfall, its tooltip, breakdown, communication, warning
    assert page.text.count("<script>alert('x')</script>") == 8


def test_the_page_has_every_section_and_picture(tmp_path: Path) -> None:
    trace = synthetic_trace(stages=2, microbatches=40)
    text, page = written(StandIn(RESULT, trace=trace), tmp_path / "r.html")
    assert page.headings == HEADINGS
    assert text.count("data:image/png;base64,") == 2  # the step, and a close-up
    assert text.count("<svg") == 1 + 1 + 5  # waterfall, memory, a bar for each term
    for words in ("45.5 %", "−29.5 %", "62.2 GiB", "30,371", "20.0 kWh", "300 GB/s"):
        assert words in page.text


def test_a_short_step_needs_no_close_up(tmp_path: Path) -> None:
    text, _ = written(StandIn(RESULT), tmp_path / "r.html")
    assert text.count("data:image/png;base64,") == 1


def test_the_gantt_is_a_whole_png(tmp_path: Path) -> None:
    _, page = written(StandIn(RESULT), tmp_path / "r.html")
    picture = next(link for link in page.links if link.startswith("data:image/png"))
    data = base64.b64decode(picture.split(",", 1)[1], validate=True)
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert data.endswith(b"IEND\xaeB`\x82")


def rects(svg: str) -> list[tuple[float, float]]:
    """Left edge and width of each box, in order."""
    found = re.findall(r'<rect x="([-\d.]+)" y="[-\d.]+" width="([-\d.]+)"', svg)
    return [(float(x), float(width)) for x, width in found]


def test_bars_of_the_waterfall_stand_in_proportion() -> None:
    (left, whole), *losses, (achieved_left, achieved) = rects(waterfall_svg(waterfall(RESULT)))
    assert (achieved_left, achieved) == pytest.approx((left, 0.455 * whole), abs=0.1)
    points = (0.295, 0.15, 0.06, 0.04)
    assert [width for _, width in losses] == pytest.approx([p * whole for p in points], abs=0.1)
    ends = [1 - sum(points[: i + 1]) for i in range(4)]
    assert [x - left for x, _ in losses] == pytest.approx([e * whole for e in ends], abs=0.1)


def test_memory_bars_stack_up_to_the_total() -> None:
    stages, capacity = RESULT["memory"]["per_stage"], RESULT["memory"]["capacity_bytes"]
    terms = ["weights", "gradients", "optimizer", "activations", "buffers", "framework"]
    svg = memory_svg(stages, terms, capacity)
    boxes = rects(svg)[len(terms) :]  # the key comes first
    line = float(re.search(r'<line x1="([\d.]+)"', svg)[1])  # type: ignore[index]
    for i, stage in enumerate(stages):
        row = boxes[i * len(terms) : (i + 1) * len(terms)]
        assert [x for x, _ in row[1:]] == pytest.approx([x + w for x, w in row[:-1]], abs=0.15)
        share = sum(width for _, width in row) / (line - row[0][0])
        assert share == pytest.approx(stage["total_bytes"] / capacity, abs=0.002)


def test_the_page_is_the_same_each_time(tmp_path: Path) -> None:
    first, _ = written(StandIn(RESULT), tmp_path / "a.html")
    assert first == written(StandIn(RESULT), tmp_path / "b.html")[0]
