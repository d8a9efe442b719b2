from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.managers.decision import NoHealthyDevicesError
from agent.managers.device.manager import assign_devices, device_hints, reusable_devices_after
from agent.managers.policy import PluginDevice
from agent.managers.topology.hint import NO_AFFINITY, Hint, masks_by_size
from sysfs.mask import EMPTY, Mask

GPU = "example.com/gpu"
NODES = Mask.of(0, 1, 2, 3).bits


def yes(*ids: int) -> Hint:
    return Hint(Mask.of(*ids).bits, preferred=True)


def no(*ids: int) -> Hint:
    return Hint(Mask.of(*ids).bits, preferred=False)


def device(name: str, *nodes: int, healthy: bool = True) -> PluginDevice:
    return PluginDevice(name, Mask.of(*nodes), healthy)


INVENTORY = (device("a", 0), device("b", 2), device("c", 2), device("d"))


def test_a_mask_must_reach_what_the_pod_can_use_again() -> None:
    assert device_hints(NODES, INVENTORY, 1, {"a"}, {"a"}) == (yes(0), no(0, 2))


def test_what_the_pod_can_use_again_counts_as_free() -> None:
    assert device_hints(NODES, INVENTORY, 3, {"a", "b"}, {"a", "b"}) == (yes(0, 2),)
    assert device_hints(NODES, INVENTORY, 3, {"a", "b"}) == ()


# Shows in differences.md: lowest-devices
def test_aligned_devices_are_given_first_and_the_lowest_ids_among_equals() -> None:
    assert assign_devices(GPU, INVENTORY, 1, yes(2), ()) == ("b",)
    assert assign_devices(GPU, INVENTORY, 3, yes(2), ()) == ("a", "b", "c")
    assert assign_devices(GPU, INVENTORY, 2, NO_AFFINITY, ()) == ("a", "b")
    assert assign_devices(GPU, INVENTORY, 1, yes(2), {"b"}) == ("c",)


def test_what_init_containers_left_is_used_before_anything_aligned() -> None:
    assert assign_devices(GPU, INVENTORY, 2, yes(2), {"a"}, {"a"}) == ("a", "b")
    assert reusable_devices_after(frozenset(), ("a", "b"), standard_init=True) == {"a", "b"}
    assert reusable_devices_after(frozenset({"a", "b"}), ("a",), standard_init=False) == {"b"}


def test_an_inventory_without_a_healthy_device_is_rejected() -> None:
    with pytest.raises(NoHealthyDevicesError, match="no healthy devices present"):
        assign_devices(GPU, (device("a", 0, healthy=False),), 1, NO_AFFINITY, ())


PLACES = st.sets(st.integers(0, 3), max_size=2).map(lambda ids: Mask.of(*ids))
INVENTORIES = st.lists(st.tuples(PLACES, st.booleans()), min_size=1, max_size=6).map(
    lambda rows: tuple(
        PluginDevice(f"d{number}", nodes, healthy) for number, (nodes, healthy) in enumerate(rows)
    )
)


@given(INVENTORIES, st.integers(0, 4), st.sets(st.integers(0, 5)))
def test_hints_are_those_of_looking_at_every_mask(
    inventory: tuple[PluginDevice, ...], count: int, taken: set[int]
) -> None:
    allocated = {f"d{number}" for number in taken}
    free = [d for d in inventory if d.healthy and d.id not in allocated]
    with_devices = EMPTY
    for one in inventory:
        with_devices |= one.nodes
    enough = [
        mask
        for mask in masks_by_size(with_devices.bits)
        if sum(1 for d in inventory if d.nodes.bits & mask) >= count
    ]
    least = min((mask.bit_count() for mask in enough), default=0)
    expected = [
        Hint(mask, mask.bit_count() == least)
        for mask in masks_by_size(with_devices.bits)
        if sum(1 for d in free if d.nodes.bits & mask) >= count
    ]
    hints = device_hints(NODES, inventory, count, allocated)
    if not with_devices:
        assert hints is None
    else:
        assert hints is not None
        assert list(hints) == (expected if len(free) >= count else [])
