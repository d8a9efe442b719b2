"""Devices in words: those of the host by what they are, those that pods may ask for by owner."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

from agent.tools.map.spans import Line, line

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

    from agent.api.documents.map import MapDeviceDocument
    from agent.tools.map.marks import Marks

#: Words for PCI devices by base class (PCI Code and ID Assignment specification, 1).
_CLASSES: Final[Mapping[str, str]] = {
    "01": "storage",
    "02": "network",
    "03": "display",
    "04": "multimedia",
    "05": "memory",
    "06": "bridge",
    "08": "system",
    "0b": "processor",
    "0c": "serial bus",
    "0d": "wireless",
    "10": "encryption",
    "12": "accelerator",
}
#: Devices that are named with their address, because work is placed near them. Others are counted.
#: QAT is a processor or encryption.
_NAMED: Final = (
    "display",
    "accelerator",
    "network",
    "memory",
    "processor",
    "encryption",
    "NVMe",
    "InfiniBand",
)
#: Words for PCI devices that their base class describes too broadly, by class and subclass.
_SUBCLASSES: Final[Mapping[str, str]] = {"0108": "NVMe", "0c06": "InfiniBand", "0207": "InfiniBand"}


def by_node(devices: Iterable[MapDeviceDocument]) -> dict[str, list[MapDeviceDocument]]:
    """Return the devices by the list of their nodes, "" for no known node."""
    groups: dict[str, list[MapDeviceDocument]] = defaultdict(list)
    for device in devices:
        groups[device.nodes].append(device)
    return dict(groups)


def device_lines(devices: Sequence[MapDeviceDocument], marks: Marks) -> Iterator[Line]:
    """Yield a line of the host's devices, and a line for each extended resource.

    A resource of the kubelet beside the agent is marked `(kubelet)`.
    """
    hardware = [device for device in devices if device.kind != "resource"]
    if hardware:
        yield line(f"{'devices':<14}", ", ".join(_hardware(hardware)))
    offered: dict[str, list[MapDeviceDocument]] = defaultdict(list)
    for device in devices:
        if device.kind == "resource":
            kubelet = " (kubelet)" if device.kubelet else ""
            offered[f"{device.resource}{kubelet}"].append(device)
    for name, members in offered.items():
        yield line(f"{name}: ", ", ".join(_offered(device, marks) for device in members))


def distant_lines(
    devices: Mapping[str, Sequence[MapDeviceDocument]], nodes: Container[int], marks: Marks
) -> Iterator[tuple[str, Line]]:
    """Yield the place and a line of devices (`by_node`) that are near no single node of a host."""
    for near, members in devices.items():
        if near.isdigit() and int(near) in nodes:
            continue
        for spans in device_lines(members, marks):
            yield (f"nodes {near}" if near else "no node"), spans


def device_word(device: MapDeviceDocument) -> str:
    """Return the word for a device of the host: `network`, `NVMe`, `other`."""
    number = device.device_class.removeprefix("0x")
    return _SUBCLASSES.get(number[:4]) or _CLASSES.get(number[:2], "other")


def _hardware(devices: Sequence[MapDeviceDocument]) -> Iterator[str]:
    with_interface = {device.address for device in devices if device.kind == "net"}
    counts: Counter[str] = Counter()
    for device in devices:
        word = device_word(device)
        if device.kind == "net":
            yield f"{device.name} ({device.address})" if device.address else device.name
        elif device.address in with_interface:
            continue  # the interface is named instead
        elif word in _NAMED:
            yield f"{word} {device.address}"
        else:
            counts[word] += 1
    yield from (f"{number} x {word}" for word, number in sorted(counts.items()))


def _offered(device: MapDeviceDocument, marks: Marks) -> str:
    state = "" if device.healthy else " unhealthy"
    if device.owner is None:
        return f"{device.name}{state}{f' ({device.pod})' if device.pod else ''}"
    uid = device.owner.uid
    label = marks.labels.get(uid) or marks.names.get(uid, uid)
    return f"{device.name}{state} ({label} {device.owner.container})"
