"""The provider of the devices of all device plugins: `DevicePlugins`.

In: registrations over `kubelet.sock` and from the plugin registry, and what the plugins answer.
Out: the offer of devices, the delivery of allocated ones, and conditions. Around this module:

- `plugin_directory`, `plugin_registry`, `registration`: how plugins register;
- `plugin_calls`: one connected plugin and its calls;
- `plugin_resources`: what plugins listed, and when their devices are unhealthy;
- `lists`: what their messages say.

A connected plugin goes through these steps:

1. `connect`: it is asked for its options and replaces the former plugin of its resource.
2. Its stream of lists is followed; each list that differs from the one before is offered.
3. The stream ends, its socket is gone, or another plugin replaced it: it is lost, and closed. Its
   devices stay, unhealthy, for `GRACE` seconds.

Whenever the offer or a condition may have changed, `update` is called.
"""

from __future__ import annotations

import asyncio
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from agent.devices.lists import AnswerError, NewestList, read_devices
from agent.devices.plugin_calls import Plugin, SkippedCallError
from agent.devices.plugin_directory import RegistrationServer
from agent.devices.plugin_limits import (
    GRACE,
    IGNORED_PREFERENCES,
    MOST_RESOURCES,
    REGISTRATIONS,
    Deadlines,
)
from agent.devices.plugin_registry import PluginRegistry
from agent.devices.plugin_resources import PluginResources
from agent.devices.provider import DeviceError, Offer
from agent.devices.registration import read_registration
from agent.progress import uncancelled
from agent.rpc.calls import CallError
from agent.rpc.client import Client
from agent.rpc.device_plugins import DEVICE_PLUGIN, V1BETA1

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
    from pathlib import Path

    from agent.clock import Clock
    from agent.devices.plugin_limits import Measure
    from agent.devices.plugin_registry import Watch
    from agent.devices.registration import Registrant
    from agent.managers.delivery import Delivery
    from agent.managers.policy import PluginDevice
    from agent.rpc.client import SocketClient
    from agent.rpc.messages import Message

log = structlog.get_logger(__name__)

#: The kubelet's directory of its plugin watcher, beside that of `kubelet.sock`.
REGISTRY: Final = "plugins_registry"
#: How often the directory of `kubelet.sock` is checked, in seconds.
PERIOD: Final = 2.0
#: The same while the directory cannot be served: a kubelet is not disturbed often.
RETRY_PERIOD: Final = 10.0
#: The shortest time between two calls of `changed`, in seconds.
_BETWEEN_CHANGES: Final = 0.1
#: The status with which gRPC in this process ends the stream of a plugin whose list is longer than
#: a message may be.
_TOO_LONG: Final = "RESOURCE_EXHAUSTED"

AnswerT = TypeVar("AnswerT")


def dial(socket: Path) -> SocketClient:
    """Return a client of the plugin that serves a socket."""
    return Client(socket, DEVICE_PLUGIN)


