from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent.managers.versions import KubernetesVersion
from agent.state.store import OsFiles
from agent.tools.kubelet_state.files import (
    KubeletState,
    encode_files,
    read_directory,
    release_of,
    write_directory,
)
from agent.tools.kubelet_state.format import (
    NoStateFilesError,
    StateFileExistsError,
    StateFileIOError,
    UnreadableStateFileError,
)
from agent.tools.kubelet_state.memory import MemoryState
from tests.agent.tools.kubelet_state.machines import cpu_state

if TYPE_CHECKING:
    from collections.abc import Callable

STATE = KubeletState(cpu_state("0-15"), MemoryState("None"))
OLD = {"cpu_manager_state": b"old cpu", "memory_manager_state": b"old memory"}


class Failing(OsFiles):
    """Fails one operation, the `nth` time it is asked for."""

    def __init__(self, operation: str, nth: int) -> None:
        self.operation, self.left = operation, nth

    def _step(self, operation: str) -> None:
        if operation == self.operation:
            self.left -= 1
            if self.left == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def create(self, path: Path) -> int:
        self._step("create")
        return super().create(path)

    def write(self, fd: int, data: memoryview) -> int:
        self._step("write")
        return super().write(fd, data[:7])

    def fsync(self, fd: int) -> None:
        self._step("fsync")
        super().fsync(fd)

    def rename(self, source: Path, target: Path) -> None:
        self._step("rename")
        super().rename(source, target)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_the_gate_decides_the_versions() -> None:
    without, with_gate = (encode_files(STATE, pod_level=gate) for gate in (False, True))
    assert without["cpu_manager_state"].endswith(b'"checksum":4220024897}')
    assert with_gate["cpu_manager_state"].endswith(b'"checksum":3394376107}')
    assert without["memory_manager_state"].endswith(b'"checksum":4236770233}')
    assert with_gate["memory_manager_state"].endswith(b'"checksum":512582496}')


@pytest.mark.parametrize("pod_level", [True, False])
def test_the_release_decides_before_the_gate(*, pod_level: bool) -> None:
    files = encode_files(STATE, pod_level=pod_level, release=KubernetesVersion.V1_37)
    assert all(b'"data":"{' in data for data in files.values())


def test_the_release_is_that_of_the_files_that_are_there(tmp_path: Path) -> None:
    assert release_of(tmp_path) is KubernetesVersion.V1_36
    for release in (KubernetesVersion.V1_36, KubernetesVersion.V1_37):
        files = encode_files(STATE, pod_level=True, release=release)
        write_directory(tmp_path, files, force=True)
        assert release_of(tmp_path) is release
        assert read_directory(tmp_path) == STATE
    (tmp_path / "cpu_manager_state").write_bytes(b"{")
    assert release_of(tmp_path) is KubernetesVersion.V1_37
    (tmp_path / "memory_manager_state").unlink()
    assert release_of(tmp_path) is KubernetesVersion.V1_36


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_directory(tmp_path, encode_files(STATE, pod_level=True), force=False)
    assert read_directory(tmp_path) == STATE
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_files_may_be_missing_but_not_all_of_them(tmp_path: Path) -> None:
    with pytest.raises(NoStateFilesError, match=r"none of cpu_manager_state, .* is there"):
        read_directory(tmp_path)
    files = encode_files(STATE, pod_level=True)
    write_directory(tmp_path, {"cpu_manager_state": files["cpu_manager_state"]}, force=False)
    assert read_directory(tmp_path) == KubeletState(cpu=STATE.cpu)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "memory_manager_state").write_bytes(b"{")
    with pytest.raises(UnreadableStateFileError, match=str(tmp_path / "memory_manager_state")):
        read_directory(tmp_path)


def nested(file: Path) -> None:
    file.write_bytes(b'{"entries":' * 100_000)


def sparse(file: Path) -> None:
    with file.open("wb") as opened:
        opened.truncate(1 << 40)


def pipe(file: Path) -> None:
    os.mkfifo(file)


def link(file: Path) -> None:
    file.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [nested, sparse, pipe, link, Path.mkdir], ids=lambda m: m.__name__)
@pytest.mark.parametrize("name", OLD)
def test_a_hostile_file_is_rejected_without_waiting_for_it(
    tmp_path: Path, make: Callable[[Path], None], name: str
) -> None:
    make(tmp_path / name)
    with pytest.raises((UnreadableStateFileError, OSError), match=name):
        read_directory(tmp_path)


def test_files_that_are_there_are_replaced_only_by_force(tmp_path: Path) -> None:
    write_directory(tmp_path, OLD, force=False)
    new = encode_files(STATE, pod_level=True)
    with pytest.raises(StateFileExistsError, match="--force"):
        write_directory(tmp_path, new, force=False)
    assert contents(tmp_path) == OLD
    write_directory(tmp_path, new, force=True)
    assert contents(tmp_path) == new


@pytest.mark.parametrize(
    ("operation", "nth"),
    [("create", 1), ("create", 2), ("write", 3), ("fsync", 2), ("rename", 1)],
)
def test_a_failure_leaves_both_files_as_they_were(tmp_path: Path, operation: str, nth: int) -> None:
    write_directory(tmp_path, OLD, force=False)
    with pytest.raises(StateFileIOError, match="No space left on device"):
        write_directory(
            tmp_path,
            encode_files(STATE, pod_level=True),
            force=True,
            files=Failing(operation, nth),
        )
    assert contents(tmp_path) == OLD


def test_short_writes_are_continued(tmp_path: Path) -> None:
    new = encode_files(STATE, pod_level=True)
    write_directory(tmp_path, new, force=False, files=Failing("none", 1))
    assert contents(tmp_path) == new
