from __future__ import annotations

import errno
import io
import os
import socket
import stat
import subprocess
import tarfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sysfs.capture import capture
from sysfs.described import regular_host, write_tree
from sysfs.discover import discover
from sysfs.files import UnreadableFile
from tests.sysfs.machines import Machine, machines
from tests.sysfs.trees import lay_out

if TYPE_CHECKING:
    from collections.abc import Callable


def _unpacked(file: Path, directory: Path) -> Path:
    directory.mkdir()
    subprocess.run(["tar", "-xzf", file, "-C", directory], check=True)
    return directory


#: The larger ones are laid out as these are, and take most of the time.
SMALL_MACHINES = [machine for machine in machines() if machine.counts["cpus"] <= 16]


@pytest.mark.shared
@pytest.mark.parametrize("machine", SMALL_MACHINES, ids=lambda machine: machine.name)
def test_a_capture_of_a_captured_machine_shows_the_same_host(
    machine: Machine, machine_root: Callable[[Machine], Path], tmp_path: Path
) -> None:
    root = machine_root(machine)
    capture(root, tmp_path / "host.tar.gz")
    assert discover(_unpacked(tmp_path / "host.tar.gz", tmp_path / "again")) == discover(root)


def test_the_same_host_gives_the_same_bytes_at_any_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(regular_host(), tmp_path / "one")
    write_tree(regular_host(), tmp_path / "two")
    one, two = tmp_path / "1.tar.gz", tmp_path / "2.tar.gz"
    assert capture(tmp_path / "one", one).files > 50
    monkeypatch.setattr("time.time", lambda: 1e9)
    capture(tmp_path / "two", two)
    assert one.read_bytes() == two.read_bytes()


def test_nothing_that_changes_or_names_its_owner_is_kept(tmp_path: Path) -> None:
    root = write_tree(regular_host(), tmp_path / "host")
    nic = "sys/devices/pci0000:00/0000:00:01.0"
    lay_out(
        root,
        {
            "proc/meminfo": "MemTotal: 8 kB\nMemFree: 4711 kB\n",
            "sys/devices/system/cpu/cpu0/topology/ppin": "0x3840d4deda78bbf2",
            f"{nic}/net/enx0013ef601a2b/address": "00:13:ef:60:1a:2b",
            f"{nic}/net/enx0013ef601a2c/address": "00:13:ef:60:1a:2c",
            f"{nic}/vpd": "serial number 4711",
        },
    )
    (root / "sys/class/net").mkdir(parents=True)
    for name in ("enx0013ef601a2b", "enx0013ef601a2c"):
        (root / f"sys/class/net/{name}").symlink_to(
            f"../../devices/pci0000:00/0000:00:01.0/net/{name}"
        )
    (root / "sys/bus/pci/devices").mkdir(parents=True)
    (root / "sys/bus/pci/devices/0000:00:01.0").symlink_to(
        "../../../devices/pci0000:00/0000:00:01.0"
    )
    capture(root, tmp_path / "host.tar.gz")
    again = _unpacked(tmp_path / "host.tar.gz", tmp_path / "again")
    content = b"".join(path.read_bytes() for path in again.rglob("*") if path.is_file())
    names = " ".join(str(path) for path in again.rglob("*"))
    for private in ("4711", "3840d4", "13ef601a2b", "13:ef"):
        assert private.encode() not in content
        assert private not in names
    assert [device.name for device in discover(again).devices if device.kind == "net"] == [
        "enx0",
        "enx1",
    ]


@pytest.mark.parametrize("place", ["sys/devices/system/cpu/cpu1/topology/core_id", "sys/devices"])
def test_what_leads_out_of_the_tree_is_not_handed_on(tmp_path: Path, place: str) -> None:
    root = write_tree(regular_host(), tmp_path / "host")
    outside = tmp_path / "outside"
    (root / place).rename(outside)
    (root / place).symlink_to(outside)
    if place == "sys/devices":
        with pytest.raises(UnreadableFile, match="it leads out of the tree"):
            capture(root, tmp_path / "host.tar.gz")
        assert not (tmp_path / "host.tar.gz").exists()
        return
    captured = capture(root, tmp_path / "host.tar.gz")
    (warning,) = captured.warnings
    assert warning.startswith(f"{root / place}: it cannot be read (it leads out of the tree)")
    with tarfile.open(tmp_path / "host.tar.gz") as archive:
        assert place not in archive.getnames()


def test_a_full_disk_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    root = write_tree(regular_host(), tmp_path / "host")
    file = tmp_path / "out" / "host.tar.gz"
    file.parent.mkdir()
    file.write_text("old")
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        capture(root, file)
    assert [path.name for path in file.parent.iterdir()] == ["host.tar.gz"]
    assert file.read_text() == "old"


def test_the_file_and_its_name_are_on_the_disk_before_it_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, file = write_tree(regular_host(), tmp_path / "host"), tmp_path / "host.tar.gz"
    synced: list[tuple[bool, bool]] = []

    def note(fd: int) -> None:
        synced.append((stat.S_ISDIR(os.fstat(fd).st_mode), file.exists()))

    monkeypatch.setattr("os.fsync", note)
    capture(root, file)
    assert synced == [(False, False), (True, True)]


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def _link_to_an_archive(path: Path) -> None:
    path.with_suffix(".old").write_text("old")
    path.symlink_to(path.with_suffix(".old"))


@pytest.mark.parametrize(
    "make",
    [
        _pipe,
        _socket,
        Path.mkdir,
        _link_to_an_archive,
        partial(Path.symlink_to, target="/proc/self/fd/1"),
        partial(Path.symlink_to, target="/dev/null"),
        partial(Path.symlink_to, target="nowhere"),
    ],
)
def test_only_a_regular_file_is_replaced(tmp_path: Path, make: Callable[[Path], object]) -> None:
    root, file = write_tree(regular_host(), tmp_path / "host"), tmp_path / "out"
    make(file)
    before = file.lstat()
    with pytest.raises(OSError, match="name another file, or - to pipe it") as caught:
        capture(root, file)
    assert caught.value.filename == str(file)
    assert os.path.samestat(file.lstat(), before)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".out")]


def test_a_device_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_tree(regular_host(), tmp_path / "host")
    monkeypatch.setattr(Path, "replace", lambda *_: pytest.fail("a device was replaced"))
    with pytest.raises(OSError, match="not a regular file"):
        capture(root, Path("/dev/null"))


def test_a_file_that_became_a_link_meanwhile_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, file = write_tree(regular_host(), tmp_path / "host"), tmp_path / "out"
    monkeypatch.setattr("os.fsync", lambda _: file.symlink_to("/dev/null"))
    with pytest.raises(OSError, match="it is a link"):
        capture(root, file)
    assert file.is_symlink()


def test_a_stream_gets_the_archive(tmp_path: Path) -> None:
    root, stream = write_tree(regular_host(), tmp_path / "host"), io.BytesIO()
    capture(root, stream)
    capture(root, tmp_path / "file")
    assert stream.getvalue() == (tmp_path / "file").read_bytes()
