"""Whatever is admitted, removed and restarted, on whatever host: what must never happen.

`NUMAWARDEN_SEQUENCES` says how many sequences of each property are tried (`make
nightly`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from agent.managers import admission
from agent.managers.admission import admit, remove, start_container
from agent.managers.allocation import Isolation, PodSets
from agent.managers.cpu.manager import exclusive_cpus, shared_pool
from agent.managers.cpu.topology import CpuTopology
from agent.managers.device.manager import allocated_devices
from agent.managers.machine import Machine, MachineNode
from agent.managers.memory.state import memory_charge
from agent.managers.moves import Move, moved, sets_of
from agent.managers.policy import PluginDevice, TopologyManagerPolicy, TopologyManagerScope
from agent.managers.resize import OtherAmounts, resize
from agent.managers.rules import restored
from agent.pods.model import EXCLUSIVE, INTERLEAVE, NUMA_POLICY, ContainerKind, Movable
from agent.pods.requests import is_container_guaranteed, named_container_fault
from sysfs.mask import EMPTY, Mask
from tests.agent.managers.hosts import GIB, make_rules
from tests.agent.pods.pods import app, guaranteed, init, pod, resources, sidecar
from tests.conformance.invariants import NOTHING, Before, broken_invariants

if TYPE_CHECKING:
    from agent.managers.allocation import PodAllocation
    from agent.managers.decision import Decision, Offers
    from agent.managers.ledger import Ledger
    from agent.managers.rules import EffectivePolicy
    from agent.managers.topology.hint import Hint
    from agent.pods.model import Container, Pod

SEQUENCES: Final = int(os.environ.get("NUMAWARDEN_SEQUENCES", "100"))
EVERY_SEQUENCE: Final = settings(
    max_examples=SEQUENCES,
    stateful_step_count=12,
    deadline=None,
    derandomize="NUMAWARDEN_SEQUENCES" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
#: A busy machine may need a second for the largest host.
pytestmark = pytest.mark.timeout(max(300, SEQUENCES))
GPU: Final = "example.com/gpu"
#: How many nodes a host has at most, and how many cores each of them: mostly few, at times many.
SIZES: Final = ((1, 6), (2, 4), (4, 4), (4, 4), (6, 3), (6, 3), (12, 2), (64, 1))


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Draw uneven hosts: sparse ids, cores of 1, 2 or 4 threads, nodes without CPUs or memory."""
    most_nodes, most_cores = draw(st.sampled_from(SIZES))
    spread = draw(st.sampled_from([1, 1, 8])) if most_nodes < 64 else 1
    fewest = most_nodes // 2 or 1
    chosen = draw(st.sets(st.integers(0, most_nodes), min_size=fewest, max_size=most_nodes))
    ids = sorted(spread * node for node in chosen)
    nodes_per_socket = draw(st.integers(1, 2))
    rows: list[tuple[int, int, int, int, int]] = []
    cpu = draw(st.integers(0, 3))
    for position, node in enumerate(ids):
        for _ in range(draw(st.integers(0 if position else 1, most_cores))):
            core = cpu
            for _ in range(draw(st.sampled_from([1, 2, 2, 2, 4]))):
                rows.append((cpu, core, position // nodes_per_socket, node, node))
                cpu += draw(st.sampled_from([1, 1, 1, 2]))
    return Machine(CpuTopology.from_rows(rows), tuple(_nodes(draw, ids)))


def _nodes(draw: st.DrawFn, ids: list[int]) -> list[MachineNode]:
    sizes = draw(st.lists(st.sampled_from([0, 2, 4, 16]), min_size=1, max_size=4))
    pages = draw(st.lists(st.integers(0, 64), min_size=1, max_size=4))
    far = draw(st.lists(st.integers(11, 40), min_size=1, max_size=5))
    return [
        MachineNode(
            node,
            sizes[place % len(sizes)] * GIB,
            {2 << 20: pages[place % len(pages)]},
            {other: 10 if node == other else far[(node ^ other) % len(far)] for other in ids},
        )
        for place, node in enumerate(ids)
    ]


@st.composite
def rule_sets(draw: st.DrawFn, machine: Machine | None = None) -> EffectivePolicy:
    """Draw a policy for a machine, which is drawn as well unless it is given."""
    machine = machine or draw(machines())
    cpus = list(machine.cpus.all)
    spread = draw(st.booleans())
    return make_rules(
        machine,
        draw(st.sampled_from(TopologyManagerPolicy)),
        draw(st.sampled_from(TopologyManagerScope)),
        reserved=str(Mask.from_ids(draw(st.sets(st.sampled_from(cpus), min_size=1, max_size=2)))),
        memory=draw(st.booleans()),
        managed=draw(st.booleans()),
        devices=draw(inventories(machine)),
        full_pcpus_only=not spread and draw(st.booleans()),
        distribute_cpus_across_cores=spread,
        distribute_cpus_across_numa=not spread and draw(st.booleans()),
        strict_cpu_reservation=draw(st.booleans()),
        align_by_socket=draw(st.booleans()),
        prefer_align_cpus_by_uncorecache=not spread and draw(st.booleans()),
    )


@st.composite
def inventories(draw: st.DrawFn, machine: Machine) -> dict[str, tuple[PluginDevice, ...]]:
    """Draw no devices, or some: of one node, of several, of none, at times unhealthy."""
    ids = list(machine.node_mask)
    places = draw(st.lists(st.sets(st.sampled_from(ids), max_size=2), max_size=4))
    devices = tuple(
        PluginDevice(f"d{number}", Mask.from_ids(place), healthy=draw(st.integers(0, 4)) > 0)
        for number, place in enumerate(places)
    )
    return {GPU: devices} if devices else {}


@st.composite
def containers(draw: st.DrawFn, name: str) -> Container:
    """Draw a container that is exclusive, shares, or asks for nothing; some want devices."""
    kind = draw(st.sampled_from([app, app, init, sidecar])) if name != "c0" else app
    cpu = draw(st.sampled_from(["1", "2", "3", "4", "500m", "6"]))
    memory = draw(st.sampled_from(["64Mi", "1Gi", "3Gi", "5Gi"]))
    pages = draw(st.sampled_from(["", "", " hugepages-2Mi=4Mi"]))
    devices = draw(st.sampled_from(["", "", f" {GPU}=1", f" {GPU}=2"]))
    asked = draw(
        st.sampled_from(
            [
                guaranteed(f"cpu={cpu} memory={memory}{pages}{devices}"),
                guaranteed(f"cpu={cpu} memory={memory}"),
                resources(f"cpu={cpu}"),
                None,
            ]
        )
    )
    return kind(name, asked)


@st.composite
def pods(draw: st.DrawFn, uid: str = "u") -> Pod:
    """Draw a pod of one to four containers, half of them with a budget of its own.

    Of the others some have exclusive CPUs in any QoS class. Some want memory even with their CPUs.
    """
    names = [f"c{number}" for number in range(draw(st.integers(1, 4)))]
    budget, annotations = None, dict[str, str]()
    if draw(st.booleans()):
        cpu = draw(st.integers(1, 10))
        budget = guaranteed(f"cpu={cpu} memory={draw(st.integers(1, 12))}Gi")
    members = [draw(containers(name)) for name in names]
    able = [each.name for each in members if named_container_fault(each) is None]
    if able and budget is None and draw(st.booleans()):
        annotations = {EXCLUSIVE: ",".join(draw(st.sets(st.sampled_from(able), min_size=1)))}
    if draw(st.integers(0, 3)) == 0:
        annotations[NUMA_POLICY] = INTERLEAVE
    return pod(*members, of_pod=budget, uid=uid, annotations=annotations)


@st.composite
def resized(draw: st.DrawFn, former: Pod) -> Pod:
    """Draw other amounts of a container, or of the pod level where the pod states it."""
    containers = [each for each in former.all_containers() if each.kind is not ContainerKind.INIT]
    names: list[str | None] = [each.name for each in containers]
    names += 3 * [each.name for each in containers if is_container_guaranteed(each)]
    levels = names if former.resources is None else [*names, *names, *3 * [None]]
    cpu = draw(st.sampled_from([None, 1, 2, 3, 4, 5, 6, 8, 1.5]))
    memory = draw(st.sampled_from([None, None, None, 0.1, 1, 2, 4, 6]))
    return OtherAmounts(
        former.uid,
        draw(st.sampled_from(levels)),
        None if cpu is None else int(1000 * cpu),
        None if memory is None else int(GIB * memory),
    ).of(former)


def kept(allocation: PodAllocation) -> st.SearchStrategy[Mask]:
    """Draw CPUs that are to stay: mostly none."""
    some = st.sets(st.sampled_from([*allocation.exclusive_cpus] or [0]), max_size=4)
    return st.just(EMPTY) | st.just(EMPTY) | some.map(Mask.from_ids)


@st.composite
def elsewhere(draw: st.DrawFn, rules: EffectivePolicy, ledger: Ledger, present: PodSets) -> PodSets:
    """Draw as many CPUs of a node or of all, free ones or also a pod's own; and its memory's."""
    nodes = draw(st.sampled_from([*map(Mask.of, rules.machine.node_mask), rules.machine.node_mask]))
    free = rules.open_cpus - exclusive_cpus(ledger)
    free |= draw(st.sampled_from([EMPTY, EMPTY, present.cpus]))
    near = free & rules.machine.cpus.cpus_in_nodes(nodes)
    cpus = Mask.from_ids(list(near)[-len(present.cpus) :] if present.cpus else [])
    return PodSets(cpus, draw(st.sampled_from([present.nodes, nodes if present.nodes else EMPTY])))


def broken_resize(before: PodAllocation, after: PodAllocation, keep: Mask) -> list[str]:
    """Return what a resize may not do to a pod and did."""
    broken = []
    pairs = [(one, after.container(one.name)) for one in before.containers]
    parts = [("", before.cpus, after.cpus)] + [
        (one.name, one.cpus, new.cpus)
        for one, new in pairs
        if new is not None
        and one.isolation is Isolation.CONTAINER
        # The slice of an init container that has ended follows the budget.
        and not (before.cpus is not None and one.kind is ContainerKind.INIT)
    ]
    for name, old, new in parts:
        if (old is None) is not (new is None):
            broken.append(f"{name} got or lost CPUs of its own")
        if old is None or new is None:
            continue
        if not (old <= new or new <= old):
            broken.append(f"{name} had {old} and has {new}")
        given = before.originals.get(name, old) & old
        if not given <= new and not new <= keep | Mask.union(
            [each or EMPTY for _, _, each in parts]
        ):
            broken.append(f"{name} lost of {given}, which it was admitted with")
        if not keep & old <= new:
            broken.append(f"{name} lost of {keep}, which was to stay")
    for one, instead in pairs:
        if (
            instead is None
            or one.devices != instead.devices
            or one.isolation is not instead.isolation
        ):
            broken.append(f"{one.name} has another isolation, or other devices")
        elif one.kind is not ContainerKind.INIT and not one.mems <= instead.mems:
            broken.append(f"{one.name} had memory on {one.mems} and has it on {instead.mems}")
    return broken


def shown(decision: Decision) -> list[tuple[str | None, Offers, Hint, bool]]:
    """Return the traces of a decision as they are explained."""
    return [(each.container, each.providers, each.merged, each.admitted) for each in decision.hints]


class Host(RuleBasedStateMachine):
    """One host on which pods come and go, and on which the agent is started again."""

    @initialize(rules=rule_sets())
    def begin(self, rules: EffectivePolicy) -> None:
        self.in_force = rules
        self.whole = rules.machine
        self.ledger = rules.empty_ledger()
        self.before = NOTHING
        self.admitted: dict[str, Pod] = {}
        self.asked = 0

    @rule(data=st.data())
    def admit(self, data: st.DataObject) -> None:
        self.asked += 1
        desired = data.draw(pods(f"u-{self.asked}"))
        decision = admit(self.in_force, self.ledger, desired)
        assert decision == admit(self.in_force, self.ledger, desired), (
            "the same question, one answer"
        )
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(admission, "rules_out", lambda *_: False)
            asked_of_all = admit(self.in_force, self.ledger, desired)
        assert (decision.allocation, decision.rejection, shown(decision)) == (
            *(asked_of_all.allocation, asked_of_all.rejection, shown(asked_of_all)),
        ), "managers that were not asked would have changed nothing"
        if decision.admitted:
            self.admitted[desired.uid] = desired
            if not self.before.memory:
                undone = remove(self.in_force, decision.ledger, desired.uid)
                assert exclusive_cpus(undone) == exclusive_cpus(self.ledger)
                assert allocated_devices(undone) == allocated_devices(self.ledger)
        else:
            assert decision.rejection is not None
            assert decision.ledger is self.ledger, "a rejected pod changes nothing"
            assert not decision.rejection.remedy, "what was not tried is not advised"
        self.ledger = decision.ledger

    @precondition(lambda self: self.admitted)
    @rule(data=st.data())
    def ask_again(self, data: st.DataObject) -> None:
        desired = self.admitted[data.draw(st.sampled_from(sorted(self.admitted)))]
        decision = admit(self.in_force, self.ledger, desired)
        assert decision.allocation == self.ledger.allocations[desired.uid]
        assert decision.ledger is self.ledger

    @precondition(lambda self: self.admitted)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.admitted)))
        del self.admitted[uid]
        self.ledger = remove(self.in_force, self.ledger, uid)

    @precondition(lambda self: self.admitted)
    @rule(data=st.data())
    def resize(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.admitted)))
        former, before = self.admitted[uid], self.ledger.allocations[uid]
        desired = data.draw(resized(former))
        keep = data.draw(kept(before))
        decision = resize(self.in_force, self.ledger, desired, keep)
        assert decision == resize(self.in_force, self.ledger, desired, keep)
        if decision.allocation is None:
            assert decision.rejection is not None
            assert decision.ledger is self.ledger, "a rejected resize changes nothing"
            return
        assert broken_resize(before, decision.allocation, keep) == []
        assert list(decision.ledger.allocations) == list(self.ledger.allocations)
        self.ledger, self.admitted[uid] = decision.ledger, desired

    @precondition(lambda self: self.admitted)
    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        having = [uid for uid, each in self.ledger.allocations.items() if sets_of(each)]
        if not having:
            return
        uid = data.draw(st.sampled_from(having))
        before = sets_of(self.ledger.allocations[uid])
        after = data.draw(elsewhere(self.in_force, self.ledger, before))
        asked = Move(uid, before, after)
        decision = moved(self.in_force, self.ledger, asked, Movable.MEMORY)
        assert decision == moved(self.in_force, self.ledger, asked, Movable.MEMORY)
        if decision.allocation is None:
            assert decision.rejection is not None
            assert decision.ledger is self.ledger, "a rejected move changes nothing"
            return
        assert sets_of(decision.allocation) == after
        assert len(after.cpus) == len(before.cpus)
        assert list(decision.ledger.allocations) == list(self.ledger.allocations)
        assert decision.ledger.requests == self.ledger.requests
        self.ledger = decision.ledger

    @precondition(lambda self: self.admitted)
    @rule(data=st.data())
    def start_container(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.admitted)))
        names = [one.name for one in self.ledger.allocations[uid].containers]
        name = data.draw(st.sampled_from(names))
        self.ledger = start_container(self.in_force, self.ledger, uid, name)

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def start_again_under_other_rules(self, data: st.DataObject) -> None:
        self._start_again(data.draw(rule_sets(self.in_force.machine)))

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def start_again_with_threads_offline(self, data: st.DataObject) -> None:
        """Lose some threads, or get all of them back."""
        rows = self.whole.cpus.rows
        lost = data.draw(st.sets(st.sampled_from([row.cpu for row in rows]), max_size=3))
        left = [row for row in rows if row.cpu not in lost] or list(rows)
        machine = Machine(CpuTopology.from_rows(left), self.whole.nodes)
        self._start_again(data.draw(rule_sets(machine)))

    def _start_again(self, rules: EffectivePolicy) -> None:
        allocations = dict(self.ledger.allocations)
        self.in_force = rules
        self.ledger = restored(rules, self.ledger)
        self.before = Before(frozenset(allocations), memory_charge(self.ledger))
        assert dict(self.ledger.allocations) == allocations, "what was allocated is a fact"

    @invariant()
    def nothing_is_broken(self) -> None:
        assert broken_invariants(self.in_force, self.ledger, self.before) == []
        assert not shared_pool(self.in_force, self.ledger) & exclusive_cpus(self.ledger)
        assert set(self.ledger.allocations) == set(self.admitted)

    def teardown(self) -> None:
        for uid in list(self.ledger.allocations):
            self.ledger = remove(self.in_force, self.ledger, uid)
            assert broken_invariants(self.in_force, self.ledger, self.before) == []
        assert self.ledger == self.in_force.empty_ledger(), "all of it comes back"


def test_no_sequence_breaks_an_invariant() -> None:
    run_state_machine_as_test(Host, settings=EVERY_SEQUENCE)


# Shows in differences.md: ended-pod
@given(rules=rule_sets(), asked=pods("u-1"))
@EVERY_SEQUENCE
def test_removing_undoes_admitting(rules: EffectivePolicy, asked: Pod) -> None:
    before = rules.empty_ledger()
    assert remove(rules, admit(rules, before, asked).ledger, "u-1") == before
