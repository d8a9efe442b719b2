"""The provider of the host's own devices: classes of the configuration, without any plugin.

In: the classes, sysfs and the kernel's announcements of changes. Out: the offer of devices, and the
delivery of allocated ones. The devices are read at the start, after each announced change, after
`PERIOD` seconds, and before each delivery.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

import structlog
from msgspec.structs import replace

from agent.devices.host_delivery import deliver
from agent.devices.host_selection import NOTHING_ALLOCATED, Selection, select
from agent.devices.provider import DeviceError
from agent.progress import uncancelled
from sysfs.devices import Functions, read_functions
from sysfs.files import SysfsTree
from sysfs.links import read_live_links, watch_links
from sysfs.uevents import watch_devices

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping
    from pathlib import Path

    from agent.config.devices import HostDeviceClass
    from agent.config.model import Config
    from agent.devices.provider import Offer
    from agent.managers.delivery import Delivery

log = structlog.get_logger(__name__)

#: How often devices are read, in seconds, also if nothing announced a change.
PERIOD: Final = 60.0
#: Changes within this time are handled together, in seconds.
SETTLE_SECONDS: Final = 0.5
#: The pause before a broken stream of changes is opened again, in seconds.
REOPEN_SECONDS: Final = 60.0
#: PCI base class of network controllers.
_NETWORK: Final = "02"

#: Opens a stream that yields whenever something changed.
Watch: TypeAlias = "Callable[[], AsyncIterator[object]]"
_LIVE: Final[Mapping[str, Watch]] = {"devices": watch_devices, "links": watch_links}


def host_devices(config: Config, allocated: Mapping[str, Collection[str]]) -> HostDevices | None:
    """Return the provider of a configuration, None without classes.

    `allocated` are the ids of the devices that pods have when the agent starts, by resource.
    """
    agent = config.agent
    if not agent.host_devices:
        return None
    return HostDevices(agent.host_devices, agent.sysfs_root, allocated=allocated)


class HostDevices:
    """The provider of the devices that classes of the configuration select on a host.

    `root` is the directory below which `sys` stands; of another root than `/` nothing is announced.
    `watches` are the streams of changes by what they watch. `allocated` are the ids by resource
    that were allocated when the agent started.
    """

    name: str = "host"

    def __init__(
        self,
        classes: tuple[HostDeviceClass, ...],
        root: Path,
        *,
        allocated: Mapping[str, Collection[str]] = NOTHING_ALLOCATED,
        watches: Mapping[str, Watch] | None = None,
        period: float = PERIOD,
        settle: float = SETTLE_SECONDS,
    ) -> None:
        self._classes = classes
        self._root = root
        self._allocated = allocated
        #: The ids of devices that were delivered since, the last ones last.
        self._given: tuple[str, ...] = ()
        self._is_live = str(root) == "/"
        self._watches = (_LIVE if self._is_live else {}) if watches is None else watches
        self._period = period
        self._settle = settle
        self._changed = asyncio.Event()
        self.settled = asyncio.Event()
        #: Why a stream of changes is broken, by what it watches.
        self._unwatched: dict[str, str] = {}
        #: What was read last.
        self._functions = Functions(MappingProxyType({}), MappingProxyType({}))
        self._selection = Selection()
        self._warnings: tuple[str, ...] = ()
        self._keep(*self._read())
        self._announced = self._offered()

    def offer(self) -> Offer:
        """Return the devices of each resource as they were read last."""
        return self._selection.offer

    def conditions(self) -> tuple[str, ...]:
        """Return what is not as it should be, and what of the host could not be read."""
        return (*self._selection.conditions, *self._warnings, *self._unwatched.values())

    def connected(self) -> Mapping[str, bool]:
        """Return nothing: the devices depend on no other process."""
        return {}

    async def serve(self, changed: Callable[[], None]) -> None:
        """Read the devices again on changes, until cancelled."""
        self.settled.set()
        async with asyncio.TaskGroup() as group:
            # The watches begin first, so that changes during the reading are announced.
            for subject, watch in self._watches.items():
                group.create_task(uncancelled(self._follow(subject, watch)))
            self._changed.set()
            group.create_task(uncancelled(self._repeat(changed)))

    async def preferred(
        self,
        resource: str,  # noqa: ARG002  (the signature is the protocol's)
        available: frozenset[str],  # noqa: ARG002
        required: frozenset[str],  # noqa: ARG002
        size: int,  # noqa: ARG002
    ) -> tuple[str, ...]:
        """Return no preference: the NUMA nodes of devices decide."""
        return ()

    async def allocate(self, resource: str, ids: tuple[str, ...]) -> Delivery:
        """Return addresses, environment and device nodes, read at this moment.

        Raises `DeviceError` if a device has vanished, left its class, or is not healthy.
        """
        host, selection, _ = await asyncio.to_thread(self._read)
        offered = {device.id for device in selection.offer.devices.get(resource, ())}
        for identity in ids:
            fault = selection.faults.get((resource, identity), "")
            if identity not in offered or fault:
                self._changed.set()
                state = f"not healthy: {fault}" if fault else "no longer a device of it"
                raise DeviceError(
                    f"host devices of {resource}: {identity} is {state}",
                    "admit the pod again: it gets one of the devices that are healthy then",
                )
        self._given = (*(each for each in self._given if each not in ids), *ids)
        return deliver(resource, [host.functions[identity] for identity in ids])

    def prepares(self, resource: str) -> bool:
        """Return False: a device needs no preparation."""
        _ = resource
        return False

    async def start_container(self, resource: str, ids: tuple[str, ...]) -> None:
        """Do nothing."""

    async def _follow(self, subject: str, watch: Watch) -> None:
        """Note every change that a stream announces; open a broken stream again."""
        while True:
            try:
                self._unwatched.pop(subject, None)
                async for _ in watch():
                    self._changed.set()
                reason = "the stream ended"
            except OSError as error:
                reason = error.strerror or str(error)
            log.warning("watch failed", what=f"host {subject}", reason=reason)
            self._unwatched[subject] = (
                f"changes of the host's {subject} are noticed every {self._period:.0f} s: {reason}"
            )
            self._changed.set()
            await asyncio.sleep(REOPEN_SECONDS)

    async def _repeat(self, changed: Callable[[], None]) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._period):
                    await self._changed.wait()
                await asyncio.sleep(self._settle)
            self._changed.clear()
            self._keep(*await asyncio.to_thread(self._read))
            if self._offered() != self._announced:
                self._announced = self._offered()
                self._log()
                changed()

    def _offered(self) -> tuple[Offer, tuple[str, ...]]:
        return self.offer(), self.conditions()

    def _log(self) -> None:
        for resource, devices in self.offer().devices.items():
            healthy = sum(device.healthy for device in devices)
            log.info("host devices", resource=resource, devices=len(devices), healthy=healthy)

    def _read(self) -> tuple[Functions, Selection, tuple[str, ...]]:
        """Return what the host shows now; it is not kept."""
        tree = SysfsTree(self._root)
        links = read_live_links() if self._is_live and any(map(_has_links, self._classes)) else ()
        host = remembering(self._functions, read_functions(tree, links))
        return host, select(self._classes, host, self._allocated, self._given), tree.warnings

    def _keep(self, host: Functions, selection: Selection, warnings: tuple[str, ...]) -> None:
        self._functions, self._selection, self._warnings = host, selection, warnings


def remembering(before: Functions, now: Functions) -> Functions:
    """Return the devices with the interfaces that left for another network namespace.

    A container takes its interface out of sight. As long as the same driver is bound, its device is
    still the one that was chosen by the name of the interface.
    """
    visible = {name for function in now.functions.values() for name in function.interfaces}
    functions = dict(now.functions)
    for identity, function in now.functions.items():
        earlier = before.functions.get(identity)
        if earlier is None or function.interfaces or earlier.driver != function.driver:
            continue
        left = tuple(name for name in earlier.interfaces if name not in visible)
        functions[identity] = replace(function, interfaces=left)
    return Functions(MappingProxyType(functions), now.links)


def _has_links(asked: HostDeviceClass) -> bool:
    """Return whether a class can have network devices; asking netlink costs 14 MiB of memory."""
    return not asked.pci_class or asked.pci_class.startswith(_NETWORK)
