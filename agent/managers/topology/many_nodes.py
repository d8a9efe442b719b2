"""Hints and their merge on a machine of more than eight NUMA nodes: the kubelet's choice.

In go the hints of all resources as rules (`HintFamily`), and the steps that the search may take.
Out comes a set of nodes. If the steps do not suffice, the set is valid but may not be the best.

Up to eight nodes all hints are listed (`merge`). Sixty-four nodes have 2^64 sets, and nearly all
are hints. So a resource has a rule instead: every set of nodes that has enough of it (`Cover`). If
a set has enough, every set that contains it has enough. That is all the search needs to know.

An example on three nodes: a pod asks for 8 CPUs and 45 GiB.

    node             0    1    2    all   asked   spare
    free CPUs        4    4    8     16       8       8
    free GiB        10   20   30     60      45      15

The merge takes one hint of each resource and keeps the nodes that both have (KEP-693).

1. `best_common`: a set that both prefer. CPUs prefer single nodes, memory pairs: there is none.
2. `best_intersection`: the best number of nodes is that of the resource which needs the most nodes:
   here two, for memory. Which sets can come out? A resource *drops* the nodes that are not in its
   hint. It may drop nodes up to its spare amount. So a set comes out if and only if each node
   outside the set is dropped by some resource:

    {2}       CPUs drop 0 and 1 (4 + 4 of 8)
    {1}       CPUs drop 2 (8 of 8), memory drops 0 (10 of 15)
    {0}       cannot: CPUs drop 2 (8 of 8), and no resource can drop 1 (4 of 0; 20 of 15)
    {0, 1}    CPUs drop 2
    {0, 2}    CPUs drop 1
    {1, 2}    CPUs drop 0

   Of the sets of two nodes the lowest is chosen: {0, 1}.

`Search` goes from the highest node down. It first drops a node, and then tries to keep it. So the
first set found is the lowest: drop 2, keep 1, keep 0. The search turns back where a resource has
too little to spare for the nodes that must still be dropped, even for the cheapest ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache, reduce
from itertools import accumulate, chain, combinations, compress, islice
from operator import and_, or_
from typing import TYPE_CHECKING, NamedTuple, Self, TypeAlias, Union

from msgspec import Struct
from msgspec.structs import replace

from agent.managers.topology.distances import Closest, NodeDistances
from agent.managers.topology.hint import Hint, SearchBudget, by_value, rank
from sysfs.mask import iter_bits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.managers.topology.hint import Order, Tiebreak


class CoverDemand(NamedTuple):
    """An amount that a set of nodes must have."""

    #: The amount, in any unit; never negative.
    need: int
    #: Places: their nodes (bits), and the amount there. A set of nodes has the amounts of all
    #: places that it touches. CPUs and memory have one place per node. A device near to several
    #: nodes has one place of these nodes.
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


class Cover(Struct, frozen=True):
    """All non-empty sets of nodes within `domain` that contain `required` and meet the demands."""

    domain: int
    demands: tuple[CoverDemand, ...]
    required: int = 0

    def holds(self, nodes: int) -> bool:
        """Return whether a set of nodes (bits) is one of these sets."""
        if not nodes or nodes & ~self.domain or self.required & ~nodes:
            return False
        return all(demand.amount_of(nodes) >= demand.need for demand in self.demands)

    @property
    def is_empty(self) -> bool:
        """Whether no set of nodes meets the demands: not even the whole domain."""
        return not self.holds(self.domain)

    @staticmethod
    def common(covers: Sequence[Cover]) -> Cover:
        """Return the sets of nodes that one or more covers have in common."""
        demands = dict.fromkeys(demand for cover in covers for demand in cover.demands)
        return Cover(
            reduce(and_, [cover.domain for cover in covers]),
            tuple(demands),
            reduce(or_, [cover.required for cover in covers]),
        )


class Span(NamedTuple):
    """Sets of nodes that touch exactly `touching` of the groups of nodes (`groups` are sockets)."""

    groups: tuple[int, ...]
    touching: int

    def met_by(self, nodes: int) -> bool:
        """Return whether a set of nodes touches exactly `touching` groups."""
        return sum([1 for group in self.groups if group & nodes]) == self.touching

    def out_of_reach(self, chosen: int, others: int, more: int) -> bool:
        """Return whether `chosen` cannot meet the span with `more` nodes of `others` added."""
        touched = [group for group in self.groups if group & chosen]
        if len(touched) < self.touching:
            return False
        elsewhere = sum([group & others for group in self.groups if not group & chosen])
        return len(touched) > self.touching or (others & ~elsewhere).bit_count() < more

    def cover(self, domain: int) -> Cover:
        """Return the sets that touch `touching` groups or more: a cover has no upper bound."""
        places = tuple((group, 1) for group in self.groups)
        return Cover(domain, (CoverDemand(self.touching, places),))


class _Kept(NamedTuple):
    """What a resource has dropped in the course of a search, and what it may still lose."""

    #: The dropped nodes (bits).
    dropped: int
    #: Of each demand: the amount that may still be lost.
    spare: tuple[int, ...]


class _Resource:
    """A cover as the search needs it: the cost of each node of the pool.

    A node is its position in the pool. Its cost is the amount that is lost when it is dropped.
    """

    def __init__(self, cover: Cover, pool: Sequence[int]) -> None:
        self._pool = pool
        self.required = cover.required
        #: Places of several nodes: the nodes (bits), the index of the demand, the amount. The
        #: amount is lost when the last of the nodes is dropped.
        self.shared: list[tuple[int, int, int]] = []
        position, within = {node: at for at, node in enumerate(pool)}, sum(pool)
        costs = [[0] * len(cover.demands) for _ in pool]
        for number, demand in enumerate(cover.demands):
            for nodes, amount in demand.places:
                place = nodes & cover.domain
                if place in position:
                    costs[position[place]][number] += amount
                elif place and not place & ~within:
                    self.shared.append((place, number, amount))
        #: Of each node its cost for each demand.
        self.costs = [tuple(cost) for cost in costs]
        spare = [demand.amount_of(cover.domain) - demand.need for demand in cover.demands]
        self.start = _Kept(0, tuple(spare))
        self.can_drop = [self.drop(self.start, at) is not None for at in range(len(pool))]
        #: Of the first n nodes and a demand: what the cheapest 0, 1, 2, ... of these nodes cost.
        self._cheapest: dict[tuple[int, int], list[int]] = {}

    def drop(self, kept: _Kept, at: int) -> _Kept | None:
        """Return what is left when one more node is dropped; None if that is too little."""
        node = self._pool[at]
        if node & self.required:
            return None
        dropped = kept.dropped | node
        spare = [have - cost for have, cost in zip(kept.spare, self.costs[at], strict=True)]
        for place, number, amount in self.shared:
            if place & node and not place & ~dropped:
                spare[number] -= amount
        return None if spare and min(spare) < 0 else _Kept(dropped, tuple(spare))

    @cached_property
    def _prices(self) -> list[list[int]]:
        """Of each demand the costs of all nodes.

        A node that cannot be dropped costs more than the demand has to spare.
        """
        droppable = list(zip(self.costs, self.can_drop, strict=True))
        return [
            [cost[number] if can_drop else spare + 1 for cost, can_drop in droppable]
            for number, spare in enumerate(self.start.spare)
        ]

    @cached_property
    def _dearest(self) -> list[int]:
        return list(map(max, self._prices))

    def can_drop_of_first(self, kept: _Kept, first: int, dropped: int) -> bool:
        """Return whether `dropped` of the `first` nodes may be dropped; False is certain."""
        for number, spare in enumerate(kept.spare):
            if dropped * self._dearest[number] <= spare:
                continue
            costs = self._cheapest.get((first, number))
            if costs is None:
                costs = [0, *accumulate(sorted(self._prices[number][:first]))]
                self._cheapest[first, number] = costs
            if costs[dropped] > spare:
                return False
        return True

    def most_dropped(self, positions: Sequence[int]) -> int:
        """Return an upper bound on how many of these nodes can be dropped."""
        most = len(positions)
        for number, spare in enumerate(self.start.spare):
            cheapest = accumulate(sorted([self.costs[at][number] for at in positions]))
            most = min(most, sum([cost <= spare for cost in cheapest]))
        return most


class Search:
    """The sets within `pool` (bits) that are an intersection of one set of each cover.

    The domain of every cover must contain the pool, and no cover may be empty. Only sets that meet
    all `spans` are found. Some sets differ only in nodes of the same kind: the search yields the
    lowest of these, or each of them with `every`. Nodes are positions in the pool, ascending.
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
        self._work, self._spans = work, spans
        self._nodes = [1 << node for node in iter_bits(pool)]
        self._below = [0, *accumulate(self._nodes)]
        self._resources = resources = [_Resource(cover, self._nodes) for cover in covers]
        self._start = tuple([resource.start for resource in resources])
        droppable = zip(*[resource.can_drop for resource in resources], strict=True)
        self._required = sum(compress(self._nodes, [not any(drops) for drops in droppable]))
        # Nodes of the same kind can be exchanged: they have the same costs and groups. Each node of
        # a shared place is the only one of its kind.
        groups = [group for span in spans for group in span.groups]
        groups += [resource.required for resource in resources]
        shared = reduce(or_, [place for r in resources for place, _, _ in r.shared], 0)
        costs = zip(*[resource.costs for resource in resources], strict=True)
        self._kinds = [
            (cost, shared & node, tuple([bool(group & node) for group in groups]))
            for node, cost in zip(self._nodes, costs, strict=True)
        ]
        self._lower_alike = [0] * len(self._nodes) if every else self._alike(self._kinds)
        self._distances: NodeDistances | None = None
        self._closest_so_far: int | None = None

    def _alike(self, kinds: Sequence[object]) -> list[int]:
        """Return for each node the lower nodes (bits) of its kind: a set keeps these first."""
        seen: dict[object, int] = {}
        lower = []
        for kind, node in zip(kinds, self._nodes, strict=True):
            lower.append(seen.get(kind, 0))
            seen[kind] = seen.get(kind, 0) | node
        return lower

    def least(self) -> int:
        """Return a lower bound on the number of nodes of a set that comes out."""
        everything = range(len(self._nodes))
        dropped = sum([resource.most_dropped(everything) for resource in self._resources])
        return max(1, self._required.bit_count(), len(self._nodes) - dropped)

    def greedy(self, size: int) -> int:
        """Return some set of at least `size` nodes: drop nodes that can go, highest first."""
        kept, nodes = self._start, self._below[-1]
        for at in reversed(range(len(self._nodes))):
            if nodes.bit_count() <= size:
                break
            after = self._dropped(kept, at)
            if after is not None:
                kept, nodes = after, nodes ^ self._nodes[at]
        return nodes

    def best(self, size: int, tiebreak: Tiebreak) -> int | None:
        """Return the best set of `size` nodes; None if there is none, or the work is spent."""
        if not isinstance(tiebreak, Closest):
            return next(self.sets(size), None)
        # Each set found is closer than the set before it, so the last set is the closest.
        if self._distances is None:
            self._distances = NodeDistances(tiebreak, self._nodes)
            kinds = list(zip(self._kinds, self._distances.alike, strict=True))
            self._lower_alike = self._alike(kinds)
        self._closest_so_far, best = None, None
        for nodes in self.sets(size):
            best, self._closest_so_far = nodes, tiebreak.total(nodes)
            if self._is_too_far(len(self._nodes), size, 0):
                break
        return best

    def sets(self, size: int) -> Iterator[int]:
        """Yield the sets of `size` nodes, the lowest first."""
        if 0 < size <= len(self._nodes):
            yield from self._descend(len(self._nodes), size, 0, self._start, self._required)

    def _descend(
        self, first: int, more: int, chosen: int, kept: tuple[_Kept, ...], required: int
    ) -> Iterator[int]:
        """Yield the sets made of `chosen` and `more` of the `first` nodes, `required` among them.

        `kept` is what the resources have left after dropping all other nodes.
        """
        if more == first:
            nodes = chosen | self._below[first]
            if not self._is_too_far(first, more, chosen) and all(
                span.met_by(nodes) for span in self._spans
            ):
                yield nodes
            return
        if not self._work.take() or self._is_hopeless(first, more, chosen, kept, required):
            return
        at = first - 1
        if not self._nodes[at] & required:
            after = self._dropped(kept, at)
            if after is None and len(kept) > 1:
                after = self._divided_again(kept, at)
            if after is not None:
                yield from self._descend(at, more, chosen, after, required)
        if more:
            required |= self._lower_alike[at]
            yield from self._descend(at, more - 1, chosen | self._nodes[at], kept, required)

    def _is_hopeless(
        self, first: int, more: int, chosen: int, kept: tuple[_Kept, ...], required: int
    ) -> bool:
        others = self._below[first]
        if (required & others).bit_count() > more:
            return True
        if len(kept) == 1:
            resource = self._resources[0]
            if not resource.can_drop_of_first(kept[0], first, first - more):
                return True
        if any(span.out_of_reach(chosen, others, more) for span in self._spans):
            return True
        return self._is_too_far(first, more, chosen)

    def _is_too_far(self, first: int, more: int, chosen: int) -> bool:
        if self._distances is None or self._closest_so_far is None:
            return False
        return self._distances.at_least(chosen, first, more) >= self._closest_so_far

    def _dropped(self, kept: tuple[_Kept, ...], at: int) -> tuple[_Kept, ...] | None:
        """Let the first resource that can drop a node drop it; None if no resource can."""
        for number, resource in enumerate(self._resources):
            after = resource.drop(kept[number], at)
            if after is not None:
                return (*kept[:number], after, *kept[number + 1 :])
        return None

    def _divided_again(self, kept: tuple[_Kept, ...], at: int) -> tuple[_Kept, ...] | None:
        """Drop one more node by dividing all dropped nodes among the resources again."""
        dropped = sum([one.dropped for one in kept]) | self._nodes[at]
        positions = [at for at, node in enumerate(self._nodes) if node & dropped]
        if sum([resource.most_dropped(positions) for resource in self._resources]) < len(positions):
            return None
        positions.sort(key=lambda at: (self._kinds[at], at))
        return self._divided(positions, self._start, 0)

    def _divided(
        self, positions: Sequence[int], kept: tuple[_Kept, ...], start: int
    ) -> tuple[_Kept, ...] | None:
        """Let some resource drop each of the nodes; the first node a resource from `start` on.

        It makes no difference which node of a kind a resource drops. So nodes of one kind stand
        together, and none is tried with an earlier resource than the node before it.
        """
        if not positions:
            return kept
        if not self._work.take():
            return None
        at, *rest = positions
        alike = bool(rest) and self._kinds[rest[0]] == self._kinds[at]
        for number in range(start, len(kept)):
            after = self._resources[number].drop(kept[number], at)
            if after is None:
                continue
            divided = (*kept[:number], after, *kept[number + 1 :])
            rest_divided = self._divided(rest, divided, number if alike else 0)
            if rest_divided is not None or self._work.exceeded:
                return rest_divided
        return None


