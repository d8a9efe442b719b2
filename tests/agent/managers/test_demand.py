from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.managers.admission import admit
from agent.managers.allocation import DEVICES, CpuLimits, Isolation
from agent.managers.demand import PodDemand
from agent.managers.policy import CpuPolicy, MemoryPolicy, PluginDevice, Policy
from agent.managers.registry import MANAGERS
from agent.managers.trials import advise
from agent.pods.model import EXCLUSIVE, ROUND_UP, ContainerKind, QosClass
from tests.agent.managers.drafts import allocated, rejected
from tests.agent.managers.hosts import BEST_EFFORT, CONTAINER, SMT, make_rules
from tests.agent.managers.test_invariants import EVERY_SEQUENCE, pods, rule_sets
from tests.agent.pods.pods import amounts, app, guaranteed, init, pod, resources

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Container, Pod, Resources

POD_SCOPE = make_rules().policy
CONTAINER_SCOPE = make_rules(scope=CONTAINER).policy
WITHOUT_GATE = make_rules(managed=False).policy
GPU = "example.com/gpu"


def demand_of(policy: Policy, asked: Pod) -> PodDemand:
    return PodDemand(policy, MANAGERS, asked)


def test_only_devices_of_the_inventory_are_given_but_all_that_is_asked_for_counts() -> None:
    policy = make_rules(devices={GPU: (PluginDevice("0"),)}).policy
    asked = pod(
        init("i", resources(limits=f"{GPU}=3")),
        app("a", resources("example.com/other=1", f"{GPU}=2 example.com/other=1 cpu=1")),
    )
    demand = demand_of(policy, asked)
    assert demand.parts[DEVICES].pod == {GPU: 3}
    assert [c.part(DEVICES) for c in demand.containers] == [{GPU: 3}, {GPU: 2}]
    assert demand.requests == {"example.com/other": 1}


def test_requests_and_totals_end_at_what_kubernetes_can_count() -> None:
    largest = 2**63 - 1
    asked = pod(app("a", resources(f"{GPU}={largest}")), app("b", resources(f"{GPU}=1 cpu=9E")))
    assert demand_of(POD_SCOPE, asked).requests == {GPU: largest, "cpu": largest}
    most = guaranteed("cpu=10E memory=10E")
    demand = demand_of(POD_SCOPE, pod(app("a", most), app("b", most), app("c", most)))
    assert (demand.cpus, demand.memory) == (largest, {"memory": largest})


TWO = app("a", guaranteed("cpu=2 memory=1Gi"))
FRACTION = app("a", guaranteed("cpu=1500m memory=1Gi"))
MIXED = (TWO, app("b", resources("cpu=1")))
NOTHING = replace(CONTAINER_SCOPE, cpu=CpuPolicy(), memory=MemoryPolicy())


BUDGET = guaranteed("cpu=4 memory=4Gi")
BURSTABLE = app("a", resources("cpu=2 memory=1Gi"))
CLASS = "the pod's QoS class is Burstable; exclusive resources need Guaranteed"
UNEQUAL = "its requests do not equal its limits for both cpu and memory"
ODD = guaranteed("cpu=2500m memory=4Gi")
OWN = app("a", resources("cpu=2 memory=1Gi", "cpu=2"))
UNNAMED = f"{CLASS}, or the annotation cpu.numawarden.dev/exclusive"
NAMED = "named by cpu.numawarden.dev/exclusive, with whole CPUs (2)"


@pytest.mark.parametrize(
    ("policy", "containers", "budget", "why", "exclusive"),
    [
        (CONTAINER_SCOPE, [TWO], None, "Guaranteed with a whole number of CPUs (2)", (2, True)),
        (CONTAINER_SCOPE, [FRACTION], None, "cpu request 1500m is not a positive", (0, True)),
        (CONTAINER_SCOPE, [BURSTABLE], None, CLASS, (0, False)),
        (POD_SCOPE, MIXED, BUDGET, UNEQUAL, (0, False)),
        (WITHOUT_GATE, [TWO], BUDGET, "gate PodLevelResourceManagers is off", (0, False)),
        (POD_SCOPE, [TWO], ODD, "budget is not a positive whole number", (0, True)),
        (NOTHING, [TWO], None, "cpuManagerPolicy is none; exclusive CPUs need", (0, False)),
    ],
)
def test_a_container_is_exclusive_or_told_why_not(
    policy: Policy,
    containers: Sequence[Container],
    budget: Resources | None,
    why: str,
    exclusive: tuple[int, bool],
) -> None:
    asked = pod(*containers, of_pod=budget)
    *_, last = demand_of(policy, asked).eligibility()
    assert why in last.why["cpu"]
    assert (last.exclusive.get("cpu", 0), "memory" in last.exclusive) == exclusive


