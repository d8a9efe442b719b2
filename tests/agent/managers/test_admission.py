from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.managers.admission import admit, start_container, start_containers
from agent.managers.decision import Reason
from agent.managers.ledger import Ledger
from tests.agent.managers.drafts import rejected
from tests.agent.managers.hosts import CONTAINER, make_rules
from tests.agent.pods.pods import app, guaranteed, init, pod

if TYPE_CHECKING:
    from agent.managers.allocation import Isolation, PodAllocation
    from agent.managers.ledger import Ledger
    from agent.managers.rules import EffectivePolicy


def cpus(allocation: PodAllocation) -> dict[str, str | None]:
    return {c.name: None if c.cpus is None else str(c.cpus) for c in allocation.containers}


def isolation(allocation: PodAllocation) -> dict[str, Isolation]:
    return {c.name: c.isolation for c in allocation.containers}


def test_a_pod_for_another_system_is_rejected_for_the_kubelets_reason() -> None:
    rules, asking = make_rules(), pod(app("a", guaranteed("cpu=2 memory=1Gi")))
    assert admit(rules, rules.empty_ledger(), replace(asking, os="linux")).admitted
    assert rejected(rules, replace(asking, os="windows")).reason == "PodOSNotSupported"


class TestAskingAgain:
    # Shows in differences.md: same-pod
    def test_the_same_pod_keeps_its_allocation(self) -> None:
        rules = make_rules()
        asked = pod(app("c1", guaranteed("cpu=2 memory=1Gi")))
        first = admit(rules, rules.empty_ledger(), asked)
        second = admit(rules, first.ledger, asked)
        assert second.already_admitted
        assert second.allocation == first.allocation
        assert second.ledger is first.ledger
        assert not second.counters

    # Shows in differences.md: same-pod
    def test_another_specification_under_the_same_uid_is_a_conflict(self) -> None:
        rules = make_rules()
        first = admit(rules, rules.empty_ledger(), pod(app("c1", guaranteed("cpu=2 memory=1Gi"))))
        rejection = rejected(rules, pod(app("c1", guaranteed("cpu=3 memory=1Gi"))), first.ledger)
        assert rejection.reason is Reason.CONFLICT


class TestInitContainers:
    def rules_and_ledger(self) -> tuple[EffectivePolicy, Ledger]:
        rules = make_rules(scope=CONTAINER)
        asked = pod(
            init("i1", guaranteed("cpu=3 memory=3Gi")), app("c1", guaranteed("cpu=2 memory=1Gi"))
        )
        return rules, admit(rules, rules.empty_ledger(), asked).ledger

    def test_several_containers_are_as_each_after_the_other(self) -> None:
        rules, ledger = self.rules_and_ledger()
        for names in ([], ["i1"], ["c1"], ["c1", "i1"], ["i1", "c1"]):
            expected = ledger
            for name in names:
                expected = start_container(rules, expected, "u-1", name)
            assert start_containers(rules, ledger, {"u-1": names}) == expected
        assert start_containers(rules, ledger, {"unknown": ["c1"]}) is ledger
