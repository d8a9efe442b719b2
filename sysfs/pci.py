"""PCI devices and where they are attached."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from sysfs.errors import MalformedFile, UnreadableFile
from sysfs.host import Device
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from sysfs.files import SysfsTree

PCI_DIRECTORY: Final = "sys/bus/pci/devices"
KIND: Final = "pci"
#: Domain (4 hexadecimal digits, more behind an Intel VMD), bus, device, function.
ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
#: Ids have 4 hexadecimal digits, classes 6.
_NUMBER: Final = re.compile(r"0x[0-9a-f]{1,8}", re.ASCII)


def read_pci_devices(tree: SysfsTree, online: Mask) -> tuple[Device, ...]:
    """Return every PCI device, by address; none where the tree has no PCI bus.

    The node is that of the first directory with a `numa_node`, from the device up; the CPUs are
    `local_cpulist` (or `local_cpus`), as far as online. Ids are shown as the kernel shows them
    (`0x8086`), "" where the file is absent. What is odd of a device costs that fact of it.
    """
    names = tree.optional(lambda: tree.names(PCI_DIRECTORY), [], "no PCI devices are known")
    return tuple(_device(tree, address, online) for address in names if ADDRESS.fullmatch(address))


def read_node(tree: SysfsTree, directory: str) -> int | None:
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


def read_local_cpus(tree: SysfsTree, directory: str, online: Mask) -> Mask:
    """Return the online CPUs near a device, by its `local_cpulist` or `local_cpus`."""
    lists, maps = (f"{directory}/local_cpulist",), (f"{directory}/local_cpus",)
    local = tree.optional(
        lambda: tree.find_set(lists, maps), None, "no CPUs near the device are known"
    )
    return (local or EMPTY) & online


def _device(tree: SysfsTree, address: str, online: Mask) -> Device:
    directory = f"{PCI_DIRECTORY}/{address}"
    return Device(
        kind=KIND,
        name=address,
        address=address,
        node=read_node(tree, directory),
        cpus=read_local_cpus(tree, directory, online),
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
