"""All device plugins together as one provider of devices (`DevicePlugins`).

Registrations, lists of devices and answers to calls come in; what is offered, what a container
gets, and what is amiss go out. A `Plugin` is one that is connected: its calls have a deadline and
are counted, and a `CallBreaker` keeps a method that hangs from costing every pod one.
`PluginResources` are the devices of all plugins, those of lost ones included.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import aclosing
from functools import partial
from hashlib import blake2b
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import structlog
from msgspec.structs import replace

from agent.devices.lists import (
    AnswerError,
    NewestList,
    PluginOptions,
    read_delivery,
    read_devices,
    read_options,
    read_preference,
)
from agent.devices.plugin_limits import (
    ALLOCATION_DURATION,
    CALLS,
    GRACE,
    IGNORED_PREFERENCES,
    METHODS,
    MOST_RESOURCES,
    REGISTRATIONS,
    CallResult,
    Deadlines,
)
from agent.devices.provider import DeviceError, Offer
from agent.devices.registration import (
    REGISTERING,
    UNKNOWN,
    DirectoryError,
    PluginDirectory,
    PluginRegistry,
    read_registration,
)
from agent.progress import uncancelled
from agent.rpc import DEVICE_PLUGIN, REGISTRATION, V1BETA1, CallError, Client, RawMessage, server
from agent.text import printable

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        Awaitable,
        Callable,
        Collection,
        Iterable,
        Iterator,
        Mapping,
    )
    from pathlib import Path

    from grpc import aio

    from agent.clock import Clock
    from agent.devices.plugin_limits import Measure
    from agent.devices.registration import Registrant, Watch
    from agent.managers.allocation import Delivery
    from agent.managers.policy import PluginDevice
    from agent.rpc import Message, MessageClass, SocketClient

    Call: TypeAlias = Callable[[str, Message, MessageClass, float], Awaitable[bytes]]

log = structlog.get_logger(__name__)

#: How long a method is not called after a call without an answer, in seconds: its calls are made
#: one after the other, so that every further deadline would delay all pods with the resource.
BACK_OFF: Final = 60.0
#: The longest that it is not called; every further call without an answer doubles `BACK_OFF`.
LONGEST_BACK_OFF: Final = 960.0


class CallBreaker:
    """Opens with an unanswered call, for `BACK_OFF` seconds; then one call is tried.

    An answer closes the breaker, a further timeout opens it for twice as long. An answer to another
    method of the plugin shows nothing, and a plugin that registers again gets closed ones.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._closes_at = 0.0
        self.timeouts = 0

    @property
    def remaining(self) -> float:
        """For how many more seconds the method is not called; 0 if it may be."""
        return max(0.0, self._closes_at - self._monotonic())

    def tried(self) -> None:
        """Note that a call begins: while one is tried that was not answered, no other is."""
        if self.timeouts:
            self._open()

    def answered(self) -> None:
        """Note that a call was answered, with an error or without."""
        self.timeouts = 0
        self._closes_at = 0.0

    def timed_out(self) -> None:
        """Note that a call was not answered in time."""
        self._open()
        self.timeouts += 1

    def _open(self) -> None:
        self._closes_at = self._monotonic() + min(BACK_OFF * 2**self.timeouts, LONGEST_BACK_OFF)


_UNREACHABLE: Final = "UNAVAILABLE"
_TIMEOUT: Final = "DEADLINE_EXCEEDED"
_GET_OPTIONS: Final = "get device plugin options"
_OPTIONS: Final = "GetDevicePluginOptions"
_PREFER: Final = "GetPreferredAllocation"
_ALLOCATE: Final = "Allocate"
_START: Final = "PreStartContainer"
#: How long after a failed connection the next one is tried, in seconds.
_REDIAL: Final = 0.1

#: The most characters of a plugin's own words in an error.
LONGEST_WORDS: Final = 500

AnswerT = TypeVar("AnswerT")


class SkippedCallError(Exception):
    """A plugin was not called, since it did not answer before; the text says for how long."""


