from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.managers.admission import admit, remove
from agent.managers.cpu.manager import shared_cpus
from agent.managers.cpu.topology import CpuTopology
from agent.managers.machine import Machine
from agent.managers.memory.state import memory_charge
from agent.managers.policy import CpuPolicy, MemoryPolicy, PluginDevice
from agent.managers.quality import invalid_allocations
from agent.managers.registry import MANAGERS
from agent.managers.rules import EffectivePolicy, charged, restored
from agent.managers.violations import ADMIT_AGAIN, Rule
from sysfs.mask import EMPTY, Mask
from tests.agent.managers.drafts import rejected, with_pod
from tests.agent.managers.hosts import BEST_EFFORT, CONTAINER, GIB, PLAIN, SINGLE, SMT, make_rules
from tests.agent.managers.test_invariants import EVERY_SEQUENCE, machines, pods, rule_sets
from tests.agent.pods.pods import app, guaranteed, pod
from tests.conformance.invariants import Before, broken_invariants

if TYPE_CHECKING:
    from agent.managers.ledger import Ledger
    from agent.pods.model import Pod

GPU = "example.com/gpu"


def ledger_of(rules: EffectivePolicy, *asked: Pod) -> Ledger:
    ledger = rules.empty_ledger()
    for one in asked:
        ledger = with_pod(rules, one, ledger)
    return ledger


def found(rules: EffectivePolicy, ledger: Ledger, offline: Mask = EMPTY) -> list[tuple[str, str]]:
    return [(one.uid, one.rule) for one in invalid_allocations(rules, ledger, offline)]


def one(text: str, uid: str = "u-1") -> Pod:
    return pod(app("c1", guaranteed(text)), uid=uid)


def lessen(machine: Machine, lost: set[int]) -> Machine:
    rows = [row for row in machine.cpus.rows if row.cpu not in lost]
    return Machine(CpuTopology.from_rows(rows), machine.nodes)


TWO_CPUS = one("cpu=2 memory=1Gi")


def test_an_offline_cpu_is_distinguished_from_one_that_is_gone() -> None:
    ledger = ledger_of(make_rules(), TWO_CPUS)
    smaller = make_rules(lessen(PLAIN, {1, 2}))
    assert found(smaller, ledger, Mask.of(1)) == [
        ("u-1", Rule.CPU_MISSING),
        ("u-1", Rule.CPU_OFFLINE),
    ]


def test_a_cpu_that_is_reserved_now_is_named_with_the_pod_that_holds_it() -> None:
    ledger = ledger_of(make_rules(), TWO_CPUS, one("cpu=1 memory=1Gi", "u-2"))
    (violation,) = invalid_allocations(make_rules(reserved="0,2"), ledger)
    assert str(violation) == (
        "pod default/p: has CPUs 2, which are now reserved (reservedSystemCPUs); "
        "reserve others, or remove the pod and admit it again"
    )
    assert violation.uid == "u-1"


def test_a_node_that_is_gone_is_reported() -> None:
    ledger = ledger_of(make_rules(), TWO_CPUS)
    left = Machine(lessen(PLAIN, set(range(8))).cpus, PLAIN.nodes[1:])
    assert ("u-1", Rule.MEMORY_NODE) in found(make_rules(left, reserved="8"), ledger)


def off(**parts: object) -> EffectivePolicy:
    return EffectivePolicy(PLAIN, replace(make_rules().policy, **parts), MANAGERS)


def smaller(gib: int) -> EffectivePolicy:
    """Return a host with so much memory on node 0, of which 1 GiB is reserved."""
    first, second = PLAIN.nodes
    nodes = (replace(first, memory_bytes=gib * GIB), second)
    return make_rules(replace(PLAIN, nodes=nodes), SINGLE)


BUDGET = pod(app("c1"), of_pod=guaranteed("cpu=4 memory=2Gi"), uid="u-1")
SIX = guaranteed("cpu=6 memory=1Gi")
APART = pod(app("c1", SIX), app("c2", SIX), uid="u-1")
SPREAD = (one("cpu=5 memory=1Gi", "u-2"), one("cpu=6 memory=1Gi", "u-3"), one("cpu=4 memory=1Gi"))
TEN_AND_FOUR = (one("cpu=2 memory=10Gi"), one("cpu=2 memory=4Gi", "u-2"))


