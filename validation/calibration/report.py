"""A calibration on the terminal and as a profile file."""

from pathlib import Path
from typing import Any

import yaml
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from simulator.files import write_text
from validation.calibration.calibrate import Calibration
from validation.score import error_summary


def write_profile(path: Path, calibration: Calibration) -> None:
    """Write the YAML that `cluster.profile` and `--profile` take."""
    fields = calibration.profile(path.stem)
    write_text(path, yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=100))


def print_calibration(calibration: Calibration, console: Console) -> None:
    """What moved, how good the fit is, on what it was not fitted to, and what was left out."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("parameter", no_wrap=True)
    for heading in ("shipped", "fitted", "+-", "error without it"):
        table.add_column(heading, justify="right", no_wrap=True)
    for m in calibration.moved:
        table.add_row(
            m.parameter.name, f"{m.parameter.likely:.4g}", f"{m.value:.4g}", f"{m.deviation:.2g}",
            f"{100 * m.error_without:.1f} %",
        )  # fmt: skip
    console.print(table)
    console.print(_line("as shipped", error_summary(calibration.errors_before)))
    console.print(_line("fitted", error_summary(calibration.errors_after)))
    if calibration.errors_held_out is None:
        console.print("  too few observations to hold any out")
    else:
        held = error_summary(calibration.errors_held_out)
        console.print(_line(f"held out, {calibration.folds} folds", held))
    for reason, count in calibration.observations.left_out.items():
        console.print(f"  left out: {count} x {reason}", markup=False, highlight=False)


def _line(name: str, summary: dict[str, Any]) -> str:
    mean, median = (100 * summary[f"{k}_absolute_error"] for k in ("mean", "median"))
    bias = 100 * summary["bias"]
    return (
        f"  {name:<20} {summary['count']} times: mean error {mean:.1f} %, median {median:.1f} %, "
        f"bias {bias:+.1f} %"
    )