class Plugin:
    """A plugin that registered; close it in the end."""

    def __init__(
        self,
        registrant: Registrant,
        client: SocketClient,
        deadlines: Deadlines,
        clock: Clock,
        measure: Measure,
    ) -> None:
        self.resource = registrant.resource
        self.socket = registrant.socket
        self.options = PluginOptions()
        self.breakers = {method: CallBreaker(clock.monotonic) for method in METHODS}
        #: The digest of the last list that was used; one that is the same is not read again.
        self.listed = b""
        self._client = client
        self._deadlines = deadlines
        self._clock = clock
        self._measure = measure
        #: A kubelet makes one call of a plugin at a time.
        self._turn = asyncio.Lock()

    async def connect(self) -> None:
        """Get the options, as the kubelet does within Register; raises `CallError`."""
        seconds = self._deadlines.options
        try:
            self.options = await self._answer(
                _OPTIONS, V1BETA1["Empty"](), seconds, read_options, self._dial
            )
        except AnswerError as error:
            raise CallError(UNKNOWN, f"failed to get device plugin options: {error}") from error
        except CallError as error:
            what = "dial device plugin" if error.code == _UNREACHABLE else _GET_OPTIONS
            raise CallError(UNKNOWN, f"failed to {what}: {error}") from error

    async def lists(self) -> AsyncGenerator[bytes, None]:
        """Yield the lists of devices as they arrive; raises `CallError`."""
        stream = self._client.stream("ListAndWatch", V1BETA1["Empty"](), RawMessage)
        try:
            async with aclosing(stream):
                async for raw in stream:
                    yield raw
        except CallError as error:
            raise _in_a_line(error) from error

    async def preferred(
        self, available: frozenset[str], required: frozenset[str], size: int
    ) -> tuple[str, ...]:
        """Return the preferred ids, () where the plugin has no preference.

        Raises `CallError`, `SkippedCallError` and `AnswerError`.
        """
        question = {
            "available_deviceIDs": sorted(available),
            "must_include_deviceIDs": sorted(required),
            "allocation_size": size,
        }
        return await self._answer(
            _PREFER,
            V1BETA1["PreferredAllocationRequest"](container_requests=[question]),
            self._deadlines.preference,
            lambda raw: read_preference(raw, available, required, size),
        )

    async def allocate(self, ids: tuple[str, ...]) -> Delivery:
        """Return what one container gets with these devices.

        Raises `CallError`, `SkippedCallError` and `AnswerError`. The plugin is not asked where its
        later PreStartContainer would be skipped.
        """
        return await self._answer(
            _ALLOCATE,
            V1BETA1["AllocateRequest"](container_requests=[{"devices_ids": ids}]),
            self._deadlines.allocation,
            read_delivery,
        )

    async def start_container(self, ids: tuple[str, ...]) -> None:
        """Have the plugin prepare devices; raises `CallError`, `SkippedCallError`."""
        await self._answer(
            _START,
            V1BETA1["PreStartContainerRequest"](devices_ids=ids),
            self._deadlines.start,
            lambda _raw: None,
        )

    async def close(self) -> None:
        """Close the connection and end all calls."""
        await self._client.close()

    async def _dial(
        self, method: str, request: Message, response: MessageClass, seconds: float
    ) -> bytes:
        """Call a method as soon as the plugin serves its socket; raises `CallError`.

        A plugin may do that a moment after it registers.
        """
        latest = self._clock.monotonic() + seconds
        while True:
            try:
                raw: bytes = await self._client.call(method, request, response, seconds)
            except CallError as error:
                if error.code != _UNREACHABLE or self._clock.monotonic() >= latest:
                    raise
            else:
                return raw
            await self._clock.sleep(_REDIAL)

    async def _answer(
        self,
        method: str,
        request: Message,
        seconds: float,
        read: Callable[[bytes], AnswerT],
        call: Call | None = None,
    ) -> AnswerT:
        """Call a method, read what it answers, and count what became of the call."""
        self._check(method)
        async with self._turn:
            self._check(method)  # calls before it may not have been answered
            return await self._answer_now(method, request, seconds, read, call)

    async def _answer_now(
        self,
        method: str,
        request: Message,
        seconds: float,
        read: Callable[[bytes], AnswerT],
        call: Call | None,
    ) -> AnswerT:
        breaker = self.breakers[method]
        breaker.tried()
        started = self._clock.monotonic()
        try:
            raw: bytes = await (call or self._client.call)(method, request, RawMessage, seconds)
        except asyncio.CancelledError:  # the pod's time for all its calls is over
            breaker.timed_out()
            self._count(method, CallResult.TIMEOUT)
            raise
        except CallError as error:
            if error.code == _TIMEOUT:
                breaker.timed_out()
                self._count(method, CallResult.TIMEOUT)
                late = f"{method} was not answered within {seconds:g} s"
                raise CallError(_TIMEOUT, late) from error
            breaker.answered()
            self._count(method, CallResult.FAILED)
            raise _in_a_line(error) from error
        finally:
            if method == _ALLOCATE:
                taken = self._clock.monotonic() - started
                self._measure.observe(ALLOCATION_DURATION, taken, self.resource)
        breaker.answered()
        try:
            answer = read(raw)
        except AnswerError:
            self._count(method, CallResult.INVALID)
            raise
        self._count(method, CallResult.OK)
        return answer

    def _check(self, method: str) -> None:
        """Raise `SkippedCallError` while the breaker of a method, or of a later one, is open."""
        if method == _ALLOCATE and self.options.pre_start:
            self._check(_START)
        if remaining := self.breakers[method].remaining:
            self._count(method, CallResult.SKIPPED)
            raise SkippedCallError(
                f"{unanswered(method, self.breakers[method])}, so it is called again in "
                f"{math.ceil(remaining)} s"
            )

    def _count(self, method: str, result: CallResult) -> None:
        self._measure.add(CALLS, self.resource, method, result)


