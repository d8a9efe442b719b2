"""Merging the hints of several resources without trying their permutations.

The kubelet takes one hint of every resource, intersects their masks, and keeps the best of all
these permutations (KEP-693, "New Interfaces"; kubelet v1.36, HintMerger). The choice depends only
on which masks can come out, so two small sets are computed instead: the masks that every resource
offers as preferred, and the masks reachable as an intersection.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from itertools import compress
from operator import mul
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from agent.managers.topology.implicit_hints import HintFamily
from agent.managers.topology.implicit_merge import best_common, best_intersection, size_order
from agent.managers.topology.numa_masks import SubsetIndex

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from agent.managers.topology.hints import Hint
    from agent.managers.topology.implicit_hints import Hints, ProviderHints
    from agent.managers.topology.search_budget import SearchBudget
    from agent.managers.topology.tiebreak import Order

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