# Shows in differences.md: burstable-exclusive
@pytest.mark.parametrize(
    ("policy", "last", "whys", "cpus"),
    [
        (CONTAINER_SCOPE, OWN, (UNNAMED, NAMED), 2),
        (POD_SCOPE, OWN, (UNNAMED, NAMED), 2),
        (POD_SCOPE, TWO, (UNNAMED, NAMED), 2),
        (NOTHING, OWN, 2 * ("cpuManagerPolicy is none; exclusive CPUs need static",), 0),
        # As a resize may ask; a manifest is invalid then.
        (POD_SCOPE, BURSTABLE, (UNNAMED, "it has no cpu limit"), 0),
        (POD_SCOPE, FRACTION, (UNNAMED, "its cpu request 1500m is not a positive whole number"), 0),
    ],
)
def test_a_container_of_a_burstable_pod_is_exclusive_where_it_is_named(
    policy: Policy, last: Container, whys: tuple[str, str], cpus: int
) -> None:
    asked = pod(app("first", guaranteed("cpu=1")), last, annotations={EXCLUSIVE: "a"})
    demand = demand_of(policy, asked)
    found = demand.eligibility()
    assert tuple(each.why["cpu"] for each in found) == whys
    assert [each.exclusive for each in found] == [{}, {"cpu": cpus} if cpus else {}]
    assert (demand.active("cpu"), demand.active("memory")) == (policy is not NOTHING, False)


@EVERY_SEQUENCE
@given(rules=rule_sets(), asked=pods("u-1"))
def test_containers_that_may_have_cpus_or_memory_get_them_and_no_others(
    rules: EffectivePolicy, asked: Pod
) -> None:
    decision = admit(rules, rules.empty_ledger(), asked)
    for said, got in zip(
        decision.eligibility, () if decision.allocation is None else decision.allocation.containers,
        strict=decision.admitted,
    ):  # fmt: skip
        exclusive = got.isolation is Isolation.CONTAINER
        assert exclusive == ("cpu" in said.exclusive), said
        assert len(got.cpus or ()) == said.exclusive["cpu"] if exclusive else True
        assert got.why == said.why["cpu"]
        if "memory" in said.exclusive:
            assert {block.type for block in got.memory} == set(said.exclusive["memory"])
        elif decision.allocation is not None and not decision.allocation.memory:
            assert not got.memory


