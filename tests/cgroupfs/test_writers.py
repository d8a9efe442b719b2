"""Who wrote a file, from the events of fanotify and from procfs."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgroupfs import writers as writers_module
from cgroupfs.state import Writer
from cgroupfs.writers import (
    CgroupWriters,
    Fanotify,
    FileEvent,
    command_of,
    described,
    login_of,
    parse_events,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

PROC = Path("/proc")
EVENT = struct.Struct("=IBBHQii")
MODIFY, OVERFLOW = 0x2, 0x4000


def packed(fd: int, pid: int, mask: int = MODIFY, extra: bytes = b"", version: int = 3) -> bytes:
    length = EVENT.size + len(extra)
    return EVENT.pack(length, version, 0, EVENT.size, mask, fd, pid) + extra


class FakeEvents:
    """Events that a test puts in; an `OSError` among them is raised in its turn."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK)
        self._waiting: list[tuple[FileEvent, ...] | OSError] = []
        self.closed = threading.Event()

    def put(self, *events: FileEvent | OSError) -> None:
        for event in events:
            self._waiting.append(event if isinstance(event, OSError) else (event,))

    def fileno(self) -> int:
        return self._fd

    def read(self) -> tuple[FileEvent, ...]:
        if not self._waiting:
            return ()
        found = self._waiting.pop(0)
        if isinstance(found, OSError):
            raise found
        return found

    def close(self) -> None:
        os.close(self._fd)
        self.closed.set()


@pytest.fixture
def events() -> FakeEvents:
    return FakeEvents()


@pytest.fixture
def mount(tmp_path: Path) -> Path:
    for cgroup in ("a", "b"):
        (tmp_path / cgroup).mkdir()
        for file in ("cpuset.cpus", "cpu.max", "cgroup.procs", "cgroup.subtree_control"):
            (tmp_path / cgroup / file).write_text("")
    return tmp_path


@pytest.fixture
def known(mount: Path, events: FakeEvents) -> Iterator[CgroupWriters]:
    made = CgroupWriters(mount, PROC, events)
    yield made
    made.close()
    made.close()
    assert events.closed.is_set()


def write(mount: Path, name: str, pid: int) -> FileEvent:
    return FileEvent(pid, os.open(mount / name, os.O_RDONLY))


@contextmanager
def other_process() -> Iterator[int]:
    pipe = subprocess.PIPE
    with subprocess.Popen(["cat"], stdin=pipe, stdout=pipe, bufsize=0) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"\n")
        process.stdout.read(1)  # it has its own name now
        yield process.pid
        process.stdin.close()


def test_the_last_writer_of_a_file_is_named(
    mount: Path, events: FakeEvents, known: CgroupWriters
) -> None:
    with other_process() as pid:
        events.put(write(mount, "a/cpuset.cpus", 1), write(mount, "a/cpuset.cpus", pid))
        found = known.writer_of("a", "cpuset.cpus")
        cgroup = (PROC / str(pid) / "cgroup").read_text().rstrip("\n").rpartition("0::")[2]
    assert found == Writer(pid, "cat", os.geteuid(), cgroup)
    assert known.writer_of("a", "cpu.max") is None
    assert known.writer_of("b", "cpuset.cpus") is None


@pytest.mark.parametrize(
    ("after", "known_then"),
    [
        (os.getpid(), False),
        (0, False),  # a process of another pid namespace
        (FileEvent(0, -1, lost=True), False),
        (OSError(errno.EINVAL, "cannot be read"), True),  # what the kernel cannot open hides none
    ],
    ids=("of the agent", "of another pid namespace", "a loss", "what cannot be opened"),
)
def test_after_another_event_a_writer_is_known_only_if_nothing_was_lost(
    mount: Path, events: FakeEvents, known: CgroupWriters, after: int | FileEvent | OSError,
    *, known_then: bool,
) -> None:  # fmt: skip
    event = write(mount, "a/cpu.max", 1)
    events.put(event, write(mount, "a/cpu.max", after) if isinstance(after, int) else after)
    assert (known.writer_of("a", "cpu.max") is not None) == known_then
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(event.fd)
    events.put(write(mount, "a/cpu.max", 1))
    assert known.writer_of("a", "cpu.max") is not None


def test_a_process_that_ended_is_known_by_its_id(
    mount: Path, events: FakeEvents, known: CgroupWriters
) -> None:
    with other_process() as pid:
        pass
    events.put(write(mount, "a/cpu.max", pid))
    assert known.writer_of("a", "cpu.max") == Writer(pid, "", None, "")
    assert (described(PROC, pid), command_of(PROC, pid)) == (Writer(pid, "", None, ""), "")


