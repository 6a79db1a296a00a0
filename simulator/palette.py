"""Colours and hatches of charts, safe for colour-blind readers and for grey printers.

Hues are those of Okabe and Ito (2008, "Color Universal Design"). What is often side by side also
differs in lightness (the lightest forward is darker than the darkest backward, a bubble is nearly
white), and communication and host time carry a hatch.
"""

from dataclasses import dataclass
from functools import cache

BUBBLE = "#ebebeb"
_RAMPS = {
    "forward": ("#003655", "#3a8cc4"),  # around Okabe-Ito blue #0072B2
    "backward": ("#e39400", "#ffd890"),  # around Okabe-Ito orange #E69F00
    "backward_weight": ("#5824fa", "#9f82fc"),  # violet
    "recompute": ("#963c00", "#d4702c"),  # around Okabe-Ito vermillion #D55E00
}
"""From the first chunk (or kind of kernel) to the last, dark to light."""
_RAMP_LABELS = {"backward_weight": "weight gradients"}
"""Where it is not the category."""


@dataclass(frozen=True, slots=True)
class Style:
    """How one category is filled."""

    fill: str
    label: str
    hatch: str = ""
    hatch_color: str = "#ffffff"


_FLAT = {
    "dp": Style("#009e73", "data-parallel communication", "////"),
    "pp": Style("#cc79a7", "pipeline communication", "\\\\\\\\"),
    "tp": Style("#f5ee6e", "tensor-parallel communication", "....", "#6b6500"),
    "cp": Style("#8040c0", "context-parallel communication", "----"),
    "ep": Style("#806040", "expert-parallel communication", "++++"),
    "offload": Style("#a9d0fa", "to the host and back", "oo", "#003655"),
    "optimizer": Style("#1a1a1a", "optimizer", ""),
    "overhead": Style("#666666", "host time", "xxxx"),
}
CATEGORIES = (
    "forward", "backward", "backward_weight", "recompute", "tp", "cp", "ep", "pp", "dp",
    "offload", "optimizer", "overhead",
)  # fmt: skip
"""In the order in which legends list them."""


def is_ramp(category: str) -> bool:
    """Whether the category has shades: passes, told apart by chunk or by kind of kernel."""
    return category in _RAMPS


@cache
def style(category: str, shade: int = 0, num_shades: int = 1) -> Style:
    """The style of `category`; `shade` counts from dark to light and matters for passes only.

    A category not known here gets a grey of its own and its name as label.
    """
    if category not in _RAMPS:
        return _FLAT.get(category, Style("#a6a6a6", category, "||||"))
    dark, light = _RAMPS[category]
    position = 0.5 if num_shades < 2 else min(max(shade / (num_shades - 1), 0.0), 1.0)
    return Style(_mix(dark, light, position), _RAMP_LABELS.get(category, category))


@cache
def text_color(fill: str) -> str:
    """Black or white, whichever stands out more from `fill` (WCAG 2.2, contrast ratio)."""
    luminance = relative_luminance(fill)
    return "#ffffff" if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05 else "#000000"


def relative_luminance(color: str) -> float:
    """From 0 (black) to 1 (white), as WCAG 2.2 defines it for sRGB."""
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for c in (channel / 255 for channel in _channels(color))
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _mix(dark: str, light: str, position: float) -> str:
    mixed = (
        round(a + (b - a) * position)
        for a, b in zip(_channels(dark), _channels(light), strict=True)
    )
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def _channels(color: str) -> tuple[int, int, int]:
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)
