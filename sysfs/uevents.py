"""Telling when CPUs, memory blocks or nodes of the live host come and go."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

#: The kernel's own multicast group: complete without udev, and only the kernel sends to it.
KERNEL_GROUP: Final = 1
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
    subsystems' events are dropped. Raises `OSError` if the system refuses the socket or events
    were lost: read the host, then watch anew.
    """
    # pyroute2 costs 0.2 s and 18 MiB to import: only a running service watches, and it goes on
    # answering meanwhile.
    library = await asyncio.to_thread(import_module, "pyroute2.netlink.uevent")
    async with library.AsyncUeventSocket() as socket:
        await socket.bind(groups=KERNEL_GROUP)
        while True:
            async for message in socket.get():
                event = hotplug_of(message)
                if event is not None:
                    yield event


def hotplug_of(message: Mapping[str, object]) -> Hotplug | None:
    """Return the event of a uevent's variables; None if it is of another subsystem."""
    subsystem = message.get("SUBSYSTEM")
    if subsystem not in SUBSYSTEMS:
        return None
    action, device = message.get("ACTION", ""), message.get("DEVPATH", "")
    return Hotplug(str(action), str(subsystem), str(device))
