from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from msgspec.structs import replace

from agent.managers import demand as demands
from agent.managers.admission import admit
from agent.managers.allocation import DEVICES, CpuLimits, Isolation
from agent.managers.policy import CpuPolicy, MemoryPolicy, PluginDevice, Policy
from agent.managers.registry import MANAGERS
from tests.agent.managers.drafts import allocated
from tests.agent.managers.hosts import CONTAINER, make_rules
from tests.agent.managers.test_invariants import EVERY_SEQUENCE, pods, rule_sets
from tests.agent.pods.pods import amounts, app, guaranteed, init, pod, resources

if TYPE_CHECKING:
    from agent.managers.demand import PodDemand
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Container, Pod

POD_SCOPE = make_rules().policy
CONTAINER_SCOPE = make_rules(scope=CONTAINER).policy
WITHOUT_GATE = make_rules(managed=False).policy
GPU = "example.com/gpu"


def demand_of(policy: Policy, asked: Pod) -> PodDemand:
    return demands.demand_of(policy, MANAGERS, asked)


def whys(policy: Policy, asked: Pod, manager: str = "cpu") -> list[str]:
    return [item.why[manager] for item in demand_of(policy, asked).eligibility()]


def exclusive(policy: Policy, asked: Pod) -> list[tuple[int, bool]]:
    return [
        (item.exclusive.get("cpu", 0), "memory" in item.exclusive)
        for item in demand_of(policy, asked).eligibility()
    ]


class TestDemand:
    def test_only_devices_of_the_inventory_are_given_but_all_that_is_asked_for_counts(self) -> None:
        policy = make_rules(devices={GPU: (PluginDevice("0"),)}).policy
        asked = pod(
            init("i", resources(limits=f"{GPU}=3")),
            app("a", resources("example.com/other=1", f"{GPU}=2 example.com/other=1 cpu=1")),
        )
        demand = demand_of(policy, asked)
        assert demand.parts[DEVICES].pod == {GPU: 3}
        assert [c.part(DEVICES) for c in demand.containers] == [{GPU: 3}, {GPU: 2}]
        assert demand.requests == {"example.com/other": 1}

    def test_requests_end_at_what_kubernetes_can_count(self) -> None:
        largest = 2**63 - 1
        asked = pod(app("a", resources(f"{GPU}={largest}")), app("b", resources(f"{GPU}=1 cpu=9E")))
        assert demand_of(POD_SCOPE, asked).requests == {GPU: largest, "cpu": largest}

    def test_totals_end_at_what_kubernetes_can_count(self) -> None:
        most = guaranteed("cpu=10E memory=10E")
        demand = demand_of(POD_SCOPE, pod(app("a", most), app("b", most), app("c", most)))
        assert (demand.cpus, demand.memory) == (2**63 - 1, {"memory": 2**63 - 1})


class TestEligibility:
    def test_whole_cpus_of_a_guaranteed_container_are_exclusive(self) -> None:
        asked = pod(app("a", guaranteed("cpu=2 memory=1Gi")))
        assert whys(CONTAINER_SCOPE, asked) == ["Guaranteed with a whole number of CPUs (2)"]
        assert exclusive(CONTAINER_SCOPE, asked) == [(2, True)]

    def test_a_fraction_of_a_cpu_is_shared_and_its_memory_pinned(self) -> None:
        asked = pod(app("a", guaranteed("cpu=1500m memory=1Gi")))
        assert whys(CONTAINER_SCOPE, asked) == [
            "its cpu request 1500m is not a positive whole number"
        ]
        assert exclusive(CONTAINER_SCOPE, asked) == [(0, True)]

    def test_a_pod_of_another_class_has_nothing_exclusive(self) -> None:
        asked = pod(app("a", resources("cpu=2 memory=1Gi")))
        assert whys(CONTAINER_SCOPE, asked) == [
            "the pod's QoS class is Burstable; exclusive resources need Guaranteed"
        ]
        assert exclusive(CONTAINER_SCOPE, asked) == [(0, False)]

    def test_beside_a_budget_the_container_itself_must_be_guaranteed(self) -> None:
        asked = pod(
            app("a", guaranteed("cpu=2 memory=1Gi")),
            app("b", resources("cpu=1")),
            of_pod=guaranteed("cpu=4 memory=4Gi"),
        )
        assert exclusive(POD_SCOPE, asked) == [(2, True), (0, False)]
        assert whys(POD_SCOPE, asked)[1] == (
            "its requests do not equal its limits for both cpu and memory"
        )

    def test_without_the_gate_the_budget_is_the_reason(self) -> None:
        asked = pod(app("a", guaranteed("cpu=2 memory=1Gi")), of_pod=guaranteed("cpu=4 memory=4Gi"))
        assert exclusive(WITHOUT_GATE, asked) == [(0, False)]
        assert "gate PodLevelResourceManagers is off" in whys(WITHOUT_GATE, asked)[0]

    def test_a_fractional_budget_gives_no_cpus_in_pod_scope(self) -> None:
        asked = pod(
            app("a", guaranteed("cpu=2 memory=1Gi")), of_pod=guaranteed("cpu=2500m memory=4Gi")
        )
        assert exclusive(POD_SCOPE, asked) == [(0, True)]
        assert "budget is not a positive whole number" in whys(POD_SCOPE, asked)[0]

    def test_managers_that_do_nothing_give_nothing_exclusive(self) -> None:
        policy = replace(CONTAINER_SCOPE, cpu=CpuPolicy(), memory=MemoryPolicy())
        asked = pod(app("a", guaranteed("cpu=2 memory=1Gi")))
        assert exclusive(policy, asked) == [(0, False)]
        assert whys(policy, asked) == ["cpuManagerPolicy is none; exclusive CPUs need static"]


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
