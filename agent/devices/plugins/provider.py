"""All device plugins together as one provider of devices."""

from __future__ import annotations

import asyncio
import math
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from agent.devices.plugins.device_list import AnswerError, read_devices
from agent.devices.plugins.directory import DirectoryError, PluginDirectory
from agent.devices.plugins.limits import GRACE, MOST_RESOURCES, Deadlines
from agent.devices.plugins.lists import NewestList
from agent.devices.plugins.metrics import IGNORED_PREFERENCES, REGISTRATIONS
from agent.devices.plugins.plugin import Plugin, SkippedCallError
from agent.devices.plugins.registration import read_registration
from agent.devices.plugins.registry import PluginRegistry
from agent.devices.plugins.resources import PluginResources
from agent.devices.provider import DeviceError, Offer
from agent.progress import uncancelled
from agent.rpc.calls import CallError, Client, server
from agent.rpc.device_plugin import DEVICE_PLUGIN, REGISTRATION, V1BETA1
from agent.rpc.messages import RawMessage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
    from pathlib import Path

    from grpc import aio

    from agent.clock import Clock
    from agent.devices.plugins.metrics import Measure
    from agent.devices.plugins.registration import Registrant
    from agent.devices.plugins.registry import Watch
    from agent.managers.allocations.delivery import Delivery
    from agent.managers.policy import PluginDevice
    from agent.rpc.calls import SocketClient
    from agent.rpc.messages import Message

log = structlog.get_logger(__name__)

#: How often the directory is looked at and what expired is dropped, in seconds.
PERIOD: Final = 2.0
#: The same while the directory cannot be served, so that a kubelet is not disturbed often.
RETRY_PERIOD: Final = 10.0
#: The shortest time between two calls of `changed`, in seconds.
_BETWEEN_CHANGES: Final = 0.1
#: So many plugins may register at the same time: each may take the deadline of its options, and one
#: that does not serve its socket yet keeps no other one waiting.
_REGISTERING: Final = MOST_RESOURCES

#: The kubelet's directory of its plugin watcher, beside that of `kubelet.sock`.
REGISTRY: Final = "plugins_registry"

#: How the stream of a plugin ends that stops or is killed.
_AWAY: Final = frozenset(("UNAVAILABLE", "CANCELLED"))

AnswerT = TypeVar("AnswerT")


def dial(socket: Path) -> SocketClient:
    """Return a client of the plugin that serves a socket."""
    return Client(socket, DEVICE_PLUGIN)


