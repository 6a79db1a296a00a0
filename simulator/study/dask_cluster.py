"""Points simulated on a Dask cluster: any machines that have this version of clustersim.

The scheduler hands the points of a worker that dies to another one. Only addresses are given here;
how a cluster is started (`dask scheduler`, `dask worker`, dask-jobqueue) is its owner's choice.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from simulator.errors import ConfigError, Place, Problem, SimulationError
from simulator.study.evaluate import Outcome, Task, evaluate
from simulator.study.fingerprint import program_fingerprint
from simulator.study.processes import Done

CONNECT_S = 10.0
"""Patience for the scheduler, and for a first worker."""
_AHEAD = 4  # tasks per thread of the cluster that are handed out


def run_on_cluster(tasks: Iterable[Task], address: str) -> Iterator[Done]:
    """Outcomes in the order in which they come; `tasks` are drawn as workers get free.

    Raises `ConfigError` where the scheduler does not answer, has no worker, or a worker has another
    version of the program, and `SimulationError` where the scheduler is lost on the way.
    """
    try:
        from distributed import Client
    except ImportError:
        message = "needs Dask: install clustersim[dask]"
        raise _refused(address, message) from None
    try:
        client = Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise _refused(address, f"no scheduler answers there: {error}") from None
    with client:
        try:
            client.wait_for_workers(1, timeout=CONNECT_S)
        except TimeoutError:
            raise _refused(address, "the scheduler has no workers") from None
        yield from _drain(client, iter(tasks), address)


def _drain(client: Any, waiting: Iterator[Task], address: str) -> Iterator[Done]:
    from distributed import as_completed

    program = program_fingerprint()
    running: dict[Any, Task] = {}
    completed = as_completed(loop=client.loop)

    def hand_out() -> None:
        window = _AHEAD * max(1, sum(client.nthreads().values()))
        for task in islice(waiting, max(0, window - len(running))):
            future = client.submit(evaluate_there, task, program, pure=False)
            running[future] = task
            completed.add(future)

    hand_out()
    while running:
        future = next(completed)
        outcome = _outcome(future, address)
        yield running.pop(future), outcome
        hand_out()


def _outcome(future: Any, address: str) -> Outcome:
    if future.status == "cancelled" or future.status == "lost":
        raise SimulationError(f"the scheduler at {address} is gone; start the study again to go on")
    error = future.exception()
    if error is None:
        result = future.result()
        assert isinstance(result, Outcome)
        return result
    if isinstance(error, OtherVersionError):
        raise _refused(address, str(error))
    return Outcome("failed", f"{type(error).__name__}: {error}")


class OtherVersionError(RuntimeError):
    """A worker runs another version of the program: its numbers would not fit the others."""


def evaluate_there(task: Task, program: str) -> Outcome:
    """Simulate a point on a worker that has the same program as the one who asks."""
    here = program_fingerprint()
    if here != program:
        raise OtherVersionError(f"a worker has clustersim {here}, this is {program}")
    return evaluate(task)


def _refused(address: str, message: str) -> ConfigError:
    return ConfigError(Problem(message, place=Place(f"--scheduler {address}")))
