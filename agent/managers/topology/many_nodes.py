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

from collections.abc import Mapping, Sequence
from functools import lru_cache, reduce
from itertools import accumulate, chain, combinations, compress, islice
from operator import and_, or_
from typing import TYPE_CHECKING, Final, NamedTuple, Self, TypeAlias, Union

from msgspec import Struct

from agent.managers.topology.hint import Closest, Hint, NodeDistances, SearchBudget, by_value
from sysfs.mask import iter_bits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agent.managers.topology.hint import Order, Tiebreak


# --- node cover -----------------------------------------------------------------------------------
# Families of sets of NUMA nodes, defined by the amounts that a set must have.


class CoverDemand(NamedTuple):
    """An amount that a set of nodes must have; any unit, never negative.

    `places` are pairs of nodes (bits) and an amount: a set of nodes has the amount of every
    place that it touches. CPUs and memory have a place per node, a device may sit on several.
    """

    need: int
    places: tuple[tuple[int, int], ...]

    @classmethod
    def by_node(cls, need: int, amounts: Mapping[int, int]) -> Self:
        """Return a demand from the amount of each node (by id)."""
        return cls(
            need, tuple((1 << node, amount) for node, amount in amounts.items() if amount > 0)
        )

    def amount_of(self, nodes: int) -> int:
        """Return the amount that a set of nodes (bits) has."""
        return sum([amount for place, amount in self.places if place & nodes])

    def met_by(self, nodes: int) -> bool:
        """Return whether a set of nodes (bits) has enough."""
        return self.amount_of(nodes) >= self.need


class Cover(Struct, frozen=True):
    """All non-empty sets of nodes within `domain` that contain `required` and meet the demands.

    Upward closed: with a set, every larger one within the domain belongs to it.
    """

    domain: int
    demands: tuple[CoverDemand, ...]
    required: int = 0

    def holds(self, nodes: int) -> bool:
        """Return whether a set of nodes (bits) belongs to the family."""
        if not nodes or nodes & ~self.domain or self.required & ~nodes:
            return False
        return all(demand.met_by(nodes) for demand in self.demands)

    @property
    def is_empty(self) -> bool:
        """Whether no set of nodes suffices: not even all of the domain."""
        return not self.holds(self.domain)

    def containing(self, nodes: int) -> Cover:
        """Return the sets of the family that contain the given nodes."""
        return Cover(self.domain, self.demands, self.required | nodes)

    @staticmethod
    def common(covers: Iterable[Cover]) -> Cover:
        """Return the sets of nodes that belong to each of one or more families."""
        known = tuple(covers)
        demands = dict.fromkeys(demand for cover in known for demand in cover.demands)
        return Cover(
            reduce(and_, [cover.domain for cover in known]),
            tuple(demands),
            reduce(or_, [cover.required for cover in known]),
        )


class Span(NamedTuple):
    """Sets of nodes that touch exactly `touching` of some groups of nodes (bits), the sockets."""

    groups: tuple[int, ...]
    touching: int

    def touched(self, nodes: int) -> int:
        """Return how many groups a set of nodes touches."""
        return sum([1 for group in self.groups if group & nodes])

    def met_by(self, nodes: int) -> bool:
        """Return whether a set of nodes touches as many groups as it must."""
        return self.touched(nodes) == self.touching

    def cover(self, domain: int) -> Cover:
        """Return the half of the condition that is upward closed: enough groups are touched."""
        return Cover(
            domain, (CoverDemand(self.touching, tuple((group, 1) for group in self.groups)),)
        )


# --- node search ----------------------------------------------------------------------------------

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


# --- implicit hints -------------------------------------------------------------------------------
# Families of hints: the hints of one resource on a machine with many NUMA nodes, not listed.
#
# Sixty-four nodes have 2^64 sets, nearly all of which are hints of a provider. A family answers the
# queries of the merge, the memory manager and rejections from the rule that defines the hints.

#: Explanations get less work than choices; they may name other hints than the best.
_EXPLAINING: Final = 600
#: Up to this many nodes, all sets are listed: at most 255.
MOST_LISTED: Final = 8


