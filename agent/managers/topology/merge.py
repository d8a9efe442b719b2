"""The topology manager's merge: one alignment from the hints of all resources (KEP-693).

In go the hints of all resource managers and the topology manager's policy. Out comes the alignment:
the set of nodes with which the managers allocate, and whether the policy admits it (`align`).

The kubelet tries all permutations (kubelet v1.36, HintMerger). A permutation is one hint of each
resource; its result is the intersection of their masks, and the best result is kept. The steps here
find the same result without permutations:

1. Give every resource hints. A resource without preference prefers any node. A resource that no
   nodes can serve has any node as its only hint, which is not preferred. `single-numa-node` then
   drops all hints that are not preferred or have several nodes.
2. `best_preferred`: find the best set of nodes that every resource prefers. Every policy admits it.
3. `best_reachable`: if there is no such set, find the best result of all permutations. Only
   `best-effort` admits it. Under the other policies it explains the rejection (`unadmitted`).

The hints of a resource are listed or, on a machine with many nodes, a `HintFamily` (`many_nodes`).
"""

from __future__ import annotations

import struct
from functools import lru_cache
from itertools import compress
from operator import mul
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import Struct

from agent.managers.errors import NodeDistancesError
from agent.managers.policy import TopologyManagerPolicy
from agent.managers.topology.hint import (
    NO_AFFINITY,
    Hint,
    Order,
    SearchBudget,
    SubsetIndex,
    by_value,
    rank,
)
from agent.managers.topology.many_nodes import (
    HintFamily,
    best_common,
    best_intersection,
    size_order,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from agent.managers.machine import Machine, MachineNode
    from agent.managers.policy import TopologyPolicy
    from agent.managers.topology.hint import Tiebreak
    from agent.managers.topology.many_nodes import Hints, ProviderHints


#: The listed hints of one resource.
HintList: TypeAlias = "Sequence[Hint]"


class Alignment(Struct, frozen=True):
    """What the hints of all resources merge to, and whether the policy admits it."""

    #: A set of one or more nodes. None stands for any node: under policy none always, and under
    #: single-numa-node in place of all nodes.
    hint: Hint
    admitted: bool


def align(
    machine: Machine,
    policy: TopologyPolicy,
    provider_hints: Sequence[ProviderHints],
    work: SearchBudget,
    sockets: Tiebreak | None = None,
    spread: Tiebreak | None = None,
) -> Alignment | None:
    """Return the alignment of a container or pod; None if it is rejected (`unadmitted` says why).

    Only `prefer_closest_numa_nodes` reads distances (see `require_distances`). `sockets` is the
    order of `align-by-socket`: among preferred sets few sockets come before few nodes. On a machine
    with many nodes it orders preferred sets only.

    `spread` is the order of sets that are otherwise equal, for hints that are listed; without it
    the lowest mask is the best.

    If the search among many nodes exceeds `work`, `work` says so: a better alignment may have been
    missed. The alignment is the result of some permutation even then.
    """
    kind, nodes = policy.policy, machine.node_mask.bits
    if kind is TopologyManagerPolicy.NONE:
        return Alignment(NO_AFFINITY, admitted=True)
    # 1. Every resource has hints.
    lists, order = _lists(kind, provider_hints), _order(machine, policy, sockets, spread)
    # 2. What every resource prefers.
    mask = best_preferred(lists, nodes, order, work)
    if mask is not None:
        return Alignment(_hint(kind, nodes, mask, preferred=True), admitted=True)
    # 3. The best result of all permutations. If the policy does not admit it, it is only looked for
    #    among many nodes, because the steps of that search count as the admission's.
    admitted = kind is TopologyManagerPolicy.BEST_EFFORT
    if not admitted and not any(isinstance(hints, HintFamily) for hints in lists):
        return None
    mask = best_reachable(lists, nodes, order, work)
    return Alignment(_hint(kind, nodes, mask, preferred=False), admitted)


def unadmitted(
    machine: Machine,
    policy: TopologyPolicy,
    provider_hints: Sequence[ProviderHints],
    sockets: Tiebreak | None = None,
) -> Hint:
    """Return the merged hint that the policy does not admit; it explains the rejection."""
    kind, nodes = policy.policy, machine.node_mask.bits
    lists, order = _lists(kind, provider_hints), _order(machine, policy, sockets)
    mask = best_reachable(lists, nodes, order, SearchBudget())
    return _hint(kind, nodes, mask, preferred=False)


_SINGLE: Final = TopologyManagerPolicy.SINGLE_NUMA_NODE
#: The policies that admit only what every resource prefers.
STRICT: Final = {TopologyManagerPolicy.RESTRICTED, _SINGLE}


def rules_out(policy: TopologyManagerPolicy, hints_by_resource: ProviderHints) -> bool:
    """Return whether the policy admits no alignment, whatever the other managers offer.

    `restricted` and `single-numa-node` admit none if a resource prefers nothing. All hints must be
    listed (no `HintFamily`).
    """
    if policy not in STRICT:
        return False
    for hints in hints_by_resource.values():
        if hints is None:
            continue
        for hint in hints:  # any() would take as long as the hints of a resource
            if hint.preferred:
                break
        else:
            return True
    return False


def require_distances(machine_nodes: Iterable[MachineNode], policy: TopologyPolicy) -> None:
    """Check that every node has a distance to every node, if the policy compares distances.

    Raises `NodeDistancesError` with the nodes that lack one.
    """
    if not policy.prefer_closest_numa_nodes:
        return
    nodes = tuple(machine_nodes)
    lacking = tuple(
        node.id for node in nodes if any(other.id not in node.distances for other in nodes)
    )
    if lacking:
        raise NodeDistancesError(lacking)


#: The most steps of a search for the best hints of an explanation. If they do not suffice, the
#: explanation names other hints.
_EXPLAINING: Final = 600


def best_few(hints: Hints, most: int) -> list[Hint]:
    """Return up to `most` of the best hints of a resource, the best first."""
    if isinstance(hints, HintFamily):
        return hints.best_few(most, SearchBudget(_EXPLAINING))
    return sorted(hints, key=rank)[:most]


#: The hint of a resource without preference.
_INDIFFERENT: Final = Hint(None, preferred=True)
#: The hint of a resource that no nodes can serve.
_IMPOSSIBLE: Final = Hint(None, preferred=False)


def _lists(kind: TopologyManagerPolicy, provider_hints: Iterable[ProviderHints]) -> list[Hints]:
    """Return the hints of each resource. A manager without resources has one without preference."""
    no_preference: Mapping[str, None] = {"": None}
    lists = [
        (_INDIFFERENT,) if hints is None else hints or (_IMPOSSIBLE,)
        for provider in provider_hints
        for hints in (provider or no_preference).values()
    ]
    return [_single_node(hints) for hints in lists] if kind is _SINGLE else lists


def _order(
    machine: Machine,
    policy: TopologyPolicy,
    sockets: Tiebreak | None,
    spread: Tiebreak | None = None,
) -> Order:
    # The kubelet ignores distances under single-numa-node: there the sets have one node each.
    by_distance = policy.prefer_closest_numa_nodes and policy.policy is not _SINGLE
    usual: Tiebreak = machine.closest if by_distance else by_value
    if spread is None:
        return Order(usual, sockets)
    return Order(lambda nodes: (*usual(nodes)[:-1], *spread(nodes), nodes), sockets)


def _single_node(hints: Hints) -> Sequence[Hint]:
    few = hints.single_nodes() if isinstance(hints, HintFamily) else hints
    return [
        hint
        for hint in few
        if hint.preferred and (hint.nodes is None or hint.nodes.bit_count() == 1)
    ]


def _hint(policy: TopologyManagerPolicy, nodes: int, mask: int | None, *, preferred: bool) -> Hint:
    """Return the hint of a set of nodes; a `mask` of None means all nodes of the machine.

    Under single-numa-node the hint for all nodes is the hint for any node, as in the kubelet.
    """
    if mask is None:
        mask = nodes
    return Hint(None if policy is _SINGLE and mask == nodes else mask, preferred)


def best_preferred(
    lists: Sequence[Hints], nodes: int, order: Order, work: SearchBudget
) -> int | None:
    """Return the best set of nodes that every resource prefers, None where there is none.

    The result of a permutation is preferred only if all its hints are preferred and have the same
    mask. A hint for any node has every mask. `Order.of_preferred` says which set is best.
    """
    # required: the masks that all resources prefer which have no preferred hint for any node.
    # optional: all nodes, and the masks that resources prefer which have such a hint.
    required: set[int | None] | None = None
    optional: set[int | None] = {nodes}
    # All memory types share one list of hints: it is read once.
    distinct = {id(hints): hints for hints in lists}.values()
    families = [hints for hints in distinct if isinstance(hints, HintFamily)]
    for hints in distinct:
        if isinstance(hints, HintFamily):
            continue
        masks = {mask for mask, preferred in hints if preferred}
        if None in masks:
            optional |= masks
            continue
        required = masks if required is None else required & masks
        if not required:
            return None
    if required is None and families:
        return best_common(families, nodes, order, work)
    candidates = [mask for mask in (optional if required is None else required) if mask is not None]
    if families:
        candidates = [mask for mask in candidates if all(f.prefers(mask) for f in families)]
    inside = {mask & nodes for mask in candidates} - {0}
    return min(inside, key=order.of_preferred, default=None)


def best_reachable(
    lists: Sequence[Hints], nodes: int, order: Order, work: SearchBudget
) -> int | None:
    """Return the best result of all permutations, as a set of nodes.

    None when the result of every permutation is empty, or when a resource has no hint. The order is
    the kubelet's (HintMerger.compare):

    1. The number of nodes (`size_order`). The desired number is that of the resource which needs
       the most nodes: the size of its smallest hint.
    2. The tiebreak of `order`. With `align-by-socket` few sockets come before it, but only among
       sets that every resource has a hint for: on other sets memory may lack room, or be in a group
       with other nodes.
    """
    desired = max([_fewest_nodes(hints, work) for hints in lists], default=0)
    listed = [hints for hints in lists if not isinstance(hints, HintFamily)]
    if len(listed) < len(lists):
        return best_intersection(lists, nodes, desired, order.tiebreak, work)
    reachable = reachable_masks(listed, nodes)
    if not reachable:
        return None
    if len(reachable) == 1:
        return next(iter(reachable))
    size = min(
        {mask.bit_count() for mask in reachable}, key=lambda count: size_order(count, desired)
    )
    sized = [mask for mask in reachable if mask.bit_count() == size]
    first = min(sized, key=order.tiebreak)
    if order.sockets is None:
        return first
    serving = [mask for mask in sized if mask == first or _all_offer(listed, mask)]
    return min(serving, key=order.of_equally_wide)


def _fewest_nodes(hints: Hints, work: SearchBudget) -> int:
    if isinstance(hints, HintFamily):
        return hints.narrowest(work)
    return min([mask.bit_count() for mask, _ in hints if mask is not None], default=0)


def _all_offer(lists: Sequence[HintList], mask: int) -> bool:
    return all(any(offered in (mask, None) for offered, _ in hints) for hints in lists)


def reachable_masks(lists: Sequence[HintList], nodes: int) -> set[int]:
    """Return every non-empty intersection of `nodes` with one mask of each list."""
    offers = [{nodes if mask is None else mask & nodes for mask, _ in hints} for hints in lists]
    subset_count = (1 << nodes.bit_count()) - 1
    reachable = everywhere = {nodes}
    for masks in sorted(offers, key=len):
        if (nodes in masks and len(reachable) == subset_count) or masks == everywhere:
            continue
        reachable = masks if reachable == everywhere else intersections(reachable, masks, nodes)
        reachable.discard(0)
    return reachable


#: One field of `_Counting` takes about as long as intersecting eight pairs of masks.
_PAIRS_PER_FIELD = 8


def intersections(first: Collection[int], second: Collection[int], nodes: int) -> set[int]:
    """Return all `a & b` of two collections of subsets of `nodes`."""
    # Pair by pair or by counting, whichever is less work.
    if len(first) * len(second) <= _PAIRS_PER_FIELD << nodes.bit_count():
        return {one & other for one in first for other in second}
    return _Counting.over(nodes).intersections(first, second)


class _Counting(Struct, frozen=True):
    """Counts for all subsets of some nodes at once how many pairs of masks intersect to them.

    1. Of each collection count the masks that contain a subset (zeta transform over supersets).
    2. Multiply both counts. The product is the number of pairs whose two masks contain the subset.
       Such a pair intersects to the subset or to a larger set.
    3. Subtract the pairs that intersect to a larger set (Möbius inversion).

    The counts of all subsets are 64-bit fields of one integer. Either side has at most 2^n masks,
    so no count reaches 2^64 for up to 32 nodes.
    """

    index: SubsetIndex
    layout: struct.Struct
    #: Per node: by how many bits a field moves when the node leaves its subset, and a mask of the
    #: fields of all subsets without the node.
    steps: tuple[tuple[int, int], ...]

    @staticmethod
    @lru_cache(maxsize=4)
    def over(nodes: int) -> _Counting:
        index = SubsetIndex.of(nodes)
        every = (1 << 64 * len(index.subsets)) - 1
        widths = [64 << position for position in range(nodes.bit_count())]
        steps = tuple((width, every // ((1 << width) + 1)) for width in widths)
        return _Counting(index, struct.Struct(f"<{len(index.subsets)}Q"), steps)

    def intersections(self, first: Iterable[int], second: Iterable[int]) -> set[int]:
        pairs = map(mul, self._containing(first), self._containing(second))
        counts = int.from_bytes(self.layout.pack(*pairs), "little")
        for shift, without in self.steps:
            counts -= (counts >> shift) & without
        return set(compress(self.index.subsets, self._fields(counts)))

    def _containing(self, masks: Iterable[int]) -> tuple[int, ...]:
        """Return for every subset how many of the masks contain it."""
        present = bytearray(self.layout.size)
        number = self.index.number
        for mask in masks:
            present[8 * number[mask]] = 1
        counts = int.from_bytes(present, "little")
        for shift, without in self.steps:
            counts += (counts >> shift) & without
        return self._fields(counts)

    def _fields(self, counts: int) -> tuple[int, ...]:
        return self.layout.unpack(counts.to_bytes(self.layout.size, "little"))
