from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.managers.admission import admit, remove, start_container, start_containers
from agent.managers.allocation import Isolation, PodAllocation
from agent.managers.cpu.manager import exclusive_cpus, shared_pool
from agent.managers.decision import Decision, Reason
from agent.managers.ledger import Ledger
from agent.managers.memory.state import memory_charge
from sysfs.mask import Mask
from tests.agent.managers.hosts import (
    BEST_EFFORT,
    CONTAINER,
    NO_POLICY,
    POD,
    SINGLE,
    make_rules,
)
from tests.agent.pods.pods import app, guaranteed, init, pod, resources, sidecar

if TYPE_CHECKING:
    from agent.managers.ledger import Ledger
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Pod

BUDGET_4 = guaranteed("cpu=4 memory=4Gi")
BUDGET_5 = guaranteed("cpu=5 memory=5Gi")


def allocated(decision: Decision) -> PodAllocation:
    assert decision.allocation is not None, decision.rejection
    return decision.allocation


def cpus(allocation: PodAllocation) -> dict[str, str | None]:
    return {c.name: None if c.cpus is None else str(c.cpus) for c in allocation.containers}


def isolation(allocation: PodAllocation) -> dict[str, Isolation]:
    return {c.name: c.isolation for c in allocation.containers}


def test_a_pod_for_another_system_is_rejected_for_the_kubelets_reason() -> None:
    rules, asking = make_rules(), pod(app("a", guaranteed("cpu=2 memory=1Gi")))
    assert admit(rules, rules.empty_ledger(), replace(asking, os="linux")).admitted
    decision = admit(rules, rules.empty_ledger(), replace(asking, os="windows"))
    assert decision.rejection is not None
    assert decision.rejection.reason == "PodOSNotSupported"


class TestPodScopeExamplesOfKep5526:
    def test_example_1_all_containers_share_the_whole_budget(self) -> None:
        rules = make_rules()
        allocation = allocated(
            admit(
                rules,
                rules.empty_ledger(),
                pod(app("c1"), app("c2"), app("c3"), of_pod=BUDGET_4),
            )
        )
        assert cpus(allocation) == {"c1": "1-4", "c2": "1-4", "c3": "1-4"}
        assert set(isolation(allocation).values()) == {Isolation.POD}
        assert allocation.cpus == Mask.parse("1-4")
        assert {c.mems for c in allocation.containers} == {Mask.of(0)}

    def test_example_2_one_container_gets_a_slice_the_others_share_the_rest(self) -> None:
        rules = make_rules()
        mixed = pod(
            app("c1", guaranteed("cpu=2 memory=2Gi")), app("c2"), app("c3"), of_pod=BUDGET_4
        )
        allocation = allocated(admit(rules, rules.empty_ledger(), mixed))
        assert cpus(allocation) == {"c1": "1-2", "c2": "3-4", "c3": "3-4"}
        assert isolation(allocation) == {
            "c1": Isolation.CONTAINER,
            "c2": Isolation.POD,
            "c3": Isolation.POD,
        }

    @pytest.mark.parametrize("policy", [BEST_EFFORT, SINGLE])
    def test_example_3_an_empty_shared_pool_is_rejected(self, policy: object) -> None:
        rules = make_rules(topology=policy)  # type: ignore[arg-type]  # parametrized by value
        full = pod(
            app("c1", guaranteed("cpu=3 memory=3Gi")),
            app("c2", guaranteed("cpu=2 memory=2Gi")),
            app("c3"),
            of_pod=BUDGET_5,
        )
        ledger = rules.empty_ledger()
        decision = admit(rules, ledger, full)
        assert decision.rejection is not None
        expected = (
            Reason.EMPTY_POD_SHARED_POOL if policy is BEST_EFFORT else Reason.TOPOLOGY_AFFINITY
        )
        assert decision.rejection.reason is expected
        assert decision.ledger is ledger

    def test_a_budget_that_is_not_used_up_stays_with_the_pod(self) -> None:
        rules = make_rules()
        half = pod(app("c1", guaranteed("cpu=2 memory=2Gi")), of_pod=BUDGET_4)
        decision = admit(rules, rules.empty_ledger(), half)
        assert allocated(decision).cpus == Mask.parse("1-4")
        assert shared_pool(rules, decision.ledger) == Mask.parse("0,5-15")

    def test_init_slices_are_used_again_and_sidecars_keep_theirs(self) -> None:
        rules = make_rules()
        allocation = allocated(
            admit(
                rules,
                rules.empty_ledger(),
                pod(
                    init("first", guaranteed("cpu=4 memory=1Gi")),
                    sidecar("side", guaranteed("cpu=1 memory=1Gi")),
                    init("burst"),
                    sidecar("log"),
                    app("main", guaranteed("cpu=2 memory=1Gi")),
                    app("rest"),
                    of_pod=BUDGET_5,
                ),
            )
        )
        assert cpus(allocation) == {
            "first": "1-4",
            "side": "1",
            "burst": "2-5",
            "log": "4-5",
            "main": "2-3",
            "rest": "4-5",
        }


