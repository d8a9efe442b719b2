"""Families of hints: the hints of one resource on a machine with many NUMA nodes, not listed.

Sixty-four nodes have 2^64 sets, nearly all of which are hints of a provider. A family answers the
queries of the merge, the memory manager and rejections from the rule that defines the hints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, reduce
from itertools import chain, combinations, islice
from operator import or_
from typing import TYPE_CHECKING, Final, TypeAlias, Union

from msgspec import Struct

from agent.managers.topology.hints import Hint
from agent.managers.topology.node_cover import Cover
from agent.managers.topology.node_search import Search
from agent.managers.topology.search_budget import SearchBudget
from agent.managers.topology.tiebreak import by_value
from sysfs.mask import iter_bits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.managers.topology.node_cover import Span

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