def unanswered(method: str, breaker: CallBreaker) -> str:
    """Return that the last calls of a method were not answered."""
    times = f" {breaker.timeouts} times in a row" if breaker.timeouts > 1 else ""
    return f"{method} was not answered in time{times}"


def _in_a_line(error: CallError) -> CallError:
    """Return an error whose words, a plugin's, fit in a line of a log and of a terminal."""
    return CallError(error.code, printable(error.message, LONGEST_WORDS))


class PluginResource:
    """A resource of plugins: the devices of the last list, and the plugin while it is connected.

    `lost_at` is when the plugin was lost, `unlisted_at` when its last list ceased to count. It is
    `away` while it may come back and nothing is known against its devices. `note` says what is odd
    although devices are offered, and `noted_at` since when.
    """

    def __init__(self, devices: tuple[PluginDevice, ...], amiss: str, lost_at: float) -> None:
        self.plugin: Plugin | None = None
        self.lost_at = self.unlisted_at = lost_at
        self.note = ""
        self.noted_at = 0.0
        self.away = False
        self._devices = devices
        self.set_amiss(amiss, away=True)

    @property
    def amiss(self) -> str:
        """Why no device is healthy; "" if the last list of a connected plugin counts."""
        return self._amiss

    @property
    def offered(self) -> tuple[PluginDevice, ...]:
        """The devices; all are unhealthy if something is amiss."""
        return self._offered

    def set_devices(self, devices: tuple[PluginDevice, ...]) -> None:
        """Offer the devices of a list."""
        self._devices = self._offered = devices
        self._amiss = ""
        self.away = False

    def set_amiss(self, amiss: str, *, away: bool = False) -> None:
        """Offer the devices of the last list as unhealthy for a reason; "" as they were listed."""
        self._amiss = amiss
        self.away = away and bool(amiss) and bool(self._devices)
        self._offered = self._devices
        if amiss:
            self._offered = tuple(
                [replace(device, healthy=False, away=self.away) for device in self._devices]
            )


