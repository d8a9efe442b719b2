"""Network links: their state, from netlink or `sys/class/net`, and watching them change."""

from __future__ import annotations

import asyncio
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from sysfs.files import MalformedFile

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Iterator

    from sysfs.files import SysfsTree


NET_DIRECTORY: Final = "sys/class/net"
#: RFC 2863, as the kernel spells the states in `operstate`.
UP: Final = "up"
DOWN: Final = "down"
UNKNOWN: Final = "unknown"
_STATES: Final = (UP, DOWN, UNKNOWN, "dormant", "lowerlayerdown", "notpresent", "testing")
#: IFF_UP of linux/if.h: an administrator (or a network manager) enabled the interface.
_ENABLED: Final = 1
_FLAGS: Final = re.compile(r"0x[0-9a-f]{1,8}", re.ASCII)
#: RTEXT_FILTER_VF of linux/rtnetlink.h: links come with their virtual functions.
_WITH_FUNCTIONS: Final = 1
#: IFLA_VF_LINK_STATE_DISABLE: `ip link set DEVICE vf N state disable`.
_DISABLED: Final = 2
#: RTMGRP_LINK of linux/rtnetlink.h; NETLINK_ROUTE is protocol 0.
LINK_GROUP: Final = 1
#: Only that a message came matters; a longer message is cut.
_HEAD: Final = 64


class Link(Struct, frozen=True):
    """The link of one network interface.

    `address` is the PCI address of the device behind the interface where netlink shows it, else "".
    `state` is the kernel's operational state (`operstate`). `enabled` is False where the interface
    is administratively down, whatever the cable. `disabled_functions` are the numbers of SR-IOV
    virtual functions whose link was administratively disabled.
    """

    name: str
    address: str = ""
    state: str = UNKNOWN
    enabled: bool = True
    disabled_functions: frozenset[int] = frozenset()

    @property
    def is_up(self) -> bool:
        """Whether data can pass, as far as is known.

        A driver that never sets a state leaves `unknown`, which counts as usable
        (Documentation/networking/operstates.rst of the kernel).
        """
        return self.enabled and self.state in (UP, UNKNOWN)


def read_links(tree: SysfsTree, names: Iterable[str], live: Iterable[Link] = ()) -> dict[str, Link]:
    """Return the link of each interface by name: as netlink shows it, else from `sys/class/net`.

    `live` are netlink's links; they are those of a root that is this host. A file that is odd or
    absent costs its fact: the state is then that of `carrier`, else unknown.
    """
    known = {link.name: link for link in live}
    return {name: known.get(name) or _read_link(tree, name) for name in names}


def _read_link(tree: SysfsTree, name: str) -> Link:
    directory = f"{NET_DIRECTORY}/{name}"
    without = "the state of its link is not known by it"
    state = tree.optional(lambda: _state(tree, directory), UNKNOWN, without)
    enabled = tree.optional(lambda: _is_enabled(tree, directory), True, without)  # noqa: FBT003
    return Link(name, state=state, enabled=enabled)


def _state(tree: SysfsTree, directory: str) -> str:
    text = tree.find(f"{directory}/operstate")
    if text is None:
        carrier = tree.find_integer(f"{directory}/carrier")
        return UNKNOWN if carrier is None else UP if carrier else DOWN
    if text not in _STATES:
        raise MalformedFile(tree.path(f"{directory}/operstate"), text, "a state such as up")
    return text


def _is_enabled(tree: SysfsTree, directory: str) -> bool:
    text = tree.find(f"{directory}/flags")
    if text is None:
        return True
    if not _FLAGS.fullmatch(text):
        raise MalformedFile(tree.path(f"{directory}/flags"), text, "flags such as 0x1003")
    return bool(int(text, 16) & _ENABLED)


def read_live_links() -> tuple[Link, ...]:
    """Return every link of this network namespace, as netlink shows it.

    The address is that of `IFLA_PARENT_DEV_NAME` (kernel 5.14 and later); links of older
    kernels and of other buses have "" and are placed by `sys/class/net`. Empty where the system
    rejects netlink (a sandbox without AF_NETLINK): `sys/class/net` then has to do alone.
    """
    # pyroute2 runs an event loop for each call, and cannot where this thread runs one already.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_ask_netlink).result()


def _ask_netlink() -> tuple[Link, ...]:
    # pyroute2 costs 0.13 s and 14 MiB to import; reading another root needs none of it.
    from pyroute2 import IPRoute  # noqa: PLC0415
    from pyroute2.netlink.exceptions import NetlinkError  # noqa: PLC0415

    try:
        with IPRoute() as netlink:
            return tuple(map(_link_of, netlink.get_links(ext_mask=_WITH_FUNCTIONS)))
    except (OSError, NetlinkError):
        return ()


def _link_of(message: object) -> Link:
    attribute: Callable[[str], object] = message.get_attr  # type: ignore[attr-defined]
    flags = message["flags"]  # type: ignore[index]  # pyroute2 ships no types
    return Link(
        name=str(attribute("IFLA_IFNAME")),
        address=_parent_address(attribute),
        state=str(attribute("IFLA_OPERSTATE") or UNKNOWN).lower(),
        enabled=bool(flags & _ENABLED),
        disabled_functions=frozenset(_disabled_functions(attribute)),
    )


def _parent_address(attribute: Callable[[str], object]) -> str:
    if attribute("IFLA_PARENT_DEV_BUS_NAME") != "pci":
        return ""
    return str(attribute("IFLA_PARENT_DEV_NAME"))


def _disabled_functions(attribute: Callable[[str], object]) -> Iterator[int]:
    listed = attribute("IFLA_VFINFO_LIST")
    if listed is None:
        return
    for function in listed.get_attrs("IFLA_VF_INFO"):  # type: ignore[attr-defined]
        state = function.get_attr("IFLA_VF_LINK_STATE")
        if state is not None and state["link_state"] == _DISABLED:
            yield int(state["vf"])


async def watch_links() -> AsyncGenerator[None, None]:
    """Yield whenever a link of this network namespace comes, goes or changes, until it is closed.

    What changed is not said: read the links again. Links come and go with containers, so that
    changes come in bursts. Raises `OSError` if the system rejects the socket or messages were lost:
    read the links, then watch again.
    """
    loop = asyncio.get_running_loop()
    with open_link_socket() as netlink:
        while True:
            await loop.sock_recv(netlink, _HEAD)
            yield


def open_link_socket() -> socket.socket:
    """Return a socket, never blocking, that gets changes of links; raises `OSError`."""
    # Not through pyroute2: its sockets read and parse every message, of which nothing is used.
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
    netlink.settimeout(0)
    try:
        netlink.bind((0, LINK_GROUP))
    except OSError:
        netlink.close()
        raise
    return netlink