# Shows in differences.md: burstable-exclusive
@EVERY_SEQUENCE
@given(rules=rule_sets(), cpus=st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_named_containers_get_the_cpus_that_a_guaranteed_pod_would_get(
    rules: EffectivePolicy, cpus: list[int]
) -> None:
    own = [app(f"c{place}", guaranteed(f"cpu={count}")) for place, count in enumerate(cpus)]
    names = ",".join(each.name for each in own)
    asked = pod(app("rest", resources("cpu=100m")), *own, annotations={EXCLUSIVE: names})
    twin = replace(asked, status_qos=QosClass.GUARANTEED, annotations={})
    found, expected = (admit(rules, rules.empty_ledger(), each) for each in (asked, twin))
    assert found.admitted == expected.admitted
    if found.allocation is None or expected.allocation is None:
        return
    assert found.allocation.qos is QosClass.BURSTABLE
    assert [one.cpus for one in found.allocation.containers] == [
        one.cpus for one in expected.allocation.containers
    ]
    assert found.allocation.containers[0].isolation is Isolation.HOST


# Shows in differences.md: round-up
@pytest.mark.parametrize(
    ("asked", "of_pod", "of_containers", "millis"),
    [
        ((guaranteed("cpu=3 memory=1Gi"),), 4, [4], 4000),
        ((guaranteed("cpu=4 memory=1Gi"),), 4, [4], 4000),
        ((guaranteed("cpu=1 memory=1Gi"), guaranteed("cpu=3 memory=1Gi")), 6, [2, 4], 6000),
        # What shares CPUs stays as it is.
        ((guaranteed("cpu=3 memory=1Gi"), guaranteed("cpu=500m memory=1Gi")), 4, [4, 0], 4500),
        ((guaranteed("cpu=1 memory=1Gi"), resources("cpu=1", "cpu=2")), 2, [2, 0], 3000),
    ],
)
def test_whole_numbers_of_cpus_are_rounded_up_to_whole_cores_where_that_is_asked_for(
    asked: tuple[Resources, ...], of_pod: int, of_containers: list[int], millis: int
) -> None:
    containers = [app(f"c{place}", each) for place, each in enumerate(asked)]
    named = {EXCLUSIVE: "c0", ROUND_UP: "cores"}
    rules = make_rules(SMT, scope=CONTAINER, memory=False)
    decision = admit(rules, rules.empty_ledger(), pod(*containers, annotations=named))
    assert decision.demand is not None
    demand = decision.demand
    assert demand.cpus == of_pod
    assert [each.cpus if each.may_have("cpu") else 0 for each in demand.containers] == of_containers
    assert demand.requests["cpu"] == millis
    (allocation,) = decision.ledger.allocations.values()
    assert len(allocation.exclusive_cpus) == of_pod
    assert allocation.node_requests["cpu"] == millis
    # Asked once more, it is the same pod.
    again = admit(rules, decision.ledger, pod(*containers, annotations=named))
    assert again.already_admitted


@pytest.mark.parametrize(
    ("budget", "containers", "rounded", "slices"),
    [
        (5, ("1", ""), 6, [2, 4]),
        # The containers grow by more than the budget is rounded up by.
        (3, ("1", "1", "1"), 6, [2, 2, 2]),
        (4, ("1", "3"), 6, [2, 4]),
        (4, ("1", "1", ""), 6, [2, 2, 2]),
        (4, ("3", ""), 6, [4, 2]),
        (4, ("2", "2"), 4, [2, 2]),
        # What starts before is not there at the same time.
        (4, ("3", "", "init 4"), 6, [4, 2]),
        (4, ("3", "", "init 3"), 6, [4, 2]),
    ],
)
def test_a_budget_is_rounded_up_with_its_slices(
    budget: int, containers: tuple[str, ...], rounded: int, slices: list[int]
) -> None:
    made = [
        (init if before else app)(name, guaranteed(f"cpu={cpus} memory=1Gi") if cpus else None)
        for name, (before, _, cpus) in (
            (f"c{place}", text.rpartition(" ")) for place, text in enumerate(containers)
        )
    ]
    asked = pod(
        *made,
        of_pod=guaranteed(f"cpu={budget} memory=8Gi"),
        annotations={ROUND_UP: "cores"},
    )
    rules = make_rules(SMT, memory=False)
    (allocation,) = admit(rules, rules.empty_ledger(), asked).ledger.allocations.values()
    assert allocation.cpus is not None
    assert len(allocation.cpus) == rounded
    apps = [one for one in allocation.containers if one.kind is ContainerKind.APP]
    assert [len(one.cpus or ()) for one in apps] == slices


def test_a_budget_that_is_no_whole_number_grows_by_as_much() -> None:
    ones = [app(name, guaranteed("cpu=1 memory=1Gi")) for name in "abc"]
    budget = guaranteed("cpu=3500m memory=4Gi")
    asked = pod(*ones, of_pod=budget, annotations={ROUND_UP: "cores"})
    decision = admit(
        rules := make_rules(SMT, scope=CONTAINER, memory=False), rules.empty_ledger(), asked
    )
    assert decision.allocation is not None
    assert len(decision.allocation.exclusive_cpus) == 6
    assert decision.allocation.node_requests["cpu"] == 6500


def test_a_budget_without_limits_has_its_own_before_it_is_rounded_up() -> None:
    ones = [app(name, guaranteed("cpu=1 memory=1Gi")) for name in "abc"]
    asked = pod(*ones, of_pod=resources("cpu=3 memory=3Gi"), annotations={ROUND_UP: "cores"})
    rules = make_rules(SMT, memory=False)
    allocation = allocated(rules, asked)
    assert allocation.qos is QosClass.GUARANTEED
    assert len(allocation.exclusive_cpus) == 6


def test_a_pod_that_fits_without_rounding_up_is_told_so() -> None:
    asked = pod(app("a", guaranteed("cpu=15 memory=1Gi")), annotations={ROUND_UP: "cores"})
    rules = make_rules(SMT, topology=BEST_EFFORT, memory=False)
    assert rejected(rules, asked).asked == 16
    texts = [each.text for each in advise(rules, rules.empty_ledger(), asked) if each]
    assert (
        f"leave out the annotation {ROUND_UP} (it gets the CPUs that it asks for, which "
        in (texts[0])
    )


_GIB = 1 << 30


def test_overhead_is_added_to_requests_and_to_limits_that_there_are() -> None:
    asked = pod(app("a", guaranteed("cpu=1500m memory=1Gi")))
    allocation = allocated(make_rules(), replace(asked, overhead=amounts("cpu=250m memory=128Mi")))
    assert allocation.cpu == CpuLimits(1750, 1750)
    assert allocation.requests == {"cpu": 1750, "memory": _GIB + (128 << 20)}
    assert allocation.limits == {"memory": _GIB + (128 << 20)}
    open_ended = replace(pod(app("a")), overhead=amounts("cpu=250m"))
    assert allocated(make_rules(), open_ended).cpu == CpuLimits(250, None)


@pytest.mark.parametrize(
    ("containers", "limits"),
    [
        ((app("a", resources("", "memory=1Gi")), app("b", resources("", "memory=1Gi"))), 2 * _GIB),
        ((app("a", resources("", "memory=1Gi")), app("b")), None),
        ((app("a", resources("memory=1Gi")),), None),
    ],
)
def test_the_memory_of_a_pod_is_limited_when_that_of_all_containers_is(
    containers: tuple[Container, ...], limits: int | None
) -> None:
    assert allocated(make_rules(), pod(*containers)).limits.get("memory") == limits
