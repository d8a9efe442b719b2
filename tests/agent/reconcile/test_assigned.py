"""The files in which containers find what they have follow the kernel, and go with the pod."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from agent.reconcile.assigned import AssignedFiles
from agent.reconcile.desired import DesiredCgroup, Role
from agent.reconcile.report import CgroupReport, CgroupReports, EnforcementReport
from cgroupfs.plan import Setting
from cgroupfs.state import CgroupState
from sysfs.mask import Mask
from tests.agent.reconcile import pods
from tests.agent.reconcile.pods import exclusive, on_host

if TYPE_CHECKING:
    from pathlib import Path

    from agent.managers.allocation import PodAllocation

UID = "u-1"
ALL = EnforcementReport()


def pod(cpus: str | None, node: int | None = None, uid: str = UID) -> PodAllocation:
    return pods.pod(
        on_host("main") if cpus is None else exclusive("main", cpus, node=node), uid=uid
    )


def shown(cpus: str) -> EnforcementReport:
    """Return a report of a change: the kernel shows these CPUs of the container."""
    setting = Setting("kubepods/podu-1/main", cpus=Mask.parse(cpus))
    desired = DesiredCgroup(setting, Role.CONTAINER, UID, "main")
    state = CgroupState(setting.cpus, setting.cpus, None, None, populated=True)
    cgroups = CgroupReports([CgroupReport(desired, state)])
    return EnforcementReport(cgroups=cgroups, pods=frozenset({UID}))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "pods"


@pytest.fixture
def files(root: Path) -> AssignedFiles:
    return AssignedFiles(root)


def read(root: Path, uid: str = UID) -> tuple[str, str]:
    directory = root / uid / "main"
    return (directory / "assigned.cpuset").read_text(), (directory / "assigned.memset").read_text()


@pytest.mark.parametrize(
    ("allocation", "report", "content"),
    [
        (pod("2-3", 0), ALL, ("2-3", "0")),  # its container has not started
        (pod("2-3"), shown("2"), ("2", "")),  # CPU 3 is offline
        (pod("2-3"), shown("0-7"), ("2-3", "")),  # not enforced
        (pod(None), shown("0-7"), ("", "")),  # the shared pool belongs to no container
    ],
)
def test_a_file_has_what_was_allocated_and_the_kernel_gives(
    files: AssignedFiles,
    root: Path,
    allocation: PodAllocation,
    report: EnforcementReport,
    content: tuple[str, str],
) -> None:
    former = os.umask(0o077)  # as in the unit
    files.after({UID: allocation}, report)
    os.umask(former)
    assert read(root) == content
    assert files.conditions == ()
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (root, root / UID, root / UID / "main")}
    assert modes == {0o755}
    assert {stat.S_IMODE(p.stat().st_mode) for p in root.rglob("assigned.*")} == {0o644}


def test_cpus_leave_a_file_before_the_change_and_come_after_it(
    files: AssignedFiles, root: Path
) -> None:
    files.after({UID: pod("2-3", 0)}, ALL)
    moved = {UID: pod("3-4", 0)}
    files.before(moved)
    assert read(root) == ("3", "0")
    files.after(moved, EnforcementReport(compared=False))
    assert read(root) == ("3", "0")
    files.after(moved, shown("3-4"))
    assert read(root) == ("3-4", "0")


def test_what_another_process_changed_is_written_again(files: AssignedFiles, root: Path) -> None:
    running = {UID: pod("2-3")}
    files.after(running, ALL)
    file = root / UID / "main/assigned.cpuset"
    for damage in (file.unlink, lambda: file.write_text("0"), lambda: file.chmod(0o600)):
        damage()
        files.after(running, ALL)
        assert read(root) == ("2-3", "")
        assert stat.S_IMODE(file.stat().st_mode) == 0o644


def test_the_directory_that_a_container_mounts_stays_over_changes_and_restarts(
    files: AssignedFiles, root: Path
) -> None:
    files.after({UID: pod("2-3")}, ALL)
    mounted = os.open(root / UID / "main", os.O_RDONLY)
    again = AssignedFiles(root)
    again.after({UID: pod("4-5")}, ALL)
    read_in = os.open("assigned.cpuset", os.O_RDONLY, dir_fd=mounted)
    assert os.read(read_in, 9) == b"4-5"
    os.close(read_in)
    os.close(mounted)


def test_files_go_with_their_pod_also_of_a_run_before_and_no_others(
    files: AssignedFiles, root: Path
) -> None:
    files.after({UID: pod("2-3"), "u-2": pod("4", uid="u-2"), "u-3": pod("5", uid="u-3")}, ALL)
    (root / "theirs/empty").mkdir(parents=True)
    (root / "u-4/main").mkdir(parents=True)
    (root / "u-4/main/notes").write_text("")
    left = {"u-3": pod("5", uid="u-3")}
    files.before({"u-2": pod("4", uid="u-2"), **left})
    assert not (root / UID).exists()
    AssignedFiles(root).after(left, ALL)
    assert sorted(path.name for path in root.iterdir()) == ["theirs", "u-3", "u-4"]
    assert files.conditions == ()


@pytest.mark.parametrize("left", ["main/core.1", "notes"])
def test_a_directory_in_which_a_container_left_a_file_is_removed_when_that_is_gone(
    files: AssignedFiles, root: Path, left: str
) -> None:
    files.after({UID: pod("2-3")}, ALL)
    (root / UID / left).write_text("")
    files.before({})
    for _ in range(2):
        files.after({}, ALL)
        (condition,) = files.conditions
        assert condition.startswith(f"assigned files: {root}/{UID} cannot be removed: ")
        assert (root / UID / left).exists()
    (root / UID / left).unlink()
    files.after({}, ALL)
    assert (files.conditions, list(root.iterdir())) == ((), [])


def test_a_link_is_not_followed_but_reported_until_it_is_gone(
    files: AssignedFiles, root: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    root.mkdir()
    (root / UID).symlink_to(elsewhere)
    files.after({UID: pod("2-3")}, ALL)
    assert list(elsewhere.iterdir()) == []
    (condition,) = files.conditions
    assert condition.startswith(f"assigned files: {root}/{UID}/main cannot be written: ")
    (root / UID).unlink()
    (root / UID / "main").mkdir(parents=True)
    (elsewhere / "file").write_text("kept")
    (root / UID / "main/assigned.cpuset").symlink_to(elsewhere / "file")
    files.after({UID: pod("2-3")}, ALL)
    assert (read(root), files.conditions) == (("2-3", ""), ())
    assert (elsewhere / "file").read_text() == "kept"


def test_a_directory_that_others_can_write_is_not_used(files: AssignedFiles, root: Path) -> None:
    root.mkdir()
    root.chmod(0o777)
    files.after({UID: pod("2-3")}, ALL)
    assert any("chmod go-w" in line for line in files.conditions)
    assert list(root.iterdir()) == []
