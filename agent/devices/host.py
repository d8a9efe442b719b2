"""The host's own devices: found by classes of the configuration, without any plugin."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

import structlog
from msgspec import Struct
from msgspec.structs import replace

from agent.config.devices import HostDeviceClass, criteria_text, variable_part
from agent.devices.provider import DeviceError, Offer
from agent.managers.delivery import Delivery, DeviceNode
from agent.managers.policy import PluginDevice
from agent.progress import uncancelled
from sysfs.devices import Functions, read_functions
from sysfs.files import SysfsTree
from sysfs.links import read_live_links, watch_links
from sysfs.mask import EMPTY, Mask
from sysfs.uevents import watch_devices

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
    from pathlib import Path

    from agent.config.model import Config
    from sysfs.devices import DeviceFunction
    from sysfs.links import Link

log = structlog.get_logger(__name__)

#: How often devices are read even if nothing announced a change, in seconds.
PERIOD: Final = 60.0
#: Changes within so many seconds are handled together.
SETTLE_SECONDS: Final = 0.5
#: How long to wait before a broken stream of changes is opened again, in seconds.
REOPEN_SECONDS: Final = 60.0
#: What all drivers that give a device to a process have in their name (`mlx5_vfio_pci`).
_VFIO: Final = "vfio"
_VFIO_CONTAINER: Final = "/dev/vfio/vfio"
_INFINIBAND: Final = "/dev/infiniband/"
_UIO: Final = "uio"
#: PCI base class of network controllers.
_NETWORK: Final = "02"
#: PCI base classes of FPGAs, which a process may use by their registers in sysfs alone: no
#: class, memory, communication (a UART is Xilinx' default), signal processing, unassigned. Others
#: work by DMA and interrupts, so through what a driver makes of them.
_DRIVERLESS: Final = ("00", "05", "07", "11", "ff")
#: States of an NVMe controller that does not come back.
_DEAD: Final = ("dead", "deleting")
#: The drivers beside those of vfio that do no DMA, so that the kernel lets a process have the group
#: of their devices (`driver_managed_dma`, since Linux 5.18): not those of all bridges.
_HARMLESS: Final = frozenset(("pci-stub", "pcieport"))
_NO_CRITERION: Final = HostDeviceClass("")
_NOTHING_ALLOCATED: Final[Mapping[str, Collection[str]]] = MappingProxyType({})

#: Opens a stream that yields whenever something changed.
Watch: TypeAlias = "Callable[[], AsyncIterator[object]]"
_LIVE: Final[Mapping[str, Watch]] = {"devices": watch_devices, "links": watch_links}


class Selection(Struct, frozen=True):
    """Which devices each resource has, why some are not healthy, and what is not as it should be.

    `faults` are reasons by resource and id; a device without one is healthy. `conditions` has a
    line each for a class without a device, devices of several resources, and devices of a resource
    that are not healthy for the same reason.
    """

    offer: Offer = Offer()
    faults: Mapping[tuple[str, str], str] = MappingProxyType({})
    conditions: tuple[str, ...] = ()


def select(
    classes: Iterable[HostDeviceClass],
    found: Functions,
    allocated: Mapping[str, Collection[str]] = _NOTHING_ALLOCATED,
    given: Collection[str] = (),
) -> Selection:
    """Return the devices of each resource, in the order of their ids; every resource has an entry.

    A device of several classes counts for the first. A device without a driver is of a class that
    demands one if it meets all other criteria of that class, and is not healthy. `allocated` are
    ids by resource: such a device meets a pattern of interfaces also if none of its is in sight,
    since the container has it. `given` are the ids that pods got since, in their order.
    """
    asked = tuple(classes)
    groups = _groups(found)
    # No other device of a group is given beside the one that a pod got last, whatever its class and
    # faults are now: the pod may have the group open.
    pods = (*(identity for ids in allocated.values() for identity in ids), *given)
    of_group = {
        found.functions[identity].iommu_group: identity
        for identity in pods
        if identity in found.functions and _needs_group(found.functions[identity])
    }
    devices: dict[str, list[PluginDevice]] = {each.resource: [] for each in asked}
    faults: dict[tuple[str, str], str] = {}
    several: dict[tuple[str, str], list[str]] = {}
    met = set()
    for function in found.functions.values():
        own = [
            each
            for each in asked
            if _meets(
                each, function, found, is_allocated=function.id in allocated.get(each.resource, ())
            )
        ]
        met.update(own)
        if not own:
            continue
        first = own[0]
        fault = fault_of(first, function, found) or _group_fault(function, groups)
        if not fault and _needs_group(function):
            other = of_group.setdefault(function.iommu_group, function.id)
            if other != function.id:
                fault = (
                    f"only one process can open IOMMU group {function.iommu_group}, in which "
                    f"{other} is as well"
                )
        if fault:
            faults[first.resource, function.id] = fault
        nodes = EMPTY if function.place.node is None else Mask.of(function.place.node)
        devices[first.resource].append(PluginDevice(function.id, nodes, healthy=not fault))
        for resource in dict.fromkeys(each.resource for each in own[1:]):
            if resource != first.resource:
                several.setdefault((first.resource, resource), []).append(function.id)
    offered = {resource: tuple(listed) for resource, listed in devices.items()}
    return Selection(
        Offer(MappingProxyType(offered)),
        MappingProxyType(faults),
        (
            *(_without_device(each, found) for each in asked if each not in met),
            *(_of_several(*pair, ids) for pair, ids in several.items()),
            *_unhealthy(offered, faults),
        ),
    )


def _groups(found: Functions) -> dict[int, list[DeviceFunction]]:
    """Return the devices of each IOMMU group."""
    groups: dict[int, list[DeviceFunction]] = {}
    for function in found.functions.values():
        if function.iommu_group is not None:
            groups.setdefault(function.iommu_group, []).append(function)
    return groups


def _is_vfio(function: DeviceFunction) -> bool:
    return _VFIO in function.driver


def _needs_group(function: DeviceFunction) -> bool:
    """Return whether a process has to open the IOMMU group of a device to use it."""
    return _is_vfio(function) and function.isolated and function.iommu_group is not None


def _group_fault(function: DeviceFunction, groups: Mapping[int, list[DeviceFunction]]) -> str:
    """Return why the kernel lets no process open the group of a device of vfio, "" if it does.

    It lets one unless a device of the group has a driver for which the kernel manages DMA
    (drivers/iommu/iommu.c); the class of a device does not matter.
    """
    if function.iommu_group is None or not _needs_group(function):
        return ""
    for other in groups[function.iommu_group]:
        if other.driver and not (_is_vfio(other) or other.driver in _HARMLESS):
            return (
                f"its IOMMU group {function.iommu_group} cannot be opened while {other.driver} is "
                f"bound to {other.id} of that group; unbind it, or bind {function.driver}"
            )
    return ""


def _meets(
    asked: HostDeviceClass, function: DeviceFunction, found: Functions, *, is_allocated: bool
) -> bool:
    """Return whether a device meets all criteria of a class."""
    place = function.place
    others = replace(asked, resource="", driver="") != _NO_CRITERION
    physical = found.functions.get(function.physical_function)
    out_of_sight = not function.interfaces
    return (
        _digits(place.device_class).startswith(asked.pci_class)
        and asked.vendor in ("", _digits(place.vendor))
        and asked.device in ("", _digits(place.device))
        and (asked.driver in ("", function.driver) or (others and not function.driver))
        and _fits(asked.address, (place.address,) if place.address else ())
        and (_fits(asked.interface, function.interfaces) or (is_allocated and out_of_sight))
        and _fits(asked.virtual_functions_of, physical.interfaces if physical else ())
    )


def _digits(number: str) -> str:
    return number.removeprefix("0x")


def _fits(pattern: str, names: Iterable[str]) -> bool:
    return not pattern or any(fnmatchcase(name, pattern) for name in names)


def fault_of(asked: HostDeviceClass, function: DeviceFunction, found: Functions) -> str:
    """Return why a device of a class is not healthy, "" if it is.

    The state of an interface's link decides. A virtual function goes by its physical function's if
    it has no interface here or one that is administratively down, as all are until a container
    enables them. Where no link is seen (another network namespace, a driver such as `vfio-pci`, no
    network device) a device is healthy.
    """
    driverless = _digits(function.place.device_class).startswith(_DRIVERLESS)
    if not function.driver and (asked.driver or (function.place.address and not driverless)):
        bind = asked.driver or "one, or see in the kernel's log why none is"
        return f"no driver is bound to it; bind {bind}"
    if function.state.startswith(_DEAD):
        return f"its controller is {function.state}; see why in the kernel's log"
    if _VFIO in function.driver and function.iommu_group is None:
        return (
            f"{function.driver} is bound to it, but it has no IOMMU group; enable the IOMMU in the "
            "firmware and on the kernel's command line"
        )
    own = _links(function, found)
    physical = found.functions.get(function.physical_function)
    if physical is None:
        return _fault_of_links(own)
    shared = _links(physical, found)
    numbers = [
        number for number, address in physical.virtual_functions.items() if address == function.id
    ]
    for link in shared:
        if not link.disabled_functions.isdisjoint(numbers):
            return f"{link.name} has the link of this virtual function disabled"
    return _fault_of_links([link for link in own if link.enabled] or shared)


def _links(function: DeviceFunction, found: Functions) -> list[Link]:
    return [found.links[name] for name in function.interfaces if name in found.links]


def _fault_of_links(links: list[Link]) -> str:
    """Return why none of a device's links can be used; "" if one can, or there are none."""
    if not links or any(link.is_up for link in links):
        return ""
    return " and ".join(
        f"the link of {link.name} is {link.state}"
        if link.enabled
        else f"{link.name} is administratively down"
        for link in links
    )


