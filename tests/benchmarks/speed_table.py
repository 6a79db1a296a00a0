"""Print README's table of speed, and with a file name draw cost against size.

    python tests/benchmarks/speed_table.py [docs/images/speed.png]

Seconds are of one core (CPU time), the best of a few runs: what others do on the machine adds
little to them.
"""

import gc
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from measures import (
    GPUS,
    HEADLINE,
    NUM_FLOWS,
    Process,
    fold_ranks,
    pipeline_engine,
    shared_flows,
    simulate_command,
    size_settings,
)

from simulator.loading import load_run
from simulator.palette import style
from simulator.pictures import DPI, own_settings, save_figure
from simulator.simulate import simulate
from simulator.study.evaluate import Task, evaluate
from simulator.study.points import load_point
from simulator.study.varied import Setting

ROUNDS = 5
FOLDED = (1024, 6144, 24_576, 98_304)


def best_s(work: Callable[[], object]) -> float:
    """Seconds of the fastest of a few calls, without the garbage collector, as the command runs."""
    times = []
    for _ in range(ROUNDS):
        gc.collect()
        gc.disable()
        began_s = time.process_time()
        work()
        times.append(time.process_time() - began_s)
        gc.enable()
    return min(times)


def best_process(num_gpus: int) -> Process:
    return min((simulate_command(num_gpus) for _ in range(ROUNDS)), key=lambda p: p.cpu_s)


def study_point() -> None:
    """Load and simulate one point, as a study does."""
    point = load_point(str(HEADLINE), (), [Setting("cluster.fabric.link_bandwidth", "200Gb/s")])
    assert point.run is not None
    evaluate(Task(0, point.run))


def rate(prepare: Callable[[], tuple[Any, int]]) -> float:
    """Items per second of the fastest run of what `prepare` makes."""
    rates = []
    for _ in range(ROUNDS):
        prepared, count = prepare()
        began_s = time.process_time()
        prepared.run()
        rates.append(count / (time.process_time() - began_s))
    return max(rates)


def main() -> None:
    processes = {n: best_process(n) for n in GPUS}
    simulations = {}
    for n in GPUS:
        run = load_run(HEADLINE, size_settings(n))
        simulations[n] = best_s(lambda run=run: simulate(run))
    folds = {n: best_s(lambda n=n: fold_ranks(n)) for n in FOLDED}
    print_table(processes, simulations, folds)
    if len(sys.argv) > 1:
        draw(Path(sys.argv[1]), processes, simulations, folds)


def print_table(
    processes: dict[int, Process], simulations: dict[int, float], folds: dict[int, float]
) -> None:
    """In Markdown."""
    print("| what | one core |\n|---|---|")
    for n in (6144, 98_304):
        print(
            f"| the headline's layout on {n:,} GPUs, process start to exit | "
            f"{processes[n].cpu_s:.2f} s, of it {simulations[n]:.2f} s simulation; "
            f"{processes[n].peak_bytes / 1e6:.0f} MB |"
        )
    point_s = best_s(study_point)
    print(
        f"| a point of a what-if study of it | {point_s:.2f} s: 100 points take "
        f"{100 * point_s / 2:.0f} s on 2 idle cores |"
    )
    print(f"| folding 98,304 ranks | {folds[98_304] * 1e3:.0f} ms |")
    print(f"| event loop | {rate(pipeline_engine):,.0f} operations/s |")
    print(f"| network | {rate(lambda: (shared_flows(), NUM_FLOWS)):,.0f} flows/s |")
    print(f"\nPython {platform.python_version()} on {platform.processor() or platform.machine()}")


def draw(
    path: Path,
    processes: dict[int, Process],
    simulations: dict[int, float],
    folds: dict[int, float],
) -> None:
    """Seconds against GPUs on the left, megabytes on the right."""
    with own_settings():
        figure = Figure(figsize=(11.0, 3.8), dpi=DPI, facecolor="white", layout="constrained")
        FigureCanvasAgg(figure)
        left, right = figure.subplots(1, 2)
        for name, seconds, kind in (
            ("process start to exit", {n: p.cpu_s for n, p in processes.items()}, "optimizer"),
            ("simulation", simulations, "forward"),
            ("folding alone", folds, "backward"),
        ):
            left.plot(list(seconds), list(seconds.values()), "o-", label=name,
                      color=style(kind).fill)  # fmt: skip
        left.set_ylabel("seconds of one core")
        left.legend(frameon=False, fontsize=9)
        megabytes = [p.peak_bytes / 1e6 for p in processes.values()]
        right.plot(list(processes), megabytes, "o-", color=style("dp").fill)
        right.set_ylabel("peak memory (MB)")
        for axes in (left, right):
            axes.set_xscale("log", base=10)
            axes.set_xticks(GPUS, [f"{n:,}" for n in GPUS])
            axes.xaxis.set_minor_locator(NullLocator())
            axes.set_ylim(0.0, 1.08 * axes.get_ylim()[1])
            axes.set_xlabel("GPUs simulated")
            axes.grid(color="#dddddd", linewidth=0.6)
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(labelsize=9)
        save_figure(figure, path)


if __name__ == "__main__":
    main()
