from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from sysfs.described import regular_host, write_tree
from sysfs.discover import discover
from sysfs.host import Device, Host
from sysfs.mask import Mask
from tests.sysfs.hosts import hosts


@settings(max_examples=40, deadline=None)
@given(host=hosts())
def test_discovery_reads_back_every_host_that_was_written(host: Host) -> None:
    with tempfile.TemporaryDirectory() as root:
        assert discover(write_tree(host, Path(root))) == host


def test_a_root_that_has_a_tree_is_left_alone(tmp_path: Path) -> None:
    write_tree(regular_host(packages=1), tmp_path)
    with pytest.raises(FileExistsError):
        write_tree(regular_host(packages=2), tmp_path)
    assert len(discover(tmp_path).nodes) == 1


def test_memory_of_broken_kib_has_no_place_in_a_tree(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="whole KiB"):
        write_tree(regular_host(memory_bytes=1000), tmp_path)


def test_a_device_of_an_unknown_kind_has_no_place_in_a_tree(tmp_path: Path) -> None:
    device = Device(kind="usb", name="1-1", address="", node=None, cpus=Mask())
    with pytest.raises(ValueError, match="'usb'"):
        write_tree(replace(regular_host(), devices=(device,)), tmp_path)


def test_meminfo_holds_the_memory_of_all_nodes(tmp_path: Path) -> None:
    write_tree(regular_host(packages=2, memory_bytes=3 << 30), tmp_path)
    assert (tmp_path / "proc/meminfo").read_text().split() == ["MemTotal:", str(6 << 20), "kB"]