def _without_device(asked: HostDeviceClass, found: Functions) -> str:
    text = f'agent.hostDevices["{asked.resource}"]: no device meets {criteria_text(asked)}'
    for function in found.functions.values():
        for name in function.interfaces:
            if asked.virtual_functions_of and _fits(asked.virtual_functions_of, (name,)):
                if function.virtual_functions:
                    continue
                return (
                    f"{text}; {name} has no virtual functions: write how many it should have to "
                    f"/sys/class/net/{name}/device/sriov_numvfs"
                )
    return f"{text}; compare with the devices of: numawarden topology --output json"


def _of_several(first: str, other: str, ids: list[str]) -> str:
    return (
        f"agent.hostDevices: {_listed(ids)} {_are(ids)} of {first} and of {other} and "
        f"{'counts' if len(ids) == 1 else 'count'} for {first}; give {other} criteria that "
        f"{'this device does' if len(ids) == 1 else 'these devices do'} not meet"
    )


def _unhealthy(
    offered: Mapping[str, tuple[PluginDevice, ...]], faults: Mapping[tuple[str, str], str]
) -> Iterator[str]:
    for resource, devices in offered.items():
        alike: dict[str, list[str]] = {}
        for device in devices:
            if not device.healthy:
                alike.setdefault(faults[resource, device.id], []).append(device.id)
        for fault, ids in alike.items():
            yield f"{resource}: {_listed(ids)} {_are(ids)} not healthy: {fault}"