class HintFamily(Struct, frozen=True):
    """The hints of one resource: `masks`, and all sets of `cover`.

    Iteration yields all hints in the kubelet's order: the definition of the family. On a large
    machine it takes too long.
    """

    masks: tuple[int, ...]
    cover: Cover | None
    #: The number of nodes of a preferred set.
    fewest: int
    #: With `align-by-socket`: sets that meet the span are preferred, too.
    span: Span | None = None

    def __bool__(self) -> bool:
        return bool(self.masks) or self.cover is not None

    def __iter__(self) -> Iterator[Hint]:
        ones = [1 << node for node in iter_bits(self.nodes)]
        for size in range(1, len(ones) + 1):
            yield from map(self._hint, filter(self.holds, map(sum, combinations(ones, size))))

    @property
    def nodes(self) -> int:
        """The nodes of all sets together."""
        return reduce(or_, self.masks, self.cover.domain if self.cover else 0)

    def holds(self, mask: int) -> bool:
        """Return whether a set of nodes is among the hints."""
        return mask in self.masks or (self.cover is not None and self.cover.holds(mask))

    def prefers(self, mask: int) -> bool:
        """Return whether a set of nodes is among the preferred hints."""
        return self._is_preferred(mask) and self.holds(mask)

    def containing(self, nodes: int) -> HintFamily:
        """Return the hints that have all of some nodes (bits)."""
        cover = self.cover
        if cover is not None:
            cover = replace(cover, required=cover.required | nodes)
        return HintFamily(
            tuple(mask for mask in self.masks if not nodes & ~mask),
            None if cover is None or cover.is_empty else cover,
            self.fewest,
            self.span,
        )

    def single_nodes(self) -> list[Hint]:
        """Return the hints of a single node, in order."""
        ones = [1 << node for node in iter_bits(self.nodes)]
        return [self._hint(one) for one in ones if self.holds(one)]

    def narrowest(self, work: SearchBudget) -> int:
        """Return the number of nodes of the smallest set. The family must not be empty."""
        listed = min([mask.bit_count() for mask in self.masks], default=0)
        if self.cover is None or listed == 1:
            return listed
        covered = smallest(self.cover, work)
        return min(listed, covered) if listed else covered

    def best(self, work: SearchBudget, containing: int = 0) -> Hint | None:
        """Return the best hint (`rank`) whose nodes contain the given nodes, if there is one."""
        masks = [mask for mask in self.masks if not containing & ~mask]
        if self.cover is not None and not containing & ~self.cover.domain:
            cover = replace(self.cover, required=self.cover.required | containing)
            search = Search([cover], cover.domain, work)
            covered = (search.best(size, by_value) for size in (self.fewest, smallest(cover, work)))
            masks.append(next(filter(None, covered), None) or search.greedy(1))
        return min(map(self._hint, masks), key=rank, default=None)

    def best_few(self, most: int, work: SearchBudget) -> list[Hint]:
        """Return the best hints, the best first; fewer than `most` only if there are no more."""
        masks = set(self.masks)
        if self.cover is not None:
            search = Search([self.cover], self.cover.domain, work, every=True)
            preferred = list(islice(search.sets(self.fewest), most))
            masks.update(preferred)
            if len(preferred) < most or search.least() < self.fewest:
                if self.span is not None:
                    spanning = Cover.common([self.cover, self.span.cover(self.cover.domain)])
                    masks.update(_smallest_sets(spanning, most, work, [self.span]))
                masks.update(_smallest_sets(self.cover, most, work))
        return sorted(map(self._hint, masks), key=rank)[:most]

    def _hint(self, mask: int) -> Hint:
        return Hint(mask, self._is_preferred(mask))

    def _is_preferred(self, mask: int) -> bool:
        if mask.bit_count() == self.fewest:
            return True
        return self.span is not None and self.span.met_by(mask)


