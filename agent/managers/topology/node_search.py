"""Searching the best set of NUMA nodes without enumerating all 2^n of them.

The question is always: which sets T of nodes of a pool can come out when one member M of each of
several families is chosen and all are intersected (the merge of KEP-693)? One family alone answers
"which of its members is best". The families are upward closed (`Cover`), so that M may as well be
as large as possible: T comes out if and only if every node of the pool that is not in T can be
dropped from at least one family without making it unable to meet its demands. To drop fewer nodes
is never harder, so the sets T are upward closed within the pool, too.

The search decides node by node from the highest down, dropping it first: the first set found is
the one with the smallest integer value. It turns back as soon as the nodes that have still to be
dropped, even the lightest ones, would cost more than is spare.
"""

from __future__ import annotations

from functools import reduce
from itertools import accumulate, compress
from operator import or_
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from agent.managers.topology.tiebreak import Closest, NodeDistances
from sysfs.mask import iter_bits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agent.managers.topology.node_cover import Cover, Span
    from agent.managers.topology.search_budget import SearchBudget
    from agent.managers.topology.tiebreak import Tiebreak

#: Prices are integers, so that a decision is the same on every machine.
_SCALE: Final = 1 << 20


class _Dropped(NamedTuple):
    """The state of one family: the nodes dropped from it, and the spare amount by demand."""

    gone: int
    spare: tuple[int, ...]


_State: TypeAlias = tuple[_Dropped, ...]


class _Family:
    """One family, seen from the nodes of the pool (by position, ascending).

    `alone[p]` is what dropping that node loses by demand, `shared` the places of several nodes,
    which are lost with the last of them: (nodes, number of the demand, amount).
    """

    def __init__(self, cover: Cover, pool: Sequence[int]) -> None:
        position = {bit: at for at, bit in enumerate(pool)}
        self.within = sum(pool)
        self.required = cover.required
        self.shared: list[tuple[int, int, int]] = []
        losses = [[0] * len(cover.demands) for _ in pool]
        spare = []
        for number, demand in enumerate(cover.demands):
            spare.append(demand.amount_of(cover.domain) - demand.need)
            for anywhere, amount in demand.places:
                place = anywhere & cover.domain
                if place in position:
                    losses[position[place]][number] += amount
                elif place and not place & ~self.within:
                    self.shared.append((place, number, amount))
        self.alone = [tuple(loss) for loss in losses]
        self.start = _Dropped(0, tuple(spare))
        drops = [self.without(self.start, bit, at) for at, bit in enumerate(pool)]
        self.can_drop = [dropped is not None for dropped in drops]

    def without(self, state: _Dropped, bit: int, at: int) -> _Dropped | None:
        """Return the state after dropping a node, too; None when the demands forbid it."""
        if bit & self.required:
            return None
        gone = state.gone | bit
        spare = tuple([have - loss for have, loss in zip(state.spare, self.alone[at], strict=True)])
        if self.shared:
            spare = self._without_shared(spare, bit, gone)
        return None if spare and min(spare) < 0 else _Dropped(gone, spare)

    def _without_shared(self, spare: tuple[int, ...], bit: int, gone: int) -> tuple[int, ...]:
        left = list(spare)
        for place, number, amount in self.shared:
            if place & bit and not place & ~gone:
                left[number] -= amount
        return tuple(left)

    def most_dropped(self, positions: Sequence[int]) -> int:
        """Return how many of these nodes can be dropped at most (a bound: the lightest ones)."""
        most = len(positions)
        for number, spare in enumerate(self.start.spare):
            lightest = accumulate(sorted([self.alone[at][number] for at in positions]))
            most = min(most, sum([total <= spare for total in lightest]))
        return most


class _Bound(NamedTuple):
    """A price of dropping each node (by position), and what all dropped ones may cost together."""

    prices: tuple[int, ...]
    spare: int
    dearest: int
    sums: dict[int, list[int]]

    @classmethod
    def of(cls, prices: tuple[int, ...], spare: int) -> _Bound:
        return cls(prices, spare, max(prices), {})

    def allows(self, first: int, dropped: int, spare: int) -> bool:
        """Return whether the lightest `dropped` of the `first` nodes may cost at most the spare."""
        if dropped * self.dearest <= spare:
            return True
        sums = self.sums.get(first)
        if sums is None:
            sums = self.sums[first] = [0, *accumulate(sorted(self.prices[:first]))]
        return sums[dropped] <= spare


