from __future__ import annotations

import os
from pathlib import Path

import pytest

from cgroupfs.errors import CgroupRootError
from cgroupfs.tree import KernelTree, check_root, check_usable, counts_huge_pages


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu memory\n")
    (tmp_path / "cgroup.subtree_control").write_text("\n")
    return tmp_path


def reason(root: Path, *, require_kernel: bool = True) -> str:
    with pytest.raises(CgroupRootError) as caught:
        check_root(root, require_kernel=require_kernel)
    assert "\n" not in str(caught.value)
    assert str(root) in str(caught.value)
    return caught.value.found


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        ("unified/cgroup.controllers", "it is a hybrid of cgroup v1 and v2"),
        ("cpuset/tasks", "it is cgroup v1"),
        ("tasks", "it is one hierarchy of cgroup v1"),
        ("cgroup.controllers", "it is not a cgroup2 file system"),
    ],
)
def test_what_is_not_cgroup_v2_is_said(tmp_path: Path, entry: str, found: str) -> None:
    assert reason(tmp_path / "none") == "no such directory"
    (tmp_path / entry).parent.mkdir(exist_ok=True)
    (tmp_path / entry).write_text("")
    assert reason(tmp_path) == found


def test_an_emulated_tree_needs_only_its_files(root: Path) -> None:
    check_root(root, require_kernel=False)
    KernelTree(root, require_kernel=False).close()
    (root / "cgroup.controllers").unlink()
    assert reason(root, require_kernel=False) == "it has no cgroup.controllers"


def test_a_controller_that_is_not_offered_is_named(root: Path) -> None:
    check_usable(root)
    (root / "cgroup.controllers").write_text("cpu memory\n")
    with pytest.raises(CgroupRootError, match="does not offer the cpuset controller here"):
        check_usable(root)


def test_a_root_that_cannot_be_written_says_who_could(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(CgroupRootError, match="run as root"):
        check_usable(root)


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        ("cgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate,memory_hugetlb_accounting 0 0", True),
        ("cgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate,memory_recursiveprot 0 0", False),
        ("tmpfs /memory_hugetlb_accounting tmpfs rw,memory_hugetlb_accounting 0 0", False),
        ("", False),
    ],
)
def test_whether_huge_pages_count_as_memory_is_an_option_of_the_mount(
    tmp_path: Path, line: str, *, counts: bool
) -> None:
    assert not counts_huge_pages(tmp_path)
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mounts").write_text(f"proc /proc proc rw 0 0\n{line}\n")
    assert counts_huge_pages(tmp_path) is counts


def test_a_read_only_mount_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live = os.statvfs(root)

    class ReadOnly:
        f_flag = live.f_flag | os.ST_RDONLY

    monkeypatch.setattr(os, "statvfs", lambda _: ReadOnly)
    with pytest.raises(CgroupRootError, match="mounted read-only"):
        check_usable(root)


def test_a_live_cgroup2_mount_is_accepted_wherever_it_is() -> None:
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    for _, where, kind, *_ in mounts:
        if kind == "cgroup2":
            check_root(Path(where))
        elif kind in ("tmpfs", "proc"):
            with pytest.raises(CgroupRootError):
                check_root(Path(where))