#: Hints as a list, or as a family on a machine with many nodes.
Hints: TypeAlias = Union[Sequence[Hint], "HintFamily"]

#: The hints of one resource manager for a container or pod, by resource. None: the resource has no
#: preference. An empty sequence: no set of nodes can serve the resource. An empty mapping: the
#: manager has no preference.
ProviderHints: TypeAlias = Mapping[str, Hints | None]


def smallest(cover: Cover, work: SearchBudget) -> int:
    """Return the number of nodes of the smallest set of a cover, 0 if the cover is empty.

    If the search exceeds its budget, `work` says so: there may be smaller sets.
    """
    size, exceeded = _smallest(cover)
    work.exceeded |= exceeded
    return size


@lru_cache(maxsize=512)
def _smallest(cover: Cover) -> tuple[int, bool]:
    """Search with a budget of its own, so that a cached answer costs the same as a new one."""
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


def _smallest_sets(
    cover: Cover, most: int, work: SearchBudget, spans: Sequence[Span] = ()
) -> Iterator[int]:
    """Yield up to `most` sets that meet the spans, those of the fewest nodes first."""
    if cover.is_empty:
        return iter(())
    search = Search([cover], cover.domain, work, spans=spans, every=True)
    sizes = range(smallest(cover, work), cover.domain.bit_count() + 1)
    return islice(chain.from_iterable(map(search.sets, sizes)), most)


