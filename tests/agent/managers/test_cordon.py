"""What is cordoned is not allocated again, and pods keep what they have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.managers.admission import admit, remove
from agent.managers.advice import AdviceKind
from agent.managers.cpu.manager import shared_cpus, shared_pool, uncordoned_shared_cpus
from agent.managers.machine import Machine
from agent.managers.memory.assignment import best_hint, fitting_hints
from agent.managers.memory.state import memory_charge
from agent.managers.policy import Cordon, NodeFit
from agent.managers.quality import invalid_allocations
from agent.managers.topology.hint import Hint
from agent.managers.trials import advise, decided
from sysfs.described import regular_host
from sysfs.mask import EMPTY, Mask
from tests.agent.managers.drafts import rejected, with_pod
from tests.agent.managers.hosts import GIB, NO_POLICY, SINGLE, SMT, make_rules
from tests.agent.managers.test_invariants import EVERY_SEQUENCE, pods, rule_sets
from tests.agent.pods.pods import app, guaranteed, pod

if TYPE_CHECKING:
    from agent.managers.allocation import PodAllocation
    from agent.managers.ledger import Ledger
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Pod


def cordoned(rules: EffectivePolicy, cpus: str = "", nodes: str = "") -> EffectivePolicy:
    cordon = Cordon(Mask.parse(cpus), Mask.parse(nodes))
    return replace(rules, policy=replace(rules.policy, cordon=cordon))


def asking(cpus: int, memory: str = "1Gi", uid: str = "u-1", more: str = "") -> Pod:
    return pod(app("main", guaranteed(f"cpu={cpus} memory={memory} {more}".strip())), uid=uid)


@st.composite
def cordons(draw: st.DrawFn, rules: EffectivePolicy) -> Cordon:
    """Draw CPUs and nodes of the host."""
    cpus = st.sets(st.sampled_from(list(rules.machine.cpus.all)), max_size=4)
    nodes = st.sets(st.sampled_from(list(rules.machine.node_mask)), max_size=2)
    return Cordon(Mask.from_ids(draw(cpus)), Mask.from_ids(draw(nodes)))


def filled(rules: EffectivePolicy, data: st.DataObject) -> Ledger:
    ledger = rules.empty_ledger()
    for number in range(data.draw(st.integers(0, 3))):
        ledger = decided(rules, ledger, data.draw(pods(f"before-{number}"))).ledger
    return ledger


def memory_nodes(allocation: PodAllocation) -> Mask:
    nodes = EMPTY
    for block in (*allocation.memory, *(b for c in allocation.containers for b in c.memory)):
        nodes |= block.nodes
    return nodes


# Shows in differences.md: cordon
@given(rules=rule_sets(), data=st.data())
@EVERY_SEQUENCE
def test_nothing_cordoned_is_allocated_and_running_pods_keep_all(
    rules: EffectivePolicy, data: st.DataObject
) -> None:
    ledger = filled(rules, data)
    cordon = data.draw(cordons(rules))
    beside = replace(rules, policy=replace(rules.policy, cordon=cordon))
    decision = decided(beside, ledger, data.draw(pods("new")))
    for uid, allocation in ledger.allocations.items():
        assert decision.ledger.allocations[uid] is allocation
    if decision.allocation is None:
        assert decision.ledger is ledger
        return
    allocation = decision.allocation
    assert not allocation.exclusive_cpus & beside.cordoned_cpus
    assert not memory_nodes(allocation) & cordon.nodes
    places = {
        (name, each.id): each.nodes for name, all_ in rules.policy.devices.items() for each in all_
    }
    for _, resource, device in allocation.allocated_devices():
        nodes = places[resource, device]
        assert not nodes or nodes - cordon.nodes
    if allocation.exclusive_cpus and uncordoned_shared_cpus(beside, ledger):
        assert uncordoned_shared_cpus(beside, decision.ledger)


# Shows in differences.md: cordon
@given(rules=rule_sets(), data=st.data())
@EVERY_SEQUENCE
def test_a_decision_beside_cordoned_cpus_is_that_of_a_host_that_reserves_them(
    rules: EffectivePolicy, data: st.DataObject
) -> None:
    """Of pods without a fit: node allocatable counts what pods have on cordoned CPUs."""
    ledger, asked = filled(rules, data), data.draw(pods("new"))
    cpus = data.draw(cordons(rules)).cpus - rules.policy.cpu.reserved
    beside = replace(rules, policy=replace(rules.policy, cordon=Cordon(cpus)))
    cpu = replace(rules.policy.cpu, reserved=rules.policy.cpu.reserved | cpus)
    reserving = replace(rules, policy=replace(rules.policy, cpu=cpu))
    found, expected = decided(beside, ledger, asked), decided(reserving, ledger, asked)
    assert found.allocation == expected.allocation
    assert (found.rejection is None) == (expected.rejection is None)
    if found.rejection is not None and expected.rejection is not None:
        assert found.rejection.reason == expected.rejection.reason
        assert found.rejection.message.startswith(expected.rejection.message)


@given(rules=rule_sets(), data=st.data())
@EVERY_SEQUENCE
def test_a_cordon_makes_no_allocation_invalid_leaves_a_shared_pool_and_lets_pods_end(
    rules: EffectivePolicy, data: st.DataObject
) -> None:
    ledger = filled(rules, data)
    beside = replace(rules, policy=replace(rules.policy, cordon=data.draw(cordons(rules))))
    assert invalid_allocations(beside, ledger, EMPTY) == invalid_allocations(rules, ledger, EMPTY)
    assert not shared_pool(beside, ledger) & beside.cordoned_cpus
    assert shared_cpus(beside, ledger)
    for uid in ledger.allocations:
        assert remove(beside, ledger, uid) == remove(rules, ledger, uid)


def test_a_group_with_a_cordoned_node_gets_no_further_memory() -> None:
    """The group's open node has room, but its memory is pinned to the group as a whole."""
    open_rules = make_rules(topology=NO_POLICY)
    ledger = with_pod(open_rules, asking(1, memory="20Gi", uid="u-0"))
    assert admit(open_rules, ledger, asking(1)).admitted
    rejection = rejected(cordoned(open_rules, nodes="0"), asking(1), ledger)
    assert rejection.resource == "memory"
    assert rejection.free == {0: 0, 1: 10 * GIB}


