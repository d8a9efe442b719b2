"""A pod's allocation and its reasons, as fields of a log line; and in a line, for events.

A pod may have a thousand containers and a host thousands of CPUs, while journald cuts a line at
48 KiB: containers are logged in their order as far as they fit, with the number of the others.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from agent.managers.allocations.sharing import shares
from agent.managers.allocations.unused_budget import unused_budget
from agent.server.reporting.shorten import first, shortened
from sysfs.mask import EMPTY

if TYPE_CHECKING:
    from agent.managers.allocations.allocation import ContainerAllocation, PodAllocation
    from agent.managers.allocations.sharing import Share
    from sysfs.mask import Mask

#: How many containers are logged, and in how many bytes of JSON.
CONTAINERS_LOGGED: Final = 64
BYTES_LOGGED: Final = 16 << 10
#: How many devices of a resource are logged.
DEVICES_LOGGED: Final = 32
#: The longest set of CPUs or nodes, name or reason, in characters.
_LONGEST: Final = 256

_Value: TypeAlias = "str | dict[str, list[str]] | None"


def allocation_fields(allocation: PodAllocation, shared_pool: Mask) -> dict[str, object]:
    """Return the allocation of each container and why it is not exclusive.

    `containers` has one entry each; `containers_left_out` is set if there are more, and
    `unused_budget` (by resource, CPUs or bytes) if no container can use some of the budget.
    """
    logged: list[dict[str, _Value]] = []
    room = BYTES_LOGGED
    for container, share in zip(allocation.containers, shares(allocation), strict=True):
        entry = _entry(container, share, shared_pool)
        room -= len(msgspec.json.encode(entry))
        if logged and (room < 0 or len(logged) == CONTAINERS_LOGGED):
            break
        logged.append(entry)
    fields: dict[str, object] = {"containers": logged}
    if left_out := len(allocation.containers) - len(logged):
        fields["containers_left_out"] = left_out
    if unused := {each.resource: each.unused for each in unused_budget(allocation)}:
        fields["unused_budget"] = unused
    return fields


def allocation_line(allocation: PodAllocation) -> str:
    """Return what a pod has for itself in a line, "" where it shares all: for events."""
    nodes, devices = EMPTY, Counter[str]()
    for container in allocation.containers:
        if container.memory:
            nodes |= container.mems
        devices.update({name: len(ids) for name, ids in container.devices.items()})
    parts = [f"exclusive CPUs {allocation.exclusive_cpus}"] if allocation.exclusive_cpus else []
    if nodes:
        parts.append(f"memory on node{'s' * (len(nodes) > 1)} {nodes}")
    parts.extend(f"{count} {name}" for name, count in sorted(devices.items()))
    return ", ".join(parts)


def _entry(container: ContainerAllocation, share: Share, shared_pool: Mask) -> dict[str, _Value]:
    cpus = shared_pool if container.cpus is None else container.cpus
    return {
        "name": shortened(container.name, _LONGEST),
        "cpus": shortened(str(cpus), _LONGEST),
        "isolation": str(container.isolation),
        "sharing": str(share.sharing),
        "mems": shortened(str(container.mems), _LONGEST) if container.memory else None,
        "devices": _devices(container),
        **{name: shortened(_json(part), _LONGEST) for name, part in container.others.items()},
        "why": shortened(container.why, _LONGEST),
    }


def _json(part: object) -> str:
    return msgspec.json.encode(part).decode()


def _devices(container: ContainerAllocation) -> dict[str, list[str]]:
    logged: dict[str, list[str]] = {}
    for resource, ids in sorted(container.devices.items()):
        listed, left_out = first(ids, DEVICES_LOGGED)
        logged[resource] = [shortened(device, _LONGEST) for device in listed]
        if left_out:
            logged[resource].append(f"and {left_out} more")
    return logged
