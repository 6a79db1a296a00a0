"""Text that a trainer or test printed, line by line, whatever printed around it.

Takes a file, plain or gzipped; gives its lines with their numbers, without terminal colours and
without the prefixes that launchers put before each line. Raises `ConfigError` where there is no
text: a missing, empty, binary or cut-off compressed file.
"""

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TextIO

from simulator.errors import ConfigError, Place, Problem

_GZIP_MAGIC = b"\x1f\x8b"
_LOOKED_AT = 4096  # bytes from which text is told from other things
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")  # PowerShell's redirection writes UTF-16
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PREFIX = re.compile(
    r"""^\s?(?:
        \[default\d+\]:            # torchrun --tee
      | \[rank\d+\]:               # PyTorch's own messages
      | \[\d+,\d+\]<std\w+>:       # mpirun --tag-output
      | [ ]*\d+:(?=[ ])            # srun --label
      | [\w./-]+/\d+[ ](?:\[default\d+\]:)?   # NeMo-Run: job name and task
    )[ ]?""",
    re.VERBOSE,
)


class Line(NamedTuple):
    """A line of a file, from 1, cleaned."""

    number: int
    text: str


def wrong(path: Path, message: str, line: int = 0) -> ConfigError:
    """The error for input that is not what it should be, naming file and line."""
    return ConfigError(Problem(message, place=Place(str(path), line)))


@contextmanager
def opened(path: Path) -> Iterator[TextIO]:
    """The text of a file, gunzipped if need be; undecodable bytes become U+FFFD.

    Raises `ConfigError` for a missing, empty or binary file, and, while it is read, for compressed
    data that ends too soon.
    """
    if path.exists() and not path.is_file():  # it is opened more than once
        raise wrong(path, "cannot be read: a file is needed, no directory, pipe or device")
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == _GZIP_MAGIC
        with gzip.open(path, "rb") if packed else path.open("rb") as data:
            first = data.read(_LOOKED_AT)
            if not first.strip():
                raise wrong(path, "is empty")
            encoding = "utf-16" if first[:2] in _UTF16_MARKS else "utf-8-sig"
            if encoding != "utf-16" and b"\0" in first:
                raise wrong(path, "is binary; a text file is needed")
            data.seek(0)
            yield io.TextIOWrapper(data, encoding, errors="replace")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise wrong(path, f"is damaged or cut off: {error}") from None
    except OSError as error:
        raise wrong(path, f"cannot be read: {error.strerror or error}") from None


def cleaned_lines(path: Path) -> Iterator[Line]:
    """The lines of a file without colours and launchers' prefixes. Raises as `opened` does."""
    with opened(path) as text:
        for number, line in enumerate(text, 1):
            yield Line(number, clean(line))


def clean(line: str) -> str:
    """One line without colours, launchers' prefixes and the end of line.

    >>> clean("[default7]: iteration 1/ 9 |")
    'iteration 1/ 9 |'
    """
    return _PREFIX.sub("", _COLOUR.sub("", line.rstrip("\r\n")), count=1)
