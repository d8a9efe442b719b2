"""Watching CPUs, memory blocks and NUMA nodes of the live host come and go (uevents)."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

#: NETLINK_KOBJECT_UEVENT of linux/netlink.h; the socket module does not name it.
PROTOCOL: Final = 15
#: The kernel's own multicast group: complete without udev.
KERNEL_GROUP: Final = 1
#: The port of the kernel: a privileged process can send to the group, too, with its own.
KERNEL_PORT: Final = 0
#: Longer than any uevent (UEVENT_BUFFER_SIZE is 2 KiB, its path comes beside that).
LONGEST: Final = 16 << 10
SUBSYSTEMS: Final = frozenset({"cpu", "memory", "node"})


class Hotplug(Struct, frozen=True):
    """One uevent: `action` is `online`, `offline`, `add`, `remove` or `change`.

    `subsystem` is `cpu`, `memory` or `node`, `device` the kernel's path of the device below
    `/sys`, such as `/devices/system/cpu/cpu3`.
    """

    action: str
    subsystem: str
    device: str


async def watch_hotplug() -> AsyncGenerator[Hotplug, None]:
    """Yield hotplug events of CPUs, memory and nodes from now on, until it is closed.

    The events say that facts changed, not what they are: read the host again. Other
    subsystems' events are dropped. Raises `OSError` if the system rejects the socket or events
    were lost: read the host, then watch again.
    """
    # Not through pyroute2, whose import costs 18 MiB and 0.2 s, for a service that stays.
    loop = asyncio.get_running_loop()
    with open_socket() as netlink:
        while True:
            message, (port, _) = await loop.sock_recvfrom(netlink, LONGEST)
            event = hotplug_of(message) if port == KERNEL_PORT else None
            if event is not None:
                yield event


def open_socket() -> socket.socket:
    """Return a socket, never blocking, that gets the kernel's uevents; raises `OSError`."""
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, PROTOCOL)
    netlink.settimeout(0)
    try:
        netlink.bind((0, KERNEL_GROUP))
    except OSError:
        netlink.close()
        raise
    return netlink


def hotplug_of(message: bytes) -> Hotplug | None:
    r"""Return the event of a uevent, `ACTION@DEVPATH\0KEY=VALUE\0...`; None of other subsystems."""
    fields = message.decode(errors="replace").split("\0")
    variables = dict(field.partition("=")[::2] for field in fields[1:])
    subsystem = variables.get("SUBSYSTEM", "")
    if subsystem not in SUBSYSTEMS:
        return None
    return Hotplug(variables.get("ACTION", ""), subsystem, variables.get("DEVPATH", ""))
