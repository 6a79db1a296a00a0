"""Points simulated in processes of this machine.

A process that dies (for want of memory, say) takes those with it that share its pool; they are then
tried one at a time, so that only the point that kills its process is lost.
"""

import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing.connection import wait as wait_for

from simulator.study.evaluate import Outcome, Task, evaluate

Done = tuple[Task, Outcome]
_AHEAD = 2  # tasks per process that are handed out, so that none waits for the next


def run_in_processes(tasks: Iterable[Task], processes: int) -> Iterator[Done]:
    """Outcomes in the order in which they come; `tasks` are drawn as processes get free."""
    if processes == 1:
        yield from ((task, evaluate(task)) for task in tasks)
        return
    waiting, pool = iter(tasks), _pool(processes)
    running: dict[Future[Outcome], Task] = {}
    try:
        while True:
            more = islice(waiting, _AHEAD * processes - len(running))
            lost = _hand_out(pool, more, running)
            if not running and not lost:
                return
            for future in () if lost else wait(running, return_when=FIRST_COMPLETED).done:
                task, outcome = running.pop(future), _outcome(future)
                if outcome is None:
                    lost.append(task)
                else:
                    yield task, outcome
            if lost:
                pool.shutdown(wait=False)
                yield from _one_by_one([*lost, *running.values()])
                running, pool = {}, _pool(processes)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _hand_out(
    pool: ProcessPoolExecutor, tasks: Iterable[Task], running: dict[Future[Outcome], Task]
) -> list[Task]:
    """Give tasks to the pool, and back what it does not take because it broke meanwhile."""
    for task in tasks:
        try:
            running[pool.submit(_evaluate_and_clean, task)] = task
        except BrokenProcessPool:
            return [task]
    return []


def _outcome(future: Future[Outcome]) -> Outcome | None:
    """None where the pool broke before the point was done."""
    try:
        return future.result()
    except BrokenProcessPool:
        return None


def _one_by_one(tasks: Iterable[Task]) -> Iterator[Done]:
    for task in tasks:
        with _pool(1) as pool:
            outcome = _outcome(pool.submit(_evaluate_and_clean, task))
        yield task, outcome or Outcome("failed", "its process died: killed, or out of memory")


def num_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _pool(processes: int) -> ProcessPoolExecutor:
    """Processes forked from a clean one that has the simulator loaded, where that is possible."""
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if context.get_start_method() == "forkserver":
        context.set_forkserver_preload(["simulator.study.evaluate"])
    return ProcessPoolExecutor(processes, mp_context=context, initializer=_prepare_worker)


def _prepare_worker() -> None:
    """Keep the garbage collector out of simulations, die quietly on Ctrl-C, and do not outlive a
    study that is killed."""
    gc.freeze()
    gc.disable()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait_for([parent.sentinel])
    os._exit(1)


def _evaluate_and_clean(task: Task) -> Outcome:
    outcome = evaluate(task)
    gc.collect()
    return outcome