class PluginResources:
    """All resources by name; plugins come and go, what they offered stays for `GRACE` seconds."""

    def __init__(
        self, known: Mapping[str, tuple[PluginDevice, ...]], monotonic: Callable[[], float]
    ) -> None:
        self._monotonic = monotonic
        self._resources = {
            name: PluginResource(
                devices, "its plugin has not registered since the agent started", monotonic()
            )
            for name, devices in known.items()
        }

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._resources)

    def has_room(self, resource: str) -> bool:
        """Return whether a resource is known or one more may be."""
        return resource in self._resources or len(self._resources) < MOST_RESOURCES

    def plugin(self, resource: str) -> Plugin | None:
        """Return the connected plugin of a resource."""
        found = self._resources.get(resource)
        return None if found is None else found.plugin

    def why_lost(self, resource: str) -> str:
        """Return why a resource has no plugin."""
        found = self._resources.get(resource)
        return "no plugin registered this resource" if found is None else found.amiss

    def connect(self, plugin: Plugin) -> Plugin | None:
        """Make a plugin that of its resource; return the connected one that it replaces.

        Devices stay as they are until the plugin's first list.
        """
        found = self._resources.get(plugin.resource)
        if found is None:
            found = PluginResource((), "", 0.0)
            self._resources[plugin.resource] = found
        former, found.plugin, found.note = found.plugin, plugin, ""
        if former is None:
            away = self._is_in_grace(found.unlisted_at)
            found.set_amiss("its plugin has not sent a list of devices yet", away=away)
        elif former.socket != plugin.socket:
            self._note(
                found,
                f"{former.socket.name} was connected when {plugin.socket.name} "
                "registered the same resource and replaced it",
            )
        return former

    def list(self, plugin: Plugin, devices: tuple[PluginDevice, ...]) -> None:
        """Take over the devices of a plugin's list."""
        found = self._of(plugin)
        if found is not None:
            found.set_devices(devices)

    def reject(self, plugin: Plugin, why: str) -> None:
        """Offer no healthy device, since a plugin's list cannot be used.

        The former list does not stay in effect: the one that cannot be used may be the one which
        says that a device is broken.
        """
        found = self._of(plugin)
        if found is not None:
            if not found.amiss:
                found.unlisted_at = self._monotonic()
            found.set_amiss(why)

    def note(self, plugin: Plugin, text: str) -> None:
        """Note what is odd about a plugin whose devices can be given."""
        found = self._of(plugin)
        if found is not None:
            self._note(found, text)

    def lose(self, plugin: Plugin, why: str, *, away: bool) -> bool:
        """Note that a plugin is gone; return False if another one replaced it before.

        `away`: it may be starting again, so that nothing is amiss before `GRACE` seconds.
        """
        found = self._of(plugin)
        if found is None:
            return False
        found.plugin, found.lost_at = None, self._monotonic()
        if not found.amiss:
            found.unlisted_at = found.lost_at
        # One that ends again and again before it lists its devices has one grace for all of that.
        found.set_amiss(why, away=away and self._is_in_grace(found.unlisted_at))
        return True

    def expire(self) -> tuple[str, ...]:
        """Drop resources that were lost `GRACE` seconds ago and old notes; return what dropped."""
        expired = tuple(
            [
                name
                for name, found in self._resources.items()
                if found.plugin is None and not self._is_in_grace(found.lost_at)
            ]
        )
        for name in expired:
            del self._resources[name]
        for found in self._resources.values():
            if found.note and not self._is_in_grace(found.noted_at):
                found.note = ""
            if found.away and not self._is_in_grace(found.unlisted_at):
                found.set_amiss(found.amiss)
        return expired

    def offer(self) -> Offer:
        """Return what all plugins offer."""
        devices = {name: found.offered for name, found in self._resources.items()}
        preferring = frozenset(
            name
            for name, found in self._resources.items()
            if found.plugin is not None and found.plugin.options.preferred_allocation
        )
        return Offer(MappingProxyType(devices), preferring)

    def conditions(self) -> Iterable[str]:
        """Yield a line for each thing that is amiss, by name of the resource."""
        for name, found in sorted(self._resources.items()):
            for text in _lines(found):
                yield f"device plugin of {name}: {text}"

    def _of(self, plugin: Plugin) -> PluginResource | None:
        found = self._resources.get(plugin.resource)
        return None if found is None or found.plugin is not plugin else found

    def _is_in_grace(self, moment: float) -> bool:
        """Return whether a moment is less than `GRACE` seconds ago."""
        return self._monotonic() - moment < GRACE

    def _note(self, found: PluginResource, text: str) -> None:
        found.note, found.noted_at = text, self._monotonic()


def _lines(found: PluginResource) -> Iterator[str]:
    if found.amiss and not found.away:
        yield f"{found.amiss}; its {len(found.offered)} devices are unhealthy"
    if found.note:
        yield found.note
    breakers = {} if found.plugin is None else found.plugin.breakers
    for method, breaker in breakers.items():
        if breaker.timeouts:
            yield unanswered(method, breaker)


#: How often the directory is looked at and what expired is dropped, in seconds.
PERIOD: Final = 2.0
#: The same while the directory cannot be served, so that a kubelet is not disturbed often.
RETRY_PERIOD: Final = 10.0
#: The shortest time between two calls of `changed`, in seconds.
_BETWEEN_CHANGES: Final = 0.1

#: The kubelet's directory of its plugin watcher, beside that of `kubelet.sock`.
REGISTRY: Final = "plugins_registry"

#: How gRPC in this process ends the stream of a plugin whose list is longer than a message may be.
_TOO_LONG: Final = "RESOURCE_EXHAUSTED"


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

    def prepares(self, resource: str) -> bool:
        """Return whether the plugin of a resource asked for PreStartContainer."""
        plugin = self._resources.plugin(resource)
        return plugin is not None and plugin.options.pre_start

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

        Return why it is, and whether it may be starting again: a stream ends with any status then,
        that of Go's `return ctx.Err()` is UNKNOWN.
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
            self._server = server(socket, REGISTRATION, methods, concurrent=REGISTERING)
            return self._server

        started = self._directory.link(bind)
        await started.start()

    async def _stop_serving(self) -> None:
        self._directory.unlink()
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

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
