"""The manifest directory (`staticPodPath`): each file is a pod, admitted until the file is removed.

As in the kubelet's file source, reading is not recursive, hidden files are ignored, a file has one
pod, and an invalid file does not affect the others. Unlike the kubelet, the directory and every
file must belong to root (or the agent's user) and must not be writable by other users, who could
otherwise start pods. A file without a uid gets a new one with every change (as with the kubelet),
which removes the old pod and admits the new one.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import structlog
from msgspec import Struct

from agent.files import risk_above, risk_of
from agent.pods.model import ManifestError
from agent.sources.source import (
    EntryFailedError,
    ManifestDirectoryError,
    ManifestFileError,
    SourceEntry,
    SourceReading,
)
from agent.text import printable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping

    from agent.pods.model import Pod

log = structlog.get_logger(__name__)

#: Reads a manifest: (its bytes, the name of its source) -> the pod; raises `ManifestError`.
Load: TypeAlias = "Callable[[bytes, str], Pod]"

_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class ManifestDirectory:
    """The manifest directory as a source of pods (`agent.sources.source.PodSource`).

    The key of a pod is the path of its file. `changes` is called with the directory and yields
    whenever files in it change.
    """

    name: Final = "manifests"
    removal: Final = "delete that file"

    def __init__(
        self,
        directory: Path,
        form: ManifestFormat,
        changes: Callable[[Path], AsyncIterator[None]],
    ) -> None:
        self._directory = directory
        self._form = form
        self._changes = changes
        self._known: dict[Path, ManifestFile] = {}

    def covers(self, key: str) -> bool:
        """Return whether a path is one of this directory, not of one configured before."""
        return Path(key).parent == self._directory

    def resume(self, keys: Collection[str]) -> None:
        """Do nothing: whatever the directory does not list is removed."""

    def read(self) -> SourceReading:
        """Return the pods of all files; raises `ManifestDirectoryError`."""
        files = scan(self._directory, self._known, self._form)
        self._known = {file.path: file for file in files}
        return SourceReading(
            tuple(SourceEntry(str(file.path), file.pod, file.error) for file in files)
        )

    def changes(self) -> AsyncIterator[None]:
        """Yield whenever files of the directory were written, moved or removed."""
        return self._changes(self._directory)


#: How names end that editors, rpm and patch leave; dpkg's have `.dpkg-` and a word.
_LEFT_OVER: Final = ("~", ".bak", ".swp", ".orig", ".rpmsave", ".rpmnew", ".rpmorig")


class ManifestFormat(Struct, frozen=True):
    """How manifests are read: the parser, and the largest size in bytes."""

    load: Load
    max_bytes: int


class FileStamp(Struct, frozen=True):
    """Identifies a version of a file's content."""

    inode: int
    size: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileStamp:
        """Return the stamp of a file."""
        return cls(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


class ManifestFile(Struct, frozen=True):
    """One file: its pod, or its error."""

    path: Path
    stamp: FileStamp
    pod: Pod | None = None
    error: ManifestError | ManifestFileError | EntryFailedError | None = None


def check_directory(directory: Path) -> None:
    """Raise `ManifestDirectoryError` if other users can write to the directory or replace it."""
    with _opened(directory):
        pass


@contextmanager
def _opened(directory: Path) -> Iterator[int]:
    """Open the directory and check what was opened, whatever its path names later."""
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        remedy = f"create it (install -d -m 0755 {directory}) or leave staticPodPath empty"
        missing = "does not exist"
        raise ManifestDirectoryError(directory, missing, remedy, "DirectoryMissing") from None
    except NotADirectoryError:
        found = "is not a directory"
        raise ManifestDirectoryError(directory, found, "name another path") from None
    except OSError as error:
        raise _unreadable(directory, error) from error
    try:
        _check_opened(directory, fd)
        yield fd
    finally:
        os.close(fd)


def _check_opened(directory: Path, fd: int) -> None:
    try:
        untrusted = risk_of(directory, os.fstat(fd)) or risk_above(directory)
    except OSError as error:
        raise _unreadable(directory, error) from error
    if untrusted is not None:
        where = "" if untrusted.path == directory else f"{untrusted.path} "
        found = f"{where}{untrusted.found}, who could make any pod run"
        raise ManifestDirectoryError(directory, found, untrusted.remedy)


def _unreadable(directory: Path, error: OSError) -> ManifestDirectoryError:
    return ManifestDirectoryError(directory, _reason(error), "let the agent's user read it")


def is_left_over(name: str) -> bool:
    """Return whether a file is hidden, or what an editor or a package manager leaves beside one.

    The kubelet reads all files that are not hidden, and so admits a pod again from its backup.
    """
    return name.startswith(".") or name.endswith(_LEFT_OVER) or ".dpkg-" in name


def scan(
    directory: Path, known: Mapping[Path, ManifestFile], form: ManifestFormat
) -> list[ManifestFile]:
    """Return the files of a directory in order of their names.

    A file that did not change since `known` is not read again. Raises `ManifestDirectoryError`;
    a file's error is in its `error`.
    """
    with _opened(directory) as fd:
        try:
            names = os.listdir(fd)  # noqa: PTH208  # a Path has no descriptor
        except OSError as error:
            raise _unreadable(directory, error) from error
        paths = sorted(directory / name for name in names if not is_left_over(name))
        files = (_read(fd, path, known.get(path), form) for path in paths)
        return [file for file in files if file is not None]


def _read(
    fd: int, path: Path, known: ManifestFile | None, form: ManifestFormat
) -> ManifestFile | None:
    """Return one file of the open directory, None for a directory, and for a file that is gone."""
    try:
        status = os.stat(path.name, dir_fd=fd, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            return None
        stamp = FileStamp.of(status)
        # An unexpected error may be temporary, so the same file is tried again.
        if known is not None and known.stamp == stamp and not _failed(known):
            return known
        return _parse(fd, path, stamp, form)
    except FileNotFoundError:
        return None


def _parse(fd: int, path: Path, stamp: FileStamp, form: ManifestFormat) -> ManifestFile:
    try:
        _check_name(path)
        return ManifestFile(
            path, stamp, pod=form.load(_content(fd, path, form.max_bytes), str(path))
        )
    except FileNotFoundError:
        raise
    except OSError as error:
        failed = ManifestFileError(path, _reason(error), "let the agent's user read it")
        return ManifestFile(path, stamp, error=failed)
    except (ManifestError, ManifestFileError) as error:
        return ManifestFile(path, stamp, error=error)
    except Exception as error:
        # An unexpected error must not affect other files.
        log.exception(
            "manifest processing failed", file=printable(str(path)), error=type(error).__name__
        )
        return ManifestFile(path, stamp, error=EntryFailedError(printable(str(path)), error))


def _failed(file: ManifestFile) -> bool:
    return isinstance(file.error, EntryFailedError)


def _check_name(path: Path) -> None:
    """Reject a name that responses, logs and terminals could not show unescaped."""
    try:
        path.name.encode()
    except UnicodeEncodeError:
        raise ManifestFileError(path, "its name is not UTF-8", "rename it") from None
    if not path.name.isprintable():
        raise ManifestFileError(path, "its name has a character that is not printable", "rename it")


def _content(fd: int, path: Path, max_bytes: int) -> bytes:
    with os.fdopen(_open(fd, path), "rb") as file:
        _check_file(path, os.fstat(file.fileno()))
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ManifestFileError(path, f"larger than {max_bytes} bytes", "shorten it")
    return content


def _open(fd: int, path: Path) -> int:
    try:
        return os.open(path.name, _FLAGS, dir_fd=fd)
    except OSError as error:
        if error.errno == errno.ELOOP:
            remedy = "put the file itself here"
            raise ManifestFileError(path, "is a symbolic link", remedy) from None
        raise


def _check_file(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ManifestFileError(path, "is not a regular file", "remove it from this directory")
    untrusted = risk_of(path, status)
    if untrusted is not None:
        raise ManifestFileError(path, untrusted.found, untrusted.remedy)


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__
