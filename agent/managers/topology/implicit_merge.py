"""Merging families of hints: the same choice as `merge` makes from lists.

A list of hints is a handful of masks that stand one by one and, it may be, a family that is
upward closed (`Cover`). So what one hint per resource intersects to has three kinds: a single
node, the intersection X of masks and domains itself, and a subset of X made by members of the
families that are smaller than their domains (`Search`). All of the first two are computed; of the
third, which contains with a set every larger subset of X, only the best of the size that is
desired, or the smallest that is larger.
"""

from __future__ import annotations

from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from agent.managers.topology.implicit_hints import HintFamily
from agent.managers.topology.node_cover import Cover
from agent.managers.topology.node_search import Search
from sysfs.mask import iter_bits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from agent.managers.topology.implicit_hints import Hints
    from agent.managers.topology.node_cover import Span
    from agent.managers.topology.search_budget import SearchBudget
    from agent.managers.topology.tiebreak import Order, Tiebreak

#: Intersections that are wider than one node, each with the families that can narrow it further.
_Open: TypeAlias = "dict[tuple[int, tuple[int, ...]], tuple[Cover, ...]]"


def best_common(
    families: Sequence[HintFamily], nodes: int, order: Order, work: SearchBudget
) -> int | None:
    """Return the best mask that every family prefers, None where there is none.

    Narrower masks are better, then the tiebreak of `order` decides. Where that keeps to few
    sockets, the masks on as few as the families' `span` asks for come first, however wide; how
    many sockets the others touch is not looked at.
    """
    if order.sockets is not None and any(family.span is not None for family in families):
        aligned = _best_common(families, nodes, order.tiebreak, work, spanning=True)
        if aligned is not None:
            return aligned
    return _best_common(families, nodes, order.tiebreak, work, spanning=False)


def _best_common(
    families: Sequence[HintFamily],
    nodes: int,
    tiebreak: Tiebreak,
    work: SearchBudget,
    *,
    spanning: bool,
) -> int | None:
    """Return the best mask that all prefer; with `spanning` among those that meet every span."""
    named = {mask for family in families for mask in family.masks}
    found = {mask for mask in named if all(family.prefers(mask) for family in families)}
    if spanning:
        spans = [family.span for family in families if family.span is not None]
        found = {mask for mask in found if all(span.met_by(mask) for span in spans)}
    most = min([mask.bit_count() for mask in found], default=nodes.bit_count())
    if all(family.cover is not None for family in families):
        mask = _smallest_common(families, most, tiebreak, work, spanning=spanning)
        if mask is not None:
            found.add(mask)
    return min(found, key=lambda mask: (mask.bit_count(), *tiebreak(mask)), default=None)


def best_intersection(
    offers: Sequence[Hints], nodes: int, desired: int, tiebreak: Tiebreak, work: SearchBudget
) -> int | None:
    """Return the best mask that one hint of each offer intersects to, None if all end empty.

    The best has `desired` nodes; failing that the most below that number, failing that the fewest
    above it; then `tiebreak` decides. Where the budget of work does not suffice, the best of those
    that were found, among them one per intersection that is made in a single pass.
    """
    lists = [_Offer.of(offer, nodes) for offer in offers]
    ones, states = _intersections(lists, nodes)
    found = {1 << node for node in iter_bits(ones)} | {mask for mask, _ in states}
    open_states = [
        Search(covers, mask, work)
        for (mask, _), covers in states.items()
        if covers and mask.bit_count() > desired
    ]
    found |= _best_of_each(open_states, desired, tiebreak)
    if found and not any(mask.bit_count() <= desired for mask in found):
        found |= _smallest_above(open_states, desired, nodes.bit_count(), tiebreak, work)
    if work.exceeded:
        found |= {search.greedy(desired) for search in open_states}
    return min(
        found,
        key=lambda mask: (*size_order(mask.bit_count(), desired), *tiebreak(mask)),
        default=None,
    )


def size_order(count: int, desired: int) -> tuple[int, int]:
    """Order numbers of nodes: the desired one, then the next below it, then the next above."""
    if count <= desired:
        return 0, desired - count
    return 1, count


