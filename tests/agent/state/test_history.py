"""The history on disk: bounded, in order, and whole after a crash at any point."""

from __future__ import annotations

import errno
import itertools
import os
import stat
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.api.documents.document import encode
from agent.api.documents.history import HistoryEntry, RequesterDocument
from agent.api.documents.verification import DriftDocument
from agent.state.history import (
    HISTORY_NAME,
    PREVIOUS_NAME,
    HistoryBounds,
    HistoryQuery,
    HistoryStore,
    OsHistoryFiles,
)
from cgroupfs.state import Writer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ALL = HistoryQuery(1000)
LARGE = HistoryBounds(1 << 20, 1e6)


def entry(number: int, pod: str = "shop/web") -> HistoryEntry:
    return HistoryEntry(type="PodAdmitted", time=float(number), pod=pod, message=str(number))


def store(
    directory: Path, bounds: HistoryBounds = LARGE, files: OsHistoryFiles | None = None
) -> HistoryStore:
    return HistoryStore(directory, bounds, lambda: None, files)


def numbers(kept: HistoryStore, query: HistoryQuery = ALL, now: float = 0.0) -> list[int]:
    return [int(found.message) for found in kept.latest(query, now).entries]


def written(directory: Path, count: int, bounds: HistoryBounds = LARGE) -> None:
    kept = store(directory, bounds)
    kept.append(map(entry, range(count)), 0.0)
    kept.close()


def bytes_on_disk(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())


def test_entries_are_read_as_they_were_written_the_latest_first(tmp_path: Path) -> None:
    drift = DriftDocument(
        time=5.0,
        uid="u",
        pod="shop/web",
        container="c",
        cgroup="/x",
        file="cpu.max",
        desired="max",
        cause="unknown",
        detail="d",
        observed=None,
        writer=Writer(pid=4711, command="sh", uid=0, cgroup="/user.slice"),
        repaired=True,
    )
    requester = RequesterDocument(source="api", uid=0, pid=1, command="caf\udce9")
    full = replace(entry(5), operation="0cd7", uid="u", requester=requester, differences=(drift,))
    kept = store(tmp_path)
    kept.append([entry(1), full], 0.0)
    assert kept.latest(ALL, 0.0).entries == (
        replace(full, requester=replace(requester, command="caf\\xe9")),
        entry(1),
    )


def test_an_entry_of_a_release_that_recorded_no_devices_is_read(tmp_path: Path) -> None:
    old = b'{"type":"PodAdmitted","time":1.0,"pod":"shop/web","message":"1"}\n'
    (tmp_path / HISTORY_NAME).write_bytes(old)
    kept = store(tmp_path)
    given = {"c": {"example.com/nic": {"n0": "0-1", "n1": ""}}}
    later = HistoryEntry(type="PodRejected", time=2.0, message="2", kubelet_devices=given)
    kept.append([later], 0.0)
    found = kept.latest(ALL, 0.0)
    kept.close()
    assert found.damaged == 0
    assert [each.kubelet_devices for each in found.entries] == [given, {}]


def test_a_link_in_the_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("")
    (tmp_path / HISTORY_NAME).symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic links"):
        store(tmp_path).append([entry(1)], 0.0)
    assert (tmp_path / "other").read_text() == ""


def test_a_pipe_in_the_place_of_the_file_does_not_keep_the_thread_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / HISTORY_NAME)
    with pytest.raises(OSError, match="regular file"):
        store(tmp_path).append([entry(1)], 0.0)


def test_nothing_is_written_to_a_directory_that_was_replaced(tmp_path: Path) -> None:
    def check() -> None:
        raise OSError(errno.ESTALE, "replaced")

    kept = HistoryStore(tmp_path, LARGE, check)
    with pytest.raises(OSError, match="replaced"):
        kept.append([entry(1)], 0.0)
    assert list(tmp_path.iterdir()) == []


