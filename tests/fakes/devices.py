"""A provider of devices that does as a test says."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from agent.devices.provider import DeviceError, Offer
from agent.managers.delivery import Delivery

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agent.managers.policy import PluginDevice


@dataclass
class FakeProvider:
    """Offers what a test gives it; notes every call. Change it, then call `changed`."""

    name: str = "fake"
    devices: dict[str, tuple[PluginDevice, ...]] = field(default_factory=dict)
    preferring: frozenset[str] = frozenset()
    #: Whether devices are prepared for each container.
    preparing: bool = True
    lines: tuple[str, ...] = ()
    #: The preferred ids by resource.
    prefers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    #: Why `allocate` and `start_container` fail, by resource; "" hangs.
    fails: dict[str, str] = field(default_factory=dict)
    unprepared: dict[str, str] = field(default_factory=dict)
    #: Why `serve` fails when it is called; "" if it does not.
    breaks: str = ""
    calls: list[tuple[str, str, str]] = field(default_factory=list)
    changed: Callable[[], None] = lambda: None
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    #: What `allocate` waits for.
    waits: Callable[[], Awaitable[None]] | None = None

    def offer(self) -> Offer:
        return Offer(MappingProxyType(dict(self.devices)), self.preferring)

    def conditions(self) -> tuple[str, ...]:
        return self.lines

    def connected(self) -> dict[str, bool]:
        return {}

    async def serve(self, changed: Callable[[], None]) -> None:
        if self.breaks:
            raise RuntimeError(self.breaks)
        self.changed = changed
        self.settled.set()
        await asyncio.Event().wait()

    async def preferred(
        self, resource: str, available: frozenset[str], required: frozenset[str], size: int
    ) -> tuple[str, ...]:
        del required, size
        self.calls.append(("prefer", resource, ",".join(sorted(available))))
        return self.prefers.get(resource, ())

    async def allocate(self, resource: str, ids: tuple[str, ...]) -> Delivery:
        self.calls.append(("allocate", resource, ",".join(ids)))
        if self.waits is not None:
            await self.waits()
        await self._fail(self.fails, resource)
        return Delivery(environment=MappingProxyType({f"DEVICES_{resource[-3:]}": ",".join(ids)}))

    def prepares(self, resource: str) -> bool:
        return self.preparing and resource in self.devices

    async def start_container(self, resource: str, ids: tuple[str, ...]) -> None:
        self.calls.append(("start", resource, ",".join(ids)))
        await self._fail(self.unprepared, resource)

    @staticmethod
    async def _fail(fails: dict[str, str], resource: str) -> None:
        if resource not in fails:
            return
        if not fails[resource]:
            await asyncio.Event().wait()
        raise DeviceError(fails[resource], "try another plugin")
