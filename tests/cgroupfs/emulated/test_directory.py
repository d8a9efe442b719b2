from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cgroupfs.emulated.directory import DirectoryTree
from cgroupfs.errors import CgroupRootError
from cgroupfs.tree import KernelTree
from sysfs.mask import Mask
from tests.cgroupfs.contract import prepare

if TYPE_CHECKING:
    from pathlib import Path

CPUS = Mask.parse("0-7")
NODES = Mask.parse("0-1")


@pytest.fixture
def tree(tmp_path: Path) -> DirectoryTree:
    tree = DirectoryTree(tmp_path, CPUS, NODES)
    prepare(tree, "pods")
    tree.mkdir("pods/a")
    return tree


def test_what_is_written_stands_in_files_as_the_kernel_would_show_it(
    tree: DirectoryTree, tmp_path: Path
) -> None:
    tree.write("pods/a", "cpuset.cpus", "3,2")
    assert (tmp_path / "pods/a/cpuset.cpus").read_text() == "2-3\n"
    assert (tmp_path / "pods/a/cpuset.cpus.effective").read_text() == "2-3\n"
    assert (tmp_path / "cgroup.controllers").read_text() == "cpuset cpu io memory hugetlb pids\n"
    assert (tmp_path / "pods/a/cpu.max").read_text() == "max 100000\n"


def test_the_plain_tree_reads_the_same_files(tree: DirectoryTree, tmp_path: Path) -> None:
    tree.write("pods/a", "cpuset.cpus", "5")
    plain = KernelTree(tmp_path, require_kernel=False)
    assert plain.read("pods/a", "cpuset.cpus.effective") == "5\n"
    assert plain.children("pods") == ("a",)
    plain.close()


def test_files_of_a_disabled_controller_disappear(tree: DirectoryTree, tmp_path: Path) -> None:
    tree.write("pods", "cgroup.subtree_control", "-cpuset")
    assert not (tmp_path / "pods/a/cpuset.cpus").exists()
    assert (tmp_path / "pods/a/cpu.max").exists()


def test_what_others_write_is_taken_in_under_the_kernels_rules(
    tree: DirectoryTree, tmp_path: Path
) -> None:
    (tmp_path / "pods/a/cpuset.cpus").write_text("6-7\n")
    assert tree.read("pods/a", "cpuset.cpus.effective") == "6-7\n"
    assert (tmp_path / "pods/a/cpuset.cpus.effective").read_text() == "6-7\n"
    (tmp_path / "pods/a/cpuset.cpus").write_text("999\n")
    assert tree.read("pods/a", "cpuset.cpus") == "6-7\n"
    assert (tmp_path / "pods/a/cpuset.cpus").read_text() == "6-7\n"


def test_cgroups_that_others_make_and_remove_are_noticed(
    tree: DirectoryTree, tmp_path: Path
) -> None:
    (tmp_path / "pods/b").mkdir()
    assert tree.children("pods") == ("a", "b")
    assert (tmp_path / "pods/b/cpuset.cpus").read_text() == "\n"
    for file in (tmp_path / "pods/b").iterdir():
        file.unlink()
    (tmp_path / "pods/b").rmdir()
    assert not tree.exists("pods/b")
    assert tree.children("pods") == ("a",)


def test_processes_that_others_put_into_a_cgroup_live_there(
    tree: DirectoryTree, tmp_path: Path
) -> None:
    (tmp_path / "pods/a/cgroup.procs").write_text("41")
    assert tree.procs("pods/a") == (41,)
    assert "populated 1" in tree.read("pods", "cgroup.events")
    tree.mkdir("pods/b")
    (tmp_path / "pods/b/cgroup.procs").write_text("41")
    assert (tree.procs("pods/a"), tree.procs("pods/b")) == ((), (41,))
    tree.exit(41)
    assert (tmp_path / "pods/b/cgroup.procs").read_text() == ""


def test_a_restart_takes_everything_over(tree: DirectoryTree, tmp_path: Path) -> None:
    tree.write("pods/a", "cpuset.cpus", "2-3")
    tree.write("pods/a", "cpu.max", "50000 100000")
    tree.spawn("pods/a", 5)
    tree.set_online(Mask.parse("0-2,4-7"))
    again = DirectoryTree(tmp_path, CPUS, NODES)
    files = ("cpuset.cpus", "cpuset.cpus.effective", "cpu.max")
    assert again.read_many("pods/a", files) == ("2-3\n", "2\n", "50000 100000\n")
    assert again.procs("pods/a") == (5,)
    again.set_online(CPUS)
    assert again.read("pods/a", "cpuset.cpus.effective") == "2-3\n"


def test_a_removed_cgroup_leaves_no_directory(tree: DirectoryTree, tmp_path: Path) -> None:
    tree.rmdir("pods/a")
    assert not (tmp_path / "pods/a").exists()


def test_a_link_is_not_a_cgroup(tree: DirectoryTree, tmp_path: Path) -> None:
    (tmp_path / "pods/link").symlink_to(tmp_path)
    assert tree.children("pods") == ("a",)


def test_a_directory_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("dear")
    with pytest.raises(CgroupRootError, match="contains something that is not a cgroup tree"):
        DirectoryTree(tmp_path, CPUS, NODES)
    assert [entry.name for entry in tmp_path.iterdir()] == ["letter"]
