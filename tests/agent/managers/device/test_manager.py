from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.managers.admission import admit
from agent.managers.allocation import DEVICES
from agent.managers.decision import Reason, Rejected
from agent.managers.device.manager import (
    DeviceManager,
    allocated_devices,
    assign_devices,
    device_hints,
    reusable_devices_after,
)
from agent.managers.errors import NoHealthyDevicesError
from agent.managers.policy import PluginDevice, TopologyManagerPolicy
from agent.managers.topology.hint import NO_AFFINITY, Hint, masks_by_size
from agent.pods.model import QosClass
from sysfs.mask import EMPTY, Mask
from tests.agent.managers.drafts import allocated, container, draft_of, with_pod
from tests.agent.managers.hosts import CONTAINER, POD, make_rules
from tests.agent.managers.topology.families import no, yes
from tests.agent.pods.pods import app, guaranteed, init, pod, resources, sidecar

if TYPE_CHECKING:
    from agent.managers.policy import TopologyManagerScope
    from agent.pods.model import Resources

GPU = "example.com/gpu"
#: Two devices on node 0, two on node 1.
GPUS = tuple(PluginDevice(f"gpu{number}", Mask.of(number // 2)) for number in range(4))
RULES = make_rules(scope=CONTAINER, devices={GPU: GPUS})
MANAGER = DeviceManager()


def gpus(count: int) -> Resources:
    return resources(limits=f"{GPU}={count}")


def test_too_few_devices_are_a_rejection_with_what_is_free_where() -> None:
    ledger = with_pod(RULES, pod(app("c1", gpus(3)), uid="other"))
    draft = draft_of(RULES, pod(app("c1", gpus(2))), ledger)
    with pytest.raises(Rejected) as caught:
        MANAGER.allocate(draft, container(draft, "c1"), NO_AFFINITY)
    rejection = caught.value.cause.explain()
    assert (rejection.reason, rejection.resource) == (Reason.UNEXPECTED, GPU)
    assert rejection.container == "c1"
    assert (rejection.asked, rejection.free) == (2, {1: 1})
    assert "Requested: 2, Available: 1" in rejection.message


# Shows in differences.md: budget-devices
def test_a_budgets_containers_get_devices_one_after_the_other_from_the_pods_nodes() -> None:
    rules = make_rules(scope=POD, devices={GPU: GPUS})
    budget = guaranteed("cpu=4 memory=4Gi")
    one = gpus(1)
    asked = pod(init("i", one), sidecar("s", one), app("c1", one), app("c2"), of_pod=budget)
    draft = draft_of(rules, asked)
    MANAGER.allocate_pod(draft, yes(1))
    assert draft.parts[DEVICES].containers == {
        "i": {GPU: ("gpu2",)},
        "s": {GPU: ("gpu2",)},
        "c1": {GPU: ("gpu3",)},
    }


# Shows in differences.md: budget-devices
@pytest.mark.parametrize("policy", TopologyManagerPolicy)
def test_of_three_pods_of_two_devices_a_host_of_two_admits_one(
    policy: TopologyManagerPolicy,
) -> None:
    """The kubelet leaves their devices to the start of a container, when it may be too late."""
    rules = make_rules(topology=policy, scope=POD, devices={GPU: GPUS[:2]})
    budget = guaranteed("cpu=2 memory=1Gi")
    ledger = rules.empty_ledger()
    for number in range(3):
        asked = pod(app("a", gpus(2)), app("b"), of_pod=budget, uid=f"u-{number}")
        decision = admit(rules, ledger, asked)
        ledger = decision.ledger
        assert decision.admitted is (number == 0)
    assert allocated_devices(ledger) == {GPU: frozenset({"gpu0", "gpu1"})}
    given = list(ledger.allocations["u-0"].allocated_devices())
    assert given == [("a", GPU, "gpu0"), ("a", GPU, "gpu1")]


@pytest.mark.parametrize("scope", [CONTAINER, POD])
@pytest.mark.parametrize("policy", TopologyManagerPolicy)
def test_a_best_effort_pod_gets_devices_of_one_node_where_anything_is_aligned(
    policy: TopologyManagerPolicy, scope: TopologyManagerScope
) -> None:
    on_both = tuple(PluginDevice(f"gpu{number}", Mask.of(number % 2)) for number in range(4))
    rules = make_rules(topology=policy, scope=scope, devices={GPU: on_both})
    allocation = allocated(rules, pod(app("a", gpus(2))))
    assert allocation.qos is QosClass.BEST_EFFORT
    assert allocation.containers[0].cpus is None
    aligned = policy is not TopologyManagerPolicy.NONE
    assert allocation.containers[0].devices == {GPU: ("gpu0", "gpu2" if aligned else "gpu1")}


NODES = Mask.of(0, 1, 2, 3).bits


def device(name: str, *nodes: int, healthy: bool = True) -> PluginDevice:
    return PluginDevice(name, Mask.of(*nodes), healthy)


INVENTORY = (device("a", 0), device("b", 2), device("c", 2), device("d"))


def test_what_the_pod_can_use_again_counts_as_free_and_a_mask_must_reach_it() -> None:
    assert device_hints(NODES, INVENTORY, 3, {"a", "b"}, {"a", "b"}) == (yes(0, 2),)
    assert device_hints(NODES, INVENTORY, 3, {"a", "b"}) == ()
    assert device_hints(NODES, INVENTORY, 1, {"a"}, {"a"}) == (yes(0), no(0, 2))


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
