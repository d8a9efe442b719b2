from __future__ import annotations

from msgspec.structs import replace

from agent.managers.admission import admit, start_container, start_containers
from tests.agent.managers.drafts import rejected, with_pod
from tests.agent.managers.hosts import CONTAINER, make_rules
from tests.agent.pods.pods import app, guaranteed, init, pod


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