class DevicePlugins:
    """The provider of the devices of all plugins (`agent.devices.provider.DeviceProvider`).

    Plugins register over `kubelet.sock` in `directory`, or are found in the directory `registry`;
    `watch` yields when names in that change. `configured` are resources that are not those of
    plugins. `known` are the devices of plugins
    before the agent was started: they are offered as unhealthy until their plugin registers again,
    for `GRACE` seconds at most, so that pods keep them.
    """

    name: Final = "device plugins"

    def __init__(  # noqa: PLR0913  (each is a setting of its own, all but three have defaults)
        self,
        directory: Path,
        clock: Clock,
        measure: Measure,
        *,
        configured: Collection[str] = (),
        known: Mapping[str, tuple[PluginDevice, ...]],
        deadlines: Deadlines = Deadlines(),  # noqa: B008  # a frozen value
        dial: Callable[[Path], SocketClient] = dial,
        registry: Path | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._directory = PluginDirectory(directory)
        self._clock = clock
        self._measure = measure
        self._configured = frozenset(configured)
        self._deadlines = deadlines
        self._dial = dial
        former = {name: known[name] for name in known.keys() - self._configured}
        self._resources = PluginResources(former, clock.monotonic)
        self._server: aio.Server | None = None
        self._following: dict[Plugin, asyncio.Task[tuple[str, bool]]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._fault = ""
        self._vanished_at = -math.inf
        self._changes = asyncio.Event()
        self.settled = asyncio.Event()
        self._turn = asyncio.Lock()
        self._registry = PluginRegistry(
            registry or directory.parent / REGISTRY,
            clock,
            deadlines.options,
            self,
            watch,
        )
        self._offer = self._resources.offer()
        self._conditions = tuple(self._lines())

    def offer(self) -> Offer:
        """Return the devices of all resources as they are known now."""
        return self._offer

    def conditions(self) -> tuple[str, ...]:
        """Return what is amiss with the directory and with each plugin, a line each."""
        return self._conditions

    @property
    def is_serving(self) -> bool:
        """Whether this process serves the directory, and no kubelet does."""
        return self._server is not None

    def connected(self) -> dict[str, bool]:
        """Return for each resource whether its plugin is connected."""
        return {name: self._resources.plugin(name) is not None for name in self._resources}

    async def serve(self, changed: Callable[[], None]) -> None:
        """Serve the directory until cancelled, then close all connections and remove the socket."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(uncancelled(self._notify(changed)))
                tasks.create_task(uncancelled(self._serve_directory()))
                tasks.create_task(self._registry.serve())
        finally:
            await self._stop_serving()
            await self._disconnect_all()

    async def register(self, raw: bytes) -> Message:
        """Connect the plugin that registers; raises `CallError`.

        As the kubelet, the plugin is called for its options before it is answered.
        """
        await self.connect(read_registration(raw, self._directory.path))
        return V1BETA1["Empty"]()

    async def connect(self, registrant: Registrant) -> None:
        """Connect a plugin, and follow its lists; raises `CallError`."""
        resource = registrant.resource
        self._check_registrable(resource)
        self._measure.add(REGISTRATIONS, resource)
        client = self._dial(registrant.socket)
        plugin = Plugin(registrant, client, self._deadlines, self._clock, self._measure)
        connected = False
        try:
            await plugin.connect()
            self._check_registrable(resource)
            connected = True
        except CallError as error:
            log.warning("device plugin not registered", resource=resource, error=str(error))
            raise
        finally:
            if not connected:
                await plugin.close()
        self._take_over(plugin)

    async def preferred(
        self, resource: str, available: frozenset[str], required: frozenset[str], size: int
    ) -> tuple[str, ...]:
        """Return which `size` of the `available` devices a plugin prefers, with all `required`.

        Empty if the plugin has no preference, did not answer in time or not to the question.
        """
        plugin = self._resources.plugin(resource)
        if plugin is None or not plugin.options.preferred_allocation:
            return ()
        try:
            return await plugin.preferred(available, required, size)
        except AnswerError as error:
            self._measure.add(IGNORED_PREFERENCES, resource)
            self._resources.note(plugin, f"its preference was ignored: {error}")
            return ()
        except (CallError, SkippedCallError) as error:
            log.warning("device plugin preference missing", resource=resource, error=str(error))
            return ()
        finally:
            self.update()

    async def allocate(self, resource: str, ids: tuple[str, ...]) -> Delivery:
        """Return what a container gets with these devices; raises `DeviceError`."""
        plugin = self._connected(resource)
        return await self._delivered(plugin, plugin.allocate(ids))

    async def start_container(self, resource: str, ids: tuple[str, ...]) -> None:
        """Have the plugin prepare devices if it asked for that; raises `DeviceError`."""
        plugin = self._connected(resource)
        if plugin.options.pre_start:
            await self._delivered(plugin, plugin.start_container(ids))

    def _connected(self, resource: str) -> Plugin:
        plugin = self._resources.plugin(resource)
        if plugin is None:
            raise DeviceError(
                f"device plugin of {resource}: not connected: {self._resources.why_lost(resource)}",
                "start the plugin; it registers by itself",
            )
        return plugin

    async def _delivered(self, plugin: Plugin, answer: Awaitable[AnswerT]) -> AnswerT:
        try:
            return await answer
        except (AnswerError, CallError, SkippedCallError) as error:
            raise DeviceError(
                f"device plugin of {plugin.resource}: {error}", "look at the plugin's log"
            ) from error
        finally:
            self.update()

    # --- plugins ----------------------------------------------------------------------------------

    def _check_registrable(self, resource: str) -> None:
        """Raise `CallError` unless a plugin may have a resource."""
        if resource in self._configured:
            raise CallError(
                "ALREADY_EXISTS",
                f"{resource} is a resource of the agent's configuration; remove it there or give "
                "the plugin's resource another name",
            )
        if not self._resources.has_room(resource):
            raise CallError(
                "RESOURCE_EXHAUSTED",
                f"{MOST_RESOURCES} resources are registered, none can be added",
            )

    def _take_over(self, plugin: Plugin) -> None:
        former = self._resources.connect(plugin)
        log.info(
            "device plugin registered",
            resource=plugin.resource,
            endpoint=plugin.socket.name,
            replaced="" if former is None else former.socket.name,
        )
        if former is not None:
            self._following[former].cancel()
        task = asyncio.create_task(self._follow(plugin))
        self._following[plugin] = task
        task.add_done_callback(partial(self._end, plugin))
        self._vanished_at = -math.inf
        self.update()

    def disconnect(self, registrant: Registrant, why: str) -> None:
        """Lose a plugin, unless another one replaced it."""
        plugin = self._resources.plugin(registrant.resource)
        if plugin is not None and plugin.socket == registrant.socket:
            self._lose(plugin, why, away=True)
            self._following[plugin].cancel()

    def _lose(self, plugin: Plugin, why: str, away: bool) -> None:  # noqa: FBT001  (private)
        if self._resources.lose(plugin, why, away=away):
            log.warning("device plugin lost", resource=plugin.resource, why=why)

    async def _follow(self, plugin: Plugin) -> tuple[str, bool]:
        """Take over the lists of a plugin until it is gone.

        Return why it is, and whether that is what a plugin does that starts again.
        """
        try:
            newest = NewestList(lambda raw: self._use_list(plugin, raw), self._clock, self._turn)
            await newest.follow(plugin.lists())
        except CallError as error:
            return f"its plugin is gone: {error}", error.code in _AWAY
        except Exception as error:
            log.exception("device plugin failed unexpectedly", resource=plugin.resource)
            return f"internal error ({type(error).__name__}); see the agent log", False
        return "its plugin ended the stream of devices", True

    def _end(self, plugin: Plugin, task: asyncio.Task[tuple[str, bool]]) -> None:
        """Note that a plugin is gone and close the connection.

        A task that is cancelled before it began never runs, so this is not a part of it.
        """
        del self._following[plugin]
        ended = self._fault or "the agent ended the connection"
        self._lose(plugin, *((ended, True) if task.cancelled() else task.result()))
        self.update()
        closing = asyncio.create_task(plugin.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _use_list(self, plugin: Plugin, raw: bytes) -> None:
        digest = blake2b(raw).digest()
        if digest == plugin.listed:
            return
        plugin.listed = b""
        try:
            self._resources.list(plugin, read_devices(raw))
            plugin.listed = digest
        except AnswerError as error:
            log.warning("device list not usable", resource=plugin.resource, error=str(error))
            self._resources.reject(plugin, str(error))
        self.update()

    async def _disconnect_all(self) -> None:
        following = tuple(self._following.values())
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)
        await asyncio.gather(*self._closing)

    # --- the directory ----------------------------------------------------------------------------

    async def _serve_directory(self) -> None:
        while True:
            await self._look_after_directory()
            self.settled.set()
            for resource in self._resources.expire():
                log.warning("device plugin resource dropped", resource=resource, after=GRACE)
            self.update()
            await self._clock.sleep(RETRY_PERIOD if self._fault else PERIOD)

    async def _look_after_directory(self) -> None:
        """Serve the directory if it is not served and no other process serves it."""
        if self._server is not None and self._directory.is_served:
            return
        vanished = self._server is not None
        await self._stop_serving()
        try:
            self._directory.check_free()
            if not vanished:
                self._directory.remove_sockets()
            await self._start_serving()
        except DirectoryError as error:
            if str(error) != self._fault:
                log.warning("device plugins not served", error=str(error))
            self._fault = str(error)
            await self._stop_serving()
            await self._disconnect_all()
            return
        self._fault = ""
        if vanished:
            self._vanished_at = self._clock.monotonic()
        log.info("device plugins served", socket=str(self._directory.socket), again=vanished)

    async def _start_serving(self) -> None:
        methods = {"Register": (RawMessage, self.register)}

        def bind(socket: Path) -> aio.Server:
            self._server = server(socket, REGISTRATION, methods, concurrent=_REGISTERING)
            return self._server

        started = self._directory.link(bind)
        await started.start()

    async def _stop_serving(self) -> None:
        self._directory.unlink()
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    # --- changes ----------------------------------------------------------------------------------

    def update(self) -> None:
        """Compute offer and conditions, and note whether they changed."""
        offer, conditions = self._resources.offer(), tuple(self._lines())
        if (offer, conditions) != (self._offer, self._conditions):
            self._offer, self._conditions = offer, conditions
            self._changes.set()

    def _lines(self) -> Iterator[str]:
        if self._fault:
            yield self._fault
        if self._clock.monotonic() - self._vanished_at < GRACE:
            yield (
                f"another process removed {self._directory.socket}, it is served again; plugins "
                "that watch it register again"
            )
        yield from self._registry.conditions()
        yield from self._resources.conditions()

    async def _notify(self, changed: Callable[[], None]) -> None:
        while True:
            await self._changes.wait()
            self._changes.clear()
            changed()
            await self._clock.sleep(_BETWEEN_CHANGES)
