from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from cgroupfs.errors import CgroupPathError
from cgroupfs.tree import KernelTree, all_ancestors, ancestors, is_within, join, parent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "cgroup"
    (root / "pods/a").mkdir(parents=True)
    (root / "cgroup.controllers").write_text("cpuset cpu\n")
    (root / "pods/a/cpuset.cpus").write_text("0-3\n")
    (root / "pods/a/cgroup.procs").write_text("12\n7\n7\n")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/cpuset.cpus").write_text("outside\n")
    return root


@pytest.fixture
def tree(root: Path) -> Iterator[KernelTree]:
    tree = KernelTree(root, require_kernel=False)
    yield tree
    tree.close()


BAD = ["/pods", "pods/", "pods//a", "..", "../secret", "pods/../../secret", ".", "pods/./a", "a\nb",
       "a\0b", "x" * 256, "/".join(["x" * 200] * 30)]  # fmt: skip


@pytest.mark.parametrize("path", BAD)
def test_a_path_that_could_leave_the_root_is_rejected(tree: KernelTree, path: str) -> None:
    for act in (
        lambda: tree.read(path, "cpuset.cpus"),
        lambda: tree.read_many(path, ("cpuset.cpus",)),
        lambda: tree.write(path, "cpuset.cpus", "1"),
        lambda: tree.mkdir(path),
        lambda: tree.rmdir(path),
        lambda: tree.exists(path),
        lambda: tree.children(path),
        lambda: tree.listed(path),
        lambda: tree.procs(path),
    ):
        with pytest.raises(CgroupPathError):
            act()


@pytest.mark.parametrize("file", ["", "..", "../cpuset.cpus", "a/b", "/etc/passwd"])
def test_a_file_is_one_plain_name(tree: KernelTree, file: str) -> None:
    for act in (
        lambda: tree.read("pods", file),
        lambda: tree.read_many("pods", (file,)),
        lambda: tree.write("pods", file, "1"),
    ):
        with pytest.raises(CgroupPathError):
            act()


def test_a_child_is_listed_with_whether_it_may_have_children(tree: KernelTree, root: Path) -> None:
    (root / "pods/b/inner").mkdir(parents=True)
    (root / "pods/b\n").mkdir()
    leaf = (root / "pods/a").stat().st_nlink != 2  # a file system that does not count says 1
    assert list(tree.listed("pods").items()) == [("a", leaf), ("b", True)]


def test_links_lead_nowhere(tree: KernelTree, root: Path) -> None:
    (root / "pods/out").symlink_to(root.parent / "secret")
    (root / "pods/a/cpu.max").symlink_to(root.parent / "secret/cpuset.cpus")
    for act in (
        lambda: tree.read("pods/out", "cpuset.cpus"),
        lambda: tree.read_many("pods/out", ("cpuset.cpus",)),
        lambda: tree.write("pods/out", "cpuset.cpus", "1"),
        lambda: tree.mkdir("pods/out/x"),
        lambda: tree.read("pods/a", "cpu.max"),
        lambda: tree.read_many("pods/a", ("cpu.max",)),
        lambda: tree.write("pods/a", "cpu.max", "1"),
    ):
        with pytest.raises(OSError) as caught:  # noqa: PT011 - two errnos, both checked here
            act()
        assert caught.value.errno in (errno.ELOOP, errno.ENOTDIR)
    assert (root.parent / "secret/cpuset.cpus").read_text() == "outside\n"
    assert not (root.parent / "secret/x").exists()
    assert tree.children("pods") == ("a",)


@pytest.mark.parametrize("name", ["\udcff", "x\x1b[2J", "a\x0bb"])
def test_a_child_of_a_name_that_no_path_may_have_is_left_out(
    tree: KernelTree, root: Path, name: str
) -> None:
    (root / "pods" / name).mkdir()
    assert tree.children("pods") == ("a",)


def test_files_are_read_and_written(tree: KernelTree, root: Path) -> None:
    assert tree.read("pods/a", "cpuset.cpus") == "0-3\n"
    assert tree.read_many("pods/a", ("cpuset.cpus", "cpu.max")) == ("0-3\n", None)
    tree.write("pods/a", "cpuset.cpus", "1-2")
    assert (root / "pods/a/cpuset.cpus").read_text().startswith("1-2")
    assert tree.procs("pods/a") == (7, 12)


def test_a_write_never_creates_a_file(tree: KernelTree, root: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        tree.write("pods/a", "cpu.max", "max")
    assert caught.value.filename == "pods/a/cpu.max"
    assert not (root / "pods/a/cpu.max").exists()


def test_nothing_is_not_written(tree: KernelTree) -> None:
    with pytest.raises(ValueError, match="empty write does nothing"):
        tree.write("pods/a", "cpuset.cpus", "")


def test_long_files_are_read_to_their_end(tree: KernelTree, root: Path) -> None:
    (root / "pods/a/cgroup.procs").write_text("".join(f"{pid}\n" for pid in range(1, 60_000)))
    assert len(tree.procs("pods/a")) == 59_999


def test_cgroups_are_made_and_removed(tree: KernelTree) -> None:
    tree.mkdir("pods/b")
    assert tree.exists("pods/b")
    assert tree.children("pods") == ("a", "b")
    tree.rmdir("pods/b")
    assert not tree.exists("pods/b")
    with pytest.raises(FileNotFoundError, match="pods/b"):
        tree.rmdir("pods/b")
    with pytest.raises(CgroupPathError, match="the root itself"):
        tree.rmdir("")


def test_no_descriptor_is_left_open(tree: KernelTree) -> None:
    from pathlib import Path as LivePath  # noqa: PLC0415 - only to count descriptors

    before = len(list(LivePath("/proc/self/fd").iterdir()))
    for path in ("pods/a", "pods/none", "pods/a/none"):
        for file in ("cpuset.cpus", "none"):
            for act in (tree.read, lambda p, f: tree.read_many(p, (f,))):
                try:
                    act(path, file)
                except OSError:
                    continue
        tree.exists(path)
    assert len(list(LivePath("/proc/self/fd").iterdir())) == before


def test_ancestors_of_several_cgroups_are_those_of_each() -> None:
    paths = ["a/b/c", "a/b/d", "a", "e/f", ""]

    assert all_ancestors(paths) == {above for path in paths for above in ancestors(path)}
    assert all_ancestors([]) == all_ancestors([""]) == frozenset()
    assert (parent("a/b"), parent("a"), parent("")) == ("a", "", "")
    assert (join("", "a"), join("a", "b")) == ("a", "a/b")


def test_a_path_lies_within_itself_and_all_above_it() -> None:
    assert is_within("kubepods/pod1", {"kubepods/pod1"})
    assert is_within("kubepods/pod1/c", {"kubepods"})
    assert is_within("kubepods", {""})
    assert not is_within("kubepods/pod10", {"kubepods/pod1", "kubepods/pod10/c"})
    assert not is_within("kubepods", ())
