"""Device plugins served in a directory of their own, and what tests wait for."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager, suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from agent.devices.plugin_limits import Deadlines
from agent.devices.plugins import DevicePlugins
from tests.agent.server.support import FakeClock, until
from tests.fakes.device_plugin import FakePlugin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

    from agent.managers.metrics import MetricSpec
    from agent.managers.policy import PluginDevice

GPU: Final = "example.com/gpu"
NONE_KNOWN: Final[Mapping[str, tuple[PluginDevice, ...]]] = MappingProxyType({})
#: Deadlines that no plugin misses, however slow the machine.
PATIENT: Final = Deadlines(options=30.0, preference=30.0, allocation=30.0, start=30.0)
#: Deadlines for plugins that never answer.
SHORT: Final = Deadlines(options=30.0, preference=0.05, allocation=0.05, start=0.05)


class Tally:
    """Counts what a provider measures."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, ...]] = Counter()
        self.observed: Counter[tuple[str, ...]] = Counter()

    def add(self, metric: MetricSpec, *labels: str) -> None:
        assert len(labels) == len(metric.labels)
        self.counts[metric.name, *labels] += 1

    def observe(self, metric: MetricSpec, seconds: float, *labels: str) -> None:
        assert len(labels) == len(metric.labels)
        assert seconds >= 0
        self.observed[metric.name, *labels] += 1


class Served:
    """A running provider; `changes` counts the calls of `changed`."""

    def __init__(self, directory: Path, **more: Any) -> None:  # noqa: ANN401  # of the provider
        self.directory = directory
        self.clock = FakeClock()
        self.tally = Tally()
        self.changes = 0
        self._changed = asyncio.Event()
        options = {"known": NONE_KNOWN, "deadlines": PATIENT, **more}
        self.plugins = DevicePlugins(directory, self.clock, self.tally, **options)

    def changed(self) -> None:
        self.changes += 1
        self._changed.set()

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait until something holds that a change of the provider brings about."""
        while not holds():
            self._changed.clear()
            await self._changed.wait()

    async def until_seen(self, holds: Callable[[], object]) -> None:
        """Wait until something holds that other tasks of the loop bring about."""
        await until(holds)

    async def wait_out(self, seconds: float) -> None:
        """Advance the clock as soon as the provider waits for it."""
        await self.until_seen(lambda: self.clock._sleepers)
        self.clock.advance(seconds)

    def health(self, resource: str = GPU) -> dict[str, bool] | None:
        """Return whether each device of a resource is healthy; None if it is not offered."""
        devices = self.plugins.offer().devices.get(resource)
        return None if devices is None else {device.id: device.healthy for device in devices}


@asynccontextmanager
async def served(directory: Path, **more: Any) -> AsyncIterator[Served]:  # noqa: ANN401  # same
    """Serve a directory until the block ends."""
    running = Served(directory, **more)
    task = asyncio.create_task(running.plugins.serve(running.changed))
    try:
        plugins = running.plugins
        await running.until_seen(lambda: plugins.is_serving or plugins._server.fault)
        yield running
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def connected(
    running: Served,
    *devices: dict[str, object],
    resource: str = GPU,
    endpoint: str = "gpu.sock",
    **options: bool,
) -> AsyncIterator[FakePlugin]:
    """Register a plugin, wait until its devices are offered, and stop it when the block ends."""
    plugin = FakePlugin(running.directory, resource, endpoint, **options)
    plugin.send(*devices)
    listed = {str(each["ID"]): each["health"] == "Healthy" for each in devices}
    await plugin.start()
    try:
        await plugin.register()
        await running.until(lambda: running.health(resource) == listed)
        yield plugin
    finally:
        await plugin.stop()


def names_in(directory: Path) -> list[str]:
    """Return the names of the files in a directory."""
    return sorted(path.name for path in directory.iterdir())
