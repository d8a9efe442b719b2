"""The cgroup v2 tree as the rest of the project sees it, and the kernel's own.

A cgroup path is a POSIX path relative to the root, `""` is the root itself. Methods raise `OSError`
exactly as the kernel rejects: a `CgroupTree` adds no opinion of its own, so the emulated tree
(`cgroupfs.emulated`) and the kernel's can stand in for each other.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from cgroupfs.beneath import DIRECTORY, open_beneath
from cgroupfs.errors import CgroupPathError, TreeLockedError
from cgroupfs.mount import check_root

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence


_NAME_MAX: Final = 255

_PATH_MAX: Final = 4095

_CHUNK: Final = 16384

_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
#: A read that returns less has reached the end: the kernel fills at least one page otherwise.
_ONE_PAGE: Final = 2048


class CgroupTree(Protocol):
    """A cgroup v2 hierarchy: the kernel's or an emulated one."""

    def read(self, path: str, file: str) -> str:
        """Return the text of one file, as the kernel gives it (with its newline)."""
        ...

    def read_many(self, path: str, files: Sequence[str]) -> tuple[str | None, ...]:
        """Return the texts of several files of one cgroup, None for each that is missing.

        Raises `OSError` (ENOENT) when the cgroup itself is gone.
        """
        ...

    def write(self, path: str, file: str, value: str) -> None:
        r"""Give one file a value in a single system call; `"\n"` clears it.

        Raises `ValueError` for `""`: the kernel takes a write of no bytes as success and does
        nothing.
        """
        ...

    def mkdir(self, path: str) -> None:
        """Create one cgroup; its parent must exist."""
        ...

    def rmdir(self, path: str) -> None:
        """Remove one cgroup without processes or children."""
        ...

    def exists(self, path: str) -> bool:
        """Return whether the cgroup exists."""
        ...

    def children(self, path: str) -> tuple[str, ...]:
        """Return the names of the child cgroups, sorted.

        Left out are names that a path here may not have (control characters, bytes that are not
        UTF-8), so that a user who may create cgroups below a pod's cannot stop its enforcement.
        """
        ...

    def procs(self, path: str) -> tuple[int, ...]:
        """Return the process ids in this cgroup itself, ascending."""
        ...

    def lock(self) -> TreeLock:
        """Take the tree for this process alone; raises `TreeLockedError` when it is taken."""
        ...


@lru_cache(maxsize=8192)
def check_path(path: str) -> str:
    """Return `path` if it is a clean relative cgroup path, else raise `CgroupPathError`."""
    if not path:
        return path
    if len(path) > _PATH_MAX:
        raise CgroupPathError(path[:80] + "…", f"it is longer than {_PATH_MAX} characters")
    if path.startswith("/"):
        raise CgroupPathError(path, "it is absolute")
    for part in path.split("/"):
        _check_part(path, part)
    return path


def _check_part(path: str, part: str) -> None:
    if part in ("", ".", ".."):
        raise CgroupPathError(path, f"it has the component {part!r}")
    if len(os.fsencode(part)) > _NAME_MAX:
        raise CgroupPathError(path, f"a component is longer than {_NAME_MAX} bytes")
    if any(_is_escaped_byte(character) for character in part):
        raise CgroupPathError(path, "it is not UTF-8")
    if not part.isprintable():
        raise CgroupPathError(path, "it has a control character")


def _is_escaped_byte(character: str) -> bool:
    """Return whether a character stands for a byte that is not UTF-8 (`os.fsdecode`)."""
    return "\ud800" <= character <= "\udfff"


@lru_cache(maxsize=256)
def check_file(file: str) -> str:
    """Return the name of a cgroup's file if it is one plain name, else raise."""
    if "/" in file:
        raise CgroupPathError(file, "a file of a cgroup is one name without a slash")
    _check_part(file, file)
    return file


def parent(path: str) -> str:
    """Return the path of the parent cgroup; the root's parent is the root."""
    return path.rpartition("/")[0]


def ancestors(path: str) -> tuple[str, ...]:
    """Return every ancestor from the root (`""`) down to the parent; none for the root."""
    if not path:
        return ()
    parts = path.split("/")
    return tuple("/".join(parts[:depth]) for depth in range(len(parts)))


def all_ancestors(paths: Iterable[str]) -> frozenset[str]:
    """Return every ancestor of any of the paths, each found once however many lie below."""
    found: set[str] = set()
    above = {parent(path) for path in paths if path}
    while above:
        found |= above
        above = {parent(path) for path in above if path} - found
    return frozenset(found)


def is_within(path: str, places: Collection[str]) -> bool:
    """Return whether a path is one of `places` or lies below one."""
    return bool(places) and (path in places or any(above in places for above in ancestors(path)))


def join(path: str, name: str) -> str:
    """Return the path of the child `name` of `path`."""
    return f"{path}/{name}" if path else name


