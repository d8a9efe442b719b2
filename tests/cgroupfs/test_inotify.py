from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from cgroupfs.watch import DIRECTORY_OF_FILES, Change, Inotify

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def watch() -> Iterator[Inotify]:
    with Inotify() as watch:
        yield watch


def test_a_file_that_is_written_or_renamed_into_place_is_seen(
    watch: Inotify, tmp_path: Path
) -> None:
    watch.add(tmp_path, DIRECTORY_OF_FILES)
    (tmp_path / "a.yaml").write_text("x")
    (tmp_path / "a.yaml").replace(tmp_path / "b.yaml")
    (tmp_path / "b.yaml").unlink()
    assert [(event.change, event.name) for event in watch.read()] == [
        (Change.CLOSE_WRITE, "a.yaml"),
        (Change.MOVED_FROM, "a.yaml"),
        (Change.MOVED_TO, "b.yaml"),
        (Change.DELETE, "b.yaml"),
    ]


def test_names_of_any_length_and_bytes_are_read(watch: Inotify, tmp_path: Path) -> None:
    watch.add(tmp_path, Change.CREATE)
    names = ["x" * 255, "é", os.fsdecode(b"\xff")]
    for name in names:
        (tmp_path / name).mkdir()
    events = watch.read()
    assert [event.name for event in events] == names
    assert all(event.change & Change.ISDIR for event in events)


def test_a_path_watched_again_before_its_old_end_was_read_stays_watched(
    watch: Inotify, tmp_path: Path
) -> None:
    inner = tmp_path / "inner"
    for _ in range(2):
        inner.mkdir()
        watch.add(inner, DIRECTORY_OF_FILES)
        inner.rmdir()
    inner.mkdir()
    watch.add(inner, DIRECTORY_OF_FILES)
    assert all(not event.change & Change.IGNORED for event in watch.read())
    (inner / "a").write_text("")
    assert [event.name for event in watch.read()] == ["a"]


def test_a_removed_watch_is_silent(watch: Inotify, tmp_path: Path) -> None:
    watch.add(tmp_path, DIRECTORY_OF_FILES)
    (tmp_path / "a").write_text("")
    watch.remove(tmp_path)
    watch.remove(tmp_path)
    assert watch.read() == ()
