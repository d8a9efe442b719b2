from __future__ import annotations

import asyncio
import errno
import os
from typing import TYPE_CHECKING, Self

import pytest

from sysfs import uevents
from sysfs.uevents import (
    KERNEL_GROUP,
    KERNEL_PORT,
    Hotplug,
    device_event_of,
    hotplug_of,
    open_socket,
    watch_devices,
    watch_hotplug,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

OTHER_SENDER = 4242


def message(**variables: str) -> bytes:
    """Return a uevent as the kernel sends it."""
    title = f"{variables.get('ACTION', '')}@{variables.get('DEVPATH', '')}"
    lines = [title, *(f"{name}={value}" for name, value in variables.items()), ""]
    return "\0".join(lines).encode()


def of_cpu(action: str) -> bytes:
    return message(
        ACTION=action, DEVPATH="/devices/system/cpu/cpu3", SUBSYSTEM="cpu", SEQNUM="1870"
    )


NIC = "/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0"
HEAD = "/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1"


@pytest.mark.parametrize(
    ("reads", "action", "subsystem", "path"),
    [
        *((hotplug_of, "add", subsystem, "/devices/x") for subsystem in ("cpu", "memory", "node")),
        (device_event_of, "bind", "pci", NIC),
        (device_event_of, "remove", "net", f"{NIC}/net/ens1f0"),
        (device_event_of, "change", "nvme", f"{NIC}/nvme/nvme0"),
        (device_event_of, "add", "block", HEAD),
        (device_event_of, "add", "drm", f"{NIC}/drm/renderD128"),
        (device_event_of, "add", "accel", f"{NIC}/accel/accel0"),
    ],
)
def test_events_of_hotplug_and_of_devices_on_a_bus_are_reported(
    reads: Callable[[bytes], Hotplug | None], action: str, subsystem: str, path: str
) -> None:
    sent = message(ACTION=action, DEVPATH=path, SUBSYSTEM=subsystem)
    assert reads(sent) == Hotplug(action, subsystem, path)


@pytest.mark.parametrize("reads", [hotplug_of, device_event_of])
@pytest.mark.parametrize(
    "other",
    [
        b"",
        b"\xff\xfe",
        b"no zeros at all",
        b"SUBSYSTEM=cpu",  # in the title's place
        message(ACTION="add"),
        message(ACTION="add", DEVPATH=NIC, SUBSYSTEM="usb"),
        message(ACTION="add", DEVPATH="/devices/virtual/net/veth1", SUBSYSTEM="net"),
        message(ACTION="change", DEVPATH="/devices/virtual/block/loop0", SUBSYSTEM="block"),
    ],
)
def test_other_events_are_not(reads: Callable[[bytes], Hotplug | None], other: bytes) -> None:
    assert reads(other) is None


class _Netlink:
    """What the kernel and others would send, then a loss of events."""

    sent = (
        (message(ACTION="add", DEVPATH=NIC, SUBSYSTEM="pci"), KERNEL_PORT),
        (message(ACTION="remove", DEVPATH=NIC, SUBSYSTEM="pci"), OTHER_SENDER),
        (of_cpu("offline"), KERNEL_PORT),
        (of_cpu("remove"), OTHER_SENDER),
        (of_cpu("online"), KERNEL_PORT),
    )

    def __init__(self) -> None:
        self._left = list(self.sent)
        self.closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True

    def gettimeout(self) -> float:
        return 0.0

    def recvfrom(self, size: int) -> tuple[bytes, tuple[int, int]]:
        if not self._left:
            raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
        data, port = self._left.pop(0)
        assert len(data) < size
        return data, (port, KERNEL_GROUP)


@pytest.fixture
def netlink(monkeypatch: pytest.MonkeyPatch) -> _Netlink:
    """Put the fake in the place of the kernel's socket."""
    fake = _Netlink()
    monkeypatch.setattr(uevents, "open_socket", lambda: fake)
    return fake


@pytest.mark.parametrize(
    ("watched", "events"),
    [(watch_hotplug, [("offline", "cpu"), ("online", "cpu")]), (watch_devices, [("add", "pci")])],
)
def test_the_kernels_events_are_reported_in_order_until_some_are_lost(
    netlink: _Netlink, watched: Callable[[], AsyncGenerator[Hotplug]], events: list[tuple[str, str]]
) -> None:
    seen: list[tuple[str, str]] = []

    async def watch() -> None:
        async for event in watched():
            seen.append((event.action, event.subsystem))  # noqa: PERF401  # the last read raises

    with pytest.raises(OSError, match="No buffer space"):
        asyncio.run(watch())
    assert seen == events
    assert netlink.closed


def test_closing_the_watch_closes_the_socket(netlink: _Netlink) -> None:
    first: list[Hotplug] = []

    async def watch() -> None:
        events = watch_hotplug()
        first.append(await anext(events))
        await events.aclose()

    asyncio.run(watch())
    assert first[0].device == "/devices/system/cpu/cpu3"
    assert netlink.closed


def test_the_real_socket_is_of_the_kernels_group_alone_and_never_blocks() -> None:
    with open_socket() as netlink:
        _, groups = netlink.getsockname()
        assert groups == KERNEL_GROUP
        assert netlink.gettimeout() == 0.0
