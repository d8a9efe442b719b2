"""Network interfaces and where they are attached, as netlink and `sys/class/net` have them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sysfs.host import Device
from sysfs.mask import EMPTY
from sysfs.pci import ADDRESS, PCI_DIRECTORY, read_local_cpus, read_node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sysfs.files import SysfsTree
    from sysfs.mask import Mask

NET_DIRECTORY: Final = "sys/class/net"
KIND: Final = "net"
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
        node = read_node(tree, directory)
        return Device(KIND, name, address, node, read_local_cpus(tree, directory, online))
    if not place:
        return None
    return Device(KIND, name, "", read_node(tree, place), EMPTY)


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


def read_links() -> tuple[tuple[str, str], ...]:
    """Return (interface, PCI address or "") of every link in this network namespace.

    The address is that of `IFLA_PARENT_DEV_NAME` (kernel 5.14 and later); links of older
    kernels and of other buses have "" and are placed by `sys/class/net`. Empty where the system
    rejects netlink (a sandbox without AF_NETLINK): `sys/class/net` then has to do alone.
    """
    # pyroute2 costs 0.2 s and 17 MiB to import; reading another root needs none of it.
    from pyroute2 import IPRoute  # noqa: PLC0415
    from pyroute2.netlink.exceptions import NetlinkError  # noqa: PLC0415

    try:
        with IPRoute() as netlink:
            return tuple(
                (str(link.get_attr("IFLA_IFNAME")), _parent_address(link.get_attr))
                for link in netlink.get_links()
            )
    except (OSError, NetlinkError):
        return ()


def _parent_address(attribute: Callable[[str], object]) -> str:
    if attribute("IFLA_PARENT_DEV_BUS_NAME") != "pci":
        return ""
    return str(attribute("IFLA_PARENT_DEV_NAME"))
