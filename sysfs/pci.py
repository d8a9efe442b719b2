"""PCI devices and where they are attached."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from sysfs.host import Device
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from sysfs.files import Tree

PCI_DIRECTORY: Final = "sys/bus/pci/devices"
KIND: Final = "pci"
#: Domain (4 hexadecimal digits, more behind an Intel VMD), bus, device, function.
ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)


def read_pci_devices(tree: Tree, online: Mask) -> tuple[Device, ...]:
    """Return every PCI device, by address; none where the tree has no PCI bus.

    The node is that of the first directory with a `numa_node`, from the device up; the CPUs are
    `local_cpulist` (or `local_cpus`), as far as online. Ids are shown as the kernel shows them
    (`0x8086`), "" where the file is absent.
    """
    return tuple(
        _device(tree, address, online)
        for address in tree.names(PCI_DIRECTORY)
        if ADDRESS.fullmatch(address)
    )


def read_node(tree: Tree, directory: str) -> int | None:
    """Return the node of the first directory with a `numa_node`, from this one up to `sys`.

    Links are followed to the device's own place first. None where the kernel says -1, where
    no ancestor has the file, or where the link leaves the tree.
    """
    place = tree.resolved(directory)
    while place and "/" in place:
        node = tree.find_integer(f"{place}/numa_node")
        if node is not None:
            return node if node >= 0 else None
        place = place.rpartition("/")[0]
    return None


def read_local_cpus(tree: Tree, directory: str, online: Mask) -> Mask:
    """Return the online CPUs near a device, by its `local_cpulist` or `local_cpus`."""
    local = tree.find_set((f"{directory}/local_cpulist",), (f"{directory}/local_cpus",))
    return (local or EMPTY) & online


def _device(tree: Tree, address: str, online: Mask) -> Device:
    directory = f"{PCI_DIRECTORY}/{address}"
    return Device(
        kind=KIND,
        name=address,
        address=address,
        node=read_node(tree, directory),
        cpus=read_local_cpus(tree, directory, online),
        vendor=tree.find(f"{directory}/vendor") or "",
        device=tree.find(f"{directory}/device") or "",
        device_class=tree.find(f"{directory}/class") or "",
    )