@given(
    count=st.integers(0, 120),
    portion=st.integers(1, 50),
    size=st.integers(600, 9000),
    limit=st.integers(1, 130),
    since=st.integers(0, 120),
    pod=st.sampled_from(["", "shop/web", "db", "shop/db", "nothing"]),
)
def test_the_latest_entries_that_were_asked_for_are_found_within_the_bound(
    tmp_path_factory: pytest.TempPathFactory,
    count: int,
    portion: int,
    size: int,
    limit: int,
    since: int,
    pod: str,
) -> None:
    directory = tmp_path_factory.mktemp("history")
    entries = [entry(number, ("shop/web", "shop/db")[number % 2]) for number in range(count)]
    kept = store(directory, HistoryBounds(size, 1e6))
    for start in range(0, count, portion):
        kept.append(entries[start : start + portion], 0.0)
        assert bytes_on_disk(directory) <= size
    present = numbers(kept)
    # What is kept is the end of what was written, and at least half of what is allowed.
    assert present == list(range(count))[::-1][: len(present)]
    if len(present) < count:
        left = sum(len(encode(each)) + 1 for each in entries[count - len(present) - 1 :])
        assert left > size // 2
    expected = [
        number
        for number in present
        if number >= since and pod in ("", entries[number].pod, entries[number].pod[5:])
    ]
    found = kept.latest(HistoryQuery(limit, pod, since), 0.0)
    assert [int(each.message) for each in found.entries] == expected[:limit]
    assert found.more is (len(expected) > limit)
    kept.close()


def test_entries_larger_than_a_file_are_counted_and_left_out(tmp_path: Path) -> None:
    kept = store(tmp_path, HistoryBounds(1000, 1e6))
    kept.append([entry(1), entry(2, "x" * 1000), entry(3)], 0.0)
    assert (numbers(kept), kept.too_large, kept.appended) == ([3, 1], 1, 2)


def test_old_entries_are_not_shown_and_their_file_goes(tmp_path: Path) -> None:
    kept = store(tmp_path, HistoryBounds(1 << 20, 100.0))
    kept.append([entry(0)], 0.0)
    assert numbers(kept, now=100.0) == [0]
    assert numbers(kept, now=101.0) == []
    kept.append([entry(60)], 60.0)  # the first file is half as old as it may be
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {HISTORY_NAME: 0o600, PREVIOUS_NAME: 0o600}
    assert numbers(kept, now=60.0) == [60, 0]
    kept.append([entry(101)], 101.0)
    assert not (tmp_path / PREVIOUS_NAME).exists()
    assert numbers(kept, now=101.0) == [101, 60]


def test_a_restart_knows_how_old_the_files_are(tmp_path: Path) -> None:
    bounds = HistoryBounds(1 << 20, 100.0)
    for time in (0.0, 60.0, 170.0):
        kept = store(tmp_path, bounds)
        kept.append([entry(int(time))], time)
        kept.close()
    assert numbers(store(tmp_path, bounds), now=170.0) == [170]
    assert not (tmp_path / PREVIOUS_NAME).exists()


def test_less_may_be_kept_than_before(tmp_path: Path) -> None:
    written(tmp_path, 200, HistoryBounds(40_000, 1e6))
    kept = store(tmp_path, HistoryBounds(2000, 1e6))
    kept.append([entry(1)], 0.0)
    assert bytes_on_disk(tmp_path) <= 2000
    assert numbers(kept)[0] == 1


def test_a_file_that_was_cut_off_at_any_byte_costs_one_line_and_goes_on(tmp_path: Path) -> None:
    written(tmp_path, 4)
    whole = (tmp_path / HISTORY_NAME).read_bytes()
    ends = [0, *itertools.accumulate(len(line) for line in whole.splitlines(keepends=True))]
    for size in range(len(whole) + 1):
        (tmp_path / HISTORY_NAME).write_bytes(whole[:size])
        left = sum(end <= size for end in ends) - 1
        kept = store(tmp_path)
        # A line without its end is not one yet, even before the next append drops it.
        assert numbers(kept) == list(range(left))[::-1]
        kept.append([entry(9)], 0.0)
        assert numbers(kept) == [9, *range(left)[::-1]]
        assert kept.latest(ALL, 0.0).damaged == 0
        assert kept.torn == (size not in ends)
        kept.close()


@given(damage=st.binary(max_size=200), place=st.integers(0, 400))
def test_damage_costs_the_lines_it_hits_and_is_counted(
    tmp_path_factory: pytest.TempPathFactory, damage: bytes, place: int
) -> None:
    directory = tmp_path_factory.mktemp("history")
    written(directory, 6)
    path = directory / HISTORY_NAME
    whole = path.read_bytes()
    path.write_bytes(whole[:place] + damage + whole[place + len(damage) :])
    kept = store(directory)
    kept.append([entry(9)], 0.0)
    found = kept.latest(ALL, 0.0)
    assert found.entries[0] == entry(9)
    hit = whole.count(b"\n", place, place + len(damage)) + 1
    intact = [each for each in found.entries if each in tuple(map(entry, range(6)))]
    assert len(intact) >= 6 - hit - 1
    kept.close()


