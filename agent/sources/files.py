"""Reading a directory of manifests: which files are there, and the pod in each.

As the kubelet's file source: not recursive, hidden files are ignored, one pod per file, a bad file
does not keep the others from being read, whatever is bad about it. Unlike it: who may write here
decides what runs where, so the directory and every file must belong to root (or the agent's user)
and to nobody else.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Final, TypeAlias

import structlog
from msgspec import Struct

from agent.pods.errors import ManifestError
from agent.safe_files import risk_above, risk_of
from agent.sources.errors import (
    FileFailedError,
    ManifestDirectoryError,
    ManifestFileError,
    printable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from agent.pods.model import Pod

log = structlog.get_logger(__name__)

#: Reads a manifest: (its bytes, the name of its source) -> the pod; raises `ManifestError`.
Load: TypeAlias = "Callable[[bytes, str], Pod]"

_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class ManifestFormat(Struct, frozen=True):
    """How manifests are read: the parser, and the size in bytes above which none is."""

    load: Load
    max_bytes: int


class FileStamp(Struct, frozen=True):
    """What changes when a file's content does."""

    inode: int
    size: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileStamp:
        """Return the stamp of a file."""
        return cls(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


class ManifestFile(Struct, frozen=True):
    """One file: the pod in it, or what is wrong with it."""

    path: Path
    stamp: FileStamp
    pod: Pod | None = None
    error: ManifestError | ManifestFileError | FileFailedError | None = None

    @property
    def name(self) -> str:
        """The path as a text that can be sent and shown."""
        return printable(self.path)


def check_directory(directory: Path) -> None:
    """Raise `ManifestDirectoryError` unless only root or the agent's user can write here.

    Nor may anybody else be able to put another directory in its place.
    """
    try:
        status = directory.stat()
        doubt = risk_of(directory, status) or risk_above(directory)
    except FileNotFoundError:
        remedy = f"create it (install -d -m 0755 {directory}) or leave staticPodPath empty"
        raise ManifestDirectoryError(directory, "does not exist", remedy) from None
    except OSError as error:
        remedy = "let the agent's user read it"
        raise ManifestDirectoryError(directory, _reason(error), remedy) from error
    if not stat.S_ISDIR(status.st_mode):
        raise ManifestDirectoryError(directory, "is not a directory", "name another path")
    if doubt is not None:
        where = "" if doubt.path == directory else f"{doubt.path} "
        found = f"{where}{doubt.found}, who could make any pod run"
        raise ManifestDirectoryError(directory, found, doubt.remedy)


def scan(
    directory: Path, known: Mapping[Path, ManifestFile], form: ManifestFormat
) -> list[ManifestFile]:
    """Return the files of a directory in order of their names.

    A file that did not change since `known` is not read again. Raises `ManifestDirectoryError`;
    what is wrong with a file is in its `error`.
    """
    check_directory(directory)
    try:
        paths = sorted(path for path in directory.iterdir() if not path.name.startswith("."))
    except OSError as error:
        remedy = "let the agent's user read it"
        raise ManifestDirectoryError(directory, _reason(error), remedy) from error
    return [file for path in paths if (file := _read(path, known.get(path), form)) is not None]


def _read(path: Path, known: ManifestFile | None, form: ManifestFormat) -> ManifestFile | None:
    """Return one file, None for a directory and for a file that vanished meanwhile."""
    try:
        status = path.lstat()
        if stat.S_ISDIR(status.st_mode):
            return None
        stamp = FileStamp.of(status)
        # What failed for no known reason may succeed, although the file is the same.
        if known is not None and known.stamp == stamp and not _failed(known):
            return known
        return _parse(path, stamp, form)
    except FileNotFoundError:
        return None


def _parse(path: Path, stamp: FileStamp, form: ManifestFormat) -> ManifestFile:
    try:
        _check_name(path)
        return ManifestFile(path, stamp, pod=form.load(_content(path, form.max_bytes), str(path)))
    except FileNotFoundError:
        raise
    except OSError as error:
        failed = ManifestFileError(path, _reason(error), "let the agent's user read it")
        return ManifestFile(path, stamp, error=failed)
    except (ManifestError, ManifestFileError) as error:
        return ManifestFile(path, stamp, error=error)
    except Exception as error:
        # Whatever it is, it is this file's: the others are read.
        log.exception(
            "manifest processing failed", file=printable(path), error=type(error).__name__
        )
        return ManifestFile(path, stamp, error=FileFailedError(printable(path), error))


def _failed(file: ManifestFile) -> bool:
    return isinstance(file.error, FileFailedError)


def _check_name(path: Path) -> None:
    """Reject a name that no answer, no line of the log and no terminal could show as it is."""
    try:
        path.name.encode()
    except UnicodeEncodeError:
        raise ManifestFileError(path, "its name is not UTF-8", "rename it") from None
    if not path.name.isprintable():
        raise ManifestFileError(path, "its name has a character that is not printable", "rename it")


def _content(path: Path, max_bytes: int) -> bytes:
    fd = _open(path)
    with os.fdopen(fd, "rb") as file:
        _check_file(path, os.fstat(fd))
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ManifestFileError(path, f"larger than {max_bytes} bytes", "shorten it")
    return content


def _open(path: Path) -> int:
    try:
        return os.open(path, _FLAGS)
    except OSError as error:
        if error.errno == errno.ELOOP:
            remedy = "put the file itself here"
            raise ManifestFileError(path, "is a symbolic link", remedy) from None
        raise


def _check_file(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ManifestFileError(path, "is not a regular file", "remove it from this directory")
    doubt = risk_of(path, status)
    if doubt is not None:
        raise ManifestFileError(path, doubt.found, doubt.remedy)


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__