class KernelTree:
    """A real cgroup v2 mount, or any directory that looks like one.

    `root` is where it is mounted. With `require_kernel` (default) the file system must be
    cgroup2 by its magic number; emulated directories pass False. Raises `CgroupRootError` with
    the reason in one line. Paths are resolved beneath the root: no `..`, no links.
    """

    def __init__(self, root: Path, *, require_kernel: bool = True) -> None:
        check_root(root, require_kernel=require_kernel)
        self.root = root
        self._fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self) -> None:
        """Give back the directory descriptor; the tree cannot be used afterwards."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def read(self, path: str, file: str) -> str:
        """Return the text of one file; see `CgroupTree.read`."""
        full = join(check_path(path), check_file(file))
        return _read_all(open_beneath(self._fd, full, os.O_RDONLY))

    def read_many(self, path: str, files: Sequence[str]) -> tuple[str | None, ...]:
        """Return several files of one cgroup with one walk; see `CgroupTree.read_many`."""
        directory = open_beneath(self._fd, check_path(path), DIRECTORY)
        try:
            return tuple(_read_in(directory, check_file(file)) for file in files)
        finally:
            os.close(directory)

    def write(self, path: str, file: str, value: str) -> None:
        """Give one file a value; see `CgroupTree.write`."""
        check_value(value)
        data = value.encode()
        full = join(check_path(path), check_file(file))
        fd = open_beneath(self._fd, full, os.O_WRONLY)
        try:
            # A buffered file object would swallow the kernel's answer, which comes at write().
            written = os.write(fd, data)
        except OSError as error:
            error.filename = full
            raise
        finally:
            os.close(fd)
        if written != len(data):
            raise OSError(errno.EIO, f"the kernel took {written} of {len(data)} bytes", full)

    def mkdir(self, path: str) -> None:
        """Create one cgroup (mode 0755); see `CgroupTree.mkdir`."""
        with self._parent_of(path) as (directory, name):
            os.mkdir(name, 0o755, dir_fd=directory)

    def rmdir(self, path: str) -> None:
        """Remove one cgroup; see `CgroupTree.rmdir`."""
        with self._parent_of(path) as (directory, name):
            os.rmdir(name, dir_fd=directory)

    def exists(self, path: str) -> bool:
        """Return whether the cgroup exists; see `CgroupTree.exists`."""
        try:
            os.close(open_beneath(self._fd, check_path(path), DIRECTORY))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def children(self, path: str) -> tuple[str, ...]:
        """Return the names of the child cgroups; see `CgroupTree.children`."""
        fd = open_beneath(self._fd, check_path(path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            with os.scandir(fd) as entries:
                names = (e.name for e in entries if e.is_dir(follow_symlinks=False))
                return tuple(sorted(name for name in names if name.isprintable()))
        finally:
            os.close(fd)

    def procs(self, path: str) -> tuple[int, ...]:
        """Return the process ids in this cgroup; see `CgroupTree.procs`."""
        return tuple(sorted({int(line) for line in self.read(path, "cgroup.procs").split()}))

    def lock(self) -> TreeLock:
        """Take the tree for this process alone; see `CgroupTree.lock`."""
        return FlockedTree(self.root, self._fd)

    @contextmanager
    def _parent_of(self, path: str) -> Iterator[tuple[int, str]]:
        above, _, name = check_path(path).rpartition("/")
        if not name:
            raise CgroupPathError(path, "the root itself is neither created nor removed")
        directory = open_beneath(self._fd, above, DIRECTORY)
        try:
            yield directory, name
        except OSError as error:
            error.filename = path
            raise
        finally:
            os.close(directory)


def check_value(value: str) -> str:
    """Return `value` unless it is empty: the kernel answers success and does nothing."""
    if not value:
        raise ValueError('an empty write does nothing in a cgroup file; "\\n" clears it')
    return value


def _read_in(directory: int, file: str) -> str | None:
    try:
        fd = os.open(file, _READ, dir_fd=directory)
    except FileNotFoundError:
        return None
    return _read_all(fd)


def _read_all(fd: int) -> str:
    try:
        data = os.read(fd, _CHUNK)
        if len(data) < _ONE_PAGE:
            return data.decode()
        parts = [data]
        while data:
            data = os.read(fd, _CHUNK)
            parts.append(data)
        return b"".join(parts).decode()
    finally:
        os.close(fd)


#: Files of mode 0200 in the root of a tree; a cgroup namespace's root has the second one as well.
_UNREADABLE: Final = ("memory.reclaim", "cgroup.kill")

_LOCKS: Final = Path("/proc/locks")


class TreeLock(Protocol):
    """The exclusive lock of a cgroup tree, kept until `release` or the end of the process."""

    def release(self) -> None:
        """Release the tree; a second call has no effect."""
        ...


class FlockedTree:
    """The lock of the tree mounted at `root`, whose open directory is `root_fd`.

    Raises `TreeLockedError` at once when another process has it, `OSError` as open(2) does.
    """

    def __init__(self, root: Path, root_fd: int) -> None:
        self._fd = _open(root_fd)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(self._fd)
            self.release()
            raise TreeLockedError(root, holder) from None
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Give the tree free; see `TreeLock.release`."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _open(root_fd: int) -> int:
    for name in _UNREADABLE:
        try:
            return open_beneath(root_fd, name, os.O_WRONLY)
        except FileNotFoundError:
            continue
    return open_beneath(root_fd, "", os.O_RDONLY | os.O_DIRECTORY)


def _holder(fd: int) -> str | None:
    """Return id and name of the process that has the lock, None when it is not visible here.

    A line of /proc/locks reads `1: FLOCK  ADVISORY  WRITE 4711 00:1a:42 0 EOF` (proc(5)); the
    processes of other pid namespaces are left out.
    """
    status = os.fstat(fd)
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    file = f"{device}:{status.st_ino}"
    try:
        for line in _LOCKS.read_text().splitlines():
            words = line.split()
            if words[1:2] == ["FLOCK"] and words[5:6] == [file] and int(words[4]) > 0:
                return _described(words[4])
    except (OSError, ValueError):
        return None
    return None


def _described(pid: str) -> str:
    try:
        name = Path("/proc", pid, "comm").read_bytes().decode(errors="replace").strip()
    except OSError:
        return pid
    return f"{pid} ({name})" if name.isprintable() else pid
