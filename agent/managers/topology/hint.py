"""Topology hints: which sets of NUMA nodes can serve a request, and which set is the better one.

A resource manager offers hints, and `merge` chooses one set of nodes from the hints of all
managers (KEP-693). Both need what is here:

- `Hint`, and `choices`: every set of a machine's nodes, in the order in which the kubelet tries
  them;
- `Order`: the better of two sets: the one on fewer sockets where that is asked for, else the one of
  fewer nodes, else the one that a tiebreak prefers;
- `SearchBudget`: how long a search may last, in steps and never in time.

A set of nodes is a bare `int` here, a bit per node id, not a `Mask`: a merge on eight nodes handles
hundreds of sets within a fraction of a millisecond.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from msgspec import Struct

from agent.values import Size  # noqa: TC001  # msgspec reads it at run time
from sysfs.mask import iter_bits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Hint(NamedTuple):
    """One set of NUMA nodes that could serve a request (KEP-693, TopologyHint)."""

    #: The set of nodes; None means any node.
    nodes: Size | None
    preferred: bool


NO_AFFINITY = Hint(None, preferred=False)


def rank(hint: Hint) -> tuple[bool, int, int]:
    """Order hints: preferred hints first, then by the number of nodes, then by the mask."""
    nodes = hint.nodes or 0
    return not hint.preferred, nodes.bit_count(), nodes


#: On machines of up to this many nodes hints are listed: there are at most 255 sets of nodes.
MOST_LISTED: Final = 8


def is_listed(nodes: int) -> bool:
    """Return whether on a machine with these nodes hints are listed one by one."""
    return nodes.bit_count() <= MOST_LISTED


class Choice(NamedTuple):
    """One set of nodes, its number in the `SubsetIndex`, and the two hints that it can be."""

    mask: int
    number: int
    plain: Hint
    preferred: Hint


@lru_cache(maxsize=16)
def choices(nodes: int) -> tuple[Choice, ...]:
    """Return every non-empty subset of `nodes` in the order of `masks_by_size`."""
    number = SubsetIndex.of(nodes).number
    return tuple(
        Choice(mask, number[mask], Hint(mask, preferred=False), Hint(mask, preferred=True))
        for mask in masks_by_size(nodes)
    )


@lru_cache(maxsize=16)
def masks_by_size(nodes: int) -> tuple[int, ...]:
    """Return every non-empty subset of `nodes`, smaller ones first: the kubelet's order.

    Subsets of the same size are in lexicographic order of their ascending node ids. There are
    2^n - 1 subsets, so `nodes` should be few.
    """
    bits = [1 << node for node in iter_bits(nodes)]
    return tuple(
        sum(subset) for size in range(1, len(bits) + 1) for subset in combinations(bits, size)
    )


class SubsetIndex(Struct, frozen=True):
    """Numbers for the subsets of some nodes.

    Bit *i* of a subset's number stands for the *i*-th lowest node. So numbers are dense even where
    node ids are not (POWER numbers its nodes 0, 8, 16, ...).
    """

    #: The nodes in ascending order, each as a mask.
    ones: tuple[int, ...]
    #: All subsets by their number; the first is the empty set.
    subsets: tuple[int, ...]
    #: The number of each subset.
    number: dict[int, int]

    @staticmethod
    def of(nodes: int) -> SubsetIndex:
        """Return the index of all subsets of `nodes`."""
        return _subset_index(nodes)


@lru_cache(maxsize=16)
def _subset_index(nodes: int) -> SubsetIndex:
    ones = tuple(1 << node for node in iter_bits(nodes))
    subsets = tuple(subset_sums(ones))
    return SubsetIndex(ones, subsets, {subset: number for number, subset in enumerate(subsets)})


def subset_sums(values: Iterable[int]) -> list[int]:
    """Return for every subset, by its number, the sum of the values of its members.

    `values` has one value per node, in ascending order of the nodes.
    """
    sums = [0]
    for value in values:
        sums += [total + value for total in sums]
    return sums


#: A key for sets of nodes; the set with the smallest key wins.
Tiebreak: TypeAlias = "Callable[[int], tuple[int, ...]]"


def by_value(nodes: int) -> tuple[int, ...]:
    """Order sets by their masks as integers, as the kubelet does without distances."""
    return (nodes,)


class Order(Struct, frozen=True):
    """The order of sets of NUMA nodes that can all serve a request."""

    #: Orders sets with the same number of nodes (`by_value`, `distances.Closest`).
    tiebreak: Tiebreak
    #: With `align-by-socket` counts before the number of nodes: a set on one socket is better than
    #: a smaller set on two sockets.
    sockets: Tiebreak | None = None

    def of_preferred(self, nodes: int) -> tuple[int, ...]:
        """Return the key of a preferred set: its sockets, its size, then the tiebreak."""
        if self.sockets is None:
            return nodes.bit_count(), *self.tiebreak(nodes)
        return *self.sockets(nodes), nodes.bit_count(), *self.tiebreak(nodes)

    def of_equally_wide(self, nodes: int) -> tuple[int, ...]:
        """Return the key of a set among those of the same size."""
        if self.sockets is None:
            return self.tiebreak(nodes)
        return *self.sockets(nodes), *self.tiebreak(nodes)


#: Steps of one choice. A step takes some ten microseconds; hardly any choice needs a fifth.
BUDGET: Final = 1_000


class SearchBudget(Struct):
    """The steps that a search may still take.

    The same input always takes the same steps, so a decision stays a pure function.
    """

    left: int = BUDGET
    #: Set when a search stopped before its end.
    exceeded: bool = False

    def take(self, steps: int = 1) -> bool:
        """Spend steps if enough are left; else set `exceeded` and return False."""
        if self.left < steps:
            self.exceeded = True
            return False
        self.left -= steps
        return True
