"""Output of nccl-tests, old and new layouts."""

from pathlib import Path

import pytest

from simulator.errors import ConfigError
from validation.nccl_log import NcclLog, read_nccl_log

NEW_HEAD = """\
# nThread 1 nGpus 1 minBytes 1048576 maxBytes 2097152 step: 2(factor) warmup iters: 5 iters: 20
#
# Using devices
#  Rank  0 Group  0 Pid  14840 on node-a device  0 [0x19] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid  14841 on node-a device  1 [0x3b] NVIDIA H100 80GB HBM3
#  Rank  2 Group  0 Pid  22840 on node-b device  0 [0x19] NVIDIA H100 80GB HBM3
#  Rank  3 Group  0 Pid  22841 on node-b device  1 [0x3b] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""  # noqa: E501
NEW_ROWS = """\
     1048576        262144     float     sum      -1    50.00   20.97   31.46      0    48.00   21.85   32.77      0
node-a:14840:14900 [0] NCCL INFO comm 0x55f6 rank 0 nranks 4 - Init COMPLETE
     2097152        524288     float     sum      -1    1.5e2   13.98   20.97      2      N/A     N/A     N/A    N/A
           0             0     float     sum      -1     5.70    0.00    0.00      0     5.54    0.00    0.00      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 26.2
#
"""  # noqa: E501
OLD = """\
# nThread 1 nGpus 2 minBytes 8 maxBytes 16 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
# Using devices
#   Rank  0 Pid   4123 on box device  0 [0x3b] Tesla V100-SXM2-16GB
#   Rank  1 Pid   4123 on box device  1 [0xaf] Tesla V100-SXM2-16GB
#                                               out-of-place                       in-place
#       size         count    type     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)             (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
       65536          8192   float    16.57    3.96    1.98  0e+00    13.83    4.74    2.37  0e+00
"""


def read(folder: Path, text: str, name: str = "out.txt", collective: str | None = None) -> NcclLog:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return read_nccl_log(path, collective)


def test_the_new_layout(tmp_path: Path) -> None:
    log = read(tmp_path, "./build/all_reduce_perf -b 1M -e 2M -f 2\n" + NEW_HEAD + NEW_ROWS)
    assert [(p.num_bytes, p.in_place) for p in log.points] == [
        (1048576, False), (1048576, True), (2097152, False),
    ]  # fmt: skip
    first = log.points[0]
    assert (first.collective, first.ranks, first.nodes) == ("all_reduce", 4, 2)
    assert first.time_s == pytest.approx(50e-6)
    assert first.algbw_bytes_per_s == pytest.approx(20.97e9)
    assert first.busbw_bytes_per_s == pytest.approx(31.46e9)
    assert first.gpu == "NVIDIA H100 80GB HBM3"
    assert first.num_wrong == 0
    assert first.line == 1 + NEW_HEAD.count("\n") + 1
    assert log.points[2].time_s == pytest.approx(150e-6)
    assert any("1 points computed wrong" in note for note in log.notes)


def test_an_old_layout_without_redop(tmp_path: Path) -> None:
    log = read(tmp_path, OLD, name="all_gather_perf.log")
    assert [(p.collective, p.in_place, p.ranks, p.nodes) for p in log.points] == [
        ("all_gather", False, 2, 1), ("all_gather", True, 2, 1),
    ]  # fmt: skip
    assert log.points[1].time_s == pytest.approx(13.83e-6)
    assert log.points[1].num_wrong is None


def test_an_all_reduce_is_known_by_its_bandwidths(tmp_path: Path) -> None:
    # 31.46 / 20.97 = 1.5 = 2 (4 - 1) / 4
    assert read(tmp_path, NEW_HEAD + NEW_ROWS).points[0].collective == "all_reduce"


def test_others_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"out\.txt:8: .*which collective"):
        read(tmp_path, OLD)
    assert read(tmp_path, OLD, collective="alltoall").points[0].collective == "all_to_all"


def test_several_tests_in_one_file(tmp_path: Path) -> None:
    second = NEW_HEAD.replace("node-b", "node-a") + NEW_ROWS
    text = f"$ all_reduce_perf\n{NEW_HEAD}{NEW_ROWS}\n$ reduce_scatter_perf\n{second}"
    points = read(tmp_path, text).points
    assert {(p.collective, p.nodes) for p in points} == {("all_reduce", 2), ("reduce_scatter", 1)}


def test_the_newest_release_names_the_test(tmp_path: Path) -> None:
    text = "# Collective test starting: sendrecv_perf\n" + NEW_HEAD + NEW_ROWS
    assert read(tmp_path, text).points[0].collective == "send_recv"


def test_gpus_of_one_process_where_devices_are_not_listed(tmp_path: Path) -> None:
    lines = [line for line in OLD.splitlines() if "Rank" not in line]
    text = "\n".join(lines).replace("nGpus 2", "nGpus 8")
    point = read(tmp_path, text, collective="all_gather").points[0]
    assert (point.ranks, point.nodes, point.gpu) == (8, 1, "")


@pytest.mark.parametrize(("unit", "scale"), [("(us)", 1e-6), ("(ms)", 1e-3), ("", 1e-6)])
def test_units_of_time(tmp_path: Path, unit: str, scale: float) -> None:
    """Without a unit, the one in which 65536 bytes in 16.57 make 3.96 GB/s."""
    text = OLD.replace("(us)", unit)
    point = read(tmp_path, text, collective="all_gather").points[0]
    assert point.time_s == pytest.approx(16.57 * scale)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("hello\nworld\n", "is no output of nccl-tests: looked for a head"),
        (NEW_HEAD, "no row; was the test cut off?"),
        ("all_reduce_perf\n" + NEW_HEAD + NEW_ROWS[:60], "out.txt:13: row is cut off: 6 of 13"),
        ("all_reduce_perf\n" + "\n".join(NEW_HEAD.splitlines()[8:]) + "\n" + NEW_ROWS,
         "does not tell the number of ranks"),
        ("\0\0", "is binary"),
    ],
)  # fmt: skip
def test_what_cannot_be_used(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert words in str(caught.value)
