"""The file operations of the store, all of them, so that a test can fail each one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Protocol

from agent.safe_files import LARGEST, take

if TYPE_CHECKING:
    from pathlib import Path

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
#: Without O_NONBLOCK opening a named pipe would wait for a writer for ever.
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Files(Protocol):
    """What the store does to files; every method raises `OSError` as the kernel does."""

    def create(self, path: Path) -> int:
        """Make a new file, readable by its owner alone, and open it for writing."""
        ...

    def write(self, fd: int, data: memoryview) -> int:
        """Write some of `data` and return how many bytes were taken."""
        ...

    def fsync(self, fd: int) -> None:
        """Wait until the content of an open file is on the disk."""
        ...

    def close(self, fd: int) -> None:
        """Close an open file."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Let `target` name what `source` named, atomically."""
        ...

    def sync_directory(self, path: Path) -> None:
        """Wait until the names in a directory are on the disk."""
        ...

    def remove(self, path: Path) -> None:
        """Remove one name: a file, a link, or an empty directory."""
        ...

    def status(self, path: Path) -> os.stat_result:
        """Return what a name stands for; a link is not followed."""
        ...

    def read(self, path: Path) -> bytes:
        """Return the whole content of a file."""
        ...

    def names(self, path: Path) -> list[str]:
        """Return the names in a directory."""
        ...

    def free(self, path: Path) -> int:
        """Return how many bytes a new file in a directory may have; 0 if none can be made."""
        ...


class OsFiles:
    """The operating system's files; see `Files`. Links in the last component are not followed."""

    def create(self, path: Path) -> int:
        """Make a file; see `Files.create`."""
        return os.open(path, _NEW, 0o600)

    def write(self, fd: int, data: memoryview) -> int:
        """Write some bytes; see `Files.write`."""
        return os.write(fd, data)

    def fsync(self, fd: int) -> None:
        """Flush a file; see `Files.fsync`."""
        os.fsync(fd)

    def close(self, fd: int) -> None:
        """Close a file; see `Files.close`."""
        os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file; see `Files.rename`."""
        source.rename(target)

    def sync_directory(self, path: Path) -> None:
        """Flush a directory; see `Files.sync_directory`."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def remove(self, path: Path) -> None:
        """Remove a name; see `Files.remove`."""
        try:
            path.unlink()
        except IsADirectoryError:
            path.rmdir()

    def status(self, path: Path) -> os.stat_result:
        """Look at a name; see `Files.status`."""
        return path.lstat()

    def read(self, path: Path) -> bytes:
        """Read a file; see `Files.read`."""
        fd = os.open(path, _READ)
        try:
            with open(fd, "rb", closefd=False) as file:
                return take(file, LARGEST, str(path))
        except OSError as error:
            error.filename = str(path)  # of a directory it is the descriptor's number
            raise
        finally:
            os.close(fd)

    def names(self, path: Path) -> list[str]:
        """List a directory; see `Files.names`."""
        return sorted(os.listdir(path))  # noqa: PTH208 - names, not paths

    def free(self, path: Path) -> int:
        """Look at the space of a file system; see `Files.free`."""
        space = os.statvfs(path)
        # The rest of both is kept for root. A file system may count no inodes at all.
        files, blocks = space.f_favail, space.f_bavail
        if os.geteuid() == 0:
            files, blocks = space.f_ffree, space.f_bfree
        return 0 if space.f_files and not files else blocks * space.f_frsize
