"""Node fit: whether a node has room for the requests of a pod, checked before the managers.

The kubelet's `GeneralPredicates` (`noderesources.Fits`): the requests of all pods never exceed the
allocatable of any resource. A resource that a pod does not request cannot reject the pod.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from agent.managers.amounts import size_text
from agent.managers.decision import Rejection, Shortage, out_of
from agent.pods.model import CPU, HUGEPAGES_PREFIX, MEMORY, is_native_resource
from agent.pods.requests import is_memory_type
from agent.text import some_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.managers.host import Allocatable
    from agent.managers.ledger import Ledger
    from agent.managers.rules import EffectivePolicy

PODS: Final = "pods"
#: Resources that the agent does not measure, so the node's amount is not checked.
NOT_CHECKED: Final = frozenset({"ephemeral-storage"})
#: The kubelet's order of reasons; other resources follow by name.
_FIRST: Final = (CPU, MEMORY)
#: How many offered names a message lists.
_NAMED: Final = 8


def rejection(
    rules: EffectivePolicy, ledger: Ledger, requests: Mapping[str, int]
) -> Rejection | None:
    """Return why a pod with these effective requests does not fit the node, None when it fits.

    `requests` are in the units of `PodAllocation.requests`. The reason names the first
    resource in the kubelet's order (pods, cpu, memory, others by name), the message all of them.
    """
    limits = rules.allocatable
    if limits is None:
        return None
    shortages = _shortages(rules, limits, ledger, requests)
    if not shortages:
        return None
    details = "; ".join(_describe(limits, shortage) for shortage in shortages)
    return Rejection(
        out_of(shortages[0].resource),
        f"the node has no room for the pod: {details}",
        remedy="; ".join(_remedies(limits, shortages)),
        resource=shortages[0].resource,
        shortages=shortages,
    )


def not_allocated(rules: EffectivePolicy, names: Iterable[str]) -> tuple[str, ...]:
    """Return warnings about requested resources that the agent admits but does not allocate."""
    limits = rules.allocatable
    if limits is None:
        return ()
    asked = sorted(set(names))
    listed = [
        f"{name} is not allocated here: agent.ignoredResources says that something else provides it"
        for name in asked
        if name in limits.ignored
    ]
    unmeasured = sorted(NOT_CHECKED.intersection(asked) - limits.ignored)
    return (*listed, *(f"{name} is not limited here: the agent does not measure it"
                       for name in unmeasured))  # fmt: skip


def node_amount_text(resource: str, amount: int) -> str:
    """Return an amount for people: CPUs (`4`, `2500m`), memory in binary units, or a number."""
    if resource == CPU:
        return f"{amount}m" if amount % 1000 else str(amount // 1000)
    return size_text(amount) if is_memory_type(resource) else str(amount)


def _shortages(
    rules: EffectivePolicy, limits: Allocatable, ledger: Ledger, requests: Mapping[str, int]
) -> tuple[Shortage, ...]:
    found = []
    for name, asked in requests.items():
        room, requested = limits.amounts.get(name), ledger.requests.get(name, 0)
        fits = asked <= 0 or (room is not None and asked <= room - requested)
        if fits or limits.ignores(name) or name in NOT_CHECKED:
            continue
        if room is not None:
            requested = max(requested - _beyond(rules, ledger, name), 0)
        if room is None or asked > room - requested:
            found.append(Shortage(name, asked, room, requested))
    found.sort(key=lambda shortage: _order(shortage.resource))
    pods = len(ledger.allocations)
    too_many = (Shortage(PODS, 1, limits.pods, pods),) if pods >= limits.pods else ()
    return (*too_many, *found)


def _beyond(rules: EffectivePolicy, ledger: Ledger, resource: str) -> int:
    """Return how much pods have of a resource that is no longer allocatable."""
    return sum(
        manager.beyond_allocatable(rules, ledger.parts[manager.name], resource)
        for manager in rules.managers
    )


def native_first(resource: str) -> tuple[bool, int, str]:
    """Return the key that sorts resources for people: cpu, memory, huge pages, devices."""
    return not (resource in _FIRST or is_memory_type(resource)), *_order(resource)


def _order(resource: str) -> tuple[int, str]:
    return _FIRST.index(resource) if resource in _FIRST else len(_FIRST), resource


def _describe(limits: Allocatable, shortage: Shortage) -> str:
    name, most = shortage.resource, shortage.allocatable
    if most is None:
        return f"{_text(shortage, shortage.asked)} of {name} asked, {_offer(limits, name)}"
    if name == PODS:
        keys = " and ".join(limits.limited_by)
        return f"{_count(shortage.requested, 'pod')} admitted, at most {most} by {keys}"
    free = max(most - shortage.requested, 0)
    return (
        f"{_text(shortage, shortage.asked)} of {name} asked, {_text(shortage, free)} free"
        f" ({_text(shortage, most)} allocatable, other pods request"
        f" {_text(shortage, shortage.requested)})"
    )


def _offer(limits: Allocatable, name: str) -> str:
    """Describe what the node offers in place of a resource: the names, and the nearest."""
    pages = name.startswith(HUGEPAGES_PREFIX)
    offered = sorted(
        other
        for other in limits.amounts
        if other not in _FIRST and other.startswith(HUGEPAGES_PREFIX) is pages
    )
    if not offered:
        return f"which the node does not offer; it has no {'huge pages' if pages else 'devices'}"
    nearest = () if pages else get_close_matches(name, offered, n=1)
    meant = f'; did you mean "{nearest[0]}"?' if nearest else ""
    return f"which the node does not offer; it offers {some_of(offered, _NAMED)}{meant}"


def _remedies(limits: Allocatable, shortages: Iterable[Shortage]) -> Iterator[str]:
    """Yield which settings reject the pod, nothing for an amount.

    No smaller amount is advised: smaller requests would still have to be aligned.
    """
    unknown = [each.resource for each in shortages if each.allocatable is None]
    for shortage in shortages:
        if shortage.allocatable is not None and shortage.resource == PODS:
            excess = shortage.asked - (shortage.allocatable - shortage.requested)
            fewer = "" if excess > shortage.requested else f"remove {_count(excess, 'pod')}, or "
            yield f"{fewer}raise {' and '.join(limits.limited_by)}"
    if any(name.startswith(HUGEPAGES_PREFIX) for name in unknown):
        yield (
            "request a page size that the node offers, or reserve pages of this size"
            " (/sys/devices/system/node/node*/hugepages)"
        )
    names = [name for name in unknown if not name.startswith(HUGEPAGES_PREFIX)]
    if names:
        devices = [name for name in names if not is_native_resource(name)]
        offered = (
            f" offer {' and '.join(devices)} by agent.hostDevices, agent.devices or a device plugin"
            " (agent.devicePlugins),"
        )
        yield (
            f"request a resource that the node offers,{offered if devices else ''} or name"
            f" {' and '.join(names)} in agent.ignoredResources when something else provides"
            f" {'it' if len(names) == 1 else 'them'}"
        )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _text(shortage: Shortage, amount: int) -> str:
    """Return an amount for people, in bytes where rounded sizes would be the same."""
    name, most = shortage.resource, shortage.allocatable or 0
    amounts = {shortage.asked, most, shortage.requested, max(most - shortage.requested, 0)}
    if is_memory_type(name) and len({size_text(each) for each in amounts}) < len(amounts):
        return f"{amount} B"
    return node_amount_text(name, amount)
