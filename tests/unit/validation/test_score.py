"""Errors, order of layouts, fits against OOM: expected values counted by hand."""

import pytest

from validation.score import (
    Scored,
    by_source,
    concordance,
    error_summary,
    layout_order,
    oom_confusion,
    relative_error,
    source_score,
)


def run(
    name: str, predicted: float | None, measured: float | None, group: str = "g", **more: object
) -> Scored:
    return Scored(
        id=name, source_key=name.partition("-")[0], predicted_step_time_s=predicted,
        measured_step_time_s=measured, layout_group=group, **more,  # type: ignore[arg-type]
    )  # fmt: skip


def test_relative_error() -> None:
    assert relative_error(1.5, 1.2) == pytest.approx(1.5 / 1.2 - 1)
    assert relative_error(None, 1.2) is None
    assert relative_error(1.5, None) is None
    assert relative_error(1.5, 0.0) is None


def test_summary_of_errors() -> None:
    found = error_summary([0.1, -0.3, 0.05, -0.01])
    assert found["count"] == 4
    assert found["mean_absolute_error"] == pytest.approx((0.1 + 0.3 + 0.05 + 0.01) / 4)
    assert found["median_absolute_error"] == pytest.approx((0.05 + 0.1) / 2)
    assert found["p90_absolute_error"] == pytest.approx(0.3)
    assert found["bias"] == pytest.approx((0.1 - 0.3 + 0.05 - 0.01) / 4)
    assert found["share_too_fast"] == pytest.approx(2 / 4)


def test_summary_of_nothing() -> None:
    found = error_summary([])
    assert found["count"] == 0
    assert found["bias"] is None


@pytest.mark.parametrize(
    ("pairs", "score", "count"),
    [
        ([(1, 10), (2, 20), (3, 30)], 3, 3),
        ([(3, 10), (2, 20), (1, 30)], -3, 3),
        ([(1, 10), (3, 20), (2, 30)], 1, 3),  # two pairs agree, one does not
        ([(1, 10), (1, 20)], 0, 1),  # a predicted tie is neither
        ([(1, 10), (2, 10)], 0, 0),  # a measured tie says nothing
    ],
)
def test_concordance(pairs: list[tuple[float, float]], score: float, count: int) -> None:
    assert concordance(pairs) == (score, count)


def test_layouts_are_compared_within_their_group_only() -> None:
    rows = [run(f"a-{i}", p, m, "one") for i, (p, m) in enumerate([(1, 1), (2, 2), (3, 3)])]
    rows += [
        run(f"b-{i}", p, m, "two") for i, (p, m) in enumerate([(9, 1), (8, 2), (7, 4), (6, 3)])
    ]
    rows += [run("c-0", 1, 5, "few"), run("c-1", 2, 4, "few")]
    found = layout_order(rows)
    assert [(g["group"], g["layouts"]) for g in found["groups"]] == [("one", 3), ("two", 4)]
    assert found["groups"][1]["kendall_tau"] == pytest.approx((1 - 5) / 6)
    assert found["kendall_tau"] == pytest.approx((3 + (1 - 5)) / (3 + 6))


def test_order_without_enough_layouts() -> None:
    assert layout_order([run("a-0", 1, 1), run("a-1", 2, 2)]) == {"kendall_tau": None, "groups": []}


def test_confusion() -> None:
    rows = [
        run("a-0", 1, 1, predicted_fits=True),
        run("a-1", 1, 1, predicted_fits=False),
        run("a-2", None, None, predicted_fits=False, measured_oom=True),
        run("a-3", None, None, predicted_fits=False, measured_oom=True),
        run("a-4", None, None, predicted_fits=True, measured_oom=True),
        run("a-5", None, None, skipped=True, measured_oom=True),
    ]
    found = oom_confusion(rows)
    assert found is not None
    assert found == {
        "fits_and_ran": 1, "fits_but_oom": 1, "too_big_but_ran": 1, "too_big_and_oom": 2,
        "accuracy": pytest.approx(3 / 5),
    }  # fmt: skip


def test_no_confusion_where_nothing_ran_out_of_memory() -> None:
    assert oom_confusion([run("a-0", 1, 1, predicted_fits=True)]) is None


def test_score_of_a_source() -> None:
    rows = [
        run("a-0", 1.1, 1.0),
        run("a-1", 0.8, 1.0),
        run("a-2", None, 1.0, skipped=True, reason="task lora"),
        run("a-3", None, 1.0, skipped=True, reason="task lora"),
    ]
    found = source_score(rows)
    assert (found["rows"], found["scored"], found["skipped"]) == (4, 2, 2)
    assert found["skip_reasons"] == {"task lora": 2}
    assert [w["id"] for w in found["worst"]] == ["a-1", "a-0"]
    assert found["mean_absolute_error"] == pytest.approx((0.1 + 0.2) / 2)


def test_sources_stay_apart_and_in_order() -> None:
    found = by_source([run("b-0", 2.0, 1.0), run("a-0", 1.0, 1.0), run("b-1", 1.0, 1.0)])
    assert list(found) == ["b", "a"]
    assert found["b"]["bias"] == pytest.approx(1.0 / 2)


def test_json_keys_of_a_row() -> None:
    keys = {
        "id", "source_key", "predicted_step_time_s", "measured_step_time_s", "error",
        "predicted_peak_memory_bytes", "measured_peak_memory_bytes", "predicted_fits",
        "measured_oom", "skipped", "reason",
    }  # fmt: skip
    assert keys <= run("a-0", 1.0, 1.0).to_json().keys()
