"""What a log line and an event say of an allocation.

In goes a `PodAllocation`; out come the fields of a log line (`allocation_fields`) or the text of an
event (`allocation_line`). Both are bounded: journald cuts a line at 48 KiB, and a pod may have a
thousand containers with hundreds of devices. What is left out is counted.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from agent.managers.sharing import shares, unused_budget
from agent.server.log import ITEMS_LOGGED, first, shortened
from sysfs.mask import EMPTY

if TYPE_CHECKING:
    from agent.managers.allocation import ContainerAllocation, PodAllocation
    from agent.managers.sharing import Share
    from sysfs.mask import Mask

#: The most bytes of JSON that the containers of a pod take in a line, beside `ITEMS_LOGGED`.
BYTES_LOGGED: Final = 16 << 10
#: The most devices of a resource that are logged of a container.
DEVICES_LOGGED: Final = 32
#: The longest set of CPUs or nodes, name or reason, in characters.
_LONGEST: Final = 256

_Value: TypeAlias = "str | dict[str, list[str]] | None"


def allocation_fields(allocation: PodAllocation, shared_pool: Mask) -> dict[str, object]:
    """Return the fields of a log line: what each container has, and why its CPUs are shared.

    `containers` has an entry for each in their order, the first one always, and
    `containers_left_out` the number of those that do not fit. `unused_budget` (by resource, CPUs or
    bytes) is set if no container can use some of the pod's budget.
    """
    logged: list[dict[str, _Value]] = []
    room = BYTES_LOGGED
    for container, share in zip(allocation.containers, shares(allocation), strict=True):
        entry = _entry(container, share, shared_pool)
        room -= len(msgspec.json.encode(entry))
        if logged and (room < 0 or len(logged) == ITEMS_LOGGED):
            break
        logged.append(entry)
    fields: dict[str, object] = {"containers": logged}
    if left_out := len(allocation.containers) - len(logged):
        fields["containers_left_out"] = left_out
    if unused := {part.resource: part.unused for part in unused_budget(allocation)}:
        fields["unused_budget"] = unused
    return fields


def allocation_line(allocation: PodAllocation) -> str:
    """Return the text of an event: what a pod has for itself, "" where it shares all."""
    nodes, devices = EMPTY, Counter[str]()
    for container in allocation.containers:
        if container.memory:
            nodes |= container.mems
        devices.update({name: len(ids) for name, ids in container.devices.items()})
    parts = [f"exclusive CPUs {allocation.exclusive_cpus}"] if allocation.exclusive_cpus else []
    if allocation.idle:
        parts[0] += f" (siblings {allocation.idle} idle)"
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
        "mems": shortened(str(container.mems), _LONGEST) if container.mems else None,
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
