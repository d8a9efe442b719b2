"""Network interfaces of the live host, as netlink tells them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def read_links() -> tuple[tuple[str, str], ...]:
    """Return (interface, PCI address or "") of every link in this network namespace.

    The address is that of `IFLA_PARENT_DEV_NAME` (kernel 5.14 and later); links of older
    kernels and of other buses have "" and are placed by `sys/class/net`. Empty where the system
    rejects netlink (a sandbox without AF_NETLINK): `sys/class/net` then has to do alone.
    """
    # pyroute2 costs 0.2 s and 17 MiB to import; whoever reads another root must not pay that.
    from pyroute2 import IPRoute  # noqa: PLC0415
    from pyroute2.netlink.exceptions import NetlinkError  # noqa: PLC0415

    try:
        with IPRoute() as netlink:
            return tuple(
                (str(link.get_attr("IFLA_IFNAME")), _pci_address(link.get_attr))
                for link in netlink.get_links()
            )
    except (OSError, NetlinkError):
        return ()


def _pci_address(attribute: Callable[[str], object]) -> str:
    if attribute("IFLA_PARENT_DEV_BUS_NAME") != "pci":
        return ""
    return str(attribute("IFLA_PARENT_DEV_NAME"))
