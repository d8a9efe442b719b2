from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sysfs.files import SysfsTree
from sysfs.host import Device
from sysfs.mask import EMPTY, Mask
from sysfs.net import NET_DIRECTORY, read_interfaces
from sysfs.pci import PCI_DIRECTORY
from tests.sysfs.trees import lay_out

if TYPE_CHECKING:
    from pathlib import Path

ONLINE = Mask.parse("0-7")
NIC = "sys/devices/pci0000:40/0000:41:00.0"


def _nic(root: Path) -> None:
    lay_out(root, {f"{NIC}/numa_node": "1", f"{NIC}/local_cpulist": "4-7"})
    (root / PCI_DIRECTORY).mkdir(parents=True)
    (root / PCI_DIRECTORY / "0000:41:00.0").symlink_to(f"../../../../{NIC}")
    (root / NET_DIRECTORY).mkdir(parents=True)


def _interface(root: Path, name: str, place: str) -> None:
    (root / place).mkdir(parents=True, exist_ok=True)
    (root / NET_DIRECTORY).mkdir(parents=True, exist_ok=True)
    (root / NET_DIRECTORY / name).symlink_to(f"../../../{place}")


def test_an_interface_is_where_its_pci_device_is(tmp_path: Path) -> None:
    _nic(tmp_path)
    _interface(tmp_path, "eth0", f"{NIC}/net/eth0")
    (tmp_path / NIC / "net/eth0/device").symlink_to("../..")
    assert read_interfaces(SysfsTree(tmp_path), ONLINE) == (
        Device("net", "eth0", "0000:41:00.0", 1, Mask.parse("4-7")),
    )


def test_a_bus_between_interface_and_pci_device_does_not_matter(tmp_path: Path) -> None:
    _nic(tmp_path)
    _interface(tmp_path, "eth0", f"{NIC}/virtio2/net/eth0")
    (tmp_path / NIC / "virtio2/net/eth0/device").symlink_to("../..")
    (device,) = read_interfaces(SysfsTree(tmp_path), ONLINE)
    assert (device.address, device.node) == ("0000:41:00.0", 1)


def test_an_interface_without_a_device_link_is_placed_by_its_own(tmp_path: Path) -> None:
    _nic(tmp_path)
    _interface(tmp_path, "ib0", f"{NIC}/net/ib0")
    (device,) = read_interfaces(SysfsTree(tmp_path), ONLINE)
    assert (device.address, device.node) == ("0000:41:00.0", 1)


def test_an_interface_of_another_bus_has_its_ancestors_node_and_no_address(tmp_path: Path) -> None:
    _interface(tmp_path, "eth0", "sys/devices/platform/soc/net/eth0")
    lay_out(tmp_path, {"sys/devices/platform/soc/numa_node": "1"})
    assert read_interfaces(SysfsTree(tmp_path), ONLINE) == (Device("net", "eth0", "", 1, EMPTY),)


def test_interfaces_without_a_device_are_left_out(tmp_path: Path) -> None:
    _interface(tmp_path, "lo", "sys/devices/virtual/net/lo")
    _interface(tmp_path, "veth1", "sys/devices/virtual/net/veth1")
    lay_out(tmp_path, {f"{NET_DIRECTORY}/bonding_masters": ""})
    assert read_interfaces(SysfsTree(tmp_path), ONLINE) == ()


@pytest.mark.parametrize("name", ["e" * 16, "\udcff", "a\nb"])
def test_what_no_interface_can_be_called_is_not_an_interface(tmp_path: Path, name: str) -> None:
    _interface(tmp_path, name, "sys/devices/platform/x")
    assert read_interfaces(SysfsTree(tmp_path), ONLINE) == ()


def test_what_netlink_knows_comes_first_and_sysfs_adds_the_rest(tmp_path: Path) -> None:
    _nic(tmp_path)
    _interface(tmp_path, "eth1", f"{NIC}/net/eth1")
    _interface(tmp_path, "lo", "sys/devices/virtual/net/lo")
    links = [("eth0", "0000:41:00.0"), ("lo", ""), ("eth1", "")]
    devices = read_interfaces(SysfsTree(tmp_path), ONLINE, links)
    assert [(device.name, device.address, device.node) for device in devices] == [
        ("eth0", "0000:41:00.0", 1),
        ("eth1", "0000:41:00.0", 1),
    ]
