"""Copies to the host, and Adam there, by hand."""

import pytest

from hardware.host import ADAM_EFFICIENCY, COPY_LATENCY_S, adam_time_s, copy_cost
from hardware.presets import load_node


def test_a_copy_over_pcie() -> None:
    """256 MiB at 55 GB/s: 4.88 ms, as on our H200 (4.84 ms, launch.csv of those measurements)."""
    seconds = copy_cost(2.0**28, load_node("dgx-h200")).time_s
    assert seconds == pytest.approx(COPY_LATENCY_S + 2**28 / 55e9)
    assert seconds == pytest.approx(4.84e-3, rel=0.01)


def test_grace_has_its_own_link() -> None:
    assert copy_cost(450e9, load_node("gb200-tray")).time_s == pytest.approx(1.0, rel=1e-4)


def test_adam_by_hand() -> None:
    """1e9 parameters, 28 bytes each, over an eighth of a DGX H100's 614.4 GB/s, half of it used."""
    seconds = adam_time_s(1e9, load_node("dgx-h100"))
    assert seconds == pytest.approx(28e9 / (614.4e9 / 8 * ADAM_EFFICIENCY))
