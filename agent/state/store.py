"""The one place that writes the checkpoint."""

from __future__ import annotations

import errno
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from msgspec import Struct

from agent.state.codec import Encoder, decode
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
#: So many unusable checkpoints of one kind are kept.
_KEPT_OF_A_LABEL: Final = 10


class LoadResult(Struct, frozen=True):
    """What the state directory held.

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
    when the directory is unfit or in use.
    """

    def __init__(self, directory: Path, files: Files | None = None) -> None:
        check_directory(directory)
        self.path = directory / CHECKPOINT_NAME
        self._directory = directory
        self._temporary = directory / TEMPORARY_NAME
        self._files = OsFiles() if files is None else files
        self._encoder = Encoder()
        #: What is at the checkpoint's place is to be kept under this label before it is replaced.
        self._to_keep: str | None = None
        self._lock = DirectoryLock(directory)

    def save(self, state: Checkpoint) -> int:
        """Make `state` the one that a restart finds; return the size in bytes.

        On return it is on the disk. Raises `CheckpointIOError`; where its `replaced` and its
        `uncertain` are False the previous checkpoint is intact, otherwise either may be found,
        after a power failure or at once, and the caller should save again what is to be true.
        Nothing is written to a directory that `check` does not know.
        """
        data = self._encoder.encode(state)
        self.check()
        self._keep_what_is_there()
        try:
            self._write_temporary(data)
            self.check()
            self._put_in_place(data)
        except CheckpointIOError:
            # A half-written file may be what fills the disk; that it cannot be removed is no news.
            with suppress(OSError):
                self._files.remove(self._temporary)
            raise
        self._sync_directory()
        return len(data)

    def load(self) -> LoadResult:
        """Return the saved state; set aside what cannot be used, never lose it.

        The part of a save that was cut short is removed. Raises `CheckpointIOError` only when this
        process lacks what reading takes (descriptors, memory): whatever stands at the checkpoint's
        place, the agent starts.
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

        One that was put in its place may be another agent's: `ReplacedDirectoryError`.
        """
        self._lock.check()

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
        """Let the checkpoint be what was written: `data`.

        A rename that fails may have happened (a server's answer that was lost), so the error says
        what is found afterwards.
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
            # Nothing is replaced before it could be kept: until then every save says why it fails.
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
            self._to_keep = None  # somebody took it away meanwhile

    def _keep(self, label: str) -> Path:
        kept = self._kept(label, self._names())
        number = kept[-1] + 1 if kept else 1
        path = self._kept_path(label, number)
        self._attempt_rename(self.path, path)
        self._to_keep = None
        # The first shows what was there before the trouble began, the last ones what goes on.
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