RULES, ONE_NODE = make_rules(), make_rules(topology=SINGLE)
EACH = make_rules(topology=SINGLE, scope=CONTAINER)
ANYHOW = make_rules(topology=BEST_EFFORT, memory=False)
HALF = (one("cpu=1 memory=1Gi"), one("cpu=2 memory=1Gi", "u-2"))
NODE_1 = make_rules(lessen(PLAIN, set(range(8))), reserved="")


@pytest.mark.parametrize(
    ("before", "asked", "after", "uid", "rule"),
    [
        (RULES, [TWO_CPUS], off(cpu=CpuPolicy()), "u-1", Rule.CPU_POLICY),
        (RULES, [TWO_CPUS], off(memory=MemoryPolicy()), "u-1", Rule.MEMORY_POLICY),
        (make_rules(SMT), HALF, make_rules(SMT, full_pcpus_only=True), "u-1", Rule.FULL_PCPUS_ONLY),
        (ONE_NODE, TEN_AND_FOUR, smaller(13), "u-2", Rule.MEMORY_CAPACITY),
        (ONE_NODE, TEN_AND_FOUR, smaller(15), "", ""),
        (RULES, [BUDGET], RULES, "", ""),
        (RULES, [BUDGET], make_rules(managed=False), "u-1", Rule.POD_BUDGET),
        (RULES, [BUDGET], make_rules(scope=CONTAINER), "u-1", Rule.POD_BUDGET),
        (EACH, [APART], EACH, "", ""),
        (EACH, [APART], ONE_NODE, "u-1", Rule.TOPOLOGY_POLICY),
        (ANYHOW, SPREAD, make_rules(memory=False), "u-1", Rule.TOPOLOGY_POLICY),
        (RULES, [one("cpu=8 memory=1Gi")], NODE_1, "u-1", Rule.SHARED_POOL),
    ],
)
def test_what_the_rules_no_longer_give_stays_and_is_reported(
    before: EffectivePolicy, asked: list[Pod], after: EffectivePolicy, uid: str, rule: str
) -> None:
    ledger = restored(after, ledger_of(before, *asked))
    assert found(after, ledger) == ([(uid, rule)] if uid else [])


def test_nothing_is_free_where_more_is_allocated_than_there_is() -> None:
    rules = smaller(13)
    ledger = restored(rules, ledger_of(ONE_NODE, *TEN_AND_FOUR))
    decision = admit(rules, ledger, one("cpu=1 memory=14Gi", "u-3"))
    assert decision.allocation is not None
    assert decision.allocation.containers[0].mems == Mask.of(1)
    rejection = rejected(rules, one("cpu=1 memory=2Gi", "u-4"), decision.ledger)
    assert rejection.free == {0: 0, 1: GIB}


def test_devices_that_are_gone_or_ill_are_reported() -> None:
    def rules(*devices: PluginDevice) -> EffectivePolicy:
        return make_rules(devices={GPU: devices})

    both = rules(PluginDevice("a", Mask.of(0)), PluginDevice("b", Mask.of(0)))
    ledger = ledger_of(both, one(f"cpu=2 memory=1Gi {GPU}=2"))
    changed = rules(PluginDevice("a", Mask.of(0), healthy=False))
    assert found(changed, ledger) == [("u-1", Rule.DEVICE_UNHEALTHY), ("u-1", Rule.DEVICE_MISSING)]


def test_a_device_whose_provider_is_away_for_a_while_removes_no_pod() -> None:
    both = make_rules(devices={GPU: (PluginDevice("a"), PluginDevice("b"))})
    ledger = ledger_of(both, one(f"cpu=2 memory=1Gi {GPU}=2"))
    away, ill = PluginDevice("a", healthy=False, away=True), PluginDevice("b", healthy=False)
    (violation,) = invalid_allocations(make_rules(devices={GPU: (away, ill)}), ledger)
    assert "has example.com/gpu b, which is not healthy" in violation.message
    assert "remove" not in violation.remedy
    (violation,) = invalid_allocations(make_rules(devices={GPU: (away,)}), ledger)
    assert (violation.rule, violation.remedy) == (Rule.DEVICE_MISSING, ADMIT_AGAIN)


