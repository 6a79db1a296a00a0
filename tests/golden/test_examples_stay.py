"""The examples' figures, frozen: a change that moves one has to say so.

After a change that is meant to move them: `python tests/golden/test_examples_stay.py`, and say by
how much in the commit. What is true is judged by `tests/published`, not here.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from simulator.loading import load_run
from simulator.simulate import simulate

FROZEN = Path(__file__).with_name("examples.json")
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))


def figures(path: Path) -> dict[str, Any]:
    result = simulate(load_run(path)).to_json()
    return {
        "step_time_s": result["step_time_s"],
        "mfu": result["mfu"],
        "bubble_fraction": result["bubble_fraction"],
        "peak_bytes": result["memory"]["peak_bytes"],
        "rank_classes": result["simulation"]["rank_classes"],
        "breakdown_s": result["breakdown_s"],
    }


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_figures_stay(path: Path) -> None:
    frozen = json.loads(FROZEN.read_text(encoding="utf-8"))[path.stem]
    found = figures(path)
    assert found.pop("breakdown_s") == pytest.approx(frozen.pop("breakdown_s"), rel=1e-9, abs=1e-12)
    assert found == pytest.approx(frozen, rel=1e-9)


if __name__ == "__main__":
    FROZEN.write_text(
        json.dumps({path.stem: figures(path) for path in EXAMPLES}, indent=1) + "\n",
        encoding="utf-8",
    )
