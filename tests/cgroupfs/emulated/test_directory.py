from __future__ import annotations

import errno
from collections import Counter
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING

import pytest

from cgroupfs.emulated import directory
from cgroupfs.emulated.directory import DirectoryTree
from cgroupfs.emulated.kernel import EmulatedKernel
from cgroupfs.errors import CgroupRootError
from sysfs.mask import Mask
from tests.cgroupfs.contract import prepare

if TYPE_CHECKING:
    from pathlib import Path

    from cgroupfs.emulated.group import Group

CPUS = Mask.parse("0-7")
NODES = Mask.parse("0-1")


@pytest.fixture(params=[True, False], ids=["watched", "without inotify"])
def tree(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> DirectoryTree:
    if not request.param:
        monkeypatch.setattr(directory, "Inotify", _exhausted)
    tree = DirectoryTree(tmp_path, CPUS, NODES)
    prepare(tree, "pods")
    tree.mkdir("pods/a")
    return tree


def _exhausted() -> None:
    raise OSError(errno.EMFILE, "inotify_init1")


def stale(tree: DirectoryTree) -> list[str]:
    """Return the files that do not show what the emulated kernel has."""
    tree.exists("")  # takes in what others did
    kernel = tree._kernel  # the truth behind the files
    texts = {
        f"{tree.root}/{group.path}/{name}".replace("//", "/"): text
        for group in kernel.root.walk()
        for name, text in kernel.texts(group).items()
    }
    found = {str(path): path.read_text() for path in tree.root.rglob("*") if path.is_file()}
    return sorted(path for path, _ in texts.items() ^ found.items())


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


@pytest.mark.parametrize("after", [1, 2])
def test_what_others_write_into_a_cgroup_while_it_is_noticed_counts(
    tree: DirectoryTree, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    file = tree.root / "pods/b/cgroup.procs"
    reads = 0

    def text(of: Path) -> str | None:
        nonlocal reads
        found = read(of)
        reads += of == file
        if of == file and reads == after:
            of.write_text("41\n")
        return found

    read = directory._text
    monkeypatch.setattr(directory, "_text", text)
    file.parent.mkdir()
    tree.exists("pods/b")
    assert reads >= after
    assert tree.procs("pods/b") == (41,)
    assert "populated 1" in tree.read("pods", "cgroup.events")
    assert stale(tree) == []


@pytest.mark.parametrize("seed", range(4))
def test_after_anything_the_files_show_what_the_kernel_has(tree: DirectoryTree, seed: int) -> None:
    draw = Random(seed)  # noqa: S311  # a story, not a secret
    files = ("cpuset.cpus", "cpuset.cpus.exclusive", "cpuset.cpus.partition", "cpu.weight")
    values = ("1-2", "3", "0-7", "root", "member", "200")
    for step in range(60):
        path = draw.choice(("pods/a", "pods/b", "pods/b/c", "pods/b/c/d"))
        file, value = draw.choice(files), draw.choice(values)
        written = tree.root / path / file
        with suppress(OSError):
            match draw.randrange(8):
                case 0:
                    tree.mkdir(path)
                case 1:
                    tree.rmdir(path)
                case 2 | 3:
                    tree.write(path, file, value)
                case 4:
                    tree.write(path, "cgroup.subtree_control", "+cpuset +cpu")
                case 5 if written.exists():
                    written.write_text(value)
                case 6 if written.exists():
                    (tree.root / path / "cgroup.procs").write_text(f"{step % 3 + 1}\n")
                case _:
                    (tree.root / path).mkdir(exist_ok=True)
        assert stale(tree) == [], step


def test_an_operation_costs_the_same_beside_many_cgroups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted: files that are read, and cgroups that are written out."""
    work = Counter[str]()

    def read(file: Path) -> str | None:
        work["read"] += 1
        return text_of(file)

    def texts(kernel: EmulatedKernel, group: Group) -> dict[str, str]:
        work["written out"] += 1
        return texts_of(kernel, group)

    text_of, texts_of = directory._text, EmulatedKernel.texts  # counted
    monkeypatch.setattr(directory, "_text", read)
    monkeypatch.setattr(EmulatedKernel, "texts", texts)
    tree = DirectoryTree(tmp_path, CPUS, NODES)
    prepare(tree, "pods")
    costs = []
    for number in range(60):
        work.clear()
        pod = f"pods/{number}"
        tree.mkdir(pod)
        tree.write(pod, "cgroup.subtree_control", "+cpuset +cpu")
        tree.write(pod, "cpu.max", "1000 100000")
        for name in "abcde":
            (tmp_path / pod / name).mkdir()
            tree.write(f"{pod}/{name}", "cpuset.cpus", "2-3")
        tree.spawn(f"{pod}/a", 100 + number)
        tree.read("pods", "cgroup.events")
        costs.append(dict(work))
    assert costs[59] == costs[1]


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


def test_a_link_is_not_a_cgroup(tree: DirectoryTree, tmp_path: Path) -> None:
    (tmp_path / "pods/link").symlink_to(tmp_path)
    assert tree.children("pods") == ("a",)


def test_a_directory_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("dear")
    with pytest.raises(CgroupRootError, match="contains something that is not a cgroup tree"):
        DirectoryTree(tmp_path, CPUS, NODES)
    assert [entry.name for entry in tmp_path.iterdir()] == ["letter"]
