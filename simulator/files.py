"""Files the program writes: checked before the work starts, written whole or not at all."""

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from simulator.errors import ConfigError, Place, Problem


def check_output(path: Path, option: str, endings: Sequence[str] = ()) -> None:
    """See that a file can be written at `path`, before anything is computed.

    Raises `ConfigError` naming `option` where the ending is not one of `endings` (if any are
    given), the directory is missing or closed, or a directory is in the way.
    """
    place = Place(f"{option} {path}")
    if endings and path.suffix.lower() not in endings:
        found = repr(path.suffix) if path.suffix else "no ending"
        message = f"{found} is not allowed; choose a name that ends in {' or '.join(endings)}"
        raise ConfigError(Problem(message, place=place))
    reason = _obstacle(path)
    if reason:
        raise ConfigError(Problem(reason, place=place))


def _obstacle(path: Path) -> str | None:
    try:
        if path.is_dir():
            return "is a directory"
        parent = _final(path).parent
        if not parent.exists():
            return f"the directory {parent} does not exist"
        if not parent.is_dir():
            return f"{parent} is not a directory"
        if _is_special(path):
            return None if os.access(path, os.W_OK) else "cannot be written: permission denied"
        if not os.access(parent, os.W_OK | os.X_OK):
            return f"the directory {parent} cannot be written to"
    except (OSError, ValueError) as error:
        return f"cannot be written: {getattr(error, 'strerror', None) or error}"
    return None


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a scratch path of the same ending beside `path`; move it there when the block ends well.

    What stood at `path` stays until then, and for good if the block raises. A link is followed; a
    device or pipe, such as /dev/stdout, is written directly. Raises `ConfigError` where the system
    refuses.
    """
    target = _final(path)
    if _is_special(path):
        yield path
        return
    scratch: Path | None = None
    try:
        handle, name = tempfile.mkstemp(
            dir=target.parent, prefix=f".{target.stem[:80]}.", suffix=target.suffix
        )
        os.close(handle)
        scratch = Path(name)
        yield scratch
        scratch.chmod(_mode(target))
        scratch.replace(target)
    except OSError as error:
        message = f"cannot be written: {error.strerror or error}"
        raise ConfigError(Problem(message, place=Place(str(path)))) from error
    finally:
        if scratch is not None:
            with contextlib.suppress(OSError):
                scratch.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file, UTF-8, whole or not at all."""
    with whole_file(path) as scratch:
        scratch.write_text(text, encoding="utf-8")


def _final(path: Path) -> Path:
    """Where links lead."""
    return Path(os.path.realpath(path))


def _is_special(path: Path) -> bool:
    """Whether `path` exists and is neither file nor directory: a device, a pipe."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _mode(target: Path) -> int:
    """Permissions of the file that is replaced, or those a new file would get."""
    with contextlib.suppress(OSError):
        return stat.S_IMODE(target.stat().st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
