from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

import pytest
from pyroute2.netlink import uevent

from sysfs.uevents import KERNEL_GROUP, Hotplug, hotplug_of, watch_hotplug

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CPU_OFFLINE = {"ACTION": "offline", "SUBSYSTEM": "cpu", "DEVPATH": "/devices/system/cpu/cpu3"}


@pytest.mark.parametrize("subsystem", ["cpu", "memory", "node"])
def test_hotplug_of_cpus_memory_and_nodes_is_told(subsystem: str) -> None:
    event = hotplug_of({"ACTION": "add", "SUBSYSTEM": subsystem, "DEVPATH": "/devices/x"})
    assert event == Hotplug("add", subsystem, "/devices/x")


@pytest.mark.parametrize("message", [{}, {"SUBSYSTEM": "net", "ACTION": "add"}, {"ACTION": "add"}])
def test_other_events_are_not(message: dict[str, str]) -> None:
    assert hotplug_of(message) is None


class _Socket:
    """What the kernel would send, one batch per read, then a loss of events."""

    batches = ([{"SUBSYSTEM": "net"}, CPU_OFFLINE], [{**CPU_OFFLINE, "ACTION": "online"}])
    bound: list[int]
    opened: list[_Socket]

    def __init__(self) -> None:
        self._left = list(self.batches)
        self.bound = []
        self.closed = False
        self.opened.append(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.closed = True

    async def bind(self, groups: int) -> None:
        self.bound.append(groups)

    async def get(self) -> AsyncIterator[dict[str, str]]:
        if not self._left:
            raise OSError(105, "No buffer space available")
        for message in self._left.pop(0):
            yield message


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> list[_Socket]:
    """Put the fake in the place of the kernel's socket and return those that are opened."""
    opened: list[_Socket] = []
    monkeypatch.setattr(_Socket, "opened", opened, raising=False)
    monkeypatch.setattr(uevent, "AsyncUeventSocket", _Socket)
    return opened


def test_events_are_told_in_order_until_some_are_lost(sockets: list[_Socket]) -> None:
    seen: list[str] = []

    async def watch() -> None:
        async for event in watch_hotplug():
            seen.append(event.action)  # noqa: PERF401  # the last read raises

    with pytest.raises(OSError, match="No buffer space"):
        asyncio.run(watch())
    assert seen == ["offline", "online"]
    assert (sockets[0].bound, sockets[0].closed) == ([KERNEL_GROUP], True)


def test_closing_the_watch_closes_the_socket(sockets: list[_Socket]) -> None:
    async def watch() -> Hotplug:
        events = watch_hotplug()
        first = await anext(events)
        await events.aclose()
        return first

    assert asyncio.run(watch()).device == "/devices/system/cpu/cpu3"
    assert sockets[0].closed
