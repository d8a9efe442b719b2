"""Files for the tests: ones that fail or die at a chosen operation, and ones that lose power.

`MemoryDisk` keeps what a power failure would keep: content that was fsynced, and names whose
directory was. What was not may or may not survive; both outcomes are enumerated.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agent.state.store import Files


class Died(BaseException):
    """The process ended here: nothing after this point happened."""


class Fault(Protocol):
    def before(self, index: int, operation: str) -> None: ...

    def after(self, index: int, operation: str) -> None: ...

    def limit(self, size: int) -> int: ...


@dataclass
class NoFault:
    """Counts operations and lets them be."""

    operations: list[str] = field(default_factory=list)

    def before(self, index: int, operation: str) -> None:
        assert index == len(self.operations)
        self.operations.append(operation)

    def after(self, index: int, operation: str) -> None:
        """Let it be."""

    def limit(self, size: int) -> int:
        return size


@dataclass
class DieAt(NoFault):
    """Dies before or after the operation with the given index; writes `piece` bytes at most."""

    at: int = -1
    done: bool = False
    piece: int = 1 << 30

    def before(self, index: int, operation: str) -> None:
        NoFault.before(self, index, operation)
        if index == self.at and not self.done:
            raise Died(operation)

    def after(self, index: int, operation: str) -> None:
        if index == self.at and self.done:
            raise Died(operation)

    def limit(self, size: int) -> int:
        return min(size, self.piece)


@dataclass
class FailAt(NoFault):
    """Answers one operation, or all of one kind, with an error number."""

    at: int = -1
    error: int = errno.EIO
    piece: int = 1 << 30

    def before(self, index: int, operation: str) -> None:
        NoFault.before(self, index, operation)
        if index == self.at:
            raise OSError(self.error, os.strerror(self.error))

    def limit(self, size: int) -> int:
        return min(size, self.piece)


class FaultyFiles:
    """Passes every operation on, with a fault around it."""

    def __init__(self, files: Files, fault: Fault) -> None:
        self._files = files
        self._fault = fault
        self._index = count()

    def create(self, path: Path) -> int:
        with _Around(self, "create"):
            return self._files.create(path)

    def write(self, fd: int, data: memoryview) -> int:
        with _Around(self, "write"):
            return self._files.write(fd, data[: self._fault.limit(len(data))])

    def fsync(self, fd: int) -> None:
        with _Around(self, "fsync"):
            self._files.fsync(fd)

    def close(self, fd: int) -> None:
        with _Around(self, "close"):
            self._files.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        with _Around(self, "rename"):
            self._files.rename(source, target)

    def sync_directory(self, path: Path) -> None:
        with _Around(self, "sync_directory"):
            self._files.sync_directory(path)

    def remove(self, path: Path) -> None:
        with _Around(self, "remove"):
            self._files.remove(path)

    def status(self, path: Path) -> os.stat_result:
        with _Around(self, "status"):
            return self._files.status(path)

    def read(self, path: Path) -> bytes:
        with _Around(self, "read"):
            return self._files.read(path)

    def names(self, path: Path) -> list[str]:
        with _Around(self, "names"):
            return self._files.names(path)

    def free(self, path: Path) -> int:
        with _Around(self, "free"):
            return self._files.free(path)


class _Around:
    def __init__(self, files: FaultyFiles, operation: str) -> None:
        self._fault = files._fault
        self._operation = operation
        self._number = next(files._index)

    def __enter__(self) -> None:
        self._fault.before(self._number, self._operation)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self._fault.after(self._number, self._operation)


@dataclass
class _Inode:
    content: bytes = b""
    durable: bytes | None = None


class MemoryDisk:
    """A disk with a volatile cache; see the module."""

    def __init__(self) -> None:
        self._names: dict[str, _Inode] = {}
        self._durable_names: dict[str, _Inode] = {}
        self._open: dict[int, _Inode] = {}
        self._next_fd = 1000

    def create(self, path: Path) -> int:
        if path.name in self._names:
            raise FileExistsError(errno.EEXIST, "", str(path))
        inode = self._names[path.name] = _Inode()
        self._next_fd += 1
        self._open[self._next_fd] = inode
        return self._next_fd

    def write(self, fd: int, data: memoryview) -> int:
        self._open[fd].content += bytes(data)
        return len(data)

    def fsync(self, fd: int) -> None:
        inode = self._open[fd]
        inode.durable = inode.content

    def close(self, fd: int) -> None:
        del self._open[fd]

    def rename(self, source: Path, target: Path) -> None:
        self._names[target.name] = self._inode(source)
        del self._names[source.name]

    def sync_directory(self, path: Path) -> None:
        del path
        self._durable_names = dict(self._names)

    def remove(self, path: Path) -> None:
        self._inode(path)
        del self._names[path.name]

    def status(self, path: Path) -> os.stat_result:
        size = len(self._inode(path).content)
        return os.stat_result((stat.S_IFREG | 0o600, 0, 0, 1, os.geteuid(), 0, size, 0, 0, 0))

    def read(self, path: Path) -> bytes:
        return self._inode(path).content

    def _inode(self, path: Path) -> _Inode:
        if path.name not in self._names:
            raise FileNotFoundError(errno.ENOENT, "", str(path))
        return self._names[path.name]

    def names(self, path: Path) -> list[str]:
        del path
        return sorted(self._names)

    def free(self, path: Path) -> int:
        del path
        return 1 << 30

    def contents(self) -> dict[str, bytes]:
        """Return what the files hold, by name."""
        return {name: inode.content for name, inode in self._names.items()}

    def after_power_failure(self) -> Iterator[MemoryDisk]:
        """Yield what the disk may hold: with old or new names, with old, part or new content."""
        for names in (self._durable_names, self._names):
            for outcome in (_lost, _half, _kept):
                disk = MemoryDisk()
                disk._names = {name: _Inode(outcome(inode)) for name, inode in names.items()}
                for inode in disk._names.values():
                    inode.durable = inode.content
                disk._durable_names = dict(disk._names)
                yield disk


def _lost(inode: _Inode) -> bytes:
    return b"" if inode.durable is None else inode.durable


def _half(inode: _Inode) -> bytes:
    return (
        inode.content
        if inode.durable == inode.content
        else inode.content[: len(inode.content) // 2]
    )


def _kept(inode: _Inode) -> bytes:
    return inode.content
