"""The only writer of the checkpoint.

`Store` saves and loads it in the state directory, which is checked and locked for one process. A
checkpoint is read after checking type, owner and mode of its file. `Files` are all operations on
files, so that a test can fail each one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol, Self

from msgspec import Struct

from agent.files import LARGEST, OTHERS_WRITE, risk_above, take, trusted_users
from agent.state.checkpoint import (
    CheckpointIOError,
    NoFileCheckpointError,
    ReplacedDirectoryError,
    StateDirectoryError,
    StateDirectoryLockedError,
    UnreadableCheckpointError,
    UntrustedCheckpointError,
    UnusableCheckpointError,
    decode,
    encode,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from types import TracebackType

    from agent.state.checkpoint import Checkpoint


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


CHECKPOINT_NAME: Final = "checkpoint.json"
TEMPORARY_NAME: Final = "checkpoint.json.new"
#: This many unusable checkpoints of one kind are kept.
_KEPT_OF_A_LABEL: Final = 10


class LoadResult(Struct, frozen=True):
    """What was found in the state directory.

    `state` is None when there was no checkpoint or it could not be used; `problem` then says why
    and `kept_as` is the name under which the file remains: None when it could not be renamed and
    stays where it is. `set_aside` lists all such files, of this and earlier starts.
    """

    state: Checkpoint | None = None
    problem: UnusableCheckpointError | None = None
    kept_as: Path | None = None
    set_aside: tuple[Path, ...] = ()


def peek(directory: Path, files: Files | None = None) -> Checkpoint | None:
    """Return the state that is saved in a directory, None without one; nothing is changed.

    An agent may be running on it: a save replaces the file as a whole. Raises
    `UnusableCheckpointError`, and `CheckpointIOError` when the file cannot be read.
    """
    path = directory / CHECKPOINT_NAME
    try:
        data = (OsFiles() if files is None else files).read(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointIOError("reading", path, error) from error
    return decode(data, path)


class AtomicFile:
    """A file that is replaced as a whole or stays as it was, whenever the process ends.

    The new content stands at `path` with `.new` until it takes the name.
    """

    def __init__(self, path: Path, files: Files) -> None:
        self.path = path
        self._temporary = path.with_name(f"{path.name}.new")
        self._files = files

    def replace(self, data: bytes) -> None:
        """Replace the content, durable on return; raises `CheckpointIOError`.

        What could not be read again is not written: the file stays as it was.
        """
        try:
            self.write(data)
            self.put_in_place(data)
        except CheckpointIOError:
            self.discard()
            raise
        self.sync_directory()

    def discard(self) -> None:
        """Remove what `write` wrote; a failure is for the next save to say."""
        with suppress(OSError):
            self._files.remove(self._temporary)

    def write(self, data: bytes) -> None:
        """Write the new content beside the file, durable; raises `CheckpointIOError`."""
        if len(data) > LARGEST:
            too_large = OSError(errno.EFBIG, os.strerror(errno.EFBIG))
            raise CheckpointIOError("saving", self.path, too_large)
        try:
            fd = self._create_temporary()
        except OSError as error:
            raise CheckpointIOError("creating", self._temporary, error) from error
        try:
            self._write_all(fd, memoryview(data))
            self._flush(fd)
        except Exception:  # a lack of memory costs no descriptor either
            with suppress(OSError):
                self._files.close(fd)
            raise
        try:
            self._files.close(fd)
        except OSError as error:
            raise CheckpointIOError("closing", self._temporary, error) from error

    def _create_temporary(self) -> int:
        try:
            return self._files.create(self._temporary)
        except FileExistsError:
            self._files.remove(self._temporary)
            return self._files.create(self._temporary)

    def _write_all(self, fd: int, rest: memoryview) -> None:
        while rest:
            try:
                taken = self._files.write(fd, rest)
            except OSError as error:
                raise CheckpointIOError("writing", self._temporary, error) from error
            if taken <= 0:
                nothing = OSError(errno.EIO, "the file system took no bytes")
                raise CheckpointIOError("writing", self._temporary, nothing)
            rest = rest[taken:]

    def _flush(self, fd: int) -> None:
        try:
            self._files.fsync(fd)
        except OSError as error:
            raise CheckpointIOError("flushing", self._temporary, error) from error

    def put_in_place(self, data: bytes) -> None:
        """Rename what `write` wrote, which is `data`, to the file; raises `CheckpointIOError`.

        A rename that failed may have taken effect (a network file system may lose the answer), so
        the error says which of them is found afterwards.
        """
        try:
            self._files.rename(self._temporary, self.path)
        except OSError as error:
            there = self._is_there(data)
            raise CheckpointIOError(
                f"renaming to {self.path.name}",
                self._temporary,
                error,
                replaced=there is True,
                uncertain=there is None,
            ) from error

    def _is_there(self, data: bytes) -> bool | None:
        """Return whether the file is `data`, None when it cannot be read."""
        try:
            return self._files.read(self.path) == data
        except FileNotFoundError:
            return False
        except OSError:
            return None

    def sync_directory(self) -> None:
        """Make the new name durable; raises `CheckpointIOError`."""
        try:
            self._files.sync_directory(self.path.parent)
        except OSError as error:
            operation = "flushing the directory"
            raise CheckpointIOError(operation, self.path.parent, error, replaced=True) from error


class Store:
    """The checkpoint in one state directory, which it locks while it is open.

    Blocking; call it from one thread. A save replaces the whole file or leaves the previous one:
    a crash at any point leaves the state before or the state after. Raises `StateDirectoryError`
    when the directory is unusable or in use.
    """

    def __init__(self, directory: Path, files: Files | None = None) -> None:
        check_directory(directory)
        self.path = directory / CHECKPOINT_NAME
        self._directory = directory
        self._files = OsFiles() if files is None else files
        #: The file at the checkpoint's path must be kept under this label before it is replaced.
        self._to_keep: str | None = None
        self._lock = DirectoryLock(directory)

    def save(self, state: Checkpoint) -> int:
        """Save `state`, so that a restart finds it; return the size in bytes.

        On return the checkpoint is on the disk. Raises `CheckpointIOError`; where its `replaced`
        and its `uncertain` are False the previous checkpoint is intact, otherwise a restart may
        find either, after a power failure or at once, and the caller should save again. Nothing is
        written to a directory that fails `check`.
        """
        data = encode(state)
        file = AtomicFile(self.path, self._files)
        self.check()
        self._keep_what_is_there()
        try:
            file.write(data)
            self.check()
            file.put_in_place(data)
        except CheckpointIOError:
            # A half-written file may fill the disk; a failure to remove it adds no information.
            file.discard()
            raise
        file.sync_directory()
        return len(data)

    def load(self) -> LoadResult:
        """Return the saved state; an unusable checkpoint is renamed and kept, never lost.

        The rest of an interrupted save is removed. Raises `CheckpointIOError` only when this
        process lacks resources for reading (descriptors, memory): the agent starts with any file at
        the checkpoint's path.
        """
        AtomicFile(self.path, self._files).discard()
        try:
            state = decode(read_checked(self._files, self.path), self.path)
        except FileNotFoundError:
            return LoadResult(set_aside=self._set_aside())
        except UnusableCheckpointError as problem:
            kept = self._keep_now_or_later(problem.label)
            return LoadResult(problem=problem, kept_as=kept, set_aside=self._set_aside())
        return LoadResult(state=state, set_aside=self._set_aside())

    def check(self) -> None:
        """Raise `CheckpointIOError` unless the directory is still the one that is locked.

        A directory that replaced it may be another agent's: `ReplacedDirectoryError`.
        """
        self._lock.check()

    def free(self) -> int:
        """Return how many bytes the file system has for checkpoints; raises `CheckpointIOError`."""
        try:
            return self._files.free(self._directory)
        except OSError as error:
            raise CheckpointIOError("looking at the free space", self._directory, error) from error

    def close(self) -> None:
        """Release the directory."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _attempt_rename(self, source: Path, target: Path) -> None:
        try:
            self._files.rename(source, target)
        except OSError as error:
            raise CheckpointIOError(f"renaming to {target.name}", source, error) from error

    def _keep_now_or_later(self, label: str) -> Path | None:
        try:
            return self._keep(label)
        except CheckpointIOError:
            # The file is not replaced before it could be kept: until then every save fails.
            self._to_keep = label
            return None

    def _keep_what_is_there(self) -> None:
        if self._to_keep is None:
            return
        try:
            self._keep(self._to_keep)
        except CheckpointIOError as error:
            if error.errno != errno.ENOENT:
                raise
            self._to_keep = None  # another process removed it meanwhile

    def _keep(self, label: str) -> Path:
        kept = self._kept(label, self._names())
        number = kept[-1] + 1 if kept else 1
        path = self._kept_path(label, number)
        self._attempt_rename(self.path, path)
        self._to_keep = None
        # The first shows the state before the failures began, the last ones the current failures.
        for old in kept[1 : -(_KEPT_OF_A_LABEL - 2)]:
            with suppress(OSError):  # the next one tries again
                self._files.remove(self._kept_path(label, old))
        with suppress(OSError):  # until the next save flushes the directory, both names will do
            self._files.sync_directory(self._directory)
        return path

    def _kept(self, label: str, names: Iterable[str]) -> list[int]:
        start = f"{CHECKPOINT_NAME}.{label}-"
        ends = (name.removeprefix(start) for name in names if name.startswith(start))
        return sorted(int(end) for end in ends if end.isdecimal() and end.isascii())

    def _kept_path(self, label: str, number: int) -> Path:
        return self._directory / f"{CHECKPOINT_NAME}.{label}-{number}"

    def _set_aside(self) -> tuple[Path, ...]:
        ours = {CHECKPOINT_NAME, TEMPORARY_NAME}
        try:
            names = self._names()
        except CheckpointIOError:  # the list only helps people
            return ()
        return tuple(
            self._directory / name
            for name in names
            if name.startswith(f"{CHECKPOINT_NAME}.") and name not in ours
        )

    def _names(self) -> list[str]:
        try:
            return self._files.names(self._directory)
        except OSError as error:
            raise CheckpointIOError("listing", self._directory, error) from error
