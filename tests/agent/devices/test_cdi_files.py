"""The CDI files of pods follow the allocations, whatever the directory is like."""

from __future__ import annotations

import errno
import json
import os
import resource
import stat
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.devices.cdi import specification
from agent.devices.cdi_files import CdiFiles
from agent.managers.delivery import NOTHING, Delivery
from tests.agent.devices.pods import DELIVERY, UID, pod

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agent.managers.allocation import PodAllocation

POD = pod(main=DELIVERY)
NAME = f"numawarden-{UID}.json"
OTHER = pod("other", main=Delivery(environment={"A": "1"}))
EMPTY = pod("empty", main=NOTHING)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cdi"


@pytest.fixture
def files(directory: Path) -> CdiFiles:
    return CdiFiles(directory)


@pytest.fixture
def _narrow_umask() -> Iterator[None]:
    former = os.umask(0o077)  # as in the unit
    yield
    os.umask(former)


def _after(files: CdiFiles, step: str, *pods: PodAllocation) -> tuple[str, ...]:
    """Return the conditions after a step: `reconcile` with pods, or another with a single one."""
    if step == "reconcile":
        files.reconcile(pods)
    else:
        getattr(files, step)(*pods)
    return files.conditions


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.usefixtures("_narrow_umask")
def test_the_file_of_a_pod_can_be_read_by_all_users(files: CdiFiles, directory: Path) -> None:
    assert _after(files, "write", POD) == ()
    spec = specification(POD)
    assert spec is not None
    assert json.loads((directory / NAME).read_text())["cdiVersion"] == spec.cdi_version
    assert _names(directory) == [NAME]
    assert (_mode(directory), _mode(directory / NAME)) == (0o755, 0o644)


def test_the_file_goes_with_the_pod_and_no_other(files: CdiFiles, directory: Path) -> None:
    files.write(POD)
    files.write(OTHER)
    assert _after(files, "remove", POD) == ()
    assert _names(directory) == ["numawarden-other.json"]
    assert _after(files, "remove", POD) == ()


def test_a_pod_without_delivery_touches_nothing(files: CdiFiles, directory: Path) -> None:
    for step in ("write", "remove", "reconcile"):
        assert _after(files, step, EMPTY) == ()
    assert files.names(EMPTY) == {}
    assert not directory.exists()


def test_with_a_directory_each_container_has_its_name_and_without_one_none(files: CdiFiles) -> None:
    assert files.names(POD) == {"main": f"numawarden.dev/pod={UID}-main"}
    files = CdiFiles(None)
    assert files.names(POD) == {}
    for step in ("write", "reconcile", "remove"):
        assert _after(files, step, POD) == ()


def test_what_is_as_it_should_be_is_not_written_again(files: CdiFiles, directory: Path) -> None:
    files.reconcile([POD])
    before = (directory / NAME).stat()
    assert _after(files, "reconcile", POD) == ()
    after = (directory / NAME).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def _changed(path: Path) -> None:
    path.write_text(path.read_text().replace("EXAMPLE", "CHANGED"))


def _longer(path: Path) -> None:
    path.write_text(path.read_text() + " ")


def _linked(path: Path) -> None:
    target = path.with_name("target")
    path.rename(target)
    path.symlink_to(target)


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    "change", [Path.unlink, _changed, _longer, partial(Path.chmod, mode=0o600), _linked, _pipe]
)
def test_a_file_that_is_missing_or_differs_is_written_again(
    files: CdiFiles, directory: Path, change: Callable[[Path], None]
) -> None:
    files.write(POD)
    content = (directory / NAME).read_bytes()
    change(directory / NAME)
    assert _after(files, "reconcile", POD) == ()
    assert (directory / NAME).read_bytes() == content
    assert stat.S_ISREG((directory / NAME).lstat().st_mode)
    assert _mode(directory / NAME) == 0o644