class _Crash(BaseException):
    """The process ends here."""


class _Faulty(OsHistoryFiles):
    """Fails or crashes at the n-th step; a write may have written a part."""

    def __init__(self, nth: int, error: BaseException, part: float = 0.0) -> None:
        self.left, self.error, self.part = nth, error, part
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        self.left -= 1
        if self.left == 0:
            raise self.error

    def open(self, path: Path, *, append: bool) -> int:
        self.step()
        return super().open(path, append=append)

    def write(self, fd: int, data: bytes) -> int:
        self.left -= 1
        self.steps += 1
        if self.left != 0:
            return super().write(fd, data)
        taken = super().write(fd, data[: int(len(data) * self.part)])
        if isinstance(self.error, _Crash) or not 0 < taken < len(data):
            raise self.error
        self.left, self.part = 1, 0.0  # a full disk takes a part, and nothing of the rest
        return taken

    def truncate(self, fd: int, size: int) -> None:
        self.step()
        super().truncate(fd, size)

    def rename(self, source: Path, target: Path) -> None:
        self.step()
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self.step()
        super().remove(path)


#: Two files fit about ten entries; they are rotated, and the first is older than allowed.
SMALL = HistoryBounds(2400, 20.0)


def _story(kept: HistoryStore) -> None:
    """Rotate for size and for age, and remove what is too old."""
    for number in range(14):
        kept.append([entry(number)], float(number))
    kept.append([entry(30)], 30.0)
    kept.append([entry(60)], 60.0)


def _places(directory: Path) -> Iterator[tuple[int, Path]]:
    """Yield each step of the story, counted from 1, with a directory for it."""
    files = _Faulty(0, _Crash())
    (directory / "count").mkdir()
    kept = store(directory / "count", SMALL, files)
    _story(kept)
    kept.close()
    for nth in range(1, files.steps + 1):
        (directory / str(nth)).mkdir()
        yield nth, directory / str(nth)


@pytest.mark.parametrize("part", [0.0, 0.4, 1.0])
def test_a_crash_at_any_step_leaves_whole_entries_in_order(tmp_path: Path, part: float) -> None:
    for nth, directory in _places(tmp_path):
        kept = store(directory, SMALL, _Faulty(nth, _Crash(), part))
        with pytest.raises(_Crash):
            _story(kept)
        again = store(directory, SMALL)
        found = again.latest(ALL, 0.0)
        times = [each.time for each in found.entries]
        assert times == sorted(times, reverse=True)
        assert found.damaged == 0
        # The entry before the crash is there; that of 30.0 is due to go once it is 60.0.
        before = [*map(float, range(14)), 30.0, 60.0][: kept.appended]
        assert not before or before[-1] in (30.0, *times)
        again.append([entry(70)], 70.0)
        assert numbers(again, now=70.0)[0] == 70
        assert bytes_on_disk(directory) <= SMALL.size
        again.close()


@pytest.mark.parametrize("part", [0.0, 0.4, 1.0])
def test_an_error_at_any_step_is_raised_and_the_next_goes_on(tmp_path: Path, part: float) -> None:
    for nth, directory in _places(tmp_path):
        full = OSError(errno.ENOSPC, "full")
        kept = store(directory, SMALL, _Faulty(nth, full, part))
        with pytest.raises(OSError, match="full"):
            _story(kept)
        _story(kept)
        found = kept.latest(ALL, 60.0)
        assert found.entries[0] == entry(60)
        assert found.damaged == 0
        assert bytes_on_disk(directory) <= SMALL.size
        kept.close()


def test_a_full_disk_leaves_the_entries_that_fit_and_counts_them(tmp_path: Path) -> None:
    line = len(encode(entry(1))) + 1
    kept = store(tmp_path, LARGE, _Faulty(3, OSError(errno.ENOSPC, "full"), 2.5 / 4))
    with pytest.raises(OSError, match="full"):
        kept.append([entry(number) for number in (1, 2, 3, 4)], 0.0)
    assert (numbers(kept), kept.appended) == ([2, 1], 2)
    assert (tmp_path / HISTORY_NAME).stat().st_size == 2 * line


def test_reading_needs_no_right_to_write(tmp_path: Path) -> None:
    written(tmp_path, 3)
    (tmp_path / HISTORY_NAME).chmod(0o400)
    assert numbers(store(tmp_path)) == [2, 1, 0]