class TestContainerScopeExamplesOfKep5526:
    @pytest.mark.parametrize("policy", [NO_POLICY, BEST_EFFORT, SINGLE])
    def test_example_1_shared_containers_run_in_the_nodes_pool(self, policy: object) -> None:
        rules = make_rules(topology=policy, scope=CONTAINER)  # type: ignore[arg-type]  # by value
        mixed = pod(
            app("c1", guaranteed("cpu=2 memory=2Gi")), app("c2"), app("c3"), of_pod=BUDGET_4
        )
        allocation = allocated(admit(rules, rules.empty_ledger(), mixed))
        assert cpus(allocation) == {"c1": "1-2", "c2": None, "c3": None}
        assert isolation(allocation)["c2"] is Isolation.HOST
        assert not allocation.container("c2").mems  # type: ignore[union-attr]  # it exists
        assert allocation.cpus is None

    def test_example_2_pod_level_resources_alone_give_nothing_exclusive(self) -> None:
        rules = make_rules(scope=CONTAINER)
        decision = admit(
            rules, rules.empty_ledger(), pod(app("c1"), app("c2"), app("c3"), of_pod=BUDGET_4)
        )
        assert cpus(allocated(decision)) == {"c1": None, "c2": None, "c3": None}
        assert not exclusive_cpus(decision.ledger)


class TestAskingAgain:
    def test_the_same_pod_keeps_its_allocation(self) -> None:
        rules = make_rules()
        asked = pod(app("c1", guaranteed("cpu=2 memory=1Gi")))
        first = admit(rules, rules.empty_ledger(), asked)
        second = admit(rules, first.ledger, asked)
        assert second.already_admitted
        assert second.allocation == first.allocation
        assert second.ledger is first.ledger
        assert not second.counters

    def test_another_specification_under_the_same_uid_is_a_conflict(self) -> None:
        rules = make_rules()
        first = admit(rules, rules.empty_ledger(), pod(app("c1", guaranteed("cpu=2 memory=1Gi"))))
        second = admit(rules, first.ledger, pod(app("c1", guaranteed("cpu=3 memory=1Gi"))))
        assert second.rejection is not None
        assert second.rejection.reason is Reason.CONFLICT
        assert second.ledger is first.ledger


class TestRemoving:
    @pytest.mark.parametrize("scope", [CONTAINER, POD])
    def test_it_undoes_admitting(self, scope: object) -> None:
        rules = make_rules(scope=scope)  # type: ignore[arg-type]  # parametrized by value
        before = rules.empty_ledger()
        asked = pod(
            init("i1", guaranteed("cpu=3 memory=3Gi")),
            app("c1", guaranteed("cpu=2 memory=1Gi")),
            app("c2", guaranteed("cpu=1 memory=1Gi")),
        )
        after = admit(rules, before, asked).ledger
        assert remove(rules, after, "u-1") == before

    def test_an_unknown_pod_changes_nothing(self) -> None:
        rules = make_rules()
        ledger = rules.empty_ledger()
        assert remove(rules, ledger, "unknown") is ledger


