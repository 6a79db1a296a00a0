"""The file of an import: a script, a list of arguments, or a YAML or JSON mapping."""

from pathlib import Path

from simulator.errors import ConfigError, Place, Problem

MAX_BYTES = 512 * 1024


def read_text(path: Path, what: str) -> str:
    """Its text. Raises `ConfigError` where it is no file, not text, or larger than any script."""
    place = Place(str(path))
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except IsADirectoryError:
        raise ConfigError(Problem(f"is a directory, not {what}", place=place)) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(Problem(f"cannot be read: {reason}", place=place)) from None
    if len(raw) > MAX_BYTES:
        message = f"is larger than {MAX_BYTES // 1024} KiB, too large for {what}"
        raise ConfigError(Problem(message, place=place))
    try:
        return raw.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        message = f"is not UTF-8 text: byte 0x{raw[error.start]:02x}"
        raise ConfigError(Problem(message, place=Place(str(path), line))) from None
