"""Telling when CPUs, memory blocks or nodes of the live host come and go."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sysfs.netlink import LARGEST, UEVENT, open_socket

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

#: The kernel's own multicast group, complete without udev, and the port the kernel sends from: a
#: message from any other port is another process's.
KERNEL_GROUP: Final = 1
KERNEL_PORT: Final = 0
SUBSYSTEMS: Final = frozenset({"cpu", "memory", "node"})


@dataclass(frozen=True, slots=True)
class Hotplug:
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
    subsystems' events are dropped. Raises `OSError` if the system refuses the socket or events
    were lost: read the host, then watch anew.
    """
    loop = asyncio.get_running_loop()
    with open_socket(UEVENT) as netlink:
        netlink.settimeout(0)  # what a loop needs
        netlink.bind((0, KERNEL_GROUP))
        while True:
            data, (port, _) = await loop.sock_recvfrom(netlink, LARGEST)
            event = hotplug_of(variables_of(data)) if port == KERNEL_PORT else None
            if event is not None:
                yield event


def variables_of(data: bytes) -> dict[str, str]:
    """Return the variables of a uevent: after a summary come texts `NAME=value`, each with a 0."""
    texts = (part.partition("=") for part in data.decode(errors="replace").split("\0")[1:])
    return {name: value for name, separator, value in texts if separator}


def hotplug_of(message: Mapping[str, object]) -> Hotplug | None:
    """Return the event of a uevent's variables; None if it is of another subsystem."""
    subsystem = message.get("SUBSYSTEM")
    if subsystem not in SUBSYSTEMS:
        return None
    action, device = message.get("ACTION", ""), message.get("DEVPATH", "")
    return Hotplug(str(action), str(subsystem), str(device))
