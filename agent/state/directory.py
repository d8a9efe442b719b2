"""The state directory: checked, and locked for one process."""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from agent.safe_files import OTHERS_WRITE, risk_above
from agent.state.errors import (
    CheckpointIOError,
    ReplacedDirectoryError,
    StateDirectoryError,
    StateDirectoryLockedError,
)

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

LOCK_NAME: Final = "lock"


def check_directory(directory: Path) -> None:
    """Raise `StateDirectoryError`, one line, unless checkpoints can be kept here safely."""
    try:
        status = directory.stat()
    except FileNotFoundError:
        remedy = f"create it: install -d -m 0700 {directory}"
        raise StateDirectoryError(directory, "does not exist", remedy) from None
    except OSError as error:
        problem = os.strerror(error.errno or 0)
        raise StateDirectoryError(directory, problem, "make its path accessible") from error
    if not stat.S_ISDIR(status.st_mode):
        raise StateDirectoryError(directory, "is not a directory", "name another one")
    _check_owner(directory, status)
    _check_above(directory)
    if not os.access(directory, os.W_OK | os.X_OK):
        remedy = "make it writable for the service (and its file system read-write)"
        raise StateDirectoryError(directory, "is not writable", remedy)


def _check_owner(directory: Path, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise StateDirectoryError(
            directory,
            f"belongs to user {status.st_uid}, the service runs as user {os.geteuid()}",
            f"give it over with what is in it: chown -R {os.geteuid()} {directory}",
        )
    if status.st_mode & OTHERS_WRITE:
        raise StateDirectoryError(
            directory,
            f"can be written by others (mode {stat.S_IMODE(status.st_mode):04o})",
            f"close it: chmod go-w {directory}",
        )


def _check_above(directory: Path) -> None:
    try:
        risk = risk_above(directory)
    except OSError as error:
        problem = os.strerror(error.errno or 0)
        raise StateDirectoryError(directory, problem, "make its path accessible") from error
    if risk is not None:
        raise StateDirectoryError(directory, str(risk), risk.remedy)


class DirectoryLock:
    """An exclusive lock on a state directory, kept until `release` or the end of the process.

    The lock file contains the process id; the lock itself is flock(2), so that it never outlives
    the process. Raises `StateDirectoryLockedError` at once when it is taken.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        path = directory / LOCK_NAME
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self._fd = os.open(path, flags, 0o600)
        except OSError as error:
            problem = f"cannot open {LOCK_NAME}: {os.strerror(error.errno or 0)}"
            remedy = "make the directory writable for the service"
            raise StateDirectoryError(directory, problem, remedy) from error
        try:
            _lock(self._fd, directory)
        except BaseException:
            self.release()
            raise

    def check(self) -> None:
        """Raise `CheckpointIOError` unless the locked file is still the one in the directory.

        Another process could lock another file of that name, or another directory.
        """
        path = self._directory / LOCK_NAME
        try:
            there, ours = path.lstat(), os.fstat(self._fd)
        except (FileNotFoundError, NotADirectoryError):
            raise ReplacedDirectoryError(self._directory) from None
        except OSError as error:
            raise CheckpointIOError("looking at the lock", path, error) from error
        if (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino):
            raise ReplacedDirectoryError(self._directory)

    def release(self) -> None:
        """Release the directory; a second call has no effect."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def _lock(fd: int, directory: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StateDirectoryLockedError(directory, _holder(fd)) from None
    # The number only helps people; a full disk must not keep the agent from starting.
    with suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)


def _holder(fd: int) -> int | None:
    text = os.pread(fd, 32, 0).strip()
    return int(text) if text.isdigit() else None