class TestInitContainers:
    def rules_and_ledger(self) -> tuple[EffectivePolicy, Ledger]:
        rules = make_rules(scope=CONTAINER)
        asked = pod(
            init("i1", guaranteed("cpu=3 memory=3Gi")), app("c1", guaranteed("cpu=2 memory=1Gi"))
        )
        return rules, admit(rules, rules.empty_ledger(), asked).ledger

    def test_their_memory_goes_back_when_a_later_container_starts(self) -> None:
        rules, ledger = self.rules_and_ledger()
        running = start_container(rules, ledger, "u-1", "c1")
        assert memory_charge(running)[0].reserved["memory"] == 1 << 30
        assert exclusive_cpus(running) == exclusive_cpus(ledger)
        assert start_container(rules, running, "u-1", "c1") is running

    def test_starting_the_init_container_itself_changes_nothing(self) -> None:
        rules, ledger = self.rules_and_ledger()
        assert start_container(rules, ledger, "u-1", "i1") is ledger
        assert start_container(rules, ledger, "unknown", "c1") is ledger

    def test_several_containers_are_as_each_after_the_other(self) -> None:
        rules, ledger = self.rules_and_ledger()
        for names in ([], ["i1"], ["c1"], ["c1", "i1"], ["i1", "c1"]):
            expected = ledger
            for name in names:
                expected = start_container(rules, expected, "u-1", name)
            assert start_containers(rules, ledger, {"u-1": names}) == expected
        assert start_containers(rules, ledger, {"unknown": ["c1"]}) is ledger


class TestQuota:
    def test_an_exclusive_container_and_its_pod_have_none(self) -> None:
        rules = make_rules(scope=CONTAINER)
        allocation = allocated(
            admit(rules, rules.empty_ledger(), pod(app("c1", guaranteed("cpu=2 memory=1Gi"))))
        )
        assert allocation.containers[0].quota_disabled
        assert allocation.quota_disabled

    def test_a_mixed_pod_keeps_the_pods_quota_as_the_kubelet_computes_it(self) -> None:
        rules = make_rules()
        mixed = pod(app("c1", guaranteed("cpu=2 memory=2Gi")), app("c2"), of_pod=BUDGET_4)
        allocation = allocated(admit(rules, rules.empty_ledger(), mixed))
        assert allocation.containers[0].quota_disabled
        assert not allocation.containers[1].quota_disabled
        assert not allocation.quota_disabled

    def test_the_gate_brings_quotas_back(self) -> None:
        rules = make_rules(scope=CONTAINER, gates={"disable_cpu_quota_with_exclusive_cpus": False})
        allocation = allocated(
            admit(rules, rules.empty_ledger(), pod(app("c1", guaranteed("cpu=2 memory=1Gi"))))
        )
        assert not allocation.containers[0].quota_disabled
        assert not allocation.quota_disabled


class TestThePodsOwnLimit:
    def limit_of(self, asked: Pod) -> int | None:
        rules = make_rules()
        return allocated(admit(rules, rules.empty_ledger(), asked)).cpu.limit_millis

    def test_it_is_the_sum_of_its_containers_limits(self) -> None:
        limited = resources("cpu=500m", "cpu=1")
        assert self.limit_of(pod(app("a", limited), app("b", limited))) == 2000

    def test_there_is_none_when_one_container_has_none(self) -> None:
        limited = resources("cpu=500m", "cpu=1")
        assert self.limit_of(pod(app("a", limited), app("b"))) is None