class _Offer(Struct, frozen=True):
    """The hints of one resource: single nodes (bits), wider masks, and a family of sets."""

    ones: int
    wider: frozenset[int]
    cover: Cover | None

    @classmethod
    def of(cls, hints: Hints, nodes: int) -> _Offer:
        if isinstance(hints, HintFamily):
            masks: Iterable[int] = hints.masks
            return cls._split(masks, hints.cover)
        masks = {nodes if mask is None else mask & nodes for mask, _ in hints}
        return cls._split(masks, None)

    @classmethod
    def _split(cls, masks: Iterable[int], cover: Cover | None) -> _Offer:
        known = {mask for mask in masks if mask}
        ones = {mask for mask in known if not mask & (mask - 1)}
        return cls(sum(ones), frozenset(known - ones), cover)

    @property
    def reach(self) -> int:
        """The nodes that any of the masks has."""
        return reduce(or_, self.wider, self.ones) | (self.cover.domain if self.cover else 0)


def _intersections(lists: Sequence[_Offer], nodes: int) -> tuple[int, _Open]:
    """Return the single nodes that masks intersect to, and the wider intersections.

    A node comes out by itself if one list has it by itself and the others in any mask.
    """
    reaches = [offer.reach for offer in lists]
    ones = 0
    for number, offer in enumerate(lists):
        ones |= reduce(and_, reaches[:number] + reaches[number + 1 :], offer.ones)
    states: dict[tuple[int, tuple[int, ...]], None] = {(nodes, ()): None}
    for number, offer in enumerate(lists):
        narrowed = dict.fromkeys(_narrowed(states, offer, number))
        ones |= _common_to_rest(narrowed, reaches[number + 1 :])
        states = {key: None for key in narrowed if key[0] & (key[0] - 1)}
    return ones, {key: _covers(lists, key[1]) for key in states}


def _narrowed(
    states: Iterable[tuple[int, tuple[int, ...]]], offer: _Offer, number: int
) -> Iterator[tuple[int, tuple[int, ...]]]:
    for mask, numbers in states:
        for wider in offer.wider:
            yield mask & wider, numbers
        if offer.cover is not None:
            yield mask & offer.cover.domain, (*numbers, number)


def _common_to_rest(states: Iterable[tuple[int, tuple[int, ...]]], reaches: Sequence[int]) -> int:
    ones = {mask for mask, _ in states if mask and not mask & (mask - 1)}
    return reduce(and_, reaches, sum(ones))


def _covers(lists: Sequence[_Offer], numbers: tuple[int, ...]) -> tuple[Cover, ...]:
    covers = (lists[number].cover for number in numbers)
    return tuple(cover for cover in covers if cover is not None)


def _best_of_each(searches: Sequence[Search], size: int, tiebreak: Tiebreak) -> set[int]:
    found = (search.best(size, tiebreak) for search in searches)
    return {mask for mask in found if mask is not None}


def _smallest_above(
    searches: Sequence[Search], desired: int, most: int, tiebreak: Tiebreak, work: SearchBudget
) -> set[int]:
    least = min([search.least() for search in searches], default=most)
    for size in range(max(desired + 1, least), most):
        found = _best_of_each(searches, size, tiebreak)
        if found or work.exceeded:
            return found
    return set()


def _common_sizes(families: Sequence[HintFamily], most: int) -> Iterable[int]:
    """Return the sizes that a set of at most so many nodes may have, if all are to prefer it."""
    fixed = {family.fewest for family in families if family.span is None}
    if not fixed:
        return range(1, most + 1)
    return [size for size in fixed if len(fixed) == 1 and size <= most]


def _smallest_common(
    families: Sequence[HintFamily],
    most: int,
    tiebreak: Tiebreak,
    work: SearchBudget,
    *,
    spanning: bool,
) -> int | None:
    """Return the best set of the smallest size, at most so many nodes, that all families prefer."""
    common = Cover.common([family.cover for family in families if family.cover is not None])
    searches: dict[tuple[Span, ...], Search | None] = {}
    for size in _common_sizes(families, most):
        spans = tuple(
            f.span for f in families if f.span is not None and (spanning or f.fewest != size)
        )
        if spans not in searches:
            searches[spans] = _search_on(common, spans, work)
        search = searches[spans]
        mask = search.best(size, tiebreak) if search is not None else None
        if mask is not None:
            return mask
    return None


def _search_on(common: Cover, spans: tuple[Span, ...], work: SearchBudget) -> Search | None:
    """Return the search among the sets of a family that span what they must; None if none does."""
    cover = Cover.common([common, *(span.cover(common.domain) for span in spans)])
    return None if cover.is_empty else Search([cover], cover.domain, work, spans=spans)
