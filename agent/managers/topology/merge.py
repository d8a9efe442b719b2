"""Merging the hints of several resources without trying their permutations.

In go the hints of all providers, out comes one alignment by the topology manager's policy. The
kubelet takes one hint of every resource, intersects their masks, and keeps the best of all these
permutations (KEP-693, "New Interfaces"; kubelet v1.36, HintMerger). The choice depends only on
which masks can come out, so two small sets are computed instead: the masks that every resource
offers as preferred, and the masks reachable as an intersection.
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
    from agent.managers.topology.distances import Closest
    from agent.managers.topology.hint import Tiebreak
    from agent.managers.topology.many_nodes import Hints, ProviderHints


#: The hints of one resource in full; never empty unless a policy has filtered them.
HintList: TypeAlias = "Sequence[Hint]"

#: Intersecting a pair directly costs about an eighth of one field of a transform.
_PAIRS_PER_FIELD = 8


def resource_lists(
    provider_hints: Iterable[ProviderHints], *, indifferent: Hint, impossible: Hint
) -> list[Hints]:
    """Return one non-empty list of hints per resource.

    A resource without preference has the single hint `indifferent`, a resource that no nodes can
    serve `impossible`. A provider without resources counts as a resource without preference.
    """
    no_preference: Mapping[str, None] = {"": None}
    return [
        (indifferent,) if hints is None else hints or (impossible,)
        for provider in provider_hints
        for hints in (provider or no_preference).values()
    ]


def best_preferred(
    lists: Sequence[Hints], nodes: int, order: Order, work: SearchBudget
) -> int | None:
    """Return the best mask that every resource offers as preferred, None where there is none.

    A permutation is preferred only if all its hints are and their masks are equal; hints for any
    node go with every mask. Narrower masks are better, then the tiebreak of `order` decides.
    """
    required: set[int | None] | None = None
    optional: set[int | None] = {nodes}
    # All memory types have the same hints; duplicate lists do not change the merge.
    distinct = {id(hints): hints for hints in lists}.values()
    families = [hints for hints in distinct if isinstance(hints, HintFamily)]
    for hints in distinct:
        if isinstance(hints, HintFamily):
            continue
        offered = {mask for mask, preferred in hints if preferred}
        if None in offered:
            optional |= offered
            continue
        required = offered if required is None else required & offered
        if not required:
            return None
    if required is None and families:
        return best_common(families, nodes, order, work)
    candidates = [mask for mask in (optional if required is None else required) if mask is not None]
    if families:
        candidates = [mask for mask in candidates if all(each.prefers(mask) for each in families)]
    inside = {mask & nodes for mask in candidates} - {0}
    return min(inside, key=order.of_preferred, default=None)


def best_reachable(
    lists: Sequence[Hints], nodes: int, order: Order, work: SearchBudget
) -> int | None:
    """Return the best mask that some choice of one hint per resource intersects to.

    None when every choice ends empty, or when a resource has no hint to choose. The best has as
    many nodes as the resource with the widest narrowest hint needs; failing that the most below
    that number, failing that the fewest above it; then `order` decides: its sockets only for
    masks that every resource offers itself, since memory may lack room on others, or be in a group.
    """
    desired = max([_narrowest(hints, work) for hints in lists], default=0)
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


def intersections(first: Collection[int], second: Collection[int], nodes: int) -> set[int]:
    """Return all `a & b` of two collections of subsets of `nodes`.

    Either pair by pair or by counting, whichever is less work.
    """
    if len(first) * len(second) <= _PAIRS_PER_FIELD << nodes.bit_count():
        return {one & other for one in first for other in second}
    return _Counting.over(nodes).intersections(first, second)


class _Counting(Struct, frozen=True):
    """Counts pairs of masks for all subsets of a set of nodes at once.

    A pair intersects to a superset of S if and only if both its masks contain S, so the number of
    such pairs is the product of two counts (zeta transform over supersets), and the number of
    pairs that intersect to exactly S follows by inclusion and exclusion (Möbius inversion).
    The counts are 64-bit fields of one integer, one field per subset: at most 2^n masks on either
    side leave every count below 2^64 for up to 32 nodes. `steps` holds per node how many bits
    to shift a field by, and the fields of all subsets without that node.
    """

    index: SubsetIndex
    layout: struct.Struct
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


def _all_offer(lists: Sequence[HintList], mask: int) -> bool:
    return all(any(offered in (mask, None) for offered, _ in hints) for hints in lists)


def _narrowest(hints: Hints, work: SearchBudget) -> int:
    if isinstance(hints, HintFamily):
        return hints.narrowest(work)
    return min([mask.bit_count() for mask, _ in hints if mask is not None], default=0)


_INDIFFERENT = Hint(None, preferred=True)
_IMPOSSIBLE = Hint(None, preferred=False)


class DeferredMerge(Struct, frozen=True):
    """Listed hints of which no alignment is preferred, under a policy that admits no other.

    The alignment that is not admitted only explains the rejection.
    """

    lists: tuple[HintList, ...]
    nodes: int
    order: Order
    policy: TopologyManagerPolicy

    def best(self) -> Hint:
        """Return the alignment that is not admitted."""
        hint = _best_reachable(self.lists, self.nodes, self.order, SearchBudget())
        return _as_policy_has_it(self.policy, self.nodes, hint)


def merge_or_defer(
    machine: Machine,
    policy: TopologyPolicy,
    provider_hints: Sequence[ProviderHints],
    work: SearchBudget,
    sockets: Tiebreak | None = None,
) -> tuple[Hint | DeferredMerge, bool]:
    """Return the alignment of a container or pod on a machine, and whether it is admitted.

    Distances are read only with `prefer_closest_numa_nodes` (see `require_distances`). The hint's
    `nodes` is None where the providers leave the choice open (policy none, or single-numa-node
    without any preference), otherwise it is a non-empty mask. The choice is that of trying every
    permutation of hints. If families of hints exceed `work`, a better choice may have been missed;
    then `work` records this, and the choice is still the result of some permutation.

    `sockets` is the order of `align-by-socket`: of equally preferred sets of nodes the one on few
    sockets is chosen, of those the narrowest. With implicit hints (many nodes) that holds for
    preferred sets.

    An alignment that is not admitted is merged when the rejection is explained; only a search
    among many nodes is not deferred, since its steps count as the admission's.
    """
    kind, nodes = policy.policy, machine.node_mask.bits
    order = Order(_tiebreak(machine.closest, policy), sockets)
    if kind is TopologyManagerPolicy.NONE:
        return NO_AFFINITY, True
    lists = resource_lists(provider_hints, indifferent=_INDIFFERENT, impossible=_IMPOSSIBLE)
    if kind is TopologyManagerPolicy.SINGLE_NUMA_NODE:
        lists = [_single_node(hints) for hints in lists]
    preferred = best_preferred(lists, nodes, order, work)
    if preferred is not None:
        return _as_policy_has_it(kind, nodes, Hint(preferred, preferred=True)), True
    best_effort = kind is TopologyManagerPolicy.BEST_EFFORT
    listed = tuple([hints for hints in lists if not isinstance(hints, HintFamily)])
    if len(listed) == len(lists) and not best_effort:
        return DeferredMerge(listed, nodes, order, kind), False
    hint = _best_reachable(lists, nodes, order, work)
    return _as_policy_has_it(kind, nodes, hint), best_effort


#: The policies that admit only an alignment that every resource prefers.
_STRICT: Final = {TopologyManagerPolicy.RESTRICTED, TopologyManagerPolicy.SINGLE_NUMA_NODE}


def rules_out(policy: TopologyManagerPolicy, offered: ProviderHints) -> bool:
    """Return whether no alignment can be admitted, whatever other providers offer.

    `restricted` and `single-numa-node` admit only what every resource prefers, so a resource that
    prefers nothing settles the matter. `offered` are hints in full, not families.
    """
    if policy not in _STRICT:
        return False
    for hints in offered.values():
        if hints is None:
            continue
        for hint in hints:  # any() would take as long as the hints of a resource
            if hint.preferred:
                break
        else:
            return True
    return False


def require_distances(nodes: Iterable[MachineNode], policy: TopologyPolicy) -> None:
    """Check that the machine reports what `prefer-closest-numa-nodes` compares (KEP-3545).

    Raises `NodeDistancesError` naming the nodes that lack a distance to some node.
    """
    if not policy.prefer_closest_numa_nodes:
        return
    known = tuple(nodes)
    lacking = tuple(
        node.id for node in known if any(other.id not in node.distances for other in known)
    )
    if lacking:
        raise NodeDistancesError(lacking)


def _tiebreak(closest: Closest, policy: TopologyPolicy) -> Tiebreak:
    aligns = policy.policy is not TopologyManagerPolicy.SINGLE_NUMA_NODE
    return closest if policy.prefer_closest_numa_nodes and aligns else by_value


def _best_reachable(lists: Sequence[Hints], nodes: int, order: Order, work: SearchBudget) -> Hint:
    reachable = best_reachable(lists, nodes, order, work)
    return Hint(nodes if reachable is None else reachable, preferred=False)


def _as_policy_has_it(kind: TopologyManagerPolicy, nodes: int, hint: Hint) -> Hint:
    """Return a hint as the policy states it: single-numa-node leaves all nodes open."""
    single = kind is TopologyManagerPolicy.SINGLE_NUMA_NODE
    return Hint(None, hint.preferred) if single and hint.nodes == nodes else hint


def _single_node(hints: Hints) -> Sequence[Hint]:
    narrow = hints.single_nodes() if isinstance(hints, HintFamily) else hints
    return [
        hint
        for hint in narrow
        if hint.preferred and (hint.nodes is None or hint.nodes.bit_count() == 1)
    ]
