"""PCI devices and network interfaces, and where they are attached.

Interfaces are those of netlink and of `sys/class/net`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from sysfs.files import MalformedFile, UnreadableFile
from sysfs.host import Device
from sysfs.links import NET_DIRECTORY, read_live_links
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sysfs.files import SysfsTree

PCI_DIRECTORY: Final = "sys/bus/pci/devices"
PCI_KIND: Final = "pci"
#: Domain (4 hexadecimal digits, more behind an Intel VMD), bus, device, function.
ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
#: Ids have 4 hexadecimal digits, classes 6.
_NUMBER: Final = re.compile(r"0x[0-9a-f]{1,8}", re.ASCII)


def read_devices(tree: SysfsTree, online: Mask, *, live: bool = False) -> tuple[Device, ...]:
    """Return the PCI devices and the network interfaces of a tree; `live` asks netlink as well."""
    links = read_live_links() if live else ()
    known = [(link.name, link.address) for link in links]
    return read_pci_devices(tree, online) + read_interfaces(tree, online, known)


def read_pci_devices(tree: SysfsTree, online: Mask) -> tuple[Device, ...]:
    """Return every PCI device, by address; none where the tree has no PCI bus.

    The node is that of the first directory with a `numa_node`, from the device up; the CPUs are
    `local_cpulist` (or `local_cpus`), as far as online. Ids are shown as the kernel shows them
    (`0x8086`), "" where the file is absent. What is odd of a device costs that fact of it.
    """
    names = tree.optional(lambda: tree.names(PCI_DIRECTORY), [], "no PCI devices are known")
    return tuple(_device(tree, address, online) for address in names if ADDRESS.fullmatch(address))


def _read_node(tree: SysfsTree, directory: str) -> int | None:
    """Return the node of the first directory with a `numa_node`, from this one up to `sys`.

    Links are followed to the device's own place first. None where the kernel says -1, where
    no ancestor has the file, where it is odd, or where the link leaves the tree.
    """
    return tree.optional(lambda: _find_node(tree, directory), None, "the device has no known node")


def _find_node(tree: SysfsTree, directory: str) -> int | None:
    place = tree.resolved(directory)
    if place is None:
        raise UnreadableFile(tree.path(directory), "it leads out of the tree")
    while "/" in place:
        node = tree.find_integer(f"{place}/numa_node")
        if node is not None:
            return node if node >= 0 else None
        place = place.rpartition("/")[0]
    return None


def _read_local_cpus(tree: SysfsTree, directory: str, online: Mask) -> Mask:
    """Return the online CPUs near a device, by its `local_cpulist` or `local_cpus`."""
    lists, maps = (f"{directory}/local_cpulist",), (f"{directory}/local_cpus",)
    local = tree.optional(
        lambda: tree.find_set(lists, maps), None, "no CPUs near the device are known"
    )
    return (local or EMPTY) & online


def _device(tree: SysfsTree, address: str, online: Mask) -> Device:
    directory = f"{PCI_DIRECTORY}/{address}"
    return Device(
        kind=PCI_KIND,
        name=address,
        address=address,
        node=_read_node(tree, directory),
        cpus=_read_local_cpus(tree, directory, online),
        vendor=_number(tree, f"{directory}/vendor"),
        device=_number(tree, f"{directory}/device"),
        device_class=_number(tree, f"{directory}/class"),
    )


def _number(tree: SysfsTree, name: str) -> str:
    def read() -> str:
        text = tree.find(name)
        if text and not _NUMBER.fullmatch(text):
            raise MalformedFile(tree.path(name), text, "a number such as 0x8086")
        return text or ""

    return tree.optional(read, "", "it is left out of the device")


NET_KIND: Final = "net"
#: IFNAMSIZ without the final NUL.
_LONGEST_NAME: Final = 15
_VIRTUAL: Final = "sys/devices/virtual/"


def read_interfaces(
    tree: SysfsTree, online: Mask, links: Iterable[tuple[str, str]] = ()
) -> tuple[Device, ...]:
    """Return every network interface that a device is behind, by name.

    `links` are interfaces that are already known, as (name, PCI address or ""), such as
    netlink's; all others come from `sys/class/net`. Interfaces without a device (loopback,
    bridges, bonds, veth, tun) are left out: they are at no place, and they come and go with
    containers.
    """
    known = dict(links)
    listed = tree.optional(lambda: tree.names(NET_DIRECTORY), [], "no interfaces are known by it")
    names = sorted({*known, *filter(_can_be_a_name, listed)})
    found = (_interface(tree, name, known.get(name, ""), online) for name in names)
    return tuple(device for device in found if device is not None)


def _can_be_a_name(name: str) -> bool:
    return name.isprintable() and len(name.encode()) <= _LONGEST_NAME


def _interface(tree: SysfsTree, name: str, address: str, online: Mask) -> Device | None:
    place = tree.optional(lambda: _place(tree, name), "", "the interface has no known place")
    address = address or _pci_address(place)
    if address:
        directory = f"{PCI_DIRECTORY}/{address}"
        node = _read_node(tree, directory)
        return Device(NET_KIND, name, address, node, _read_local_cpus(tree, directory, online))
    if not place:
        return None
    return Device(NET_KIND, name, "", _read_node(tree, place), EMPTY)


def _place(tree: SysfsTree, name: str) -> str:
    """Return the directory of the device behind an interface, "" where there is none."""
    directory = f"{NET_DIRECTORY}/{name}"
    if tree.is_directory(f"{directory}/device"):
        return tree.resolved(f"{directory}/device") or ""
    own = tree.resolved(directory) or ""
    return "" if own == directory or own.startswith(_VIRTUAL) else own


def _pci_address(place: str) -> str:
    parts = (part for part in reversed(place.split("/")) if ADDRESS.fullmatch(part))
    return next(parts, "")
