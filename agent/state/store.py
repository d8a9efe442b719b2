"""The only writer of the checkpoint."""

from __future__ import annotations

import errno
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from msgspec import Struct

from agent.state.codec import decode, encode
from agent.state.directory import DirectoryLock, check_directory
from agent.state.errors import CheckpointIOError, UnusableCheckpointError
from agent.state.files import Files, OsFiles
from agent.state.open_checks import read_checked

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from types import TracebackType

    from agent.state.checkpoint import Checkpoint

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
        self._temporary = directory / TEMPORARY_NAME
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
        self.check()
        self._keep_what_is_there()
        try:
            self._write_temporary(data)
            self.check()
            self._put_in_place(data)
        except CheckpointIOError:
            # A half-written file may fill the disk; a failure to remove it adds no information.
            with suppress(OSError):
                self._files.remove(self._temporary)
            raise
        self._sync_directory()
        return len(data)

    def load(self) -> LoadResult:
        """Return the saved state; an unusable checkpoint is renamed and kept, never lost.

        The rest of an interrupted save is removed. Raises `CheckpointIOError` only when this
        process lacks resources for reading (descriptors, memory): the agent starts with any file at
        the checkpoint's path.
        """
        with suppress(OSError):  # if that matters, the next save says so
            self._files.remove(self._temporary)
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

    def _write_temporary(self, data: bytes) -> None:
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

    def _put_in_place(self, data: bytes) -> None:
        """Rename the temporary file, which contains `data`, to the checkpoint.

        A rename that failed may have taken effect (a network file system may lose the answer), so
        the error says which checkpoint is found afterwards.
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
        """Return whether the checkpoint is `data`, None when it cannot be read."""
        try:
            return self._files.read(self.path) == data
        except FileNotFoundError:
            return False
        except OSError:
            return None

    def _attempt_rename(self, source: Path, target: Path) -> None:
        try:
            self._files.rename(source, target)
        except OSError as error:
            raise CheckpointIOError(f"renaming to {target.name}", source, error) from error

    def _sync_directory(self) -> None:
        try:
            self._files.sync_directory(self._directory)
        except OSError as error:
            operation = "flushing the directory"
            raise CheckpointIOError(operation, self._directory, error, replaced=True) from error

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