class DevicePlugins:
    """The devices of all plugins (`agent.devices.provider.DeviceProvider`).

    `directory` is that of `kubelet.sock`, `registry` that of the plugin registry, in which `watch`
    yields when names change. `configured` are resources of the agent's configuration, which no
    plugin may have. `known` are the devices of plugins before the agent was started, as the
    allocations name them.
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
        self.settled = asyncio.Event()
        self._directory = directory
        self._clock = clock
        self._measure = measure
        self._configured = frozenset(configured)
        self._deadlines = deadlines
        self._dial = dial
        #: Follows the lists of each plugin that has not ended yet; returns why it is lost, and
        #: whether it may be starting again.
        self._following: dict[Plugin, asyncio.Task[tuple[str, bool]]] = {}
        #: Closes the connections of lost plugins.
        self._closing: set[asyncio.Task[None]] = set()
        #: Shared by the lists of all plugins (`NewestList`).
        self._turn = asyncio.Lock()
        self._server = RegistrationServer(directory, self.register, clock)
        self._registry = PluginRegistry(
            registry or directory.parent / REGISTRY, clock, deadlines.options, self, watch
        )
        former = {name: known[name] for name in known.keys() - self._configured}
        self._resources = PluginResources(former, clock.monotonic)
        #: What was offered and reported last, and whether `changed` is to be called for it.
        self._offer = self._resources.offer()
        self._conditions = tuple(self._lines())
        self._changes = asyncio.Event()

    def offer(self) -> Offer:
        """Return the devices of all resources."""
        return self._offer

    def conditions(self) -> tuple[str, ...]:
        """Return what is not as it should be with the directories and plugins, a line each."""
        return self._conditions

    def connected(self) -> dict[str, bool]:
        """Return for each resource whether its plugin is connected."""
        return {name: self._resources.plugin(name) is not None for name in self._resources}

    @property
    def is_serving(self) -> bool:
        """Whether this process serves `kubelet.sock`, and no kubelet does."""
        return self._server.is_serving

    async def serve(self, changed: Callable[[], None]) -> None:
        """Serve the directory until cancelled, then close all connections and remove the socket."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(uncancelled(self._notify(changed)))
                tasks.create_task(uncancelled(self._serve_directory()))
                tasks.create_task(self._registry.serve())
        finally:
            await self._server.stop()
            await self._disconnect_all()

    async def preferred(
        self, resource: str, available: frozenset[str], required: frozenset[str], size: int
    ) -> tuple[str, ...]:
        """Return which `size` of the `available` devices a plugin prefers, with all `required`.

        Empty if the plugin has no preference, did not answer in time, or gave an answer that does
        not fit the question.
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
        return await self._answer(plugin, plugin.allocate(ids))

    def prepares(self, resource: str) -> bool:
        """Return whether the plugin of a resource asked for PreStartContainer."""
        plugin = self._resources.plugin(resource)
        return plugin is not None and plugin.options.pre_start

    async def start_container(self, resource: str, ids: tuple[str, ...]) -> None:
        """Have the plugin prepare devices if it asked for that; raises `DeviceError`."""
        plugin = self._connected(resource)
        if plugin.options.pre_start:
            await self._answer(plugin, plugin.start_container(ids))

    async def register(self, raw: bytes) -> Message:
        """Connect the plugin of a RegisterRequest; raises `CallError`.

        As by the kubelet, the plugin is called for its options before its request is answered.
        """
        await self.connect(read_registration(raw, self._directory))
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
            self._check_registrable(resource)  # others may have registered meanwhile
            connected = True
        except CallError as error:
            log.warning("device plugin not registered", resource=resource, error=str(error))
            raise
        finally:
            if not connected:
                await plugin.close()
        self._follow(plugin)

    def disconnect(self, registrant: Registrant, why: str) -> None:
        """Lose a plugin, unless another one replaced it."""
        plugin = self._resources.plugin(registrant.resource)
        if plugin is not None and plugin.socket == registrant.socket:
            self._lose(plugin, why, away=True)
            self._following[plugin].cancel()

    def update(self) -> None:
        """Compute offer and conditions, and note whether they changed."""
        offer, conditions = self._resources.offer(), tuple(self._lines())
        if (offer, conditions) != (self._offer, self._conditions):
            self._offer, self._conditions = offer, conditions
            self._changes.set()

    def _lines(self) -> Iterator[str]:
        yield from self._server.conditions()
        yield from self._registry.conditions()
        yield from self._resources.conditions()

    async def _notify(self, changed: Callable[[], None]) -> None:
        while True:
            await self._changes.wait()
            self._changes.clear()
            changed()
            await self._clock.sleep(_BETWEEN_CHANGES)

    async def _serve_directory(self) -> None:
        while True:
            await self._server.ensure()
            if self._server.fault:  # another process serves it: plugins register there
                await self._disconnect_all()
            self.settled.set()
            for resource in self._resources.expire():
                log.warning("device plugin resource dropped", resource=resource, after=GRACE)
            self.update()
            await self._clock.sleep(RETRY_PERIOD if self._server.fault else PERIOD)

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
                f"{MOST_RESOURCES} resources are registered, none can be added; stop a plugin that "
                f"is not needed, its resource is dropped after {GRACE:g} s",
            )

    def _connected(self, resource: str) -> Plugin:
        plugin = self._resources.plugin(resource)
        if plugin is None:
            raise DeviceError(
                f"device plugin of {resource}: not connected: {self._resources.why_lost(resource)}",
                "start the plugin; it registers by itself",
            )
        return plugin

    async def _answer(self, plugin: Plugin, answer: Awaitable[AnswerT]) -> AnswerT:
        try:
            return await answer
        except (AnswerError, CallError, SkippedCallError) as error:
            raise DeviceError(
                f"device plugin of {plugin.resource}: {error}", "look at the plugin's log"
            ) from error
        finally:
            self.update()

    def _follow(self, plugin: Plugin) -> None:
        """Make a plugin that of its resource, and begin to follow its lists."""
        former = self._resources.connect(plugin)
        log.info(
            "device plugin registered",
            resource=plugin.resource,
            endpoint=plugin.socket.name,
            replaced="" if former is None else former.socket.name,
        )
        if former is not None:
            self._following[former].cancel()
        task = asyncio.create_task(self._use_lists(plugin))
        self._following[plugin] = task
        # A task that is cancelled before it begins never runs, so `_end` is not a part of it.
        task.add_done_callback(partial(self._end, plugin))
        self._server.registered()
        self.update()

    async def _use_lists(self, plugin: Plugin) -> tuple[str, bool]:
        """Use the lists of a plugin until it is gone.

        Return why it is lost, and whether it may be starting again: the stream of a plugin that
        ends may have any status (that of Go's `return ctx.Err()` is UNKNOWN).
        """
        try:
            newest = NewestList(lambda raw: self._use_list(plugin, raw), self._clock, self._turn)
            await newest.follow(plugin.lists())
        except CallError as error:
            return f"its plugin is gone: {error}", error.code != _TOO_LONG
        except Exception as error:
            log.exception("device plugin failed unexpectedly", resource=plugin.resource)
            return f"internal error ({type(error).__name__}); see the agent log", False
        return "its plugin ended the stream of devices", True

    def _use_list(self, plugin: Plugin, raw: bytes) -> None:
        digest = blake2b(raw).digest()
        if digest == plugin.list_digest:
            return
        plugin.list_digest = b""
        try:
            self._resources.list(plugin, read_devices(raw))
            plugin.list_digest = digest
        except AnswerError as error:
            log.warning("device list not usable", resource=plugin.resource, error=str(error))
            self._resources.reject(plugin, str(error))
        self.update()

    def _end(self, plugin: Plugin, task: asyncio.Task[tuple[str, bool]]) -> None:
        """Lose a plugin whose lists are no longer followed, and close its connection."""
        del self._following[plugin]
        if task.cancelled():
            self._lose(plugin, self._server.fault or "the agent ended the connection", away=True)
        else:
            why, away = task.result()
            self._lose(plugin, why, away=away)
        self.update()
        closing = asyncio.create_task(plugin.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _lose(self, plugin: Plugin, why: str, *, away: bool) -> None:
        if self._resources.lose(plugin, why, away=away):
            log.warning("device plugin lost", resource=plugin.resource, why=why)

    async def _disconnect_all(self) -> None:
        following = tuple(self._following.values())
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)
        await asyncio.gather(*self._closing)