def best_common(
    families: Sequence[HintFamily], nodes: int, order: Order, work: SearchBudget
) -> int | None:
    """Return the best mask that every family prefers, None where there is none.

    Masks of fewer nodes are better, then the tiebreak of `order` decides. Where `order` has
    sockets, masks that meet the spans of all families come before all others. The sockets of these
    others are not compared.
    """
    spans = tuple([family.span for family in families if family.span is not None])
    if order.sockets is not None and spans:
        aligned = _best_common(families, nodes, order.tiebreak, work, spans)
        if aligned is not None:
            return aligned
    return _best_common(families, nodes, order.tiebreak, work, ())


def _best_common(
    families: Sequence[HintFamily],
    nodes: int,
    tiebreak: Tiebreak,
    work: SearchBudget,
    spans: tuple[Span, ...],
) -> int | None:
    """Return the best mask that every family prefers and that meets all of `spans`."""

    def key(mask: int) -> tuple[int, ...]:
        return mask.bit_count(), *tiebreak(mask)

    # 1. The masks that a family lists.
    listed = {mask for family in families for mask in family.masks}
    masks = [mask for mask in listed if all(family.prefers(mask) for family in families)]
    if spans:
        masks = [mask for mask in masks if all(span.met_by(mask) for span in spans)]
    most = min([mask.bit_count() for mask in masks], default=nodes.bit_count())
    # 2. The sets that all covers have in common: a cover, too, with the demands of all. A family
    #    prefers sets of one size; a family with a span also prefers sets that meet the span.
    covers = [family.cover for family in families if family.cover is not None]
    fixed = {family.fewest for family in families if family.span is None}
    sizes = [size for size in fixed or range(1, most + 1) if size <= most and len(fixed) <= 1]
    searches: dict[tuple[Span, ...], Search | None] = {}
    for size in sizes if len(covers) == len(families) else ():
        required = spans or tuple(
            [family.span for family in families if family.span and family.fewest != size]
        )
        if required not in searches:
            domain = reduce(and_, [cover.domain for cover in covers])
            common = Cover.common([*covers, *[span.cover(domain) for span in required]])
            search = None if common.is_empty else Search([common], domain, work, spans=required)
            searches[required] = search
        search = searches[required]
        mask = search.best(size, tiebreak) if search is not None else None
        if mask is not None:
            masks.append(mask)
            break
    return min(masks, key=key, default=None)


