from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.managers.admission import admit, start_container, start_containers
from agent.managers.policy import NodeFit
from tests.agent.managers.drafts import Inert, rejected, with_pod
from tests.agent.managers.hosts import CONTAINER, make_rules
from tests.agent.pods.pods import app, guaranteed, init, pod

if TYPE_CHECKING:
    from agent.managers.demand import PodRequest, ResourceDemand


class Counting(Inert):
    """A manager that counts how often it is asked what a pod demands."""

    name = "counting"
    times = 0

    def demand(self, request: PodRequest) -> ResourceDemand:
        self.times += 1
        return super().demand(request)


def test_a_manager_is_asked_once_what_a_pod_demands_and_not_without_room_on_the_node() -> None:
    counting, rules = Counting(), make_rules(fit=NodeFit(max_pods=1))
    rules = replace(rules, managers=(*rules.managers, counting))
    first = admit(rules, rules.empty_ledger(), pod(app("a", guaranteed("cpu=2 memory=1Gi"))))
    assert (first.admitted, len(first.eligibility), counting.times) == (True, 1, 1)
    second = admit(rules, first.ledger, pod(app("a"), uid="u-2"))
    assert (second.admitted, counting.times) == (False, 1)
    assert (len(second.eligibility), second.warnings, counting.times) == (1, (), 2)


def test_a_pod_for_another_system_is_rejected_for_the_kubelets_reason() -> None:
    rules, asking = make_rules(), pod(app("a", guaranteed("cpu=2 memory=1Gi")))
    assert admit(rules, rules.empty_ledger(), replace(asking, os="linux")).admitted
    assert rejected(rules, replace(asking, os="windows")).reason == "PodOSNotSupported"


# Shows in differences.md: same-pod
def test_the_same_pod_keeps_its_allocation() -> None:
    rules = make_rules()
    asked = pod(app("c1", guaranteed("cpu=2 memory=1Gi")))
    first = admit(rules, rules.empty_ledger(), asked)
    second = admit(rules, first.ledger, asked)
    assert second.already_admitted
    assert second.allocation == first.allocation
    assert second.ledger is first.ledger
    assert not second.counters


def test_several_containers_start_as_each_after_the_other() -> None:
    rules = make_rules(scope=CONTAINER)
    large, small = guaranteed("cpu=3 memory=3Gi"), guaranteed("cpu=2 memory=1Gi")
    ledger = with_pod(rules, pod(init("i1", large), app("c1", small)))
    for names in ([], ["i1"], ["c1"], ["c1", "i1"], ["i1", "c1"]):
        expected = ledger
        for name in names:
            expected = start_container(rules, expected, "u-1", name)
        assert start_containers(rules, ledger, {"u-1": names}) == expected
    assert start_containers(rules, ledger, {"unknown": ["c1"]}) is ledger
