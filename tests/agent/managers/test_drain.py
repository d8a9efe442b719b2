"""Which pods would have to end, and which of them fit elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.managers.drain import Drain, drain, used
from agent.managers.policy import Cordon, PluginDevice
from agent.managers.specification import specification_of
from agent.managers.trials import decided
from agent.pods.model import QosClass, spec_digest
from sysfs.mask import Mask
from tests.agent.managers.drafts import allocated, with_pod
from tests.agent.managers.hosts import NO_POLICY, SINGLE, make_rules
from tests.agent.managers.test_invariants import EVERY_SEQUENCE, pods, rule_sets
from tests.agent.pods.pods import amounts, app, guaranteed, pod, resources

if TYPE_CHECKING:
    from agent.managers.ledger import Ledger
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Pod


def asking(cpus: int, uid: str, more: str = "") -> Pod:
    return pod(app("main", guaranteed(f"cpu={cpus} memory=1Gi {more}".strip())), uid=uid)


def drained(rules: EffectivePolicy, ledger: Ledger, cordon: Cordon) -> Drain:
    return list(drain(rules, ledger, cordon))[-1]


def outcomes(plan: Drain) -> dict[str, str]:
    return {
        each.uid: "fits" if each.allocation else "rejected" if each.rejection else "unknown"
        for each in plan.pods
    }


def test_pods_are_tried_together_in_the_order_of_their_admission() -> None:
    """Of node 1 four CPUs are free: one pod of three fits, and the shared pool keeps the fourth."""
    rules = make_rules(topology=SINGLE)
    ledger = rules.empty_ledger()
    for uid, cpus in (("u-1", 3), ("u-2", 3), ("u-3", 4)):
        ledger = with_pod(rules, asking(cpus, uid), ledger)
    plan = drained(rules, ledger, Cordon(nodes=Mask.of(0)))
    assert outcomes(plan) == {"u-1": "fits", "u-2": "rejected"}
    assert plan.pods[0].allocation is not None
    assert str(plan.pods[0].allocation.exclusive_cpus) == "12-14"
    assert list(plan.ledger.allocations) == ["u-3", "u-1"]


def test_a_pod_uses_what_it_has_of_cpus_memory_and_devices() -> None:
    devices = {"example.com/gpu": (PluginDevice("a", Mask.of(0)), PluginDevice("b", Mask.of(1)))}
    rules = make_rules(topology=SINGLE, devices=devices)
    ledger = with_pod(rules, asking(1, "u-1", more="example.com/gpu=1"))
    found = used(rules, ledger.allocations["u-1"], Cordon(nodes=Mask.of(0)))
    assert (str(found.cpus), str(found.nodes)) == ("1", "0")
    assert found.devices == {"example.com/gpu": ("a",)}
    assert not used(rules, ledger.allocations["u-1"], Cordon(Mask.of(2), Mask.of(1)))


def test_what_is_cordoned_already_stays_cordoned() -> None:
    rules = make_rules(topology=NO_POLICY, memory=False)
    rules = replace(rules, policy=replace(rules.policy, cordon=Cordon(Mask.parse("8-15"))))
    ledger = with_pod(rules, asking(4, "u-1"))
    assert outcomes(drained(rules, ledger, Cordon(Mask.parse("1-7")))) == {"u-1": "rejected"}


@pytest.mark.parametrize("limits", ["", "cpu=3", "memory=3Gi"])
def test_a_pod_is_tried_with_the_specification_that_it_stated(limits: str) -> None:
    two, one = guaranteed("cpu=2 memory=2Gi"), guaranteed("cpu=1 memory=1Gi")
    stated = pod(app("a", two), app("b", one), of_pod=resources("cpu=3 memory=3Gi", limits))
    allocation = allocated(make_rules(), stated)
    assert allocation.qos is QosClass.GUARANTEED  # so that the limits were defaulted
    assert specification_of(allocation) == stated
    more = replace(
        asking(2, "u-1"), overhead=amounts("cpu=250m memory=64Mi"), status_qos=QosClass.GUARANTEED
    )
    found = specification_of(allocated(make_rules(topology=NO_POLICY), more))
    assert found is not None
    assert spec_digest(found) == spec_digest(more)


def test_a_pod_that_an_older_release_saved_is_not_tried() -> None:
    """It saved the digest of the specification alone."""
    rules = make_rules(topology=NO_POLICY)
    ledger = with_pod(rules, asking(2, "u-1"))
    old = ledger.with_allocation(replace(ledger.allocations["u-1"], spec=""))
    assert outcomes(drained(rules, old, Cordon(nodes=Mask.of(0)))) == {"u-1": "unknown"}
    assert outcomes(drained(rules, ledger, Cordon(nodes=Mask.of(0)))) == {"u-1": "fits"}


@given(rules=rule_sets(), data=st.data())
@EVERY_SEQUENCE
def test_each_pod_that_fits_is_admitted_when_the_drain_is_done(
    rules: EffectivePolicy, data: st.DataObject
) -> None:
    ledger, asked = rules.empty_ledger(), {}
    for number in range(data.draw(st.integers(1, 4))):
        one = data.draw(pods(f"u-{number}"))
        decision = decided(rules, ledger, one)
        if decision.admitted:
            ledger, asked[one.uid] = decision.ledger, one
    nodes = data.draw(st.sets(st.sampled_from(list(rules.machine.node_mask)), max_size=2))
    cordon = Cordon(nodes=Mask.from_ids(nodes))
    plan = drained(rules, ledger, cordon)
    for each in plan.pods:
        found = specification_of(ledger.allocations[each.uid])
        assert found is None or spec_digest(found) == spec_digest(asked[each.uid])
        assert each.allocation is None or not used(rules, each.allocation, cordon)
    stay = [uid for uid in ledger.allocations if uid not in {each.uid for each in plan.pods}]
    for uid in stay:
        assert plan.ledger.allocations[uid] is ledger.allocations[uid]
        assert not ledger.allocations[uid].exclusive_cpus & plan.rules.cordoned_cpus