def best_intersection(
    offers: Sequence[Hints], nodes: int, desired: int, tiebreak: Tiebreak, work: SearchBudget
) -> int | None:
    """Return the best mask that one hint of each offer intersects to, None if all end empty.

    `size_order` says which number of nodes is best; then `tiebreak` decides. If the search exceeds
    `work`, the best mask found until then is returned.
    """
    # 1. The masks that come out if covers drop no node: single nodes (bits), and several nodes.
    single, several = _intersections(offers, nodes)
    masks = {1 << node for node in iter_bits(single)} | {mask for mask, _ in several}
    # 2. The masks of the desired size that come out if covers drop nodes of such a mask.
    searches = [
        Search(covers, mask, work)
        for mask, covers in several
        if covers and mask.bit_count() > desired
    ]

    def of_size(size: int) -> set[int]:
        return set(filter(None, [search.best(size, tiebreak) for search in searches]))

    masks |= of_size(desired)
    # 3. The masks of the next larger size, if all masks so far are larger than desired.
    if searches and all(mask.bit_count() > desired for mask in masks):
        least = min([search.least() for search in searches])
        for size in range(max(desired + 1, least), nodes.bit_count()):
            above = of_size(size)
            masks |= above
            if above or work.exceeded:
                break
    if work.exceeded:
        masks |= {search.greedy(desired) for search in searches}
    return min(
        masks,
        key=lambda mask: (*size_order(mask.bit_count(), desired), *tiebreak(mask)),
        default=None,
    )


