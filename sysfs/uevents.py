"""Watching hardware of the live host come and go (uevents): CPUs, memory, nodes, devices."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

#: NETLINK_KOBJECT_UEVENT of linux/netlink.h; the socket module does not name it.
PROTOCOL: Final = 15
#: The kernel's own multicast group: complete without udev.
KERNEL_GROUP: Final = 1
#: The port of the kernel: a privileged process can send to the group, too, with its own.
KERNEL_PORT: Final = 0
#: Longer than any uevent (UEVENT_BUFFER_SIZE is 2 KiB, its path comes beside that).
LONGEST: Final = 16 << 10
SUBSYSTEMS: Final = frozenset({"cpu", "memory", "node"})
#: PCI devices and what drivers make of them, as far as `sysfs.devices` reads it.
DEVICE_SUBSYSTEMS: Final = frozenset(
    {"pci", "net", "nvme", "nvme-generic", "nvme-subsystem", "block", "drm", "accel", "uio", "vfio"}
)
#: Interfaces of containers, loop devices, device mapper: they are on no bus.
_VIRTUAL: Final = "/devices/virtual/"
#: Namespaces of NVMe with several paths have a block device on no bus, too.
_MULTIPATH: Final = "/devices/virtual/nvme-subsystem/"


class Hotplug(Struct, frozen=True):
    """One uevent: `action` is `online`, `offline`, `add`, `remove`, `change`, `bind` or `unbind`.

    `subsystem` is the kernel's (`cpu`, `memory`, `node`, `pci`), `device` the kernel's path of the
    device below `/sys`, such as `/devices/system/cpu/cpu3`.
    """

    action: str
    subsystem: str
    device: str


def watch_hotplug() -> AsyncGenerator[Hotplug, None]:
    """Return a stream of the hotplug events of CPUs, memory and nodes from now on.

    The events say that facts changed, not what they are: read the host again. Other
    subsystems' events are dropped. The stream raises `OSError` if the system rejects the socket or
    events were lost: read the host, then watch again.
    """
    return _watch(hotplug_of)


def watch_devices() -> AsyncGenerator[Hotplug, None]:
    """Return a stream of events of PCI devices, interfaces, NVMe and accelerators from now on.

    Drivers that are bound or unbound count; devices on no bus do not. The stream raises `OSError`
    as that of `watch_hotplug` does.
    """
    return _watch(device_event_of)


async def _watch(event_of: Callable[[bytes], Hotplug | None]) -> AsyncGenerator[Hotplug, None]:
    # Not through pyroute2, whose import costs 14 MiB and 0.13 s, for a service that stays.
    loop = asyncio.get_running_loop()
    with open_socket() as netlink:
        while True:
            message, (port, _) = await loop.sock_recvfrom(netlink, LONGEST)
            event = event_of(message) if port == KERNEL_PORT else None
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
    event = _event_of(message)
    return event if event.subsystem in SUBSYSTEMS else None


def device_event_of(message: bytes) -> Hotplug | None:
    """Return the event of a uevent of a device on a bus; None of anything else."""
    event = _event_of(message)
    if event.subsystem not in DEVICE_SUBSYSTEMS:
        return None
    virtual = event.device.startswith(_VIRTUAL) and not event.device.startswith(_MULTIPATH)
    return None if virtual else event


def _event_of(message: bytes) -> Hotplug:
    fields = message.decode(errors="replace").split("\0")
    variables = dict(field.partition("=")[::2] for field in fields[1:])
    return Hotplug(
        variables.get("ACTION", ""), variables.get("SUBSYSTEM", ""), variables.get("DEVPATH", "")
    )
