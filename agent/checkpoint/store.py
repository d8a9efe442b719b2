"""The one place that writes the checkpoint."""

from __future__ import annotations

import errno
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from agent.checkpoint.codec import Encoder, decode
from agent.checkpoint.directory import DirectoryLock, check_directory
from agent.checkpoint.errors import CheckpointIOError, UnusableCheckpointError
from agent.checkpoint.files import Files, OsFiles

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from agent.checkpoint.state import State

CHECKPOINT_NAME: Final = "checkpoint.json"
TEMPORARY_NAME: Final = "checkpoint.json.new"


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What the state directory held.

    `state` is None when there was no checkpoint or it could not be used; `problem` then says why
    and `kept_as` is the name under which the file remains. `set_aside` lists all such files, of
    this and earlier starts.
    """

    state: State | None = None
    problem: UnusableCheckpointError | None = None
    kept_as: Path | None = None
    set_aside: tuple[Path, ...] = ()


def peek(directory: Path, files: Files | None = None) -> State | None:
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
    when the directory is unfit or in use.
    """

    def __init__(self, directory: Path, files: Files | None = None) -> None:
        check_directory(directory)
        self.path = directory / CHECKPOINT_NAME
        self._directory = directory
        self._temporary = directory / TEMPORARY_NAME
        self._files = OsFiles() if files is None else files
        self._encoder = Encoder()
        self._lock = DirectoryLock(directory)

    def save(self, state: State) -> int:
        """Make `state` the one that a restart finds; return the size in bytes.

        On return it is on the disk. Raises `CheckpointIOError`; where its `replaced` is False the
        previous checkpoint is intact, otherwise either may be found after a power failure and the
        caller should save again what is to be true.
        """
        data = self._encoder.encode(state)
        try:
            self._write_temporary(data)
            self._attempt_rename(self._temporary, self.path)
        except CheckpointIOError:
            # A half-written file may be what fills the disk; that it cannot be removed is no news.
            with suppress(OSError):
                self._files.remove(self._temporary)
            raise
        self._sync_directory()
        return len(data)

    def load(self) -> LoadResult:
        """Return the saved state; set a file aside that cannot be used, never lose it.

        Raises `CheckpointIOError` when the file cannot be read or not be set aside.
        """
        try:
            data = self._files.read(self.path)
        except FileNotFoundError:
            return LoadResult(set_aside=self._set_aside())
        except OSError as error:
            raise CheckpointIOError("reading", self.path, error) from error
        try:
            return LoadResult(state=decode(data, self.path), set_aside=self._set_aside())
        except UnusableCheckpointError as problem:
            kept = self._keep(problem.label)
            return LoadResult(problem=problem, kept_as=kept, set_aside=self._set_aside())

    def close(self) -> None:
        """Give the directory free."""
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
            fd = self._files.create(self._temporary)
        except OSError as error:
            raise CheckpointIOError("creating", self._temporary, error) from error
        try:
            self._write_all(fd, memoryview(data))
            self._flush(fd)
        except CheckpointIOError:
            with suppress(OSError):
                self._files.close(fd)
            raise
        try:
            self._files.close(fd)
        except OSError as error:
            raise CheckpointIOError("closing", self._temporary, error) from error

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

    def _keep(self, label: str) -> Path:
        taken = set(self._names())
        number = 1
        while f"{CHECKPOINT_NAME}.{label}-{number}" in taken:
            number += 1
        kept = self.path.with_name(f"{CHECKPOINT_NAME}.{label}-{number}")
        self._attempt_rename(self.path, kept)
        self._sync_directory()
        return kept

    def _set_aside(self) -> tuple[Path, ...]:
        ours = {CHECKPOINT_NAME, TEMPORARY_NAME}
        return tuple(
            self._directory / name
            for name in self._names()
            if name.startswith(f"{CHECKPOINT_NAME}.") and name not in ours
        )

    def _names(self) -> list[str]:
        try:
            return self._files.names(self._directory)
        except OSError as error:
            raise CheckpointIOError("listing", self._directory, error) from error
