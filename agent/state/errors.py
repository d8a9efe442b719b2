"""What can be wrong with a checkpoint, its directory, or writing it."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from pathlib import Path


class CheckpointError(Exception):
    """Base of all errors of this package."""


class UnusableCheckpointError(CheckpointError):
    """The content of a checkpoint cannot be used.

    `path` is the file, `field` the place in it as a JSON path (`$` is the whole document).
    `label` becomes part of the name under which the file is kept aside.
    """

    label: ClassVar[str] = "damaged"

    def __init__(self, path: Path, field: str, problem: str, remedy: str) -> None:
        super().__init__(f"{path}: {field}: {problem}; {remedy}")
        self.path = path
        self.field = field
        self.problem = problem
        self.remedy = remedy


class DamagedCheckpointError(UnusableCheckpointError):
    """Truncated, altered, or not made as its own version says."""


class UnknownFormatCheckpointError(UnusableCheckpointError):
    """A document of another program."""

    label = "unknown"


class NewerCheckpointError(UnusableCheckpointError):
    """Written by a later release, in a format this one does not know."""

    label = "newer"


class OlderCheckpointError(UnusableCheckpointError):
    """Written in a format that this release no longer reads."""

    label = "older"


class UnreadableCheckpointError(UnusableCheckpointError):
    """The file cannot be read, or it is larger than any checkpoint."""

    label = "unreadable"


class NoFileCheckpointError(UnusableCheckpointError):
    """A directory, a link or another special file is at the checkpoint's path."""

    label = "nofile"


class UntrustedCheckpointError(UnusableCheckpointError):
    """Another user may have written it."""

    label = "untrusted"


class CheckpointIOError(CheckpointError):
    """An operation on the checkpoint's files failed.

    `replaced` says whether the new checkpoint may already be the one a restart would find:
    False means that the previous one is intact and still in place, unless it is `uncertain` which
    of them is there.
    """

    def __init__(
        self,
        operation: str,
        path: Path,
        error: OSError,
        *,
        replaced: bool = False,
        uncertain: bool = False,
    ) -> None:
        found = _REPLACED if replaced else _UNCERTAIN if uncertain else _KEPT
        super().__init__(f"{path}: {operation} failed: {_reason(error)}; {found}; {_remedy(error)}")
        self.operation = operation
        self.path = path
        self.errno = error.errno
        self.replaced = replaced
        self.uncertain = uncertain


class ReplacedDirectoryError(CheckpointIOError):
    """The state directory is no longer the one that this process locked.

    The directory found there now may be another agent's, so nothing is written to it.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__("saving", directory, OSError(errno.ESTALE, os.strerror(errno.ESTALE)))
        message = (
            f"state directory {directory}: it, or the lock file in it, was removed or replaced "
            "while this agent ran, so nothing is saved; put the original directory back, or "
            "restart the agent, which then takes over what it finds there"
        )
        self.args = (message,)


class StateDirectoryError(CheckpointError):
    """The state directory cannot be used as it is."""

    def __init__(self, directory: Path, problem: str, remedy: str) -> None:
        super().__init__(f"state directory {directory}: {problem}; {remedy}")
        self.directory = directory
        self.problem = problem
        self.remedy = remedy


class StateDirectoryLockedError(StateDirectoryError):
    """Another process uses the state directory; `holder` is its process id where known."""

    def __init__(self, directory: Path, holder: int | None) -> None:
        who = f"process {holder}" if holder is not None else "another process"
        super().__init__(
            directory,
            f"in use by {who}",
            "stop that one, or give this one a state directory of its own",
        )
        self.holder = holder


_KEPT = "the previous checkpoint is untouched"
_REPLACED = "the new state may be lost at a power failure"
_UNCERTAIN = "it cannot be seen whether the previous checkpoint or the new one is there"
_REMEDIES = {
    errno.ENOSPC: "free space on that file system",
    errno.EDQUOT: "free space within the quota",
    errno.EISDIR: "move away the directory of that name",
    errno.EROFS: "remount the file system read-write",
    errno.EIO: "check the disk and the kernel log",
    errno.EACCES: "let the service's user write there",
    errno.EPERM: "let the service's user write there",
}


def _reason(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)


def _remedy(error: OSError) -> str:
    return _REMEDIES.get(error.errno or 0, "check the file system")
