from __future__ import annotations

import os
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from cgroupfs.emulated.directory import DirectoryTree
from cgroupfs.emulated.kernel import EmulatedKernel
from cgroupfs.errors import TreeLockedError
from cgroupfs.tree import KernelTree
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cgroupfs.tree import CgroupTree

CPUS, NODES = Mask.parse("0-3"), Mask.of(0)
Opened = tuple["CgroupTree", "Callable[[], CgroupTree]"]


@pytest.fixture(params=["kernel", "unreadable file", "files", "memory"])
def trees(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    """Yield a tree, and what opens the same once more."""
    if request.param == "memory":
        emulated = EmulatedKernel(CPUS, NODES)
        yield emulated, lambda: emulated
        return
    if request.param == "files":
        yield DirectoryTree(tmp_path, CPUS, NODES), lambda: DirectoryTree(tmp_path, CPUS, NODES)
        return
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu\n")
    if request.param == "unreadable file":
        (tmp_path / "memory.reclaim").touch(0o200)
    opened = [KernelTree(tmp_path, require_kernel=False) for _ in range(2)]
    yield opened[0], lambda: opened[1]
    for tree in opened:
        tree.close()


def test_a_tree_is_locked_once_however_often_it_is_opened(trees: Opened) -> None:
    tree, open_again = trees
    lock = tree.lock()
    with pytest.raises(TreeLockedError, match="belongs to another agent"):
        open_again().lock()
    lock.release()
    lock.release()
    second = open_again().lock()
    with pytest.raises(TreeLockedError):
        tree.lock()
    lock.release()
    with pytest.raises(TreeLockedError):
        tree.lock()
    second.release()


@pytest.mark.parametrize("file", ["memory.reclaim", "cgroup.kill"])
def test_a_file_that_only_root_can_open_is_locked_rather_than_the_directory(
    tmp_path: Path, file: str
) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu\n")
    (tmp_path / file).touch(0o200)
    holder = _hold(tmp_path)
    try:
        tree = KernelTree(tmp_path, require_kernel=False)
        tree.lock().release()
        tree.close()
    finally:
        _end(holder)
    assert not (tmp_path / file).read_bytes(), "nothing is ever written there: it reclaims or kills"


def test_the_process_that_holds_a_tree_is_named_and_its_end_frees_it(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu\n")
    holder = _hold(tmp_path)
    tree = KernelTree(tmp_path, require_kernel=False)
    try:
        # A file system with device numbers of its own (btrfs, overlay) hides the holder.
        with pytest.raises(
            TreeLockedError, match=rf"process {holder.pid} \(|cannot be seen"
        ) as caught:
            tree.lock()
        assert "\n" not in str(caught.value)
    finally:
        _end(holder)
    tree.lock().release()
    tree.close()


def test_a_locked_tree_in_memory_can_be_copied() -> None:
    kernel = EmulatedKernel(CPUS, NODES)
    kernel.lock()
    with pytest.raises(TreeLockedError):
        pickle.loads(pickle.dumps(kernel)).lock()  # noqa: S301  # our own bytes


def _hold(directory: Path) -> subprocess.Popen[bytes]:
    """Start a process that locks a directory until its standard input is closed."""
    code = (
        "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX);"
        "os.write(1, b'x'); os.read(0, 1)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert os.read(process.stdout.fileno(), 1) == b"x"
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.communicate(b"x", timeout=60)
