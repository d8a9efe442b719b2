"""The cgroup v2 tree as the rest of the project sees it, and the kernel's own.

A cgroup path is a POSIX path relative to the root, `""` is the root itself. Methods raise `OSError`
exactly as the kernel rejects: a `CgroupTree` adds no opinion of its own, so the emulated tree
(`cgroupfs.emulated`) and the kernel's can stand in for each other.

`check_root` and `check_usable` say in one line why a directory is no cgroup v2 mount that can be
written; paths are opened so that they cannot leave the root: openat2(2), or a walk without it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from cgroupfs.errors import CgroupPathError, CgroupRootError, TreeLockedError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

_SYS_OPENAT2: Final = 437  # the same number on every architecture (added after unification)
_RESOLVE_NO_MAGICLINKS: Final = 0x02
_RESOLVE_NO_SYMLINKS: Final = 0x04
_RESOLVE_BENEATH: Final = 0x08

#: Opens a directory only as a starting point; does not follow a link in the last component.
DIRECTORY: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_SYSCALL: Final = _LIBC.syscall
_SYSCALL.restype = ctypes.c_long
_SYSCALL.argtypes = (
    ctypes.c_long,
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.POINTER(_OpenHow),
    ctypes.c_size_t,
)
_RESOLVE: Final = _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS
_HOW_SIZE: Final = ctypes.sizeof(_OpenHow)
# A kernel before 5.6, or a seccomp filter that does not know the call.
_NOT_OFFERED: Final = frozenset({errno.ENOSYS, errno.EPERM})


def open_beneath(root_fd: int, path: str, flags: int) -> int:
    """Open `path`, relative to the directory `root_fd`, without ever leaving it.

    `path` is a checked relative path (`cgroupfs.tree.check_path`), `""` the directory itself.
    No component may be a symbolic link (ELOOP) or lead out of the directory (EXDEV). Returns a
    file descriptor that the caller closes; raises `OSError` with the path as filename.
    """
    flags |= os.O_CLOEXEC | os.O_NOFOLLOW
    fd = int(_SYSCALL(_SYS_OPENAT2, root_fd, os.fsencode(path or "."), _how(flags), _HOW_SIZE))
    if fd >= 0:
        return fd
    number = ctypes.get_errno()
    if number in _NOT_OFFERED:
        return open_by_walk(root_fd, path, flags)
    raise OSError(number, os.strerror(number), path)


@lru_cache(maxsize=16)
def _how(flags: int) -> Any:  # noqa: ANN401  # what ctypes.byref returns has no name
    """Return a reference to how to open with these flags; the kernel only reads it."""
    return ctypes.byref(_OpenHow(flags, 0, _RESOLVE))


def open_by_walk(root_fd: int, path: str, flags: int) -> int:
    """Open like `open_beneath`, one component at a time; for hosts without openat2(2)."""
    *parents, last = path.split("/") if path else ["."]
    directory = root_fd
    try:
        for part in parents:
            step = os.open(part, DIRECTORY, dir_fd=directory)
            if directory != root_fd:
                os.close(directory)
            directory = step
        return os.open(last, flags | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=directory)
    except OSError as error:
        error.filename = path
        raise
    finally:
        if directory != root_fd:
            os.close(directory)


#: statfs(2) f_type of cgroup2 (CGROUP2_SUPER_MAGIC in linux/magic.h).
CGROUP2_MAGIC: Final = 0x63677270
#: What this project cannot do without, see `cgroupfs.apply`.
NEEDED_CONTROLLERS: Final = ("cpuset", "cpu")

#: Which field of a line of /proc/self/mounts has the options.
_OPTIONS_AT: Final = 3

_UNIFIED: Final = (
    "boot with the unified hierarchy (kernel command line systemd.unified_cgroup_hierarchy=1 and "
    "no cgroup_no_v1)"
)


def check_root(root: Path, *, require_kernel: bool = True) -> None:
    """Raise `CgroupRootError` unless `root` is a cgroup v2 root.

    With `require_kernel` the file system's magic must be cgroup2's; without, a directory with
    `cgroup.controllers` is enough (an emulated tree).
    """
    if not root.is_dir():
        raise CgroupRootError(root, "no such directory", "mount cgroup2 there or name its mount")
    if require_kernel and _magic(root) != CGROUP2_MAGIC:
        raise CgroupRootError(root, *_why_not_v2(root))
    if not (root / "cgroup.controllers").is_file():
        raise CgroupRootError(root, "it has no cgroup.controllers", "name a cgroup v2 mount")


def check_usable(root: Path, needed: Iterable[str] = NEEDED_CONTROLLERS) -> None:
    """Raise `CgroupRootError` unless the checked root can be written and has the controllers.

    Call this after `check_root`, once at the start: missing root rights, a read-only mount or a
    disabled controller would otherwise fail the first admission.
    """
    available = (root / "cgroup.controllers").read_text().split()
    missing = [name for name in needed if name not in available]
    if missing:
        names = " and ".join(missing)
        raise CgroupRootError(
            root,
            f"the kernel does not offer the {names} controller here",
            "it is disabled (cgroup_disable=), mounted as cgroup v1, or not delegated to this "
            "container",
        )
    _check_writable(root)


def counts_huge_pages(proc: Path) -> bool:
    """Return `huge_pages_count` of the procfs at `proc`; without it the answer is no."""
    try:
        return huge_pages_count((proc / "self/mounts").read_text(errors="replace"))
    except OSError:
        return False


def huge_pages_count(mounts: str) -> bool:
    """Return whether huge pages count towards `memory.max` and all that is read of memory.

    They do with memory_hugetlb_accounting, an option of all mounts of cgroup2 of a host, which
    systemd sets from 259 on. `mounts` is the text of /proc/self/mounts.
    """
    fields = (line.split() for line in mounts.splitlines())
    return any(
        one[2] == "cgroup2" and "memory_hugetlb_accounting" in one[3].split(",")
        for one in fields
        if len(one) > _OPTIONS_AT
    )


def _check_writable(root: Path) -> None:
    if os.statvfs(root).f_flag & os.ST_RDONLY:
        raise CgroupRootError(
            root,
            "it is mounted read-only",
            "run with a writable cgroup mount (ProtectControlGroups=no)",
        )
    if not os.access(root / "cgroup.subtree_control", os.W_OK):
        raise CgroupRootError(root, "it cannot be written by this user", "run as root")


def _why_not_v2(root: Path) -> tuple[str, str]:
    if (root / "unified" / "cgroup.controllers").exists():
        return "it is a hybrid of cgroup v1 and v2", _UNIFIED
    if any((root / name).is_dir() for name in ("cpuset", "cpu", "systemd")):
        return "it is cgroup v1", _UNIFIED
    if (root / "tasks").exists():
        return "it is one hierarchy of cgroup v1", _UNIFIED
    return "it is not a cgroup2 file system", "mount cgroup2 there or name its mount"


def _magic(root: Path) -> int:
    # struct statfs begins with f_type, a word (long) on every architecture that has systemd.
    buffer = ctypes.create_string_buffer(256)
    if _LIBC.statfs(os.fsencode(root), buffer) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(root))
    return ctypes.c_long.from_buffer(buffer).value


_NAME_MAX: Final = 255

_PATH_MAX: Final = 4095

_CHUNK: Final = 16384

_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_LINKS_OF_A_LEAF: Final = 2
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

    def listed(self, path: str) -> dict[str, bool]:
        """Return the `children` in their order, each with whether it may have children itself."""
        ...

    def procs(self, path: str) -> tuple[int, ...]:
        """Return the process ids in this cgroup itself, ascending."""
        ...

    def lock(self) -> TreeLock:
        """Take the tree for this process alone; raises `TreeLockedError` when it is taken."""
        ...


def check_path(path: str) -> str:
    """Return `path` if it is a clean relative cgroup path, else raise `CgroupPathError`."""
    # Nearly all are short and plain. A pass asks for more of them in turn than a cache may keep.
    if (
        len(path) <= _NAME_MAX
        and path.isascii()
        and path.isprintable()
        and "//" not in path
        and "/." not in path
        and not path.startswith(("/", "."))
        and not path.endswith("/")
    ):
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
    if not part.isascii() and any(_is_escaped_byte(character) for character in part):
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


def descendants(
    tree: CgroupTree, cgroup: str, enters: Callable[[str], bool] = lambda _: True
) -> Iterator[str]:
    """Yield the cgroups below one, each before those inside it, of those that `enters` accepts.

    What ends meanwhile is left out, and what lies so deep that no path reaches it: who may make
    cgroups below a pod's or in a session nests them as deep as he likes. What `enters` is asked
    for was yielded before. Raises `OSError` for anything else.
    """
    waiting = [cgroup]
    while waiting:
        path = waiting.pop()
        try:
            inside = tree.children(path) if enters(path) else ()
        except OSError as error:
            if not isinstance(error, FileNotFoundError) and error.errno != errno.ENODEV:
                raise
            continue
        paths = (join(path, name) for name in inside)
        found = [each for each in paths if len(os.fsencode(each)) <= _PATH_MAX]
        yield from found
        waiting += reversed(found)


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
        with self._children_of(path) as entries:
            return tuple(sorted([entry.name for entry in entries]))

    def listed(self, path: str) -> dict[str, bool]:
        """Return which child cgroups may have children; see `CgroupTree.listed`."""
        with self._children_of(path) as entries:
            found = {entry.name: _may_have_children(entry) for entry in entries}
        return dict(sorted(found.items()))

    def procs(self, path: str) -> tuple[int, ...]:
        """Return the process ids in this cgroup; see `CgroupTree.procs`."""
        return tuple(sorted({int(line) for line in self.read(path, "cgroup.procs").split()}))

    def lock(self) -> TreeLock:
        """Take the tree for this process alone; see `CgroupTree.lock`."""
        return FlockedTree(self.root, self._fd)

    @contextmanager
    def _children_of(self, path: str) -> Iterator[Iterator[os.DirEntry[str]]]:
        fd = open_beneath(self._fd, check_path(path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            with os.scandir(fd) as entries:
                yield (
                    e for e in entries if e.is_dir(follow_symlinks=False) and e.name.isprintable()
                )
        finally:
            os.close(fd)

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


def _may_have_children(entry: os.DirEntry[str]) -> bool:
    """Return False for a directory with two links: its name and its own `.`, no child's `..`.

    kernfs counts the children for each stat(2) (kernfs_refresh_inode in fs/kernfs/inode.c). A
    file system that does not count them shows one link.
    """
    try:
        return entry.stat(follow_symlinks=False).st_nlink != _LINKS_OF_A_LEAF
    except FileNotFoundError:  # it was removed after it was listed
        return False


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