class Search:
    """The sets of nodes of `pool` (bits) that intersections of one member per family can be.

    The domain of every family contains the pool, and no family is empty. `spans` are conditions
    on the set itself. Without `every`, sets that differ only by interchangeable nodes
    are represented by the set of the smallest value.
    """

    def __init__(
        self,
        covers: Sequence[Cover],
        pool: int,
        work: SearchBudget,
        *,
        spans: Sequence[Span] = (),
        every: bool = False,
    ) -> None:
        self._work = work
        self._spans = spans
        self._covers = covers
        self._nodes = [1 << node for node in iter_bits(pool)]
        self._below = [0, *accumulate(self._nodes)]
        self._families = [_Family(cover, self._nodes) for cover in covers]
        self._start: _State = tuple(family.start for family in self._families)
        droppable = zip(*[family.can_drop for family in self._families], strict=True)
        kept = [not any(of_families) for of_families in droppable]
        self._forced = sum(compress(self._nodes, kept))
        self._order = _by_price(self._families)
        self._bounds = self._all_bounds(kept)
        self._spares = tuple([bound.spare for bound in self._bounds])
        self._kinds = self._all_kinds()
        self._alike = [0] * len(self._nodes) if every else self._lower_alike(self._kinds)
        self._near: NodeDistances | None = None
        self._limit: int | None = None

    def best(self, size: int, tiebreak: Tiebreak) -> int | None:
        """Return the best set of `size` nodes; None when there is none (or the work is spent)."""
        if not isinstance(tiebreak, Closest):
            return next(self.sets(size), None)
        return self._closest(size, tiebreak) if size <= len(self._nodes) else None

    def _closest(self, size: int, tiebreak: Closest) -> int | None:
        """Return the closest set: the first of those in ascending order that none falls below."""
        if self._near is None:
            self._near = near = NodeDistances(tiebreak, self._nodes)
            self._alike = self._lower_alike(list(zip(self._kinds, near.alike, strict=True)))
        self._limit = None
        if self._is_hopeless(len(self._nodes), size, 0, self._spares, self._forced):
            return None
        floor = self._near.at_least(0, len(self._nodes), size)
        guess = self._near.guess(size, self._is_member)
        self._limit = None if guess is None else guess + 1
        best = None
        for nodes in self.sets(size):
            total = tiebreak.total(nodes)
            best, self._limit = nodes, total
            if total <= floor:
                break
        return best

    def _is_member(self, nodes: int) -> bool:
        """Return whether a set belongs to every family and so comes out of their merge."""
        return all(one.holds(nodes) for one in self._covers) and all(
            span.met_by(nodes) for span in self._spans
        )

    def sets(self, size: int) -> Iterator[int]:
        """Yield the sets of `size` nodes in ascending order of their integer value."""
        if 0 < size <= len(self._nodes):
            so_far = self._start, self._spares
            yield from self._descend(len(self._nodes), size, 0, so_far, self._forced)

    def least(self) -> int:
        """Return a number of nodes below which no set can come out."""
        everything = range(len(self._nodes))
        dropped = sum([family.most_dropped(everything) for family in self._families])
        return max(1, self._forced.bit_count(), len(self._nodes) - dropped)

    def greedy(self, size: int) -> int:
        """Return some set of at least `size` nodes, found in one pass from the highest node down.

        Each node is dropped from the family that loses least by it, if any can do without it.
        """
        state, left = self._start, self._below[-1]
        for at in reversed(range(len(self._nodes))):
            if left.bit_count() <= size:
                break
            after = self._dropped(state, at)
            if after is not None:
                state, left = after, left ^ self._nodes[at]
        return left

    def _descend(
        self,
        first: int,
        inside: int,
        chosen: int,
        so_far: tuple[_State, tuple[int, ...]],
        forced: int,
    ) -> Iterator[int]:
        """Yield the sets made of `chosen` and `inside` of the `first` nodes.

        `so_far` is how the others were dropped, and what the bounds can spare after that.
        """
        if inside == first:
            nodes = chosen | self._below[first]
            if self._falls_below(first, chosen) and all(s.met_by(nodes) for s in self._spans):
                yield nodes
            return
        if not self._work.take() or self._is_hopeless(first, inside, chosen, so_far[1], forced):
            return
        at = first - 1
        if not self._nodes[at] & forced:
            dropped = self._without(so_far, at)
            if dropped is not None:
                yield from self._descend(at, inside, chosen, dropped, forced)
        if inside:
            alike = forced | self._alike[at]
            yield from self._descend(at, inside - 1, chosen | self._nodes[at], so_far, alike)

    def _is_hopeless(
        self, first: int, inside: int, chosen: int, spares: tuple[int, ...], forced: int
    ) -> bool:
        others = self._below[first]
        if (forced & others).bit_count() > inside:
            return True
        for bound, spare in zip(self._bounds, spares, strict=True):
            if not bound.allows(first, first - inside, spare):
                return True
        if any(_is_out_of_span(span, chosen, others, inside) for span in self._spans):
            return True
        return self._is_too_far(first, inside, chosen)

    def _falls_below(self, first: int, chosen: int) -> bool:
        """Return whether `chosen` and all of the first nodes are closer than the closest so far."""
        if self._near is None or self._limit is None:
            return True
        return self._near.total(chosen, first) < self._limit

    def _is_too_far(self, first: int, inside: int, chosen: int) -> bool:
        if self._near is None or self._limit is None:
            return False
        return self._near.at_least(chosen, first, inside) >= self._limit

    def _without(
        self, so_far: tuple[_State, tuple[int, ...]], at: int
    ) -> tuple[_State, tuple[int, ...]] | None:
        """Drop a node from some family; if need be divide all dropped nodes among them again."""
        state, spares = so_far
        left = tuple([s - b.prices[at] for s, b in zip(spares, self._bounds, strict=True)])
        if left and min(left) < 0:
            return None
        after = self._dropped(state, at)
        if after is None and len(state) > 1:
            gone = sum([one.gone for one in state]) | self._nodes[at]
            after = self._divided([at for at, bit in enumerate(self._nodes) if bit & gone])
        return None if after is None else (after, left)

    def _dropped(self, state: _State, at: int) -> _State | None:
        bit = self._nodes[at]
        for number in self._order[at]:
            after = self._families[number].without(state[number], bit, at)
            if after is not None:
                return (*state[:number], after, *state[number + 1 :])
        return None

    def _divided(self, dropped: list[int]) -> _State | None:
        """Return how nodes (positions) can be dropped, each from one family; None if they cannot.

        Nodes that cost most come first; interchangeable nodes go to the families in one order
        only.
        """
        if sum([family.most_dropped(dropped) for family in self._families]) < len(dropped):
            return None
        prices = self._bounds[0].prices if self._bounds else (0,) * len(self._nodes)
        dropped.sort(key=lambda at: (-prices[at], self._kinds[at], at))
        return self._placed(dropped, 0, self._start, 0)

    def _placed(self, dropped: list[int], done: int, state: _State, rank: int) -> _State | None:
        if done == len(dropped):
            return state
        if not self._work.take():
            return None
        at = dropped[done]
        if done and self._kinds[at] != self._kinds[dropped[done - 1]]:
            rank = 0
        for place in range(rank, len(self._order[at])):
            number = self._order[at][place]
            after = self._families[number].without(state[number], self._nodes[at], at)
            if after is None:
                continue
            further = (*state[:number], after, *state[number + 1 :])
            found = self._placed(dropped, done + 1, further, place)
            if found is not None or self._work.exceeded:
                return found
        return None

    def _all_bounds(self, kept: Sequence[bool]) -> list[_Bound]:
        """Return what limits the nodes dropped: of one family its demands, of several a mean.

        Whatever a unit of each family is worth: if every dropped node is priced at the family
        where it costs least, all of them cost no more than what the families can spare in all.
        Nodes that must be kept cost more than that.
        """
        columns = [_column(f, d) for f in self._families for d in range(len(f.start.spare))]
        bounds = dict.fromkeys(columns) if len(self._families) == 1 else {}
        if len(columns) > 1:
            bounds |= dict.fromkeys(_mean(self._families, by_spare=by) for by in (True, False))
        return [
            _Bound.of(
                tuple([spare + 1 if k else p for p, k in zip(prices, kept, strict=True)]), spare
            )
            for prices, spare in bounds
        ]

    def _all_kinds(self) -> list[tuple[object, ...]]:
        """Return what distinguishes each node; nodes in a place of several are all distinct."""
        groups = [group for span in self._spans for group in span.groups]
        groups += [family.required for family in self._families if family.required]
        places = [place for family in self._families for place, _, _ in family.shared]
        tied = reduce(or_, places, 0)
        losses = zip(*[family.alone for family in self._families], strict=True)
        return [
            (loss, tied & bit, tuple([bool(group & bit) for group in groups]))
            for bit, loss in zip(self._nodes, losses, strict=True)
        ]

    def _lower_alike(self, kinds: Sequence[object]) -> list[int]:
        """Return for each node the lower ones like it: in the best set they come before it."""
        seen: dict[object, int] = {}
        lower = []
        for kind, bit in zip(kinds, self._nodes, strict=True):
            lower.append(seen.get(kind, 0))
            seen[kind] = seen.get(kind, 0) | bit
        return lower


