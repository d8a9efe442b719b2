"""What device plugins send, decoded within bounds: lists of devices, and answers to calls.

Bytes go in; devices, options, preferences and deliveries come out, or `AnswerError` says what is
wrong. Every message of ListAndWatch has all devices, so that of a stream of lists only the newest
counts: `NewestList` uses it at a cost that the sender cannot raise.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError
from msgspec import Struct

from agent.devices.plugin_limits import (
    LONGEST_ANSWER,
    LONGEST_ID,
    LONGEST_LIST,
    MOST_DEVICES,
    NUMA_NODES,
)
from agent.managers.delivery import Delivery, DeviceNode, Mount
from agent.managers.policy import PluginDevice
from agent.rpc.device_plugins import V1BETA1
from agent.yaml import shown
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sized

    from agent.clock import Clock
    from agent.rpc.messages import Message


#: The only health with which a device is allocated; every other text is unhealthy.
HEALTHY: Final = "Healthy"


class AnswerError(Exception):
    """A plugin sent what cannot be used; the text says what was found and what is allowed."""


def read_devices(raw: bytes) -> tuple[PluginDevice, ...]:
    """Return the devices of a ListAndWatchResponse in its order; raises `AnswerError`.

    As in the kubelet a device without topology has no NUMA locality, and ids that are those of no
    node (-1 is what the kernel shows for a PCI device without one) do not count. The kubelet keeps
    the last of two devices with one id; here this is an error, since their nodes or health differ.
    """
    if len(raw) > LONGEST_LIST:
        raise AnswerError(f"the list of devices has {len(raw)} bytes, {LONGEST_LIST} are allowed")
    try:
        message = V1BETA1["ListAndWatchResponse"].FromString(raw)
    except DecodeError as error:
        raise AnswerError("the list of devices is not a ListAndWatchResponse") from error
    count = len(message.devices)
    if count > MOST_DEVICES:
        raise AnswerError(f"the list has {count} devices, {MOST_DEVICES} are allowed")
    devices: dict[str, PluginDevice] = {}
    for each in message.devices:
        device = _device(each)
        if device.id in devices:
            raise AnswerError(f"device {shown(device.id)} is listed twice")
        devices[device.id] = device
    return tuple(devices.values())


def _device(message: Message) -> PluginDevice:
    identity: str = message.ID
    if not identity or not identity.isprintable() or len(identity.encode()) > LONGEST_ID:
        raise AnswerError(
            f"{shown(identity)} is not the id of a device; 1 to {LONGEST_ID} bytes of printable "
            "characters are"
        )
    nodes = message.topology.nodes
    if len(nodes) > NUMA_NODES:
        raise AnswerError(
            f"device {shown(identity)} has {len(nodes)} NUMA nodes, {NUMA_NODES} are allowed"
        )
    known = tuple([node.ID for node in nodes if 0 <= node.ID < NUMA_NODES])
    return PluginDevice(identity, _place(known), healthy=message.health == HEALTHY)


@lru_cache(maxsize=256)  # thousands of devices are on few different nodes, and keep these masks
def _place(nodes: tuple[int, ...]) -> Mask:
    return Mask.from_ids(nodes)


#: The most mounts, device nodes, variables, annotations and CDI names of one container, each.
MOST_ENTRIES: Final = 1024


class PluginOptions(Struct, frozen=True):
    """Which optional methods a plugin has (DevicePluginOptions)."""

    preferred_allocation: bool = False
    pre_start: bool = False


def decoded(raw: bytes, name: str) -> Message:
    """Return an answer as the named message; raises `AnswerError`."""
    if len(raw) > LONGEST_ANSWER:
        raise AnswerError(f"the {name} has {len(raw)} bytes, {LONGEST_ANSWER} are allowed")
    try:
        return V1BETA1[name].FromString(raw)
    except DecodeError as error:
        raise AnswerError(f"the answer cannot be decoded as {name}") from error


def read_options(raw: bytes) -> PluginOptions:
    """Return the options of a plugin; raises `AnswerError`."""
    options = decoded(raw, "DevicePluginOptions")
    return PluginOptions(
        preferred_allocation=options.get_preferred_allocation_available,
        pre_start=options.pre_start_required,
    )


def read_preference(
    raw: bytes, available: frozenset[str], required: frozenset[str], size: int
) -> tuple[str, ...]:
    """Return the preferred ids, () where the plugin has no preference; raises `AnswerError`.

    The kubelet takes those ids that are available and fills up with others. An answer that does not
    fit the question shows that the plugin does not know the devices, so nothing of it is used here.
    """
    responses = decoded(raw, "PreferredAllocationResponse").container_responses
    if len(responses) > 1:
        raise AnswerError(f"{len(responses)} containers are answered, 1 was asked for")
    ids: tuple[str, ...] = tuple(responses[0].deviceIDs) if responses else ()
    if not ids:
        return ()
    if len(ids) != size or len(set(ids)) != size:
        raise AnswerError(f"{len(set(ids))} devices are preferred, {size} were asked for")
    if unknown := sorted(set(ids) - available):
        raise AnswerError(f"device {shown(unknown[0])} is preferred, but not available")
    if missing := sorted(required.difference(ids)):
        raise AnswerError(f"device {shown(missing[0])} has to be among the preferred devices")
    return ids


def read_delivery(raw: bytes) -> Delivery:
    """Return what the one container of an AllocateResponse gets; raises `AnswerError`.

    `agent.devices.delivery_checks` says whether a container can get the values.
    """
    responses = decoded(raw, "AllocateResponse").container_responses
    if len(responses) != 1:
        raise AnswerError(f"{len(responses)} containers are answered, 1 was asked for")
    [found] = responses
    _bounded(found.envs, "environment variables")
    _bounded(found.annotations, "annotations")
    _bounded(found.mounts, "mounts")
    _bounded(found.devices, "device nodes")
    _bounded(found.cdi_devices, "CDI devices")
    return Delivery(
        environment=MappingProxyType(dict(sorted(found.envs.items()))),
        mounts=tuple(Mount(m.container_path, m.host_path, m.read_only) for m in found.mounts),
        device_nodes=tuple(
            DeviceNode(node.container_path, node.host_path, node.permissions)
            for node in found.devices
        ),
        annotations=MappingProxyType(dict(sorted(found.annotations.items()))),
        cdi_devices=tuple(device.name for device in found.cdi_devices),
    )


def _bounded(entries: Sized, what: str) -> None:
    if len(entries) > MOST_ENTRIES:
        raise AnswerError(f"there are {len(entries)} {what}, {MOST_ENTRIES} are allowed")


#: At least so long after a list is the next one used, in seconds.
PAUSE: Final = 0.1
#: ... and so many times as long as it took to use one, for the lists of all plugins: those that
#: send without end get a tenth of the loop's time together.
PAUSES_PER_USE: Final = 9
#: So many lists are read before the newest of them is used; then the plugin has to wait until
#: gRPC's flow control lets it send more.
BURST: Final = 256


class NewestList:
    """Uses the lists of one stream: the first at once, of those that follow too fast the newest.

    Those with the same `turn` share the time that using lists may take.
    """

    def __init__(
        self, use: Callable[[bytes], None], clock: Clock, turn: asyncio.Lock | None = None
    ) -> None:
        self._use = use
        self._turn = turn or asyncio.Lock()
        self._clock = clock
        self._newest: bytes | None = None
        self._arrived = asyncio.Event()
        self._used = asyncio.Event()
        self._unused = 0

    async def follow(self, lists: AsyncGenerator[bytes, None]) -> None:
        """Use lists until the stream ends; raises what reading or using raises.

        A list that waits then is dropped: its plugin is gone, with all others
        perhaps at the same moment, and no device is healthy without one.
        """
        tasks = {asyncio.create_task(self._read(lists)), asyncio.create_task(self._use_all())}
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in ended:
            await task

    async def _read(self, lists: AsyncGenerator[bytes, None]) -> None:
        async with aclosing(lists):
            async for raw in lists:
                self._newest = raw
                self._arrived.set()
                self._unused += 1
                if self._unused >= BURST:
                    self._used.clear()
                    await self._used.wait()

    async def _use_all(self) -> None:
        while True:
            await self._arrived.wait()
            async with self._turn:
                started = self._clock.monotonic()
                self._use_newest()
                pause = PAUSES_PER_USE * (self._clock.monotonic() - started)
                if pause:
                    await self._clock.sleep(pause)
            if pause < PAUSE:
                await self._clock.sleep(PAUSE - pause)
            self._unused = 0
            self._used.set()

    def _use_newest(self) -> None:
        self._arrived.clear()
        raw, self._newest = self._newest, None
        if raw is not None:
            self._use(raw)
