"""Hints and allocation of devices: the device manager's pure part (KEP-693, KEP-3573).

Devices are those of an inventory, `PluginDevice`; the lowest ids are allocated first if the choice
is free and no device plugin has a preference.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache, reduce
from operator import or_
from typing import TYPE_CHECKING, TypeAlias

from agent.managers.errors import DeviceAllocationError, NoHealthyDevicesError
from agent.managers.topology.implicit_hints import HintFamily, is_listed, smallest
from agent.managers.topology.node_cover import Cover, CoverDemand
from agent.managers.topology.numa_masks import SubsetIndex, choices, subset_sums
from agent.managers.topology.search_budget import SearchBudget

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from agent.managers.policy import PluginDevice
    from agent.managers.topology.hints import Hint

#: Which of the available devices are preferred, given the required ones and how many are needed.
Preference: TypeAlias = "Callable[[frozenset[str], frozenset[str], int], tuple[str, ...]]"


def device_hints(
    nodes: int,
    inventory: Sequence[PluginDevice],
    count: int,
    allocated: Collection[str],
    reusable: Collection[str] = frozenset(),
    work: SearchBudget | None = None,
) -> tuple[Hint, ...] | HintFamily | None:
    """Return where `count` devices of one resource are free, narrow masks first.

    `allocated` are all allocated ids, including those that ended init containers of this pod leave
    (`reusable`). None means no preference: no device of the resource has a locality. Empty means
    impossible. Masks consist of the `nodes` of the machine (bits) that have devices of the
    resource, healthy or not (kubelet v1.36). Preferred are masks of the fewest nodes that would
    suffice if no device was allocated. A mask must contain all reusable devices. `work` notes when
    a budget was exceeded.
    """
    everything = tuple([device.nodes.bits for device in inventory])
    if not any(everything):
        return None
    places = [device.nodes.bits for device in _available(inventory, allocated)]
    if len(places) + len(reusable) < count:
        return ()
    again = [device.nodes.bits for device in inventory if device.id in reusable and device.nodes]
    places += again
    listed = is_listed(nodes)
    nodes &= reduce(or_, everything)
    if not listed:
        return _family(nodes, everything, places, count, again, work or SearchBudget())
    hints = _hints(nodes, everything, places, count)
    if not again:
        return hints
    return tuple(hint for hint in hints if all((hint.nodes or 0) & place for place in again))


def given_hints(
    nodes: int, places: Sequence[int], work: SearchBudget
) -> Sequence[Hint] | HintFamily:
    """Return the sets of nodes that reach each of some devices, narrow masks first.

    `places` are the nodes of each device, `nodes` those of the machine (bits). Preferred are the
    sets of the fewest nodes: which devices they are is settled, so that devices that would be
    nearer to each other do not count.
    """
    if not is_listed(nodes):
        cover = Cover(
            nodes, tuple(CoverDemand(1, ((place, 1),)) for place in dict.fromkeys(places))
        )
        return HintFamily((), None if cover.is_empty else cover, smallest(cover, work))
    reaching = [one for one in choices(nodes) if all(one.mask & place for place in places)]
    fewest = reaching[0].mask.bit_count() if reaching else 0
    return tuple(
        [one.preferred if one.mask.bit_count() == fewest else one.plain for one in reaching]
    )


def assign_devices(
    resource: str,
    inventory: Sequence[PluginDevice],
    count: int,
    hint: Hint,
    allocated: Collection[str],
    reusable: Collection[str] = frozenset(),
    preferred: Preference | None = None,
) -> tuple[str, ...]:
    """Return the ids of `count` devices for a container, sorted.

    First devices that ended init containers of the pod left, then devices on the hint's nodes, then
    any others; among equals those that the device plugin prefers, then the lowest ids. The plugin
    is asked (`preferred`) only where there is a choice, once: among the devices on the hint's nodes
    if these suffice, else among all (kubelet v1.36, devicesToAllocate).

    Raises `DeviceAllocationError` when too few healthy devices are free, `NoHealthyDevicesError`
    when no device is healthy.
    """
    if not any(device.healthy for device in inventory):
        raise NoHealthyDevicesError(resource, count, 0)
    given = sorted(reusable)[:count]
    needed = count - len(given)
    if not needed:
        return tuple(given)
    free = _available(inventory, allocated)
    if len(free) < needed:
        raise DeviceAllocationError(resource, needed, len(free))
    bits = hint.nodes or 0
    near = sorted([device.id for device in free if device.nodes.bits & bits])
    if needed == len(near):
        return tuple(sorted((*given, *near)))
    if needed < len(near):
        near = _preferred_first(near, near, given, count, preferred)
        return tuple(sorted((*given, *near[:needed])))
    others = sorted([device.id for device in free if not device.nodes.bits & bits])
    if len(near) + len(others) > needed:
        others = _preferred_first(others, others, (*given, *near), count, preferred)
    return tuple(sorted((*given, *near, *others[: needed - len(near)])))


def _preferred_first(
    ids: list[str],
    available: Iterable[str],
    given: Iterable[str],
    count: int,
    preferred: Preference | None,
) -> list[str]:
    """Return the ids with those that the device plugin prefers first.

    Ids that it prefers and that were not offered are ignored, as the kubelet ignores them.
    """
    if preferred is None:
        return ids
    required = frozenset(given)
    first = set(preferred(required.union(available), required, count))
    return sorted(ids, key=lambda each: each not in first)


def reusable_devices_after(
    reusable: frozenset[str], devices: Iterable[str], *, standard_init: bool
) -> frozenset[str]:
    """Return the devices that later containers of the pod may reuse after this container.

    Standard init containers leave theirs; sidecars and apps keep theirs.
    """
    return reusable | frozenset(devices) if standard_init else reusable - frozenset(devices)


def _available(inventory: Iterable[PluginDevice], allocated: Collection[str]) -> list[PluginDevice]:
    return [device for device in inventory if device.healthy and device.id not in allocated]


def _hints(
    nodes: int, everything: tuple[int, ...], places: Iterable[int], count: int
) -> tuple[Hint, ...]:
    """Return the masks that reach `count` of the places (masks of nodes)."""
    now = _reached(nodes, places)
    fewest = _fewest_nodes(nodes, everything, count)
    return tuple(
        [
            one.preferred if one.mask.bit_count() == fewest else one.plain
            for one in choices(nodes)
            if now[one.number] >= count
        ]
    )


@lru_cache(maxsize=64)
def _fewest_nodes(nodes: int, everything: tuple[int, ...], count: int) -> int:
    """Return how many nodes `count` devices would need if none were allocated."""
    if_unused = _reached(nodes, everything)
    masks = choices(nodes)
    return next((one.mask.bit_count() for one in masks if if_unused[one.number] >= count), 0)


def _family(
    nodes: int,
    everything: Iterable[int],
    places: Iterable[int],
    count: int,
    again: Iterable[int],
    work: SearchBudget,
) -> HintFamily:
    """Return the same hints as the list, as a family for a machine with many nodes."""
    each_again = tuple(CoverDemand(1, ((place, 1),)) for place in dict.fromkeys(again))
    cover = Cover(nodes, (_devices(count, places), *each_again))
    fewest = smallest(Cover(nodes, (_devices(count, everything),)), work)
    return HintFamily((), None if cover.is_empty else cover, fewest)


def _devices(count: int, places: Iterable[int]) -> CoverDemand:
    return CoverDemand(count, tuple(Counter(place for place in places if place).items()))


def _reached(nodes: int, places: Iterable[int]) -> list[int]:
    """Return for every subset of `nodes`, by its number, how many of the places it touches."""
    counts: dict[int, int] = {}
    for place in places:  # not a Counter: a few places take longer to hand over than to count
        counts[place] = counts.get(place, 0) + 1
    index = SubsetIndex.of(nodes)
    reached = subset_sums([counts.pop(one, 0) for one in index.ones])
    for place, count in counts.items():
        for number, subset in enumerate(index.subsets):
            if subset & place:
                reached[number] += count
    return reached