def _listed(ids: list[str]) -> str:
    return ids[0] if len(ids) == 1 else f"{ids[0]} and {len(ids) - 1} more"


def _are(ids: list[str]) -> str:
    return "is" if len(ids) == 1 else "are"


def deliver(resource: str, functions: Iterable[DeviceFunction]) -> Delivery:
    """Return what a container gets with devices of a resource, in their order.

    `PCIDEVICE_<RESOURCE>` has their PCI addresses, `PCIDEVICE_<RESOURCE>_INFO` their device nodes
    by address as the SR-IOV network device plugin, `NETDEVICE_<RESOURCE>` the interfaces that are
    in the host's network namespace; names that are empty are left out. Device nodes are those of
    vfio for a device with such a driver, else those that the device's driver made.
    """
    given = tuple(functions)
    variable = variable_part(resource)
    addresses = tuple(each.place.address for each in given if each.place.address)
    interfaces = [name for each in given for name in each.interfaces]
    environment = {
        f"PCIDEVICE_{variable}": ",".join(addresses),
        f"PCIDEVICE_{variable}_INFO": _info(given),
        f"NETDEVICE_{variable}": ",".join(interfaces),
    }
    nodes = dict.fromkeys(node for each in given for node in _nodes(each))
    return Delivery(
        environment=MappingProxyType({name: text for name, text in environment.items() if text}),
        device_nodes=tuple(DeviceNode(node, node, "rw") for node in nodes),
        pci_addresses=addresses,
    )


