"""Joined hooks: both are called, in order, where they share a bound."""

from simulator.engine import Task
from simulator.hooks import joined_after, joined_before


def test_waits_for_both() -> None:
    one, other, alone = (Task(name, "dp") for name in ("one", "other", "alone"))
    hooks = joined_before({3: lambda: (one,)}, {3: lambda: (other,), 5: lambda: (alone,)})
    assert sorted(hooks) == [3, 5]
    assert [task.name for task in hooks[3]()] == ["one", "other"]
    assert [task.name for task in hooks[5]()] == ["alone"]


def test_queues_both_in_order() -> None:
    called: list[str] = []
    hooks = joined_after(
        {1: lambda: called.append("one")},
        {0: lambda: called.append("first"), 1: lambda: called.append("other")},
    )
    for bound in sorted(hooks):
        hooks[bound]()
    assert called == ["first", "one", "other"]
