"""Pictures as PNG or SVG files: the same figure gives the same bytes, wherever it is drawn."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from simulator.files import whole_file

DPI = 150
_SETTINGS: dict[Any, Any] = {
    "font.family": ["DejaVu Sans"],  # comes with matplotlib
    "hatch.linewidth": 0.7,
    "svg.hashsalt": "clustersim",
    "path.simplify": False,
}


@contextmanager
def own_settings() -> Iterator[None]:
    """Draw within: the reader's own matplotlibrc must not change the picture."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        yield


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure, whole or not at all; the ending, .png or .svg, says how."""
    ending = path.suffix.lower()
    metadata: dict[str, Any] = {"Date": None} if ending == ".svg" else {"Software": None}
    with whole_file(path) as scratch, warnings.catch_warnings():
        # a run may be named in any script; letters that the font lacks become boxes
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(scratch, format=ending[1:], dpi=DPI, metadata=metadata)
