"""The objects of a JSON array, one at a time: a trace of a gigabyte never stands in memory.

Takes text as it is read; finds the array by its key, or takes the outermost one.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, TextIO

CHUNK = 1 << 20  # characters read at a time
LARGEST_ITEM = 1 << 26
"""Characters; more without an end is no event but a broken file."""
_SKIPPED = re.compile(r"[\s,]*")
_DECODER = json.JSONDecoder(strict=False)  # kernels' names may hold control characters


class BrokenJsonError(ValueError):
    """The text stops being JSON, or stops."""


class ArrayReader:
    """Reads the array under `key`, and keeps the text before it."""

    def __init__(self, text: TextIO, key: str) -> None:
        self._text = text
        self._begin = re.compile(rf'"{key}"\s*:\s*\[')
        self._buffer = ""
        self._at = 0
        self.head = ""
        """What stood before the array, once it was found."""
        self.num_items = 0

    @property
    def num_buffered(self) -> int:
        """Characters held."""
        return len(self._buffer)

    def items(self) -> Iterator[Any]:
        """Each element, decoded. Raises `BrokenJsonError` where there is no array or it breaks."""
        self._find()
        while True:
            found = _SKIPPED.match(self._buffer, self._at)
            self._at = found.end() if found else self._at
            if self._at >= len(self._buffer):
                if not self._read():
                    raise BrokenJsonError("the file ends inside the list of events")
                continue
            if self._buffer[self._at] == "]":
                return
            yield self._item()

    def _find(self) -> None:
        while True:
            whole_is_array = self._buffer.lstrip()[:1] == "["
            found = self._begin.search(self._buffer)
            if whole_is_array or found:
                end = self._buffer.index("[") + 1 if whole_is_array else 0
                self._at = found.end() if found and not whole_is_array else end
                self.head = self._buffer[: self._at]
                return
            if len(self._buffer) > LARGEST_ITEM or not self._read():
                raise BrokenJsonError("there is no list of events")

    def _item(self) -> Any:
        while True:
            try:
                item, self._at = _DECODER.raw_decode(self._buffer, self._at)
            except json.JSONDecodeError as error:
                if len(self._buffer) - self._at > LARGEST_ITEM:
                    raise BrokenJsonError(f"event {self.num_items + 1}: {error.msg}") from None
                if not self._read():
                    raise BrokenJsonError(
                        f"the file ends inside event {self.num_items + 1}, or it is broken: "
                        f"{error.msg}"
                    ) from None
            except RecursionError:
                raise BrokenJsonError(f"event {self.num_items + 1} is nested too deep") from None
            else:
                self.num_items += 1
                return item

    def _read(self) -> bool:
        """Forget what was decoded and read on; False at the end of the text."""
        more = self._text.read(max(CHUNK, len(self._buffer) - self._at))
        self._buffer = self._buffer[self._at :] + more
        self._at = 0
        return bool(more)