def size_order(count: int, desired: int) -> tuple[int, int]:
    """Return the key of a number of nodes: first the desired number, then fewer, then more."""
    return (0, desired - count) if count <= desired else (1, count)


def _intersections(
    offers: Sequence[Hints], nodes: int
) -> tuple[int, list[tuple[int, list[Cover]]]]:
    """Return the single nodes (bits) that come out, and masks of several nodes with their covers.

    A single node comes out if one offer has it alone and every other offer has it in some set.
    Memory has a hint for every single node, so these are kept together, not one mask each.
    """
    single = 0
    #: Masks of several nodes, each with the indexes of the offers that took part with their cover.
    several: dict[tuple[int, tuple[int, ...]], None] = {(nodes, ()): None}
    covers: list[Cover | None] = []
    for number, offer in enumerate(offers):
        if isinstance(offer, HintFamily):
            masks, cover = set(offer.masks), offer.cover
        else:
            masks, cover = {nodes if mask is None else mask & nodes for mask, _ in offer}, None
        covers.append(cover)
        ones = {mask for mask in masks if _is_single(mask)}
        reach = reduce(or_, masks, cover.domain if cover else 0)
        reached = reduce(or_, [mask for mask, _ in several], single)
        narrowed: dict[tuple[int, tuple[int, ...]], None] = {}
        for mask, numbers in several:
            narrowed.update({(mask & group, numbers): None for group in masks - ones})
            if cover is not None:
                narrowed[mask & cover.domain, (*numbers, number)] = None
        single = single & reach | reached & sum(ones)
        single |= sum({mask for mask, _ in narrowed if _is_single(mask)})
        several = {key: None for key in narrowed if key[0].bit_count() > 1}
    return single, [
        (mask, [cover for number in numbers if (cover := covers[number]) is not None])
        for mask, numbers in several
    ]


def _is_single(mask: int) -> bool:
    return mask.bit_count() == 1
