"""Reading files of a runtime without trusting their size or content."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import msgspec

from agent.safe_files import risk_of, take

if TYPE_CHECKING:
    from pathlib import Path

#: Of a bundle or a state, in bytes: they are tens of kilobytes (annotations and environment
#: included, of which Kubernetes allows 256 KiB and the kernel 2 MiB).
LIMIT: Final = 4 << 20

_Content = TypeVar("_Content")

#: What changes when a file is replaced or written: inode, time of the last change, size.
Stamp: TypeAlias = tuple[int, int, int]


class RuntimeFileError(Exception):
    """A file exists but is unusable; `path` and `why` say which and why, on one line."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path
        self.why = why


def stamp_of(path: str) -> Stamp | None:
    """Return a file's stamp, None when there is no file or it is not accessible."""
    try:
        found = os.stat(path)  # noqa: PTH116 - asked for each container in each pass; a Path doubles it
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def read_json(path: Path, kind: type[_Content]) -> _Content:
    """Return a JSON file as a msgspec type; unknown fields are ignored.

    Raises `RuntimeFileError`, and `FileNotFoundError` when there is none.
    """
    try:
        return msgspec.json.decode(_read(path), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RuntimeFileError(path, f"it is damaged ({error})") from error


def _read(path: Path) -> bytes:
    try:
        with open(path, "rb", opener=_open) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise RuntimeFileError(path, "it is not a regular file")
            risk = risk_of(path, status)
            if risk is not None:
                raise RuntimeFileError(
                    path, f"it {risk.found}, so the runtime may not have written it"
                )
            return take(file, LIMIT, str(path))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RuntimeFileError(path, f"it cannot be read ({error.strerror})") from error


def _open(path: str, flags: int) -> int:
    # A named pipe at this path must not block the agent.
    return os.open(path, flags | os.O_NONBLOCK)
