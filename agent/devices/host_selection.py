"""Which devices of a host each class of the configuration selects, and whether they are healthy.

In: the classes, the devices and links that the host shows, and the devices that pods have. Out: a
`Selection`. A device is offered for one resource only. A process opens an IOMMU group as a whole,
so at most one device of a group that has to be opened is healthy.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from agent.config.devices import HostDeviceClass, criteria_text
from agent.devices.provider import Offer
from agent.managers.policy import PluginDevice
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from sysfs.devices import DeviceFunction, Functions
    from sysfs.links import Link

#: What all drivers that give a device to a process have in their name (`mlx5_vfio_pci`).
_VFIO: Final = "vfio"
#: PCI base classes of FPGAs, which a process may use by their registers in sysfs alone: no class,
#: memory, communication (a UART is Xilinx' default), signal processing, unassigned. Devices of
#: other classes work by DMA and interrupts, so they need a driver.
_DRIVERLESS: Final = ("00", "05", "07", "11", "ff")
#: States of an NVMe controller that does not come back.
_DEAD: Final = ("dead", "deleting")
#: The drivers without DMA, beside those of vfio: a process may have the group of their devices
#: (`driver_managed_dma`, since Linux 5.18). Not all drivers of bridges are among them.
_HARMLESS: Final = frozenset(("pci-stub", "pcieport"))
_NO_CRITERION: Final = HostDeviceClass("")
NOTHING_ALLOCATED: Final[Mapping[str, Collection[str]]] = MappingProxyType({})


class Selection(Struct, frozen=True):
    """Which devices each resource has, why some are not healthy, and what is to be reported."""

    offer: Offer = Offer()
    #: Why a device is not healthy, by resource and id; a device without an entry is healthy.
    faults: Mapping[tuple[str, str], str] = MappingProxyType({})
    #: A line for each class without a device, for devices of several resources, and for devices of
    #: a resource that are not healthy for the same reason.
    conditions: tuple[str, ...] = ()


def select(
    classes: Iterable[HostDeviceClass],
    host: Functions,
    allocated: Mapping[str, Collection[str]] = NOTHING_ALLOCATED,
    given: Collection[str] = (),
) -> Selection:
    """Return the devices of each resource, in the order of their ids; every resource has an entry.

    `allocated` are the ids by resource that pods had when the agent started, `given` those that
    pods got since, in their order.
    """
    classes = tuple(classes)
    groups = _groups(host)
    # The device of each IOMMU group that a pod got last. No other device of the group is given
    # beside it, whatever its class and faults are now: the pod may have the group open.
    pods = (*(identity for ids in allocated.values() for identity in ids), *given)
    users = {
        host.functions[identity].iommu_group: identity
        for identity in pods
        if identity in host.functions and _needs_group(host.functions[identity])
    }
    devices: dict[str, list[PluginDevice]] = {each.resource: [] for each in classes}
    faults: dict[tuple[str, str], str] = {}
    several: dict[tuple[str, str], list[str]] = {}
    classes_met = set()
    for function in host.functions.values():
        # 1. The device counts for the first class that it meets.
        met = [
            each
            for each in classes
            if _meets(
                each, function, host, is_allocated=function.id in allocated.get(each.resource, ())
            )
        ]
        classes_met.update(met)
        if not met:
            continue
        first = met[0]
        # 2. It is healthy unless it, or its group, has a fault, or another device has the group.
        fault = fault_of(first, function, host) or _group_fault(function, groups)
        if not fault and _needs_group(function):
            user = users.setdefault(function.iommu_group, function.id)
            if user != function.id:
                fault = (
                    f"only one process can open IOMMU group {function.iommu_group}, in which "
                    f"{user} is as well"
                )
        if fault:
            faults[first.resource, function.id] = fault
        nodes = EMPTY if function.place.node is None else Mask.of(function.place.node)
        devices[first.resource].append(PluginDevice(function.id, nodes, healthy=not fault))
        # 3. Its other resources are reported.
        for resource in dict.fromkeys(each.resource for each in met[1:]):
            if resource != first.resource:
                several.setdefault((first.resource, resource), []).append(function.id)
    offered = {resource: tuple(listed) for resource, listed in devices.items()}
    return Selection(
        Offer(MappingProxyType(offered)),
        MappingProxyType(faults),
        (
            *(_without_device(each, host) for each in classes if each not in classes_met),
            *(_of_several(*pair, ids) for pair, ids in several.items()),
            *_unhealthy(offered, faults),
        ),
    )


def _groups(host: Functions) -> dict[int, list[DeviceFunction]]:
    """Return the devices of each IOMMU group."""
    groups: dict[int, list[DeviceFunction]] = {}
    for function in host.functions.values():
        if function.iommu_group is not None:
            groups.setdefault(function.iommu_group, []).append(function)
    return groups


def is_vfio(function: DeviceFunction) -> bool:
    """Return whether the driver of a device gives the device to a process."""
    return _VFIO in function.driver


def _needs_group(function: DeviceFunction) -> bool:
    """Return whether a process has to open the IOMMU group of a device to use it."""
    return is_vfio(function) and function.isolated and function.iommu_group is not None


def _group_fault(function: DeviceFunction, groups: Mapping[int, list[DeviceFunction]]) -> str:
    """Return why the kernel lets no process open the group of a device of vfio, "" if it does.

    Source: drivers/iommu/iommu.c. The kernel forbids that while a device of the group has a driver
    for which the kernel manages DMA; the class of the device does not matter.
    """
    if function.iommu_group is None or not _needs_group(function):
        return ""
    for other in groups[function.iommu_group]:
        if other.driver and not (is_vfio(other) or other.driver in _HARMLESS):
            return (
                f"its IOMMU group {function.iommu_group} cannot be opened while {other.driver} is "
                f"bound to {other.id} of that group; unbind it, or bind {function.driver}"
            )
    return ""


def _meets(
    asked: HostDeviceClass, function: DeviceFunction, host: Functions, *, is_allocated: bool
) -> bool:
    """Return whether a device meets all criteria of a class.

    A device without a driver meets the driver of a class that has other criteria, and is unhealthy.
    An allocated device without interfaces meets a pattern of interfaces: the container has them.
    """
    place = function.place
    has_others = replace(asked, resource="", driver="") != _NO_CRITERION
    physical = host.functions.get(function.physical_function)
    out_of_sight = not function.interfaces
    return (
        _digits(place.device_class).startswith(asked.pci_class)
        and asked.vendor in ("", _digits(place.vendor))
        and asked.device in ("", _digits(place.device))
        and (asked.driver in ("", function.driver) or (has_others and not function.driver))
        and _fits(asked.address, (place.address,) if place.address else ())
        and (_fits(asked.interface, function.interfaces) or (is_allocated and out_of_sight))
        and _fits(asked.virtual_functions_of, physical.interfaces if physical else ())
    )


def _digits(number: str) -> str:
    return number.removeprefix("0x")


def _fits(pattern: str, names: Iterable[str]) -> bool:
    return not pattern or any(fnmatchcase(name, pattern) for name in names)


def fault_of(asked: HostDeviceClass, function: DeviceFunction, host: Functions) -> str:
    """Return why a device of a class is not healthy, "" if it is.

    The links of its interfaces decide. A device without a link in sight is healthy: it is in
    another network namespace, has a driver such as `vfio-pci`, or is no network device.
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
    links = _links(function, host)
    physical = host.functions.get(function.physical_function)
    if physical is None:
        return _fault_of_links(links)
    physical_links = _links(physical, host)
    numbers = [
        number for number, address in physical.virtual_functions.items() if address == function.id
    ]
    for link in physical_links:
        if not link.disabled_functions.isdisjoint(numbers):
            return f"{link.name} has the link of this virtual function disabled"
    # An interface of a virtual function is administratively down until a container enables it; the
    # link of the physical function decides then.
    return _fault_of_links([link for link in links if link.enabled] or physical_links)


def _links(function: DeviceFunction, host: Functions) -> list[Link]:
    return [host.links[name] for name in function.interfaces if name in host.links]


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


def _without_device(asked: HostDeviceClass, host: Functions) -> str:
    text = f'agent.hostDevices["{asked.resource}"]: no device meets {criteria_text(asked)}'
    for function in host.functions.values():
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
