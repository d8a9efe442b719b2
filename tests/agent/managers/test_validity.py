from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.managers.admission import admit, remove
from agent.managers.cpu.manager import shared_cpus, shared_pool
from agent.managers.cpu.topology import CpuTopology
from agent.managers.decision import ADMIT_AGAIN, Rule
from agent.managers.machine import Machine
from agent.managers.memory.state import memory_charge
from agent.managers.policy import CpuPolicy, MemoryPolicy, PluginDevice
from agent.managers.quality import invalid_allocations
from agent.managers.registry import MANAGERS
from agent.managers.rules import EffectivePolicy, charged, restored
from sysfs.mask import EMPTY, Mask
from tests.agent.managers.drafts import rejected
from tests.agent.managers.hosts import (
    BEST_EFFORT,
    CONTAINER,
    GIB,
    PLAIN,
    POD,
    SINGLE,
    SMT,
    make_rules,
)
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
        decision = admit(rules, ledger, one)
        assert decision.admitted, decision.rejection
        ledger = decision.ledger
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


def test_the_cpu_policy_none_allocates_no_cpus() -> None:
    rules = make_rules()
    off = EffectivePolicy(rules.machine, replace(rules.policy, cpu=CpuPolicy()), MANAGERS)
    assert found(off, ledger_of(rules, TWO_CPUS)) == [("u-1", Rule.CPU_POLICY)]


def test_half_a_core_is_not_what_full_pcpus_only_gives() -> None:
    rules = make_rules(SMT)
    ledger = ledger_of(rules, one("cpu=1 memory=1Gi"), one("cpu=2 memory=1Gi", "u-2"))
    assert found(make_rules(SMT, full_pcpus_only=True), ledger) == [("u-1", Rule.FULL_PCPUS_ONLY)]


def test_memory_of_a_policy_that_is_off_stays_and_is_reported() -> None:
    rules = make_rules()
    off = EffectivePolicy(rules.machine, replace(rules.policy, memory=MemoryPolicy()), MANAGERS)
    ledger = restored(off, ledger_of(rules, TWO_CPUS))
    assert found(off, ledger) == [("u-1", Rule.MEMORY_POLICY)]


def test_a_node_that_is_gone_is_reported() -> None:
    ledger = ledger_of(make_rules(), TWO_CPUS)
    left = Machine(lessen(PLAIN, set(range(8))).cpus, PLAIN.nodes[1:])
    assert ("u-1", Rule.MEMORY_NODE) in found(make_rules(left, reserved="8"), ledger)


class TestLessMemory:
    """10 and 4 GiB are allocated on node 0, of which 15 GiB could be given."""

    def ledger(self) -> Ledger:
        rules = make_rules(topology=SINGLE)
        return ledger_of(rules, one("cpu=2 memory=10Gi"), one("cpu=2 memory=4Gi", "u-2"))

    def rules(self, gib: int) -> EffectivePolicy:
        first, second = PLAIN.nodes
        nodes = (replace(first, memory_bytes=gib * GIB), second)
        return make_rules(replace(PLAIN, nodes=nodes), SINGLE)

    def test_the_pod_that_came_last_is_the_one_too_many(self) -> None:
        assert found(self.rules(13), self.ledger()) == [("u-2", Rule.MEMORY_CAPACITY)]

    def test_nothing_is_free_where_more_is_allocated_than_there_is(self) -> None:
        rules = self.rules(13)
        ledger = restored(rules, self.ledger())
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
    assert found(changed, ledger) == [
        ("u-1", Rule.DEVICE_UNHEALTHY),
        ("u-1", Rule.DEVICE_MISSING),
    ]


def test_a_device_whose_provider_is_away_for_a_while_removes_no_pod() -> None:
    both = make_rules(devices={GPU: (PluginDevice("a"), PluginDevice("b"))})
    ledger = ledger_of(both, one(f"cpu=2 memory=1Gi {GPU}=2"))
    away, ill = PluginDevice("a", healthy=False, away=True), PluginDevice("b", healthy=False)
    (violation,) = invalid_allocations(make_rules(devices={GPU: (away, ill)}), ledger)
    assert "has example.com/gpu b, which is not healthy" in violation.message
    assert "remove" not in violation.remedy
    (violation,) = invalid_allocations(make_rules(devices={GPU: (away,)}), ledger)
    assert (violation.rule, violation.remedy) == (Rule.DEVICE_MISSING, ADMIT_AGAIN)


def test_a_budget_needs_its_gate_and_the_pod_scope() -> None:
    budget = pod(app("c1"), of_pod=guaranteed("cpu=4 memory=2Gi"), uid="u-1")
    ledger = ledger_of(make_rules(), budget)
    assert found(make_rules(), ledger) == []
    for changed in (make_rules(managed=False), make_rules(scope=CONTAINER)):
        assert found(changed, ledger) == [("u-1", Rule.POD_BUDGET)]


def test_containers_on_two_nodes_are_one_too_many_for_the_pod_scope_alone() -> None:
    two = pod(
        app("c1", guaranteed("cpu=6 memory=1Gi")),
        app("c2", guaranteed("cpu=6 memory=1Gi")),
        uid="u-1",
    )
    ledger = ledger_of(make_rules(topology=SINGLE, scope=CONTAINER), two)
    assert found(make_rules(topology=SINGLE, scope=CONTAINER), ledger) == []
    assert found(make_rules(topology=SINGLE, scope=POD), ledger) == [("u-1", Rule.TOPOLOGY_POLICY)]


def test_a_second_choice_is_nothing_that_restricted_gives() -> None:
    rules = make_rules(topology=BEST_EFFORT, memory=False)
    others = (one("cpu=5 memory=1Gi", "u-2"), one("cpu=6 memory=1Gi", "u-3"))
    ledger = ledger_of(rules, *others, one("cpu=4 memory=1Gi"))
    assert found(make_rules(memory=False), ledger) == [("u-1", Rule.TOPOLOGY_POLICY)]


def test_the_same_cpus_or_devices_in_two_hands_are_reported_of_the_second() -> None:
    rules = make_rules(devices={GPU: (PluginDevice("a"),)})
    ledger = ledger_of(rules, one(f"cpu=2 memory=1Gi {GPU}=1"))
    twin = replace(ledger.allocations["u-1"], uid="u-2")
    doubled = charged(rules, ledger, twin)
    assert found(rules, doubled) == [
        ("u-2", Rule.DEVICE_ALLOCATED_TWICE),
        ("u-2", Rule.CPU_ALLOCATED_TWICE),
    ]


def test_it_is_reported_when_others_have_to_run_on_a_pods_cpus() -> None:
    rules = make_rules()
    ledger = ledger_of(rules, one("cpu=8 memory=1Gi"))
    left = make_rules(lessen(PLAIN, set(range(8))), reserved="")
    assert (shared_pool(left, ledger), found(left, ledger)) == (EMPTY, [("u-1", Rule.SHARED_POOL)])


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
