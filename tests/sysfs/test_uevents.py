from __future__ import annotations

import asyncio
from typing import Self

import pytest

from sysfs import uevents
from sysfs.uevents import KERNEL_GROUP, Hotplug, hotplug_of, watch_hotplug

CPU_OFFLINE = {"ACTION": "offline", "SUBSYSTEM": "cpu", "DEVPATH": "/devices/system/cpu/cpu3"}


@pytest.mark.parametrize("subsystem", ["cpu", "memory", "node"])
def test_hotplug_of_cpus_memory_and_nodes_is_told(subsystem: str) -> None:
    event = hotplug_of({"ACTION": "add", "SUBSYSTEM": subsystem, "DEVPATH": "/devices/x"})
    assert event == Hotplug("add", subsystem, "/devices/x")


@pytest.mark.parametrize("message", [{}, {"SUBSYSTEM": "net", "ACTION": "add"}, {"ACTION": "add"}])
def test_other_events_are_not(message: dict[str, str]) -> None:
    assert hotplug_of(message) is None


def uevent(**variables: str) -> bytes:
    """Return a message as the kernel sends it: a summary, then the variables."""
    texts = [f"{variables['ACTION']}@{variables['DEVPATH']}"]
    texts += [f"{name}={value}" for name, value in variables.items()]
    return "".join(f"{text}\0" for text in texts).encode()


CPU_ONLINE = {**CPU_OFFLINE, "ACTION": "online"}
NETWORK = {**CPU_OFFLINE, "SUBSYSTEM": "net"}
KERNEL, PROCESS = (0, KERNEL_GROUP), (4711, 0)


class _Socket:
    """What would come, one message a read, then a loss of events."""

    def __init__(self) -> None:
        self._left = [
            (uevent(**NETWORK), KERNEL),
            (uevent(**CPU_ONLINE), PROCESS),
            (uevent(**CPU_OFFLINE), KERNEL),
            (uevent(**CPU_ONLINE), KERNEL),
        ]
        self.bound: list[tuple[int, int]] = []
        self.closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True

    def settimeout(self, seconds: float) -> None:
        assert seconds == 0

    def gettimeout(self) -> float:
        return 0.0

    def bind(self, address: tuple[int, int]) -> None:
        self.bound.append(address)

    def recvfrom(self, _: int) -> tuple[bytes, tuple[int, int]]:
        if not self._left:
            raise OSError(105, "No buffer space available")
        return self._left.pop(0)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> _Socket:
    """Put a fake in the place of the kernel's socket and return it."""
    fake = _Socket()
    monkeypatch.setattr(uevents, "open_socket", lambda _: fake)
    return fake


def test_variables_are_read_whatever_bytes_they_have() -> None:
    assert uevents.variables_of(b"add@/x\0ACTION=add\0NAME=a=\xff\0junk\0") == {
        "ACTION": "add",
        "NAME": "a=\ufffd",
    }
    assert uevents.variables_of(b"") == {}


def test_the_kernels_events_are_told_in_order_until_some_are_lost(opened: _Socket) -> None:
    seen: list[str] = []

    async def watch() -> None:
        async for event in watch_hotplug():
            seen.append(event.action)  # noqa: PERF401  # the last read raises

    with pytest.raises(OSError, match="No buffer space"):
        asyncio.run(watch())
    assert seen == ["offline", "online"]
    assert (opened.bound, opened.closed) == ([(0, KERNEL_GROUP)], True)


def test_closing_the_watch_closes_the_socket(opened: _Socket) -> None:
    async def watch() -> Hotplug:
        events = watch_hotplug()
        first = await anext(events)
        await events.aclose()
        return first

    assert asyncio.run(watch()).device == "/devices/system/cpu/cpu3"
    assert opened.closed


def test_this_host_lets_the_kernels_events_be_watched() -> None:
    async def watch() -> None:
        events = watch_hotplug()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(events), 0)
        await events.aclose()

    asyncio.run(watch())
