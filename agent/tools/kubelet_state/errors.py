"""What keeps the kubelet's state files from being read or written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.config.load import INSTALL_GRPC

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class KubeletStateError(Exception):
    """Base of all errors of this package."""


class UnreadableStateFileError(KubeletStateError):
    """A file is damaged or of an unknown format; `field` is the place in it as a JSON path."""

    def __init__(self, path: Path, field: str, problem: str, remedy: str) -> None:
        super().__init__(f"{path}: {field}: {problem}; {remedy}")
        self.path = path
        self.field = field
        self.problem = problem
        self.remedy = remedy


class ReasonsError(KubeletStateError):
    """Something cannot be done for one or more reasons, all of which are in `reasons`."""

    def __init__(self, what: str, reasons: Sequence[str]) -> None:
        if len(reasons) == 1:
            super().__init__(f"{what}: {reasons[0]}")
        else:
            listed = "".join(f"\n  {reason}" for reason in reasons)
            super().__init__(f"{what}, for {len(reasons)} reasons:{listed}")
        self.reasons = tuple(reasons)


class UnfitStateError(ReasonsError):
    """The files contradict themselves, the host or the configuration; nothing was taken over."""


class CannotExportError(ReasonsError):
    """The kubelet would not start with what the ledger holds; nothing was written."""


class UnreadableResponseError(KubeletStateError):
    """A device plugin's response in the device manager's file cannot be read."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"the response of the device plugin cannot be read: {problem}")
        self.problem = problem


class MissingExtraError(KubeletStateError):
    """The device manager's file has what only a package of the extra grpc can read or write."""

    def __init__(self, package: str) -> None:
        super().__init__(f"responses of device plugins: {package} is not installed; {INSTALL_GRPC}")
        self.package = package


class NoStateFilesError(KubeletStateError):
    """A directory has none of the files."""

    def __init__(self, directory: Path, names: Sequence[str]) -> None:
        super().__init__(
            f"{directory}: none of {', '.join(names)} is there;"
            " name the kubelet's root directory, usually /var/lib/kubelet"
        )
        self.directory = directory


class StateFileExistsError(KubeletStateError):
    """Files would be overwritten."""

    def __init__(self, paths: Sequence[Path]) -> None:
        named = " and ".join(map(str, paths))
        super().__init__(f"{named}: already there; --force replaces what the kubelet left")
        self.paths = tuple(paths)


class StateFileIOError(KubeletStateError):
    """An operation on one of the files failed; `path` still is what it was before."""

    def __init__(self, operation: str, path: Path, error: OSError) -> None:
        reason = error.strerror or str(error)
        super().__init__(f"{path}: {operation} failed: {reason}; make the directory writable")
        self.operation = operation
        self.path = path
        self.errno = error.errno