def _nodes(function: DeviceFunction) -> Iterator[str]:
    if _VFIO not in function.driver:
        yield from function.nodes
        return
    prefix = "" if function.isolated else "noiommu-"
    yield _VFIO_CONTAINER
    yield f"/dev/vfio/{prefix}{function.iommu_group}"
    yield from function.vfio_nodes


def _info(functions: Iterable[DeviceFunction]) -> str:
    """Return what the devices have by PCI address in JSON, "" without any address."""
    found = {}
    for function in functions:
        if not (address := function.place.address):
            continue
        about = {"generic": {"deviceID": address}}
        nodes = tuple(_nodes(function))
        if _is_vfio(function):
            about["vfio"] = {"dev-mount": nodes[1], "mount": nodes[0]}
        for name in nodes:
            kind = name.rpartition("/")[2].rstrip("0123456789")
            if name.startswith(_INFINIBAND):
                about.setdefault("rdma", {})[kind] = name
            elif kind == _UIO:
                about[_UIO] = {"mount": name}
        found[address] = about
    return json.dumps(found, separators=(",", ":"), sort_keys=True) if found else ""


def remembering(before: Functions, now: Functions) -> Functions:
    """Return the devices with the interfaces that left for another network namespace.

    A container that gets an interface takes it out of sight; its device still is the one that was
    chosen by the interface's name, as long as the same driver is bound.
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


class HostDevices:
    """The provider of the devices that classes of the configuration select on a host.

    `root` is the directory below which `sys` stands. It is read once at the start, whenever one of
    `watches` (by what it watches) yields, and every `period` seconds: of another root than `/`
    nothing is announced, so that only the period counts there. `allocated` are the ids that were
    allocated when the agent started, by resource.
    """

    name: str = "host"

    def __init__(
        self,
        classes: tuple[HostDeviceClass, ...],
        root: Path,
        *,
        allocated: Mapping[str, Collection[str]] = _NOTHING_ALLOCATED,
        watches: Mapping[str, Watch] | None = None,
        period: float = PERIOD,
        settle: float = SETTLE_SECONDS,
    ) -> None:
        self._classes = classes
        self._root = root
        self._allocated = allocated
        self._given: tuple[str, ...] = ()
        self._is_live = str(root) == "/"
        self._watches = (_LIVE if self._is_live else {}) if watches is None else watches
        self._period = period
        self._settle = settle
        self._changed = asyncio.Event()
        self.settled = asyncio.Event()
        self._unwatched: dict[str, str] = {}
        self._found = Functions(MappingProxyType({}), MappingProxyType({}))
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
            # First: what changes while the devices are read is announced again.
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
        found, selection, _ = await asyncio.to_thread(self._read)
        known = {device.id for device in selection.offer.devices.get(resource, ())}
        for identity in ids:
            fault = selection.faults.get((resource, identity), "")
            if identity not in known or fault:
                self._changed.set()
                found_now = f"not healthy: {fault}" if fault else "no longer a device of it"
                raise DeviceError(
                    f"host devices of {resource}: {identity} is {found_now}",
                    "admit the pod again: it gets one of the devices that are healthy then",
                )
        self._given = (*(each for each in self._given if each not in ids), *ids)
        return deliver(resource, [found.functions[identity] for identity in ids])

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
        found = remembering(self._found, read_functions(tree, links))
        return found, select(self._classes, found, self._allocated, self._given), tree.warnings

    def _keep(self, found: Functions, selection: Selection, warnings: tuple[str, ...]) -> None:
        self._found, self._selection, self._warnings = found, selection, warnings


def host_devices(config: Config, allocated: Mapping[str, Collection[str]]) -> HostDevices | None:
    """Return the provider of a configuration, None without classes.

    `allocated` are the ids of the devices that pods have when the agent starts, by resource.
    """
    agent = config.agent
    if not agent.host_devices:
        return None
    return HostDevices(agent.host_devices, agent.sysfs_root, allocated=allocated)


def _has_links(asked: HostDeviceClass) -> bool:
    """Return whether a class can have network devices; asking netlink costs 14 MiB of memory."""
    return not asked.pci_class or asked.pci_class.startswith(_NETWORK)
