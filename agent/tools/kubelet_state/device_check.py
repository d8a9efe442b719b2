"""Checks a device manager's state against the inventory and itself.

The kubelet checks nothing of this file but its checksum: it learns from its plugins later which
devices there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.pods.identity import extended_resource_fault, label_fault, uid_fault
from agent.tools.kubelet_state.device_file import NO_NODE
from agent.yaml import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.managers.effective_policy import EffectivePolicy
    from agent.managers.policy import PluginDevice
    from agent.pods.model import Pod
    from agent.tools.kubelet_state.device_file import DeviceEntry, DeviceState


def misnamed_devices(state: DeviceState) -> Iterator[str]:
    """Yield the invalid names of pods, containers, resources and devices."""
    names = {
        "uid": ({entry.uid for entry in state.entries}, uid_fault),
        "name of a container": ({entry.container for entry in state.entries}, label_fault),
        "resource": (
            {*state.registered, *(entry.resource for entry in state.entries)},
            extended_resource_fault,
        ),
        "id of a device": ({device for entry in state.entries for device in entry.ids}, _id_fault),
    }
    for kind, (texts, fault_of) in names.items():
        for text in sorted(texts):
            if fault := fault_of(text):
                yield f"{shown(text)} is not a valid {kind}: {fault}"


def _id_fault(text: str) -> str | None:
    return None if text.isprintable() else "it has characters that cannot be printed"


def device_problems(rules: EffectivePolicy, state: DeviceState) -> tuple[str, ...]:
    """Return why a state cannot be imported, one sentence each; empty if it can.

    A resource that the configuration lists is checked against it; of any other, a plugin must have
    registered with the kubelet.
    """
    return (
        *_repeated(state),
        *(why for entry in state.entries for why in _unknown(rules, state, entry)),
        *_allocated_twice(state),
    )


def request_differences(
    rules: EffectivePolicy, pod: Pod, entries: tuple[DeviceEntry, ...]
) -> Iterator[str]:
    """Yield where the containers of a pod request other numbers of devices than they have."""
    allocated = {(entry.container, entry.resource): len(entry.ids) for entry in entries}
    resources = {*rules.policy.devices, *(entry.resource for entry in entries)}
    for container in pod.all_containers():
        for resource in sorted(resources):
            asked = container.resources.limits.get(resource)
            number, found = (
                0 if asked is None else asked.value,
                allocated.get((container.name, resource), 0),
            )
            if number != found:
                yield (
                    f"container {container.name} asks for {number} {resource},"
                    f" allocated are {found}"
                )


def _repeated(state: DeviceState) -> Iterator[str]:
    seen: set[tuple[str, str, str]] = set()
    for entry in state.entries:
        key = (entry.uid, entry.container, entry.resource)
        if key in seen:
            yield (
                f"{entry.resource} of container {entry.container} of pod {entry.uid} stands in two"
                " entries"
            )
        seen.add(key)


def _unknown(rules: EffectivePolicy, state: DeviceState, entry: DeviceEntry) -> Iterator[str]:
    who = f"container {entry.container} of pod {entry.uid}"
    inventory = rules.policy.devices.get(entry.resource)
    if inventory is None:
        if entry.resource not in state.registered:
            yield (
                f"{who} has {entry.resource}, of which no plugin is registered; list its devices in"
                " agent.devices"
            )
        return
    known = {device.id: device for device in inventory}
    for device in entry.ids:
        if device not in known:
            yield f"{who} has {entry.resource} {device}, which agent.devices does not list"
        elif (nodes := _nodes(entry, device)) != _nodes_of(known[device]):
            yield (
                f"{entry.resource} {device} is on NUMA nodes {_shown(nodes)}, agent.devices says"
                f" {_shown(_nodes_of(known[device]))}"
            )


def _nodes(entry: DeviceEntry, device: str) -> tuple[int, ...]:
    return tuple(
        node for node, ids in sorted(entry.devices.items()) if node != NO_NODE and device in ids
    )


def _nodes_of(device: PluginDevice) -> tuple[int, ...]:
    return tuple(device.nodes)


def _shown(nodes: tuple[int, ...]) -> str:
    return ", ".join(map(str, nodes)) or "none"


def _allocated_twice(state: DeviceState) -> Iterator[str]:
    """Yield a line for each device of two pods; the containers of one may use it in turn."""
    first: dict[tuple[str, str], str] = {}
    for entry in state.entries:
        for device in entry.ids:
            other = first.setdefault((entry.resource, device), entry.uid)
            if other != entry.uid:
                yield (
                    f"pods {other} and {entry.uid} both have {entry.resource} {device}; end one of"
                    " them"
                )