@pytest.mark.parametrize(
    ("text", "login"), [("1000", 1000), ("0", 0), ("4294967295", None), ("", None)]
)
def test_who_logged_in_is_known_behind_sudo(tmp_path: Path, text: str, login: int | None) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "loginuid").write_text(text)
    assert login_of(tmp_path, 7) == login
    assert login_of(tmp_path, 8) is None


def test_files_that_are_not_compared_are_not_followed(
    mount: Path, events: FakeEvents, known: CgroupWriters
) -> None:
    events.put(write(mount, "a/cgroup.procs", 1), write(mount, "a/cgroup.subtree_control", 1))
    assert known.writer_of("a", "cgroup.procs") is None
    assert known.writer_of("a", "cgroup.subtree_control") is not None


def test_a_file_that_is_gone_or_was_made_again_has_no_writer(
    mount: Path, events: FakeEvents, known: CgroupWriters
) -> None:
    events.put(write(mount, "a/cpu.max", 1))
    assert known.writer_of("a", "cpu.max") is not None
    (mount / "a/new").write_text("")
    (mount / "a/new").rename(mount / "a/cpu.max")
    assert known.writer_of("a", "cpu.max") is None
    (mount / "a/cpu.max").unlink()
    assert known.writer_of("a", "cpu.max") is None


def test_a_source_that_fails_for_ever_keeps_no_caller_waiting(
    mount: Path, events: FakeEvents, known: CgroupWriters
) -> None:
    events.put(*(OSError(errno.EBADF, "closed") for _ in range(1000)))
    assert known.writer_of("a", "cpu.max") is None
    assert (mount / "a").exists()


def test_only_the_files_that_were_written_last_are_remembered(
    mount: Path, events: FakeEvents, known: CgroupWriters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers_module, "MOST_FILES", 2)
    written = ("a/cpu.max", "a/cpuset.cpus", "a/cpu.max", "b/cpu.max")
    events.put(*(write(mount, name, 1) for name in written))
    assert known.writer_of("a", "cpuset.cpus") is None
    assert known.writer_of("a", "cpu.max") is not None
    assert known.writer_of("b", "cpu.max") is not None


def test_real_writes_are_reported_by_the_kernel(mount: Path) -> None:
    try:
        source = Fanotify(mount)
    except OSError as error:
        pytest.skip(f"fanotify is not permitted here: {error}")
    known = CgroupWriters(mount, PROC, source)
    file = mount / "a/cpuset.cpus"
    script = f"echo 0-1 > {file}; echo done; read line"
    try:
        with subprocess.Popen(
            ["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as shell:
            assert shell.stdout is not None
            assert shell.stdout.readline() == b"done\n"
            found = known.writer_of("a", "cpuset.cpus")
            shell.communicate(b"\n")
        assert found is not None
        assert (found.pid, found.uid) == (shell.pid, os.geteuid())
        assert found.command
        file.write_text("2")
        assert known.writer_of("a", "cpuset.cpus") is None
    finally:
        known.close()


def test_without_the_right_the_error_is_the_kernels(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="fanotify"):
        Fanotify(tmp_path / "missing")


def test_events_are_parsed_with_what_follows_their_head() -> None:
    data = packed(5, 10) + packed(6, 11, extra=b"12345678") + packed(-1, 0, OVERFLOW)
    assert parse_events(data) == (FileEvent(10, 5), FileEvent(11, 6), FileEvent(0, -1, lost=True))
    # Another version of the interface is not read.
    assert parse_events(packed(5, 10) + packed(6, 11, version=4)) == (FileEvent(10, 5),)


@given(
    events=st.lists(st.tuples(st.integers(-1, 1 << 20), st.integers(0, 1 << 22))),
    cut=st.integers(0, 200),
)
def test_a_cut_gives_the_events_before_it(events: list[tuple[int, int]], cut: int) -> None:
    data = b"".join(packed(fd, pid) for fd, pid in events)
    expected = tuple(FileEvent(pid, fd) for fd, pid in events)
    assert parse_events(data) == expected
    whole = max(0, len(data) - cut) // EVENT.size
    assert parse_events(data[: max(0, len(data) - cut)]) == expected[:whole]


def test_another_version_of_the_interface_is_not_read() -> None:
    assert parse_events(packed(5, 10) + packed(6, 11, version=4)) == (FileEvent(10, 5),)
    assert parse_events(EVENT.pack(8, 3, 0, 24, MODIFY, 6, 11)) == ()


@given(st.binary(max_size=400))
def test_any_bytes_are_parsed_to_an_end(data: bytes) -> None:
    assert len(parse_events(data)) <= len(data) // EVENT.size
