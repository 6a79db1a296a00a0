"""Which program computed a row: its version, and a digest of the files that decide numbers."""

import hashlib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_PACKAGES = ("hardware", "workloads", "simulator")
_ENDINGS = {".py", ".yaml", ".csv"}


@cache
def program_fingerprint() -> str:
    """Changes when a module, a preset or a kernel table changes.

    The study layer is left out: what it does with results does not change them.
    """
    digest = hashlib.sha256()
    for package in _PACKAGES:
        for path in sorted((_ROOT / package).rglob("*")):
            if path.suffix in _ENDINGS and path.parent != Path(__file__).parent:
                digest.update(path.relative_to(_ROOT).as_posix().encode())
                digest.update(path.read_bytes())
    return f"{_version()}+{digest.hexdigest()[:12]}"


def _version() -> str:
    try:
        return version("clustersim")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "0"
