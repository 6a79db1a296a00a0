"""Files are written whole or not at all."""

import stat
from pathlib import Path

import pytest

from simulator.errors import ConfigError
from simulator.files import check_output, whole_file, write_text


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_new_file_has_ordinary_permissions(tmp_path: Path) -> None:
    write_text(tmp_path / "a.json", "é")
    (tmp_path / "plain").touch()
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == "é"
    assert (tmp_path / "a.json").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_replaced_file_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.touch()
    path.chmod(0o640)
    write_text(path, "new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.svg"
    path.write_text("old")

    def fail() -> None:
        with whole_file(path) as scratch:
            assert scratch.suffix == ".svg"
            scratch.write_text("half")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert (path.read_text(), names(tmp_path)) == ("old", ["a.svg"])


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_a_device_is_written_directly() -> None:
    check_output(Path("/dev/null"), "--json")
    write_text(Path("/dev/null"), "gone")
    assert not Path("/dev/null").is_file()


def test_a_directory_that_goes_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written: No such file"):
        write_text(tmp_path / "none" / "a.json", "")


def test_a_file_in_place_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="is not a directory"):
        check_output(tmp_path / "file" / "a.json", "--json")


def test_an_ending_in_capitals_is_the_same(tmp_path: Path) -> None:
    check_output(tmp_path / "a.PNG", "--gantt", (".png", ".svg"))
    with pytest.raises(ConfigError, match=r"--gantt .*a\.gif: '\.gif' is not allowed"):
        check_output(tmp_path / "a.gif", "--gantt", (".png", ".svg"))
