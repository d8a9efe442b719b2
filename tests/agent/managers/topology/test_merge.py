from __future__ import annotations

from functools import reduce
from itertools import product
from operator import and_

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.managers.topology.hint import Hint, Order, SearchBudget, by_value, masks_by_size
from agent.managers.topology.merge import _Counting, best_reachable, intersections, reachable_masks
from sysfs.mask import Mask

EIGHT = Mask.of(*range(8)).bits
SPARSE = Mask.of(0, 8, 16, 24, 32).bits


def _pairwise(first: set[int], second: set[int]) -> set[int]:
    return {one & other for one in first for other in second}


def _subsets(nodes: int) -> st.SearchStrategy[set[int]]:
    return st.sets(st.sampled_from(masks_by_size(nodes)), min_size=1, max_size=60)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from([EIGHT, SPARSE]))
def test_counting_finds_the_intersections_of_all_pairs(data: st.DataObject, nodes: int) -> None:
    first, second = data.draw(_subsets(nodes)), data.draw(_subsets(nodes))
    expected = _pairwise(first, second)
    assert _Counting.over(nodes).intersections(first, second) == expected
    assert intersections(first, second, nodes) == expected


@settings(max_examples=60, deadline=None)
@given(st.lists(_subsets(Mask.of(0, 1, 2, 3).bits), min_size=1, max_size=4))
def test_reachable_masks_are_the_intersections_of_all_permutations(lists: list[set[int]]) -> None:
    small = [sorted(masks)[:6] for masks in lists]
    hints = [[Hint(mask, preferred=False) for mask in masks] for masks in small]
    expected = {reduce(and_, chosen) for chosen in product(*small)} - {0}
    assert reachable_masks(hints, Mask.of(0, 1, 2, 3).bits) == expected


def test_masks_are_seen_within_the_machine_only() -> None:
    outside = [Hint(Mask.of(0, 9).bits, preferred=False)]
    assert reachable_masks([outside], EIGHT) == {1}


class TestSocketsOfWhatIsNotPreferred:
    """Nodes 0 and 1 are on one socket, 2 and 3 on another."""

    NODES = Mask.of(0, 1, 2, 3).bits

    def best(self, *memory: tuple[int, ...]) -> Mask:
        """Return the choice where CPUs fit on every pair of nodes and memory on these sets."""

        def sockets(nodes: int) -> tuple[int, ...]:
            return (sum(1 for socket in (0b0011, 0b1100) if socket & nodes),)

        pairs = [mask for mask in masks_by_size(self.NODES) if mask.bit_count() == 2]
        cpus = [Hint(mask, preferred=False) for mask in pairs if mask != 0b0011]
        places = [Hint(Mask.of(*ids).bits, preferred=False) for ids in memory]
        order = Order(by_value, sockets)
        best = best_reachable([cpus, places], self.NODES, order, SearchBudget())
        assert best is not None
        return Mask(best)

    def test_one_socket_is_better_where_every_resource_has_room(self) -> None:
        assert self.best((0, 2), (2, 3)) == Mask.of(2, 3)

    def test_a_socket_without_room_for_some_resource_is_not(self) -> None:
        """Memory would have to extend the nodes, which may be in a group already."""
        assert self.best((1, 2), (1, 2, 3)) == Mask.of(1, 2)
