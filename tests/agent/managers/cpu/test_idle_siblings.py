"""`isolation.numawarden.dev/smt: idle-siblings`: whole cores, with one thread of each in use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.managers.admission import admit, remove
from agent.managers.advice import AdviceKind
from agent.managers.allocation import Origin
from agent.managers.cpu.manager import IDLE_SIBLING_CPUS, cpu_samples, shared_pool
from agent.managers.cpu.topology import CpuTopology
from agent.managers.machine import Machine, MachineNode
from agent.managers.metrics import Sample
from agent.managers.policy import IsolationMode, NodeFit
from agent.managers.quality import invalid_allocations, verdict
from agent.managers.trials import advise
from agent.managers.violations import Rule
from agent.pods.model import CPU, Quality
from sysfs.mask import EMPTY, Mask
from tests.agent.managers.drafts import allocated, rejected
from tests.agent.managers.hosts import (
    BEST_EFFORT,
    CONTAINER,
    GIB,
    NO_POLICY,
    RESTRICTED,
    SMT,
    make_rules,
)
from tests.agent.managers.test_invariants import EVERY_SEQUENCE, pods, rule_sets
from tests.agent.pods.pods import app, guaranteed, pod

if TYPE_CHECKING:
    from typing import Any

    from agent.managers.allocation import PodAllocation
    from agent.managers.policy import TopologyManagerPolicy
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Pod

ASKED: Final = {"isolation.numawarden.dev/smt": "idle-siblings"}
ITEMS: Final = {"smt": "idle-siblings"}


def rules_of(machine: Machine = SMT, **more: Any) -> EffectivePolicy:  # noqa: ANN401
    """Return the rules of two nodes with cores 0-3 and 4-7, siblings n and n + 8."""
    chosen = {"smt": IsolationMode.ASKED, "memory": False, "scope": CONTAINER, **more}
    return make_rules(machine, **chosen)


def asking(cpus: int, uid: str = "u-1", **more: Any) -> Pod:  # noqa: ANN401
    return pod(app("a", guaranteed(f"cpu={cpus} memory=1Gi")), uid=uid, annotations=ASKED, **more)


# Shows in differences.md: idle-siblings
def test_a_container_has_the_lowest_thread_of_each_of_its_cores_and_no_pod_the_others() -> None:
    rules = rules_of()
    decision = admit(rules, rules.empty_ledger(), asking(3))
    (allocation,) = decision.ledger.allocations.values()
    assert allocation.containers[0].cpus == Mask.parse("1-3")
    assert allocation.idle == Mask.parse("9-11")
    assert shared_pool(rules, decision.ledger) == Mask.parse("0,4-8,12-15")
    whole = [each for each in verdict(rules, allocation) if each.quality is Quality.WHOLE_CORES]
    assert [each.met for each in whole] == [True]
    assert allocation.node_requests[CPU] == 6000
    assert Sample(IDLE_SIBLING_CPUS, (), 3) in list(cpu_samples(rules, decision.ledger))
    assert remove(rules, decision.ledger, "u-1") == rules.empty_ledger()


@pytest.mark.parametrize(
    ("mode", "annotations", "idle"),
    [("never", ASKED, ""), ("asked", {}, ""), ("asked", ASKED, "9"), ("always", {}, "9")],
)
def test_the_configuration_says_whose_siblings_stay_idle(
    mode: str, annotations: dict[str, str], idle: str
) -> None:
    asked = replace(asking(1), annotations=annotations)
    assert str(allocated(rules_of(smt=IsolationMode(mode)), asked).idle) == idle


def test_cores_count_one_by_one_where_they_differ_in_threads() -> None:
    # Node 0: a core of two threads and three of one; node 1: two of four threads.
    rows = [(0, 0, 0, 0, 0), (1, 0, 0, 0, 0), (2, 2, 0, 0, 0), (3, 3, 0, 0, 0), (4, 4, 0, 0, 0)]
    rows += [(cpu, 5 + 4 * ((cpu - 5) // 4), 1, 1, 1) for cpu in range(5, 13)]
    nodes = tuple(MachineNode(node, GIB, {}, {0: 10, 1: 20}) for node in (0, 1))
    rules = rules_of(Machine(CpuTopology.from_rows(rows), nodes), reserved="4")
    ledger = rules.empty_ledger()
    three = admit(rules, ledger, asking(3))
    assert three.allocation is not None
    assert (str(three.allocation.containers[0].cpus), str(three.allocation.idle)) == ("0,2-3", "1")
    two = allocated(rules, asking(2, "u-2"), three.ledger)
    assert (str(two.containers[0].cpus), str(two.idle)) == ("5,9", "6-8,10-12")
    rejection = rejected(rules, asking(3, "u-2"), three.ledger)
    assert "3 whole cores with idle siblings (at least 3 CPUs)" in rejection.message


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (
            NO_POLICY,
            "not enough CPUs: 8 whole cores with idle siblings (16 CPUs) asked, 7 whole cores free",
        ),
        (RESTRICTED, "(16 CPUs) fits nowhere (free: node 0: 3 whole cores, node 1: 4 whole cores)"),
    ],
)
def test_a_rejection_says_how_many_cores_are_needed_and_free(
    policy: TopologyManagerPolicy, text: str
) -> None:
    assert text in rejected(rules_of(topology=policy), asking(8)).message


def test_what_helps_is_to_leave_the_siblings_to_others() -> None:
    rules = rules_of()
    found = list(advise(rules, rules.empty_ledger(), asking(8)))
    kinds = {each.kind: each.text for each in found if each is not None}
    assert kinds[AdviceKind.ANNOTATION] == (
        "leave out the annotation isolation.numawarden.dev/smt "
        "(the siblings of its CPUs do not stay idle)"
    )
    always = rules_of(smt=IsolationMode.ALWAYS)
    asked = replace(asking(8), annotations={})
    policies = [each for each in advise(always, always.empty_ledger(), asked) if each is not None]
    assert ("agent.isolation.smt", "asked") in {(each.key, each.value) for each in policies}


def test_idle_siblings_are_no_room_for_others_on_the_node() -> None:
    rules = rules_of(
        topology=BEST_EFFORT, fit=NodeFit(reserved={CPU: 1000}, ignored=frozenset({"memory"}))
    )
    ledger = admit(rules, rules.empty_ledger(), asking(6)).ledger
    shared = pod(app("s", guaranteed("cpu=3500m memory=1Gi")), uid="u-2")
    rejection = rejected(rules, shared, ledger)
    assert rejection.reason == "OutOfcpu"
    # Two CPUs and two siblings are more than the 3.5 that requests leave of 15.
    small = pod(app("s", guaranteed("cpu=1500m memory=1Gi")), uid="u-2")
    ledger = admit(rules, admit(rules, rules.empty_ledger(), small).ledger, asking(5, "u-3")).ledger
    assert "u-3" in ledger.allocations
    rejection = rejected(rules, asking(2, "u-4"), ledger)
    assert rejection.reason == "OutOfcpu"


def test_an_allocation_whose_siblings_are_used_violates_the_policy() -> None:
    rules = rules_of()
    plain = admit(rules_of(smt=IsolationMode.NEVER), rules.empty_ledger(), asking(2)).ledger
    ledger = plain.with_lifetime("u-1", plain.allocations["u-1"].lifetime, ITEMS)
    assert [each.rule for each in invalid_allocations(rules, ledger)] == [Rule.IDLE_SIBLINGS]
    decided = admit(rules, rules.empty_ledger(), asking(2)).ledger
    decided = decided.with_lifetime("u-1", decided.allocations["u-1"].lifetime, ITEMS)
    assert invalid_allocations(rules, decided) == ()


def test_an_imported_allocation_keeps_free_siblings_idle() -> None:
    rules = rules_of()
    spread = rules_of(smt=IsolationMode.NEVER, distribute_cpus_across_cores=True)
    decision = admit(spread, rules.empty_ledger(), asking(2))
    assert decision.allocation is not None
    imported = replace(decision.allocation, spec_digest="", origin=Origin.IMPORTED)
    again = admit(rules, decision.ledger.with_allocation(imported), asking(2))
    assert again.allocation is not None
    cpus = again.allocation.containers[0].cpus
    assert cpus is not None
    assert again.allocation.idle == Mask.from_ids((cpu + 8) % 16 for cpu in cpus)
    assert not shared_pool(rules, again.ledger) & again.allocation.idle
    assert remove(rules, again.ledger, "u-1") == rules.empty_ledger()


def used_of(allocation: PodAllocation) -> set[int]:
    """Return the CPUs in the sets of a pod."""
    sets = [allocation.cpus, *(each.cpus for each in allocation.containers)]
    return {cpu for mask in sets if mask is not None for cpu in mask}


# Shows in differences.md: idle-siblings
@given(rules=rule_sets(), several=st.lists(pods(), min_size=1, max_size=5), data=st.data())
@EVERY_SEQUENCE
def test_cores_of_pods_that_ask_have_one_thread_in_use_and_no_other_owner(
    rules: EffectivePolicy, several: list[Pod], data: st.DataObject
) -> None:
    cpu = replace(rules.policy.cpu, idle_siblings=IsolationMode.ASKED)
    rules = replace(rules, policy=replace(rules.policy, cpu=cpu))
    core_of = {row.cpu: row.core for row in rules.machine.cpus.rows}
    ledger, asking = rules.empty_ledger(), set()
    for number, one in enumerate(several):
        if data.draw(st.booleans()):
            asking.add(f"u-{number}")
        annotations = ASKED if f"u-{number}" in asking else {}
        named = replace(one, uid=f"u-{number}", annotations=annotations)
        before = ledger
        ledger = admit(rules, ledger, named).ledger
        assert remove(rules, ledger, named.uid) == before or before.parts["memory"]
    owners: dict[int, str] = {}
    for uid, allocation in ledger.allocations.items():
        used, idle = used_of(allocation), set(allocation.idle)
        assert not used & idle
        for each in used | idle:
            assert owners.setdefault(each, uid) == uid
        if uid not in asking:
            assert not idle
            continue
        cores = [core_of[each] for each in used]
        assert len(cores) == len(set(cores))
        assert used | idle == {each for each, core in core_of.items() if core in cores}
        assert all(min(e for e, c in core_of.items() if c == core_of[u]) == u for u in used)
    assert not shared_pool(rules, ledger) & Mask.from_ids(owners)
    for uid in data.draw(st.permutations(list(ledger.allocations))):
        ledger = remove(rules, ledger, uid)
    assert ledger.parts[CPU].ids == EMPTY


@given(rules=rule_sets(), others=st.lists(st.integers(1, 4), max_size=3), count=st.integers(1, 6))
@EVERY_SEQUENCE
def test_without_alignment_a_pod_is_admitted_where_enough_cores_are_free(
    rules: EffectivePolicy, others: list[int], count: int
) -> None:
    policy = replace(
        rules.policy,
        cpu=replace(rules.policy.cpu, idle_siblings=IsolationMode.ASKED),
        topology=replace(rules.policy.topology, policy=NO_POLICY),
        memory=make_rules(memory=False).policy.memory,
    )
    rules = replace(rules, policy=policy)
    ledger = rules.empty_ledger()
    for number, cpus in enumerate(others):
        plain = pod(app("a", guaranteed(f"cpu={cpus} memory=1Gi")), uid=f"o-{number}")
        ledger = admit(rules, ledger, plain).ledger
    taken = {each for one in ledger.allocations.values() for each in used_of(one)}
    taken |= set(rules.policy.cpu.reserved)
    cores: dict[int, set[int]] = {}
    for row in rules.machine.cpus.rows:
        cores.setdefault(row.core, set()).add(row.cpu)
    free = sum(not core & taken for core in cores.values())
    assert admit(rules, ledger, asking(count)).admitted == (free >= count)