def test_the_same_cpus_or_devices_in_two_hands_are_reported_of_the_second() -> None:
    rules = make_rules(devices={GPU: (PluginDevice("a"),)})
    ledger = ledger_of(rules, one(f"cpu=2 memory=1Gi {GPU}=1"))
    twin = replace(ledger.allocations["u-1"], uid="u-2")
    doubled = charged(rules, ledger, twin)
    assert found(rules, doubled) == [
        ("u-2", Rule.DEVICE_ALLOCATED_TWICE),
        ("u-2", Rule.CPU_ALLOCATED_TWICE),
    ]


def test_reserved_cpus_that_a_pod_has_are_the_last_that_others_run_on() -> None:
    ledger = ledger_of(make_rules(topology=BEST_EFFORT), one("cpu=15 memory=1Gi"))
    changed = make_rules(reserved="0-3", strict_cpu_reservation=True)
    assert shared_cpus(changed, ledger) == Mask.of(0)


@st.composite
def changed_hosts(draw: st.DrawFn, machine: Machine) -> Machine:
    """Draw what a reboot makes of a host: CPUs, nodes, memory lost, gained or of another size."""
    if not draw(st.integers(0, 5)):
        return draw(machines())
    cpus = [row.cpu for row in machine.cpus.rows]
    lost = draw(st.sets(st.sampled_from(cpus), max_size=len(cpus) - 1))
    nodes = [
        replace(
            node,
            memory_bytes=max(0, node.known_memory + draw(st.integers(-8, 8)) * GIB // 2),
            hugepages=draw(st.sampled_from([node.hugepages, {}, {1 << 30: 1}, {2 << 20: 2}])),
        )
        for node in machine.nodes
    ]
    kept = {row.node for row in machine.cpus.rows if row.cpu not in lost}
    bare = [node.id for node in nodes if node.id not in kept]
    gone = draw(st.sets(st.sampled_from(bare))) if bare else set()
    return Machine(lessen(machine, lost).cpus, tuple(n for n in nodes if n.id not in gone))


@given(data=st.data(), rules=rule_sets(), asked=st.lists(pods(), min_size=1, max_size=5))
@EVERY_SEQUENCE
def test_whatever_changes_every_allocation_stays_and_no_pod_is_given_anothers(
    data: st.DataObject, rules: EffectivePolicy, asked: list[Pod]
) -> None:
    ledger = rules.empty_ledger()
    for number, desired in enumerate(asked):
        ledger = admit(rules, ledger, replace(desired, uid=f"u-{number}")).ledger
    changed = data.draw(rule_sets(data.draw(changed_hosts(rules.machine))))
    taken = restored(changed, ledger)
    before = Before(frozenset(ledger.allocations), memory_charge(taken))
    invalid_allocations(changed, taken)
    assert taken.allocations == ledger.allocations
    for number, desired in enumerate(data.draw(st.lists(pods(), max_size=3))):
        taken = admit(changed, taken, replace(desired, uid=f"n-{number}")).ledger
        assert broken_invariants(changed, taken, before) == []
    new = {uid for uid in taken.allocations if uid.startswith("n-")}
    reported = {one.uid for one in invalid_allocations(changed, taken) if one.rule in HARD}
    assert not reported & new, "what is given under the new rules is really there"
    for uid in data.draw(st.permutations(list(taken.allocations))):
        taken = remove(changed, taken, uid)
        assert broken_invariants(changed, taken, before) == []
    assert taken == changed.empty_ledger(), "all of it comes back"


#: Violations that no new pod may have, whatever was allocated before.
HARD = {
    Rule.CPU_ALLOCATED_TWICE,
    Rule.CPU_MISSING,
    Rule.CPU_OFFLINE,
    Rule.RESERVED_CPUS,
    Rule.MEMORY_NODE,
    Rule.MEMORY_TYPE,
    Rule.MEMORY_CAPACITY,
    Rule.DEVICE_ALLOCATED_TWICE,
    Rule.DEVICE_MISSING,
    Rule.DEVICE_UNHEALTHY,
}
