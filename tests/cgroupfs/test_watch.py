from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from cgroupfs import watch as inotify
from cgroupfs.emulated.directory import DirectoryTree
from cgroupfs.errors import CgroupPathError
from cgroupfs.watch import CgroupWatch, Change, Created, Removed, Rescan, Touched
from sysfs.mask import Mask
from tests.cgroupfs.contract import prepare

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def tree(tmp_path: Path) -> DirectoryTree:
    tree = DirectoryTree(tmp_path, Mask.parse("0-3"), Mask.of(0))
    prepare(tree, "pods")
    tree.mkdir("pods/a")
    return tree


@pytest.fixture
def watch(tree: DirectoryTree) -> Iterator[CgroupWatch]:
    with CgroupWatch(tree.root) as watch:
        yield watch


def test_a_setting_that_is_written_is_seen(tree: DirectoryTree, watch: CgroupWatch) -> None:
    assert watch.add("pods/a")
    tree.write("pods/a", "cpuset.cpus", "1")
    assert watch.read() == (Touched("pods/a", "cpuset.cpus"),)
    tree.write("pods/a", "cpu.max", "50000")
    assert watch.read() == (Touched("pods/a", "cpu.max"),)


def test_containers_coming_and_going_are_seen(tree: DirectoryTree, watch: CgroupWatch) -> None:
    watch.add("pods")
    tree.mkdir("pods/b")
    assert Created("pods/b") in watch.read()
    tree.rmdir("pods/b")
    assert Removed("pods/b") in watch.read()


def test_the_end_of_a_watched_cgroup_is_seen_once(tree: DirectoryTree, watch: CgroupWatch) -> None:
    watch.add("pods/a")
    tree.rmdir("pods/a")
    assert watch.read() == (Removed("pods/a"),)
    tree.mkdir("pods/a")
    assert watch.add("pods/a")
    tree.write("pods/a", "cpuset.cpus", "1")
    assert Touched("pods/a", "cpuset.cpus") in watch.read()


def test_a_cgroup_that_is_gone_or_was_let_go_is_not_watched(
    tree: DirectoryTree, watch: CgroupWatch
) -> None:
    assert watch.add("pods/none") is False
    watch.add("pods/a")
    watch.remove("pods/a")
    tree.write("pods/a", "cpuset.cpus", "1")
    assert watch.read() == ()


def test_files_of_missing_controllers_are_left_out(tree: DirectoryTree, watch: CgroupWatch) -> None:
    tree.write("pods", "cgroup.subtree_control", "-cpuset")
    assert watch.add("pods/a")
    tree.write("pods/a", "cpu.max", "50000")
    assert watch.read() == (Touched("pods/a", "cpu.max"),)


def test_lost_events_ask_for_a_rescan(watch: CgroupWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    data = inotify._HEADER.pack(-1, Change.OVERFLOW, 0, 0)
    monkeypatch.setattr(os, "read", lambda *_: data)
    assert watch.read() == (Rescan(),)


def test_a_path_that_leaves_the_root_is_rejected(watch: CgroupWatch) -> None:
    with pytest.raises(CgroupPathError):
        watch.add("../x")
