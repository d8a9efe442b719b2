"""The QoS classes of a ledger, made again from those before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.managers.allocation import CpuLimits, PodAllocation
from agent.managers.ledger import SharedMap
from agent.pods.model import QosClass
from agent.reconcile.enforced import EVERYTHING
from agent.reconcile.pod_classes import NO_PODS, PodClasses, Requested
from agent.reconcile.values import class_values, cpu_weight
from cgroupfs.names import Tier
from sysfs.mask import Mask
from tests.agent.reconcile.pods import exclusive, on_host, pod

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def allocation(uid: str, qos: QosClass, request: int | None, *, own: bool) -> PodAllocation:
    container = exclusive("c", "2-3") if own else on_host("c")
    made = pod(container, uid=uid, qos=qos)
    requests = {"memory": (request or 0) << 20}
    return replace(made, cpu=CpuLimits(request, request), requests=requests)


def slowly(allocations: Mapping[str, PodAllocation]) -> PodClasses:
    """Return the classes of all pods, each looked at."""
    pods = allocations.values()
    return PodClasses(
        allocations,
        frozenset(p.uid for p in pods if p.qos is QosClass.GUARANTEED),
        frozenset(p.uid for p in pods if p.qos is not QosClass.GUARANTEED and p.exclusive_cpus),
        requested(p for p in pods if p.qos is QosClass.BURSTABLE),
        requested(p for p in pods if p.qos is QosClass.GUARANTEED),
        requested(p for p in pods if p.qos is QosClass.GUARANTEED and not p.exclusive_cpus),
    )


def requested(pods: Iterable[PodAllocation]) -> Requested:
    found = list(pods)
    millis = sum(p.cpu.request_millis or 0 for p in found)
    return Requested(millis, sum(p.requests.get("memory", 0) for p in found))


@given(
    st.lists(
        st.builds(
            allocation,
            st.sampled_from("abcd"),
            st.sampled_from(QosClass),
            st.none() | st.integers(0, 9000),
            own=st.booleans(),
        )
        | st.sampled_from("abcd"),
        max_size=20,
    )
)
def test_after_any_change_the_classes_are_those_of_all_pods(
    steps: list[PodAllocation | str],
) -> None:
    classes, allocations = NO_PODS, SharedMap[str, PodAllocation]()
    for step in steps:
        if not isinstance(step, str):
            allocations = allocations.with_entry(step.uid, step)
        elif step in allocations:
            allocations = allocations.without(step)
        classes = classes.of(allocations)
        expected = slowly(allocations)
        for tier in Tier:
            assert classes.of_tier(tier) == expected.of_tier(tier)
        assert classes.all_guaranteed == expected.all_guaranteed
        assert (classes.guaranteed, classes.split) == (expected.guaranteed, expected.split)
        split = {Tier(str(allocations[uid].qos)) for uid in expected.split}
        assert classes.split_classes() == dict.fromkeys(split, Mask.parse("2-3"))


def test_a_class_weighs_what_its_pods_request_together() -> None:
    pods = [
        allocation("a", QosClass.BURSTABLE, 2000, own=False),
        allocation("b", QosClass.BURSTABLE, 1000, own=False),
        allocation("c", QosClass.BURSTABLE, None, own=False),
        allocation("d", QosClass.GUARANTEED, 4000, own=False),
        allocation("e", QosClass.GUARANTEED, 2000, own=True),
    ]
    classes = NO_PODS.of({one.uid: one for one in pods})
    weights = {tier: class_values(classes, tier, EVERYTHING)["cpu.weight"] for tier in Tier}
    assert weights == {
        Tier.GUARANTEED: "1",
        Tier.BURSTABLE: str(cpu_weight(3000)),
        Tier.BEST_EFFORT: "1",
        Tier.SHARED: str(cpu_weight(4000)),
    }
