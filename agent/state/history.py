"""The history on disk: one line of JSON for each entry, in two files of bounded size.

Entries are appended to `history.jsonl`. Before it has more than half of the allowed bytes it is
renamed to `history.jsonl.1`, which replaces the file of that name: so both together never have
more than is allowed, a rotation is one rename, and a crash at any point leaves whole files. A line
that a crash cut off is dropped at the next start.

Entries are not flushed one by one: they outlive the agent, but a power failure may lose those of
the last seconds. The checkpoint, which decisions depend on, is another file with its own writer
(`agent.state.store`).
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
from msgspec import Struct

from agent.api.documents.document import encode
from agent.api.documents.history import HistoryDocument, HistoryEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

HISTORY_NAME: Final = "history.jsonl"
PREVIOUS_NAME: Final = "history.jsonl.1"

_SAFE: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_APPEND: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT | _SAFE
_READ: Final = os.O_RDONLY | _SAFE
#: How many bytes are read at once, from the end of a file to its beginning.
_BLOCK: Final = 64 << 10


class HistoryFiles(Protocol):
    """What the history does to files; every method raises `OSError` as the kernel does."""

    def open(self, path: Path, *, append: bool) -> int:
        """Open a file for reading, or also for appending; then it is made if it is missing.

        A new file is readable by its owner alone.
        """
        ...

    def write(self, fd: int, data: bytes) -> int:
        """Append some of `data` and return how many bytes were taken."""
        ...

    def truncate(self, fd: int, size: int) -> None:
        """Cut a file off at a size."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Let `target` name what `source` named, atomically."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file."""
        ...


class OsHistoryFiles:
    """The operating system's files; see `HistoryFiles`. Links are not followed."""

    def open(self, path: Path, *, append: bool) -> int:
        """Open a file; see `HistoryFiles.open`. What is not a regular file is EINVAL."""
        fd = os.open(path, _APPEND if append else _READ, 0o600)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        return fd

    def write(self, fd: int, data: bytes) -> int:
        """Append to a file; see `HistoryFiles.write`."""
        return os.write(fd, data)

    def truncate(self, fd: int, size: int) -> None:
        """Cut a file off; see `HistoryFiles.truncate`."""
        os.ftruncate(fd, size)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file; see `HistoryFiles.rename`."""
        source.rename(target)

    def remove(self, path: Path) -> None:
        """Remove a file; see `HistoryFiles.remove`."""
        path.unlink(missing_ok=True)


class HistoryBounds(Struct, frozen=True):
    """How much is kept: `size` bytes of both files together, `age` in seconds."""

    size: int
    age: float

    @property
    def of_a_file(self) -> int:
        """The most bytes that one of the two files may have."""
        return self.size // 2


class HistoryQuery(Struct, frozen=True):
    """Which entries are asked for: at most `limit`, of a pod ("": of all), since a Unix time."""

    limit: int
    pod: str = ""
    since: float = 0.0

    def takes(self, entry: HistoryEntry) -> bool:
        """Return whether an entry is one of those that are asked for."""
        return entry.time >= self.since and (not self.pod or entry.of_pod(self.pod))


class _PreviousFile(Struct, frozen=True):
    """The size in bytes of the previous file, and the time of its latest entry."""

    size: int
    latest: float


_NO_FILE: Final = _PreviousFile(0, 0.0)


class HistoryStore:
    """The history in one state directory; blocking, call it from one thread.

    `check` raises an exception unless the directory may still be written (`Store.check`). Files are
    opened with the first use. After an error the next call begins again with opening them.
    """

    def __init__(
        self,
        directory: Path,
        bounds: HistoryBounds,
        check: Callable[[], None],
        files: HistoryFiles | None = None,
    ) -> None:
        self.path = directory / HISTORY_NAME
        self._previous = directory / PREVIOUS_NAME
        self._bounds = bounds
        self._check = check
        self._files = OsHistoryFiles() if files is None else files
        self._fd = -1
        self._size = 0
        #: The time of the oldest entry of the current file.
        self._oldest: float | None = None
        self._before = _NO_FILE
        #: How many entries were appended, how many lines that a crash cut off were dropped, and how
        #: many entries were larger than a file may be.
        self.appended = 0
        self.torn = 0
        self.too_large = 0

    def append(self, entries: Iterable[HistoryEntry], now: float) -> None:
        """Append entries; those that are older than allowed at the Unix time `now` may go.

        Raises `OSError`, and what `check` raises; some of the entries may have been appended then,
        each of these as a whole.
        """
        try:
            self._opened()
            self._tidy(now)
            for lines in self._portions(entries):
                self._write(lines)
        except Exception:
            self.close()
            raise

    def latest(self, query: HistoryQuery, now: float) -> HistoryDocument:
        """Return the latest entries that a query asks for, the latest first; raises `OSError`.

        Entries that are older than allowed at the Unix time `now` are left out.
        """
        since = max(query.since, now - self._bounds.age)
        bounded = HistoryQuery(query.limit, query.pod, since)
        found: list[HistoryEntry] = []
        damaged = 0
        for line in self._lines():
            entry = _decoded(line)
            if entry is None:
                damaged += 1
            elif bounded.takes(entry):
                if len(found) == query.limit:
                    return HistoryDocument(entries=tuple(found), more=True, damaged=damaged)
                found.append(entry)
        return HistoryDocument(entries=tuple(found), damaged=damaged)

    def close(self) -> None:
        """Close the file; a second call has no effect."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _opened(self) -> None:
        """Open the current file unless it is open, and drop a line that was cut off."""
        self._check()
        if self._fd >= 0:
            return
        self._fd = self._files.open(self.path, append=True)
        size = os.fstat(self._fd).st_size
        self._size = _end_of_whole_lines(self._fd, size)
        if self._size < size:
            self._files.truncate(self._fd, self._size)
            self.torn += 1
        self._oldest = _time_of_first(self._fd, self._size)
        self._before = self._file_before()

    def _file_before(self) -> _PreviousFile:
        try:
            fd = self._files.open(self._previous, append=False)
        except FileNotFoundError:
            return _NO_FILE
        try:
            size = os.fstat(fd).st_size
            entries = map(_decoded, _lines_backwards(fd, size))
            times = (entry.time for entry in entries if entry is not None)
            return _PreviousFile(size, next(times, 0.0))
        finally:
            os.close(fd)

    def _tidy(self, now: float) -> None:
        """Remove the previous file when all of it is too old, and rotate in time for that."""
        too_old = self._oldest is not None and now - self._oldest > self._bounds.age / 2
        if too_old or self._size > self._bounds.of_a_file:
            self._rotate()
        before = self._before
        # A file may be too large if more was allowed when it was written.
        if before.size > self._bounds.of_a_file or (
            before.size and now - before.latest > self._bounds.age
        ):
            self._files.remove(self._previous)
            self._before = _NO_FILE

    def _portions(self, entries: Iterable[HistoryEntry]) -> Iterator[bytes]:
        """Yield the lines of entries, as many at once as fit; rotate where the next do not."""
        lines = bytearray()
        for entry in entries:
            line = encode(entry) + b"\n"
            if len(line) > self._bounds.of_a_file:
                self.too_large += 1
                continue
            if self._size + len(lines) + len(line) > self._bounds.of_a_file:
                if lines:
                    yield bytes(lines)
                    lines.clear()
                self._rotate()
            if self._oldest is None:
                self._oldest = entry.time
            lines += line
        if lines:
            yield bytes(lines)

    def _write(self, lines: bytes) -> None:
        """Append lines as a whole; a file system that is full is left with whole lines."""
        written = 0
        try:
            while written < len(lines):
                written += self._write_some(lines[written:])
        except OSError:
            whole = lines.rfind(b"\n", 0, written) + 1
            self.appended += lines.count(b"\n", 0, whole)
            # Where that fails too, the next opening drops the line.
            self._files.truncate(self._fd, self._size + whole)
            raise
        self._size += written
        self.appended += lines.count(b"\n")

    def _write_some(self, data: bytes) -> int:
        taken = self._files.write(self._fd, data)
        if taken <= 0:
            raise OSError(errno.EIO, "the file system took no bytes", str(self.path))
        return taken

    def _rotate(self) -> None:
        """Make the current file the previous one and begin a new one."""
        if self._size:
            self._files.rename(self.path, self._previous)
        self.close()
        self._opened()

    def _lines(self) -> Iterator[bytes]:
        """Yield all lines, the latest first."""
        for path in (self.path, self._previous):
            try:
                fd = self._files.open(path, append=False)
            except FileNotFoundError:
                continue
            try:
                yield from _lines_backwards(fd, _end_of_whole_lines(fd, os.fstat(fd).st_size))
            finally:
                os.close(fd)


def _decoded(line: bytes) -> HistoryEntry | None:
    try:
        return msgspec.json.decode(line, type=HistoryEntry)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _lines_backwards(fd: int, end: int) -> Iterator[bytes]:
    """Yield the lines before an offset without their line breaks, from the last to the first."""
    rest = b""
    while end > 0:
        start = max(0, end - _BLOCK)
        rest, *lines = (os.pread(fd, end - start, start) + rest).split(b"\n")
        yield from (line for line in reversed(lines) if line)
        end = start
    if rest:
        yield rest


def _end_of_whole_lines(fd: int, size: int) -> int:
    """Return the offset behind the last line break, 0 without one."""
    end = size
    while end > 0:
        start = max(0, end - _BLOCK)
        found = os.pread(fd, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _time_of_first(fd: int, size: int) -> float | None:
    """Return the time of the first entry of a file, None where the first line is not an entry."""
    line, found, _ = os.pread(fd, min(size, _BLOCK), 0).partition(b"\n")
    entry = _decoded(line) if found else None
    return None if entry is None else entry.time
