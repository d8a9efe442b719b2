from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from sysfs.devices import PCI_DIRECTORY, read_interfaces, read_pci_devices
from sysfs.files import SysfsTree
from sysfs.host import Device
from sysfs.links import NET_DIRECTORY
from sysfs.mask import Mask
from tests.sysfs.trees import lay_out

if TYPE_CHECKING:
    from pathlib import Path

ONLINE = Mask.parse("0-7")
BRIDGE = "sys/devices/pci0000:40/0000:40:01.0"


def _link(root: Path, address: str, place: str) -> None:
    link = root / PCI_DIRECTORY / address
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(f"../../../../{place}")


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_the_first_ancestor_with_a_numa_node_decides(tmp_path: Path, levels: int) -> None:
    parts = ["sys/devices/pci0000:40", "0000:40:01.0", "0000:41:00.0", "0000:42:00.0"]
    place = "/".join(parts)
    lay_out(tmp_path, {f"{place}/class": "0x020000", "sys/devices/numa_node": "9"})
    lay_out(tmp_path, {f"{'/'.join(parts[:-levels])}/numa_node": "3"})
    _link(tmp_path, "0000:42:00.0", place)
    (device,) = read_pci_devices(SysfsTree(tmp_path), ONLINE)
    assert device.node == 3


def test_a_device_that_the_kernel_gives_no_node_has_none(tmp_path: Path) -> None:
    lay_out(tmp_path, {f"{BRIDGE}/numa_node": "-1", "sys/devices/pci0000:40/numa_node": "2"})
    _link(tmp_path, "0000:40:01.0", BRIDGE)
    (device,) = read_pci_devices(SysfsTree(tmp_path), ONLINE)
    assert device.node is None


def test_any_directory_of_an_address_is_a_device_and_others_are_none(tmp_path: Path) -> None:
    for name in ("0000:00:00.0", "10000:e1:00.0", "README", "0000:00:00.9"):
        (tmp_path / PCI_DIRECTORY / name).mkdir(parents=True)
    lay_out(tmp_path, {f"{PCI_DIRECTORY}/0000:00:00.0/local_cpus": "00000000,00000ff0"})
    devices = read_pci_devices(SysfsTree(tmp_path), ONLINE)
    assert [(device.name, device.node, device.vendor, str(device.cpus)) for device in devices] == [
        ("0000:00:00.0", None, "", "4-7"),
        ("10000:e1:00.0", None, "", ""),
    ]


def test_a_link_in_a_circle_is_a_device_of_which_nothing_is_known(tmp_path: Path) -> None:
    _link(tmp_path, "0000:00:00.0", f"{PCI_DIRECTORY}/0000:00:00.0")
    lay_out(tmp_path, {f"{PCI_DIRECTORY}/0000:00:01.0/numa_node": "1"})
    tree = SysfsTree(tmp_path)
    circle, other = read_pci_devices(tree, ONLINE)
    assert circle == Device("pci", "0000:00:00.0", "0000:00:00.0", None)
    assert other.node == 1
    assert all("0000:00:00.0" in warning for warning in tree.warnings)


@pytest.mark.parametrize("text", ["root:x:0:0", "0x8086\n0x1", "8086", "0x" + "1" * 99])
def test_an_id_that_is_none_is_left_out_with_a_warning(tmp_path: Path, text: str) -> None:
    lay_out(tmp_path, {f"{PCI_DIRECTORY}/0000:00:00.0/vendor": text})
    tree = SysfsTree(tmp_path)
    (device,) = read_pci_devices(tree, ONLINE)
    assert device.vendor == ""
    assert "vendor: found" in tree.warnings[0]


NIC = "sys/devices/pci0000:40/0000:41:00.0"


def _interface(root: Path, name: str, place: str) -> None:
    (root / place).mkdir(parents=True, exist_ok=True)
    (root / NET_DIRECTORY).mkdir(parents=True, exist_ok=True)
    (root / NET_DIRECTORY / name).symlink_to(f"../../../{place}")


#: Where an interface stands, whether it links to its device, and the device that it is.
INTERFACES: Final = {
    "behind its PCI device": (f"{NIC}/net/x", "../..", ("0000:41:00.0", 1, "4-7")),
    "behind a bus of its PCI device": (f"{NIC}/virtio2/net/x", "../..", ("0000:41:00.0", 1, "4-7")),
    "without a link": (f"{NIC}/net/x", "", ("0000:41:00.0", 1, "4-7")),
    "on another bus": ("sys/devices/platform/soc/net/x", "", ("", 1, "")),
    "virtual": ("sys/devices/virtual/net/x", "", None),
}


def _nic(root: Path) -> None:
    lay_out(root, {f"{NIC}/numa_node": "1", f"{NIC}/local_cpulist": "4-7"})
    lay_out(root, {"sys/devices/platform/soc/numa_node": "1"})
    _link(root, "0000:41:00.0", NIC)


@pytest.mark.parametrize("case", INTERFACES)
def test_an_interface_is_where_its_device_is(tmp_path: Path, case: str) -> None:
    place, link, expected = INTERFACES[case]
    _nic(tmp_path)
    for name in ("x", "e" * 16, "\udcff", "a\nb"):  # the others are no names of interfaces
        _interface(tmp_path, name, place)
    lay_out(tmp_path, {f"{NET_DIRECTORY}/bonding_masters": ""})
    if link:
        (tmp_path / place / "device").symlink_to(link)
    found = read_interfaces(SysfsTree(tmp_path), ONLINE)
    assert [(d.name, d.address, d.node, str(d.cpus)) for d in found] == (
        [("x", *expected)] if expected else []
    )


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