def test_a_link_as_the_file_is_replaced(files: CdiFiles, directory: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    directory.mkdir(0o755)
    (directory / NAME).symlink_to(precious)
    (directory / f".{NAME}.new").symlink_to(precious)
    assert _after(files, "write", POD) == ()
    assert precious.read_text() == "precious"
    assert _names(directory) == [NAME]


def test_files_of_ours_without_a_pod_are_removed(files: CdiFiles, directory: Path) -> None:
    files.reconcile([POD, OTHER])
    (directory / f".{NAME}.new").write_text("half")
    (directory / "numawarden-other.json").chmod(0o600)
    assert _after(files, "reconcile") == ()
    assert _names(directory) == []


_OF_OTHERS = {
    "nvidia.yaml": "cdiVersion: 0.5.0",
    "numawarden-notes.json": "notes",
    "numawarden-.json": '{"kind":"numawarden.dev/pod"}',
    "numawarden-a..b.json": '{"kind":"numawarden.dev/pod"}',
    "numawarden-plugin.json": '{"kind":"vendor.com/device"}',
    "numawarden-list.json": "[]",
    "anumawarden-a.json": '{"kind":"numawarden.dev/pod"}',
    "numawarden-a.json.bak": '{"kind":"numawarden.dev/pod"}',
}


def test_files_of_others_stay(files: CdiFiles, directory: Path) -> None:
    directory.mkdir(0o755)
    for name, text in _OF_OTHERS.items():
        (directory / name).write_text(text)
    (directory / "numawarden-directory.json").mkdir()
    (directory / "numawarden-link.json").symlink_to(directory / "nvidia.yaml")
    expected = sorted([*_OF_OTHERS, "numawarden-directory.json", "numawarden-link.json"])
    assert _after(files, "reconcile", POD) == ()
    assert _after(files, "reconcile") == ()
    assert _names(directory) == expected


def test_the_file_of_another_user_stays(
    files: CdiFiles, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write(POD)
    own = os.geteuid()
    directory.chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    monkeypatch.setattr("agent.files.risk_of", lambda *_: None)
    monkeypatch.setattr("agent.files.risk_above", lambda *_: None)
    files.reconcile([])
    assert _names(directory) == [NAME]


def test_a_link_as_directory_is_rejected(files: CdiFiles, directory: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(0o755)
    directory.symlink_to(tmp_path / "elsewhere")
    (line,) = _after(files, "write", POD)
    assert str(directory) in line
    assert _names(tmp_path / "elsewhere") == []


@pytest.mark.parametrize("mode", [0o775, 0o757])
@pytest.mark.parametrize("place", [".", ".."])
def test_a_directory_open_to_others_is_rejected(directory: Path, mode: int, place: str) -> None:
    below = directory / "above" / "cdi"
    below.mkdir(0o755, parents=True)
    open_to_all = (below / place).resolve()
    open_to_all.chmod(mode)
    (line,) = _after(CdiFiles(below), "write", POD)
    assert f"chmod go-w {open_to_all}" in line
    assert _names(below) == []
    assert _mode(open_to_all) == mode


def test_a_directory_that_cannot_be_created_is_a_condition_with_a_remedy(tmp_path: Path) -> None:
    files = CdiFiles(tmp_path / "missing" / "cdi")
    for step in ("write", "reconcile"):
        (line,) = _after(files, step, POD)
        assert "No such file or directory" in line
        assert "systemd-tmpfiles --create numawarden.conf" in line
    assert _after(files, "remove", POD) == ()


def test_a_file_as_the_directory_is_said_where_it_matters(files: CdiFiles, directory: Path) -> None:
    directory.write_text("")
    (line,) = _after(files, "reconcile", POD)
    assert "Not a directory" in line
    assert len(_after(files, "remove", POD)) == 1
    assert _after(files, "reconcile", EMPTY) == ()


def test_a_directory_in_place_of_a_file_is_a_condition(files: CdiFiles, directory: Path) -> None:
    files.write(OTHER)
    (directory / NAME).mkdir()
    (line,) = _after(files, "reconcile", POD, OTHER)
    assert line == f"the CDI file {directory}/{NAME} cannot be written: Is a directory"
    (line,) = _after(files, "remove", POD)
    assert line.startswith(f"the CDI file {directory}/{NAME} cannot be removed: ")
    assert _names(directory) == sorted([NAME, "numawarden-other.json"])


@pytest.mark.parametrize("step", ["write", "remove", "reconcile"])
def test_a_condition_of_a_pod_stays_until_its_file_is_well(
    files: CdiFiles, directory: Path, step: str
) -> None:
    directory.mkdir(0o755)
    (directory / NAME).mkdir()
    (line,) = _after(files, "write", POD)
    assert _after(files, "write", OTHER) == _after(files, "remove", OTHER) == (line,)
    (directory / NAME).rmdir()
    assert _after(files, step, POD) == ()


@pytest.mark.parametrize("call", ["open", "fchmod", "rename", "unlink", "listdir", "mkdir"])
@given(st.lists(st.sampled_from(["write", "remove", "reconcile"]), min_size=1, max_size=4))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
def test_a_full_disk_ends_nothing_and_is_repaired_later(
    tmp_path_factory: pytest.TempPathFactory, call: str, steps: list[str]
) -> None:
    directory = tmp_path_factory.mktemp("full") / "cdi"
    files = CdiFiles(directory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, call, _full)
        for step in steps:
            found = _after(files, step, POD)
            assert all(os.strerror(errno.ENOSPC) in line for line in found)
    assert _after(files, "reconcile", POD) == ()
    assert _names(directory) == [NAME]


def _full(*_args: object, **_named: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_disk_that_takes_no_more_leaves_the_former_file(files: CdiFiles, directory: Path) -> None:
    files.write(POD)
    before = (directory / NAME).read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, limits[1]))
    try:
        found = _after(files, "write", pod(main=Delivery(environment={"A": "2"})))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert found == (f"the CDI file {directory}/{NAME} cannot be written: File too large",)
    assert _names(directory) == [NAME]
    assert (directory / NAME).read_bytes() == before


def test_what_is_not_a_file_is_closed_again(files: CdiFiles, directory: Path) -> None:
    files.write(OTHER)
    (directory / NAME).mkdir()
    (directory / "numawarden-pipe.json").mkdir()
    before = len(_names(Path("/proc/self/fd")))
    files.reconcile([POD])
    files.reconcile([OTHER])
    assert len(_names(Path("/proc/self/fd"))) == before


@pytest.mark.parametrize(
    "allocation",
    [
        pod("../../etc/passwd", main=DELIVERY),
        pod("a/b", main=DELIVERY),
        pod("", main=DELIVERY),
        pod(UID, main=Delivery(environment={"A": "a\ud800"})),
        pod(UID, **{"a b": DELIVERY}),
    ],
)
def test_a_pod_that_cannot_have_a_file_is_a_condition_and_costs_no_other_its_file(
    files: CdiFiles, directory: Path, allocation: PodAllocation
) -> None:
    (line,) = _after(files, "reconcile", allocation, OTHER)
    assert line.startswith("no CDI file is written for shop/web: ")
    assert line.isprintable()
    assert _names(directory) == ["numawarden-other.json"]
    assert _after(files, "write", allocation) == (line,)
    assert _after(files, "remove", allocation) == ()
    assert _names(directory.parent) == ["cdi"]
