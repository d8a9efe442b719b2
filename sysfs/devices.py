"""PCI devices and network interfaces, and where they are attached.

Interfaces are those of netlink and of `sys/class/net`. `read_functions` returns what drivers make
of the devices: interfaces, virtual functions, nodes in `/dev`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from sysfs.files import MalformedFile, UnreadableFile
from sysfs.host import Device
from sysfs.links import NET_DIRECTORY, read_links, read_live_links
from sysfs.mask import EMPTY, Mask
from sysfs.nodes import NODE_DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from sysfs.files import SysfsTree
    from sysfs.links import Link


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


BLOCK_DIRECTORY: Final = "sys/class/block"
GENERIC_DIRECTORY: Final = "sys/class/nvme-generic"
#: What the kernel calls the IOMMU group of a device that no IOMMU isolates.
NO_IOMMU: Final = "vfio-noiommu"
#: Directories of a PCI device with an entry for each node in `/dev`; of NVMe the controller.
_NODE_DIRECTORIES: Final = (
    "nvme",
    "accel",
    "drm",
    "uio",
    "infiniband_verbs",
    "infiniband_mad",
    "ptp",
)
_NVME: Final = "nvme"
_VERBS: Final = "infiniband_verbs"
#: The node through which all RDMA devices make connections, and that of IOMMUFD.
_RDMA_CM: Final = "sys/class/misc/rdma_cm"
_IOMMU: Final = "sys/class/misc/iommu"
_ENTRY: Final = re.compile(r"[A-Za-z0-9_][-A-Za-z0-9_.:]{0,63}", re.ASCII)
_GROUP: Final = re.compile(r"[0-9]{1,9}", re.ASCII)
_NUMBERED: Final = re.compile(r"virtfn([0-9]{1,5})", re.ASCII)
#: A namespace as the controller has it; behind one of several paths with the path's number.
_NAMESPACE: Final = re.compile(r"nvme([0-9]{1,6})(c[0-9]{1,6})?(n[0-9]{1,6})", re.ASCII)
_GENERIC: Final = re.compile(r"ng[0-9]{1,6}n[0-9]{1,6}", re.ASCII)
#: The path of a device node below `/dev` as `DEVNAME` of a `uevent` file says it.
_NODE_NAME: Final = re.compile(r"[A-Za-z0-9_][-A-Za-z0-9_.:]*(?:/[A-Za-z0-9_][-A-Za-z0-9_.:]*)*")
_LONGEST_NODE_NAME: Final = 64
_WITHOUT: Final = "it is left out of the device"


class DeviceFunction(Struct, frozen=True):
    """A PCI function, or an interface that is behind none, and what its driver makes of it.

    `place` says where the device is, what it is, and its NUMA node. `driver` is "" where none is
    bound. `iommu_group` is None where the kernel has none for it; `isolated` is False where that
    group is one of `vfio` without an IOMMU. `physical_function` is the PCI address of the device
    whose virtual function this is, "" of all others. `virtual_functions` are the addresses of its
    own, by their number. `interfaces` are those in this network namespace, by name. `nodes` are
    paths in `/dev`: controllers and namespaces of NVMe, nodes of accelerators, graphics, `uio`,
    RDMA and PTP; `vfio_nodes` are those of vfio's character device and of IOMMUFD. `state` is that
    of an NVMe controller (`live`, `dead`), "" of all others.
    """

    place: Device
    driver: str = ""
    iommu_group: int | None = None
    isolated: bool = True
    physical_function: str = ""
    virtual_functions: Mapping[int, str] = MappingProxyType({})
    interfaces: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    vfio_nodes: tuple[str, ...] = ()
    state: str = ""

    @property
    def id(self) -> str:
        """The PCI address, or the name of an interface that is behind no PCI device."""
        return self.place.address or self.place.name


class Functions(Struct, frozen=True):
    """The devices of a host by id, and the links of their interfaces by name."""

    functions: Mapping[str, DeviceFunction]
    links: Mapping[str, Link]


def read_functions(tree: SysfsTree, live: Iterable[Link] = ()) -> Functions:
    """Return all PCI functions by address, then all interfaces that are behind none, by name.

    `live` are netlink's links where the tree is that of this host. What is odd of a device costs
    that fact and a warning of the tree, never an error. A NUMA node that the tree does not have
    counts as none.
    """
    known = tuple(live)
    interfaces = read_interfaces(tree, EMPTY, [(link.name, link.address) for link in known])
    named = defaultdict(list)
    for interface in interfaces:
        named[interface.address].append(interface.name)
    found = [
        _function(tree, device, tuple(named[device.address]))
        for device in read_pci_devices(tree, EMPTY)
    ]
    found += [_bare_interface(tree, interface) for interface in interfaces if not interface.address]
    names = [name for function in found for name in function.interfaces]
    return Functions(
        MappingProxyType({function.id: function for function in found}),
        MappingProxyType(read_links(tree, names, known)),
    )


def _function(tree: SysfsTree, device: Device, interfaces: tuple[str, ...]) -> DeviceFunction:
    directory = f"{PCI_DIRECTORY}/{device.address}"
    group = _read_name(tree, f"{directory}/iommu_group", _GROUP)
    isolation = tree.optional(lambda: tree.find(f"{directory}/iommu_group/name"), "", _WITHOUT)
    return DeviceFunction(
        place=_on_known_node(tree, device),
        driver=_read_name(tree, f"{directory}/driver", _ENTRY),
        iommu_group=int(group) if group else None,
        isolated=isolation != NO_IOMMU,
        physical_function=_read_name(tree, f"{directory}/physfn", ADDRESS),
        virtual_functions=MappingProxyType(_virtual_functions(tree, directory)),
        interfaces=interfaces,
        nodes=tuple(_device_nodes(tree, directory)),
        vfio_nodes=_vfio_nodes(tree, directory),
        state=_controller_state(tree, directory),
    )


def _bare_interface(tree: SysfsTree, device: Device) -> DeviceFunction:
    driver = _read_name(tree, f"{NET_DIRECTORY}/{device.name}/device/driver", _ENTRY)
    return DeviceFunction(_on_known_node(tree, device), driver, interfaces=(device.name,))


def _on_known_node(tree: SysfsTree, device: Device) -> Device:
    """Return the device without a node that the host does not have, such as one of broken ACPI."""
    if device.node is None:
        return device
    directory = f"{NODE_DIRECTORY}/node{device.node}"
    known = tree.optional(lambda: tree.is_directory(directory), False, _WITHOUT)  # noqa: FBT003
    return device if known else replace(device, node=None)


def _read_name(tree: SysfsTree, link: str, pattern: re.Pattern[str]) -> str:
    """Return the last name of what a link points to, "" where it is absent or odd."""

    def read() -> str:
        name = tree.link_name(link)
        if name is not None and not pattern.fullmatch(name):
            raise MalformedFile(tree.path(link), name, "a link to what sysfs calls so")
        return name or ""

    return tree.optional(read, "", _WITHOUT)


def _virtual_functions(tree: SysfsTree, directory: str) -> dict[int, str]:
    """Return the PCI address of each virtual function by its number."""
    count = tree.optional(lambda: tree.find_integer(f"{directory}/sriov_numvfs"), None, _WITHOUT)
    found = {}
    for name in _names(tree, directory) if count else ():
        numbered = _NUMBERED.fullmatch(name)
        address = _read_name(tree, f"{directory}/{name}", ADDRESS) if numbered else ""
        if numbered and address:
            found[int(numbered[1])] = address
    return dict(sorted(found.items()))


def _names(tree: SysfsTree, directory: str) -> list[str]:
    """Return the names in a directory, those left out that no driver gives to anything."""
    names = tree.optional(lambda: tree.names(directory), [], _WITHOUT)
    return [name for name in names if _ENTRY.fullmatch(name)]


def _device_nodes(tree: SysfsTree, directory: str) -> Iterator[str]:
    """Yield the paths in `/dev` of a PCI device, in a stable order and each once."""
    found: dict[str, None] = {}
    for kind in _NODE_DIRECTORIES:
        for name in _names(tree, f"{directory}/{kind}"):
            entry = f"{directory}/{kind}/{name}"
            found.update(dict.fromkeys(_node_of(tree, entry)))
            if kind == _NVME:
                found.update(dict.fromkeys(_nvme_nodes(tree, entry)))
            elif kind == _VERBS:
                found.update(dict.fromkeys(_node_of(tree, _RDMA_CM)))
    yield from found


def _vfio_nodes(tree: SysfsTree, directory: str) -> tuple[str, ...]:
    """Return the character device of vfio with `/dev/iommu`, which it needs; from Linux 6.6 on."""
    names = _names(tree, f"{directory}/vfio-dev")
    own = [node for name in names for node in _node_of(tree, f"{directory}/vfio-dev/{name}")]
    return (*own, *_node_of(tree, _IOMMU)) if own else ()


def _controller_state(tree: SysfsTree, directory: str) -> str:
    """Return the state of an NVMe controller; "" for other devices, and where it is not known."""
    controllers = _names(tree, f"{directory}/{_NVME}")
    if not controllers:
        return ""
    file = f"{directory}/{_NVME}/{controllers[0]}/state"
    return tree.optional(lambda: tree.find(file) or "", "", _WITHOUT).strip()


def _nvme_nodes(tree: SysfsTree, controller: str) -> Iterator[str]:
    """Yield the block devices and the generic character devices of a controller's namespaces."""
    for name in _names(tree, controller):
        namespace = _NAMESPACE.fullmatch(name)
        if _GENERIC.fullmatch(name) or (namespace and not namespace[2]):
            yield from _node_of(tree, f"{controller}/{name}")
        elif namespace:
            # A path is hidden; the namespace's devices are those of its subsystem.
            head = f"{namespace[1]}{namespace[3]}"
            yield from _node_of(tree, f"{BLOCK_DIRECTORY}/nvme{head}")
            yield from _node_of(tree, f"{GENERIC_DIRECTORY}/ng{head}")


def _node_of(tree: SysfsTree, directory: str) -> Iterator[str]:
    """Yield the path in `/dev` that the kernel gave a device; none where it has no node."""

    def read() -> str | None:
        text = tree.find(f"{directory}/uevent") or ""
        variables = dict(line.partition("=")[::2] for line in text.splitlines())
        name = variables.get("DEVNAME")
        if name is None or (len(name) <= _LONGEST_NODE_NAME and _NODE_NAME.fullmatch(name)):
            return name
        raise MalformedFile(tree.path(f"{directory}/uevent"), name, "a path below /dev")

    node = tree.optional(read, None, _WITHOUT)
    if node is not None:
        yield f"/dev/{node}"
