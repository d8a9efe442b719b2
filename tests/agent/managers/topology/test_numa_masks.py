from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.managers.topology.hint import SubsetIndex, choices, masks_by_size, subset_sums
from sysfs.mask import Mask, iter_bits


def test_masks_come_by_size_then_in_lexicographic_order_of_their_nodes() -> None:
    in_order = [tuple(iter_bits(mask)) for mask in masks_by_size(Mask.of(0, 1, 3).bits)]
    assert in_order == [(0,), (1,), (3,), (0, 1), (0, 3), (1, 3), (0, 1, 3)]


def test_subsets_are_numbered_densely_where_node_ids_are_not() -> None:
    index = SubsetIndex.of(Mask.of(0, 8).bits)
    assert index.subsets == (0, 1, 1 << 8, 1 << 8 | 1)
    assert index.number[1 << 8] == 2


def test_a_choice_carries_its_hint_either_way() -> None:
    first, *_ = choices(Mask.of(4, 5).bits)
    assert (first.mask, first.number) == (1 << 4, 1)
    assert first.plain == (1 << 4, False)
    assert first.preferred == (1 << 4, True)


@given(st.lists(st.integers(0, 100), max_size=6))
def test_subset_sums_add_up_the_values_at_the_set_bits(values: list[int]) -> None:
    sums = subset_sums(tuple(values))
    assert sums == [sum(values[bit] for bit in iter_bits(n)) for n in range(1 << len(values))]