class HintFamily(Struct, frozen=True):
    """The sets of nodes that can serve a request: `masks`, and all sets of `cover`.

    Preferred are those of `fewest` nodes and, where there is a `span` (align-by-socket), those
    that touch as many sockets as it says. Iterating yields the hints in the kubelet's order, by
    definition and without end in sight on a large machine.
    """

    masks: tuple[int, ...]
    cover: Cover | None
    fewest: int
    span: Span | None = None

    def __bool__(self) -> bool:
        return bool(self.masks) or self.cover is not None

    def __iter__(self) -> Iterator[Hint]:
        bits = [1 << node for node in iter_bits(self.nodes)]
        for size in range(1, len(bits) + 1):
            for mask in map(sum, combinations(bits, size)):
                if self.holds(mask):
                    yield Hint(mask, self._is_preferred_size(mask))

    @property
    def nodes(self) -> int:
        """The nodes that any of the sets has."""
        return reduce(or_, self.masks, self.cover.domain if self.cover else 0)

    def holds(self, mask: int) -> bool:
        """Return whether a set of nodes is among the hints."""
        return mask in self.masks or (self.cover is not None and self.cover.holds(mask))

    def prefers(self, mask: int) -> bool:
        """Return whether a set of nodes is among the preferred hints."""
        return self._is_preferred_size(mask) and self.holds(mask)

    def single_nodes(self) -> list[Hint]:
        """Return the hints of a single node, in order."""
        ones = [1 << node for node in iter_bits(self.nodes)]
        return [Hint(one, self._is_preferred_size(one)) for one in ones if self.holds(one)]

    def narrowest(self, work: SearchBudget) -> int:
        """Return how many nodes the smallest of one or more sets has."""
        listed = min([mask.bit_count() for mask in self.masks], default=0)
        if self.cover is None or listed == 1:
            return listed
        covered = smallest(self.cover, work)
        return min(listed, covered) if listed else covered

    def best(self, work: SearchBudget, containing: int = 0) -> Hint | None:
        """Return the best hint whose nodes contain the given ones, None when there is none.

        Preferred ones are better, then those of fewer nodes, then the lowest mask.
        """
        found = [mask for mask in self.masks if not containing & ~mask]
        if self.cover is not None and not containing & ~self.cover.domain:
            found += _best_covered(self.cover.containing(containing), self.fewest, work)
        return min((self._hint(mask) for mask in found), key=rank, default=None)

    def best_few(self, most: int, work: SearchBudget) -> list[Hint]:
        """Return the best hints, the best first: as many as asked for, or all there are."""
        found = set(self.masks)
        if self.cover is not None:
            search = Search([self.cover], self.cover.domain, work, every=True)
            preferred = list(islice(search.sets(self.fewest), most))
            found.update(preferred)
            if len(preferred) < most or search.least() < self.fewest:
                found.update(self._spanning(most, work))
                sizes = range(smallest(self.cover, work), self.cover.domain.bit_count() + 1)
                found.update(islice(chain.from_iterable(map(search.sets, sizes)), most))
        return sorted(map(self._hint, found), key=rank)[:most]

    def _spanning(self, most: int, work: SearchBudget) -> list[int]:
        """Return the smallest sets on as many sockets as are preferred."""
        if self.cover is None or self.span is None:
            return []
        cover = Cover.common([self.cover, self.span.cover(self.cover.domain)])
        if cover.is_empty:
            return []
        search = Search([cover], cover.domain, work, spans=[self.span], every=True)
        sizes = range(smallest(cover, work), cover.domain.bit_count() + 1)
        return list(islice(chain.from_iterable(map(search.sets, sizes)), most))

    def _hint(self, mask: int) -> Hint:
        return Hint(mask, self._is_preferred_size(mask))

    def _is_preferred_size(self, mask: int) -> bool:
        if mask.bit_count() == self.fewest:
            return True
        return self.span is not None and self.span.met_by(mask)


def is_listed(nodes: int) -> bool:
    """Return whether on a machine with these nodes (bits) hints are listed one by one."""
    return nodes.bit_count() <= MOST_LISTED


def rank(hint: Hint) -> tuple[bool, int, int]:
    """Order hints: preferred first, then narrow, then the lowest mask."""
    nodes = hint.nodes or 0
    return not hint.preferred, nodes.bit_count(), nodes


def best_few(hints: Hints, most: int) -> list[Hint]:
    """Return the best hints, as many as asked for or fewer, the best first."""
    if isinstance(hints, HintFamily):
        return hints.best_few(most, SearchBudget(_EXPLAINING))
    return sorted(hints, key=rank)[:most]


def smallest(cover: Cover, work: SearchBudget) -> int:
    """Return how many nodes the smallest set of a family has; 0 when the family is empty.

    Where the budget of work does not suffice it is the size of a set found in one pass.
    """
    size, exceeded = _smallest(cover)
    work.exceeded |= exceeded
    return size


@lru_cache(maxsize=512)
def _smallest(cover: Cover) -> tuple[int, bool]:
    """Answer with a separate budget: a cached answer must cost the same as a new one."""
    if cover.is_empty:
        return 0, False
    work = SearchBudget()
    search = Search([cover], cover.domain, work)
    for size in range(search.least(), cover.domain.bit_count() + 1):
        if search.best(size, by_value) is not None:
            return size, work.exceeded
        if work.exceeded:
            break
    return search.greedy(1).bit_count(), True


def _best_covered(cover: Cover, preferred: int, work: SearchBudget) -> Sequence[int]:
    """Return the best set of the preferred size, or else the best of the smallest size."""
    if cover.is_empty:
        return ()
    search = Search([cover], cover.domain, work)
    sizes = (preferred, smallest(cover, work))
    for size in sizes:
        mask = search.best(size, by_value)
        if mask is not None:
            return (mask,)
    return (search.greedy(1),)


#: Hints as a list, or as a family on a machine with many nodes.
Hints: TypeAlias = Union[Sequence[Hint], "HintFamily"]


#: The hints of one provider for a container or pod, by resource name. A resource mapped to None
#: has no preference; one mapped to an empty sequence cannot be served by any set of nodes.
#: An empty mapping is a provider without any preference.
ProviderHints: TypeAlias = Mapping[str, Hints | None]


# --- implicit merge -------------------------------------------------------------------------------
# Merging families of hints: the same choice as `merge` makes from lists.
#
# A list of hints is a handful of masks that stand one by one and, it may be, a family that is
# upward closed (`Cover`). So what one hint per resource intersects to has three kinds: a single
# node, the intersection X of masks and domains itself, and a subset of X made by members of the
# families that are smaller than their domains (`Search`). All of the first two are computed; of the
# third, which contains with a set every larger subset of X, only the best of the size that is
# desired, or the smallest that is larger.

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
