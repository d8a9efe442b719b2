"""Every set of NUMA nodes of a machine, in the order in which the kubelet tries them."""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from agent.managers.topology.hints import Hint
from sysfs.mask import iter_bits

if TYPE_CHECKING:
    from collections.abc import Iterable


class Choice(NamedTuple):
    """One non-empty mask of nodes, its number in the `SubsetIndex`, and its hint either way."""

    mask: int
    number: int
    plain: Hint
    preferred: Hint


@lru_cache(maxsize=16)
def choices(nodes: int) -> tuple[Choice, ...]:
    """Return every non-empty subset of `nodes` (bits) in the order of `masks_by_size`."""
    number = SubsetIndex.of(nodes).number
    return tuple(
        Choice(mask, number[mask], Hint(mask, preferred=False), Hint(mask, preferred=True))
        for mask in masks_by_size(nodes)
    )


@lru_cache(maxsize=16)
def masks_by_size(nodes: int) -> tuple[int, ...]:
    """Return all non-empty subsets of `nodes` (bits), smaller ones first.

    Among equally large ones the order is lexicographic in the ascending node ids. There are
    2^n - 1 of them, so this is for the few nodes that matter to one request.
    """
    bits = [1 << node for node in iter_bits(nodes)]
    return tuple(
        sum(chosen) for size in range(1, len(bits) + 1) for chosen in combinations(bits, size)
    )


class SubsetIndex(Struct, frozen=True):
    """The subsets of `ones` (masks of a node), the empty one included, in ascending order.

    Bit *i* of a subset's number stands for the *i*-th lowest node, so numbers are dense even
    where node ids are not (POWER numbers its nodes 0, 8, 16, ...).
    """

    ones: tuple[int, ...]
    subsets: tuple[int, ...]
    number: dict[int, int]

    @staticmethod
    def of(nodes: int) -> SubsetIndex:
        """Return the index of all subsets of `nodes` (bits)."""
        return _subset_index(nodes)


@lru_cache(maxsize=16)
def _subset_index(nodes: int) -> SubsetIndex:
    ones = tuple(1 << node for node in iter_bits(nodes))
    subsets = tuple(subset_sums(ones))
    return SubsetIndex(ones, subsets, {subset: number for number, subset in enumerate(subsets)})


def subset_sums(values: Iterable[int]) -> list[int]:
    """Return the sum of `values` over every subset of positions, by the subset's number.

    Entry *s* of the 2^n entries sums the values at the set bits of *s*.
    """
    sums = [0]
    for value in values:
        sums += [total + value for total in sums]
    return sums