def _is_out_of_span(span: Span, chosen: int, others: int, more: int) -> bool:
    groups = [group for group in span.groups if group & chosen]
    if len(groups) < span.touching:
        return False
    if len(groups) > span.touching:
        return True
    elsewhere = sum([group & others for group in span.groups if not group & chosen])
    return (others & ~elsewhere).bit_count() < more


def _column(family: _Family, demand: int) -> tuple[tuple[int, ...], int]:
    """Return what each node loses of one demand, and what can be lost."""
    return tuple([loss[demand] for loss in family.alone]), family.start.spare[demand]


def _unit_prices(family: _Family, *, by_spare: bool) -> list[int | None]:
    """Return what dropping each node costs a family, as a mean over its demands; None: too much.

    An amount is measured by what the family can spare, or by what the pool has of it.
    """
    units = family.start.spare if by_spare else tuple(map(sum, zip(*family.alone, strict=True)))
    known: dict[tuple[int, ...], int] = {}
    for loss in family.alone:
        if loss not in known:
            shares = [lost * _SCALE // u for lost, u in zip(loss, units, strict=True) if u]
            known[loss] = sum(shares) // max(len(units), 1)
    losses = zip(family.alone, family.can_drop, strict=True)
    return [known[loss] if can else None for loss, can in losses]


def _mean(families: Sequence[_Family], *, by_spare: bool) -> tuple[tuple[int, ...], int]:
    """Return the cheapest price of each node over the families, and what all can spare."""
    by_family = [_unit_prices(family, by_spare=by_spare) for family in families]
    cheapest = tuple(
        [
            min([price for price in prices if price is not None], default=0)
            for prices in zip(*by_family, strict=True)
        ]
    )
    return cheapest, sum([_spare(family, by_spare=by_spare) for family in families])


def _spare(family: _Family, *, by_spare: bool) -> int:
    """Return what a family can spare, in the prices of `_unit_prices`, rounded up."""
    spare = family.start.spare
    if by_spare or not spare:
        return _SCALE
    totals = map(sum, zip(*family.alone, strict=True))
    shares = [
        -(-have * _SCALE // total) for have, total in zip(spare, totals, strict=True) if total
    ]
    return -(-sum(shares) // len(spare))


def _by_price(families: Sequence[_Family]) -> list[list[int]]:
    """Return for each node the families that can do without it, those that lose least first."""
    by_family = [_unit_prices(family, by_spare=True) for family in families]
    order = []
    for prices in zip(*by_family, strict=True):
        known = [(price, number) for number, price in enumerate(prices) if price is not None]
        order.append([number for _, number in sorted(known)])
    return order