def test_a_group_with_a_cordoned_node_gives_no_hint_on_a_host_of_many_nodes() -> None:
    machine = Machine.of(regular_host(packages=12, cores_per_node=1, threads=1))
    rules = make_rules(machine, topology=NO_POLICY)
    charge = memory_charge(with_pod(rules, asking(1, memory="20Gi", uid="u-0")))
    for closed, group in ((EMPTY, Hint(0b11, preferred=False)), (Mask.of(0), None)):
        facts = replace(rules.memory, cordoned=closed)
        assert best_hint(fitting_hints(facts, charge, {"memory": GIB}), containing=2) == group


def test_a_core_with_a_cordoned_thread_is_not_a_whole_core() -> None:
    rules = cordoned(make_rules(SMT, NO_POLICY, memory=False, full_pcpus_only=True), cpus="1")
    rejection = rejected(rules, asking(14))
    assert rejection.asked == 14
    assert sum(rejection.free.values()) == 12


def test_a_rejection_says_how_much_is_cordoned_and_that_an_uncordon_helps() -> None:
    rules = cordoned(make_rules(topology=SINGLE), cpus="1-4")
    asked = asking(8)
    full = with_pod(rules, asking(7, uid="u-0"))
    assert rejected(rules, asked, full).message.endswith("4 CPUs (1-4) are cordoned")
    advice = [each for each in advise(rules, rules.empty_ledger(), asking(13)) if each is not None]
    assert AdviceKind.UNCORDON not in [each.kind for each in advice]
    advice = [
        each for each in advise(rules, with_pod(rules, asking(8)), asking(7, uid="u-2")) if each
    ]
    assert advice[0].kind is AdviceKind.UNCORDON
    assert advice[0].text == "uncordon CPUs 1-4"


def test_no_pod_gets_the_last_shared_cpus_while_the_reserved_ones_are_cordoned() -> None:
    rules = cordoned(make_rules(topology=NO_POLICY, memory=False), cpus="0")
    assert "the last CPUs of the node's shared pool" in rejected(rules, asking(15)).message
    assert admit(rules, rules.empty_ledger(), asking(14)).admitted
    assert admit(cordoned(rules), rules.empty_ledger(), asking(15)).admitted


def test_node_fit_counts_cordoned_cpus_neither_as_free_nor_against_the_pods_on_them() -> None:
    open_rules = make_rules(topology=NO_POLICY, memory=False, fit=NodeFit(reserved={"cpu": 1000}))
    before = with_pod(open_rules, asking(7, uid="u-0"))
    rules = cordoned(open_rules, nodes="0")
    assert rules.allocatable is not None
    assert rules.allocatable.amounts["cpu"] == 7000
    assert admit(rules, before, asking(7, uid="u-1")).admitted
    assert admit(rules, rules.empty_ledger(), asking(8, uid="u-1")).rejection is not None
