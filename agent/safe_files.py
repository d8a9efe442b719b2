"""Reading files safely: bounded in size, and only from paths that no other user can change."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterator

OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH

_ROOT: Final = Path("/")
#: More links than these the kernel does not follow either (path_resolution(7)).
_MOST_LINKS: Final = 40


class PathRisk(Struct, frozen=True):
    """A file or directory that others can change, why, and the command that ends that."""

    path: Path
    found: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path} {self.found}"


class UntrustedPathError(Exception):
    """Others could change what stands at a path; `doubt` says how."""

    def __init__(self, path: Path, doubt: PathRisk) -> None:
        where = "" if doubt.path == path else f"{path}: "
        super().__init__(f"{where}{doubt}")
        self.doubt = doubt


def trusted_users() -> frozenset[int]:
    """Return who may: root, and the user that this process acts as."""
    return frozenset((0, os.geteuid()))


def doubt_of(path: Path, status: os.stat_result) -> PathRisk | None:
    """Tell what lets others change one file or directory; None when nothing does."""
    if status.st_uid not in trusted_users():
        return PathRisk(
            path, f"belongs to user {status.st_uid}", f"give it to root: chown root {path}"
        )
    if status.st_mode & OTHERS_WRITE and not stat.S_ISLNK(status.st_mode):
        found = f"can be written by others (mode {stat.S_IMODE(status.st_mode):04o})"
        return PathRisk(path, found, f"close it: chmod go-w {path}")
    return None


def read_trusted(path: Path, limit: int) -> bytes:
    """Return the content of a regular file of at most `limit` bytes that nobody else decides.

    It is opened once, without waiting for a pipe's writer, and judged by what was opened: whoever
    may flip a link or rename a file cannot show one file to the judge and another to the reader.
    Raises `UntrustedPathError`, and `OSError` (EINVAL where it is no regular file, EFBIG above the
    limit).
    """
    with open(path, "rb", opener=_open) as file:  # Path.open takes no opener
        status = os.fstat(file.fileno())
        doubt = doubt_above(path) or doubt_of(path, status)
        if doubt is not None:
            raise UntrustedPathError(path, doubt)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        return take(file, limit, str(path))


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def doubt_above(path: Path) -> PathRisk | None:
    """Tell what lets others put something else at a path: a directory above it, or a link.

    Links are gone through one by one. A directory that everybody may write but where everybody
    keeps what is his (the sticky bit, as of /tmp) is none. What is missing is no doubt. Raises
    `OSError`.
    """
    for step in _steps(path.absolute()):
        try:
            status = step.lstat()
        except FileNotFoundError:
            return None
        if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX:
            status = os.stat_result((status.st_mode & ~OTHERS_WRITE, *status[1:]))
        found = doubt_of(step, status)
        if found is not None:
            return found
    return None


def _steps(path: Path) -> Iterator[Path]:
    """Yield every directory and link that decides what a path names, from the root on."""
    parts, current, links = list(reversed(path.parts[1:])), _ROOT, 0
    yield current
    while parts:
        above, current = current, _step(current, parts.pop())
        if current.is_symlink() and links < _MOST_LINKS:
            yield current
            links += 1
            target = current.readlink()
            parts.extend(reversed(target.parts[target.is_absolute() :]))
            current = _ROOT if target.is_absolute() else above
        elif parts:
            yield current


def _step(current: Path, part: str) -> Path:
    return current.parent if part == ".." else current / part


_CHUNK: Final = 1 << 16
#: Above any state or list of pods that a host can have.
LARGEST: Final = 256 << 20


def read_bounded(path: Path, limit: int = LARGEST) -> bytes:
    """Return the content of a file of at most `limit` bytes. Raises `OSError` (EFBIG above it)."""
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "no file has a null byte in its name", str(path))
    with path.open("rb") as file:
        return take(file, limit, str(path))


def take(stream: BinaryIO, limit: int, name: str) -> bytes:
    """Return the rest of a stream; as `read_bounded`, `name` is only named in the error."""
    content = bytearray()
    while chunk := stream.read(_CHUNK):
        content += chunk
        if len(content) > limit:
            raise OSError(errno.EFBIG, f"it is larger than {limit} bytes", name)
    return bytes(content)
