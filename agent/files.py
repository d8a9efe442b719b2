"""Files read and written safely: bounded in size, on paths that no other user can change.

What processes of other users read is written into directories of root's (`trusted_directory`).
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterator


OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH

_ROOT: Final = Path("/")
#: The kernel follows no more links than these either (path_resolution(7)).
_MOST_LINKS: Final = 40


class PathRisk(Struct, frozen=True):
    """A file or directory that other users can change, why, and the command that prevents that."""

    path: Path
    found: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path} {self.found}"


class UntrustedPathError(Exception):
    """Another user could change what a path names; `risk` says how."""

    def __init__(self, path: Path, risk: PathRisk) -> None:
        where = "" if risk.path == path else f"{path}: "
        super().__init__(f"{where}{risk}")
        self.risk = risk


def trusted_users() -> frozenset[int]:
    """Return the uids that may own trusted files: root, and this process's effective uid."""
    return frozenset((0, os.geteuid()))


def risk_of(path: Path, status: os.stat_result) -> PathRisk | None:
    """Return what lets other users change one file or directory; None when nothing does."""
    if status.st_uid not in trusted_users():
        return PathRisk(
            path, f"belongs to user {status.st_uid}", f"give it to root: chown root {path}"
        )
    if status.st_mode & OTHERS_WRITE and not stat.S_ISLNK(status.st_mode):
        found = f"can be written by others (mode {stat.S_IMODE(status.st_mode):04o})"
        return PathRisk(path, found, f"close it: chmod go-w {path}")
    return None


def read_trusted(path: Path, limit: int) -> bytes:
    """Return the content of a regular file of at most `limit` bytes that no other user can change.

    The file is opened once, without waiting for a pipe's writer, and the open descriptor is
    checked: a user who can switch a link or rename a file cannot have one file checked and another
    one read. Raises `UntrustedPathError`, and `OSError` (EINVAL where it is not a regular file,
    EFBIG above the limit).
    """
    with open(path, "rb", opener=_open) as file:  # Path.open takes no opener
        status = os.fstat(file.fileno())
        risk = risk_above(path) or risk_of(path, status)
        if risk is not None:
            raise UntrustedPathError(path, risk)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        return take(file, limit, str(path))


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def risk_above(path: Path) -> PathRisk | None:
    """Return what lets other users replace what a path names: a directory above it, or a link.

    Links are followed one by one. A world-writable directory with the sticky bit (as /tmp) is
    not a risk, since users can rename and remove only their own files in it. Neither is a missing
    file. Raises `OSError`.
    """
    for step in _steps(path.absolute()):
        try:
            status = step.lstat()
        except FileNotFoundError:
            return None
        if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX:
            status = os.stat_result((status.st_mode & ~OTHERS_WRITE, *status[1:]))
        found = risk_of(step, status)
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


_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
#: Without O_NONBLOCK opening a named pipe would wait for a writer for ever.
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: Processes of other users read the files: runtimes, such as rootless podman, and containers.
_FILE_MODE: Final = 0o644
_DIRECTORY_MODE: Final = 0o755
#: Nothing, a symbolic link, a socket: there is no file that could be read.
_NO_FILE: Final = frozenset({errno.ENOENT, errno.ELOOP, errno.ENXIO})


@contextmanager
def trusted_directory(path: Path, *, create: bool) -> Iterator[int]:
    """Open a directory that no other user can change; raises `OSError`, `UntrustedPathError`."""
    created = create and _created(path)
    directory = os.open(path, _DIRECTORY)
    try:
        risk = risk_above(path) or risk_of(path, os.fstat(directory))
        if risk is not None:
            raise UntrustedPathError(path, risk)
        if created:
            os.fchmod(directory, _DIRECTORY_MODE)  # whatever the umask of the service is
        yield directory
    finally:
        os.close(directory)


def _created(path: Path) -> bool:
    try:
        path.mkdir(_DIRECTORY_MODE)
    except FileExistsError:
        return False
    return True


def is_current(directory: int, name: str, content: bytes) -> bool:
    """Return whether a file is as `replace_file` writes it."""
    with own_file(directory, name) as (file, mode):
        if file is None or mode != _FILE_MODE:
            return False
        return file.read(len(content) + 1) == content


@contextmanager
def own_file(directory: int, name: str) -> Iterator[tuple[BinaryIO | None, int]]:
    """Open a regular file of this process's user with its mode; None for anything else there."""
    try:
        fd = os.open(name, _READ, dir_fd=directory)
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise
        yield None, 0
        return
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        os.close(fd)
        yield None, 0
        return
    with os.fdopen(fd, "rb") as file:
        yield file, stat.S_IMODE(status.st_mode)


def replace_file(directory: int, name: str, content: bytes) -> None:
    """Write a file, for readers in one step; it need not outlive a power failure."""
    unfinished = f".{name}.new"
    with suppress(FileNotFoundError):
        os.unlink(unfinished, dir_fd=directory)
    try:
        with os.fdopen(os.open(unfinished, _NEW, _FILE_MODE, dir_fd=directory), "wb") as file:
            os.fchmod(file.fileno(), _FILE_MODE)  # whatever the umask of the service is
            file.write(content)
        os.rename(unfinished, name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        with suppress(OSError):  # the first error is the one that says something
            os.unlink(unfinished, dir_fd=directory)
        raise
