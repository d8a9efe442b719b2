"""Reading the checkpoint after checking type, owner and mode of its file."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Final

from agent.safe_files import LARGEST, OTHERS_WRITE, trusted_users
from agent.state.errors import (
    CheckpointIOError,
    NoFileCheckpointError,
    UnreadableCheckpointError,
    UntrustedCheckpointError,
)

if TYPE_CHECKING:
    from pathlib import Path

    from agent.state.files import Files

#: These errors concern this process, not the file.
_OURS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR})
_KINDS: Final = {
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a block device",
    stat.S_IFCHR: "a character device",
}
_RECOVERY: Final = "put an intact copy in its place, or let running pods be admitted again"


def read_checked(files: Files, path: Path) -> bytes:
    """Return the content of a checkpoint that only its owner or root can have written.

    Raises `FileNotFoundError`; a subclass of `UnusableCheckpointError` when it is not a plain file,
    belongs to others or cannot be read; `CheckpointIOError` when this process lacks resources.
    """
    try:
        check_status(files.status(path), path)
        return files.read(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in _OURS:
            raise CheckpointIOError("reading", path, error) from error
        problem = f"cannot be read: {os.strerror(error.errno or 0)}"
        remedy = f"check the disk and the kernel log; {_RECOVERY}"
        raise UnreadableCheckpointError(path, "$", problem, remedy) from error


def check_status(status: os.stat_result, path: Path) -> None:
    """Raise a subclass of `UnusableCheckpointError` for a file no agent of this user wrote."""
    kind = stat.S_IFMT(status.st_mode)
    if kind != stat.S_IFREG:
        problem = f"is {_KINDS.get(kind, 'no file')}, not a file"
        raise NoFileCheckpointError(path, "$", problem, f"the agent makes a file; {_RECOVERY}")
    if status.st_uid not in trusted_users():
        problem = f"belongs to user {status.st_uid}, the agent runs as user {os.geteuid()}"
        remedy = f"see who wrote it; to use it, chown {os.geteuid()} it and put it back"
        raise UntrustedCheckpointError(path, "$", problem, remedy)
    if status.st_mode & OTHERS_WRITE:
        problem = f"can be written by others (mode {stat.S_IMODE(status.st_mode):04o})"
        remedy = "see who wrote it; to use it, chmod go-w it and put it back"
        raise UntrustedCheckpointError(path, "$", problem, remedy)
    if status.st_size > LARGEST:
        problem = f"has {status.st_size} bytes, which no checkpoint has"
        raise UnreadableCheckpointError(path, "$", problem, _RECOVERY)
