from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.managers.admission import admit, remove
from agent.managers.allocation import Isolation, Origin
from agent.managers.cpu.manager import shared_cpus, shared_pool
from agent.managers.memory.state import memory_charge
from agent.managers.policy import NodeFit, Pool
from agent.managers.recovery import (
    ObservedContainer,
    ObservedPod,
    Recovery,
    describe_recovered,
    recover,
)
from agent.pods.model import EXCLUSIVE, MEMORY, POOL, ContainerKind, QosClass
from agent.pods.validation import find_problems
from sysfs.mask import EMPTY, Mask
from tests.agent.managers.drafts import rejected
from tests.agent.managers.hosts import CONTAINER, GIB, POD, make_rules
from tests.agent.managers.test_invariants import EVERY_SEQUENCE, pods, rule_sets
from tests.agent.pods.pods import app, guaranteed, init, pod, resources
from tests.conformance.invariants import broken_invariants

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.managers.allocation import PodAllocation
    from agent.managers.decision import Decision
    from agent.managers.ledger import Ledger
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Pod

RULES = make_rules(scope=CONTAINER, memory=False)
STRICT = make_rules(scope=CONTAINER, memory=False, strict_cpu_reservation=True)


def seen(name: str, cpus: str, mems: str = "", *, in_effect: bool = True) -> ObservedContainer:
    return ObservedContainer(name, Mask.parse(cpus), Mask.parse(mems), in_effect)


def shown(
    uid: str, cpus: str, *containers: ObservedContainer, qos: QosClass = QosClass.GUARANTEED
) -> ObservedPod:
    mems = EMPTY
    for each in containers:
        mems |= each.mems
    return ObservedPod(uid, qos, ObservedContainer(f"pod{uid}", Mask.parse(cpus), mems), containers)


def without_checkpoint(rules: EffectivePolicy, running: Sequence[ObservedPod]) -> Recovery:
    """Return what is recovered where the checkpoint is lost."""
    return recover(rules, rules.empty_ledger(), running)


def allocated(ledger: Ledger) -> dict[str, str]:
    return {uid: str(allocation.exclusive_cpus) for uid, allocation in ledger.allocations.items()}


def asking(text: str, uid: str = "a") -> Pod:
    return pod(app("c1", guaranteed(text)), uid=uid)


def confirmed(rules: EffectivePolicy, asked: Pod, *running: ObservedPod) -> Decision:
    return admit(rules, without_checkpoint(rules, running).ledger, asked)


class TestWhatIsEvidence:
    def test_cpus_that_no_other_pod_shows_were_given(self) -> None:
        running = [shown("a", "1-2", seen("x", "1-2")), shown("b", "0,3-15", seen("y", "0,3-15"))]
        shares = shown("c", "0,3-15", seen("z", "0,3-15"), qos=QosClass.BURSTABLE)
        recovery = without_checkpoint(RULES, [*running, shares])
        assert allocated(recovery.ledger) == {"a": "1-2"}
        assert recovery.notes == ()
        assert recovery.ledger.allocations["a"].origin is Origin.RECOVERED
        assert shared_pool(RULES, recovery.ledger) == Mask.parse("0,3-15")

    def test_a_lone_pod_that_might_share_is_taken_to_hold_until_it_is_asked_for(self) -> None:
        lone = shown("b", "1-15", seen("x", "1-15"))
        assert allocated(without_checkpoint(STRICT, [lone]).ledger) == {"b": "1-15"}
        decision = confirmed(STRICT, pod(app("c1", resources("cpu=100m")), uid="b"), lone)
        assert decision.admitted
        assert allocated(decision.ledger) == {"b": ""}

    def test_a_container_of_any_class_has_what_it_alone_shows(self) -> None:
        """A pod that names containers carries the shared pool in its own cgroup."""
        named = shown("a", "0-15", seen("x", "1-2"), seen("y", "0,3-15"), qos=QosClass.BURSTABLE)
        shares = shown("b", "0,3-15", seen("z", "0,3-15"), qos=QosClass.BURSTABLE)
        recovery = without_checkpoint(RULES, [named, shares])
        assert allocated(recovery.ledger) == {"a": "1-2"}
        asked = pod(
            app("x", resources("cpu=2", limits="cpu=2")),
            app("y"),
            uid="a",
            annotations={EXCLUSIVE: "x"},
        )
        decision = admit(RULES, recovery.ledger, asked)
        assert decision.already_admitted
        assert allocated(decision.ledger) == {"a": "1-2"}

    def test_cpus_of_a_cgroup_above_are_no_evidence(self) -> None:
        inherits = replace(seen("x", "1-15"), inherits=True)
        lone = shown("b", "1-15", inherits, qos=QosClass.BURSTABLE)
        assert allocated(without_checkpoint(STRICT, [lone]).ledger) == {}

    @pytest.mark.parametrize("used", [False, True])
    def test_the_cpus_of_a_pool_without_pods_may_be_those_of_a_pod(self, *, used: bool) -> None:
        """They were given away since the checkpoint; a pool with pods in it is not."""
        policy = replace(RULES.policy, pools=(Pool("a", Mask.parse("1-2")),))
        rules = replace(RULES, policy=policy)
        ledger = admit(rules, rules.empty_ledger(), asking("cpu=4 memory=1Gi", "gone")).ledger
        ledger = admit(rules, ledger, asking("cpu=3 memory=1Gi", "keep")).ledger
        ledger = remove(rules, ledger, "gone")
        if used:
            inside = pod(app("c1"), uid="inside", annotations={POOL: "a"})
            ledger = admit(rules, ledger, inside).ledger
        running = [shown("keep", "5-7", seen("x", "5-7")), shown("z", "1-2", seen("x", "1-2"))]
        recovered = recover(rules, ledger, running).ledger
        found = allocated(recovered).get("z")
        assert found == (None if used else "1-2")
        new = admit(rules, recovered, asking("cpu=2 memory=1Gi", "new")).allocation
        assert new is not None
        assert used or new.exclusive_cpus.isdisjoint(Mask.parse("1-2"))

    def test_contradictions_are_named_and_nothing_is_allocated(self) -> None:
        running = [shown("a", "1-2", seen("x", "1-2")), shown("b", "2-3", seen("y", "2-3"))]
        recovery = without_checkpoint(RULES, running)
        assert allocated(recovery.ledger) == {}
        assert recovery.notes == (
            "pod a: x shows CPUs 1-2, some of them as another pod",
            "pod b: y shows CPUs 2-3, some of them as another pod",
        )

    def test_what_is_not_in_effect_is_not_evidence(self) -> None:
        ineffective = (seen("x", "1", in_effect=False),)
        stray = ObservedPod("a", QosClass.GUARANTEED, seen("p", ""), ineffective)
        recovery = without_checkpoint(RULES, [stray])
        assert allocated(recovery.ledger) == {}
        assert recovery.notes == ("pod a: x shows CPUs 1, which are not effective",)


class TestConfirming:
    def test_memory_of_a_container_that_shares_cpus_stays_where_it_is(self) -> None:
        """Admitted like any other it would get memory of node 0, and its pages would move."""
        rules = make_rules(scope=CONTAINER)
        running = shown("a", "0-15", seen("x", "0-15", "1"))
        (allocation,) = without_checkpoint(rules, [running]).ledger.allocations.values()
        assert describe_recovered(allocation) == (
            "memory on nodes 1, how much of it is not known and not counted"
        )
        decision = confirmed(rules, asking("cpu=1500m memory=3Gi"), running)
        assert decision.already_admitted
        assert decision.allocation is not None
        (container,) = decision.allocation.containers
        assert (container.cpus, container.mems) == (None, Mask.of(1))
        assert memory_charge(decision.ledger)[1].reserved["memory"] == 3 * GIB
        assert remove(rules, decision.ledger, "a") == rules.empty_ledger()

    def test_a_pod_that_runs_is_not_asked_whether_the_node_has_room(self) -> None:
        rules = make_rules(scope=CONTAINER, fit=NodeFit({"cpu": 15_500}))
        running = shown("a", "0-15", seen("x", "0-15", "1"))
        asked = pod(app("c1", resources("cpu=1")), uid="a")
        decision = confirmed(rules, asked, running)
        assert decision.admitted
        assert decision.ledger.requests == {"cpu": 1000}
        assert rejected(rules, asked).reason == "OutOfcpu"

    def test_names_say_whose_memory_is_where(self) -> None:
        rules = make_rules(scope=CONTAINER)
        names = ("db", "web")
        both = pod(*(app(n, guaranteed("cpu=500m memory=1Gi")) for n in names), uid="a")
        running = shown("a", "0-15", seen("web.scope", "0-15", "1"), seen("db", "0-15", "0"))
        allocation = confirmed(rules, both, running).allocation
        assert allocation is not None
        assert {c.name: str(c.mems) for c in allocation.containers} == {"db": "0", "web": "1"}
        nameless = shown("a", "0-15", seen("x", "0-15", "1"), seen("y", "0-15", "0"))
        rejection = confirmed(rules, both, nameless).rejection
        assert rejection is not None
        assert "no cgroup shows the memory nodes of db" in rejection.message

    def test_the_limit_of_a_cgroup_or_else_of_the_pod_says_how_much_is_allocated(self) -> None:
        whole = shown("a", "9-10", seen("x", "9-10", "1"))
        (one,) = whole.containers
        of_pod = replace(whole, own=replace(whole.own, memory=2 * GIB))
        of_container = replace(whole, containers=(replace(one, memory=3 * GIB),))
        for scope, running, gib in ((CONTAINER, of_container, 3), (POD, of_pod, 2)):
            rules = make_rules(scope=scope)
            ledger = without_checkpoint(rules, [running]).ledger
            assert memory_charge(ledger)[1].reserved["memory"] == gib * GIB
            text = describe_recovered(ledger.allocations["a"])
            assert text == "CPUs 9-10, memory on nodes 1"
            assert remove(rules, ledger, "a") == rules.empty_ledger()


class TestBudgets:
    RULES = make_rules(scope=POD, memory=False)
    MIXED = pod(
        app("db", guaranteed("cpu=2 memory=1Gi")),
        app("log"),
        app("met"),
        of_pod=guaranteed("cpu=5 memory=4Gi"),
        uid="a",
    )

    def allocation(self, *containers: ObservedContainer, cpus: str = "1-5") -> PodAllocation | None:
        return confirmed(self.RULES, self.MIXED, shown("a", cpus, *containers)).allocation

    def test_it_is_divided_as_the_cgroups_show(self) -> None:
        allocation = self.allocation(seen("x", "2-3"), seen("y", "1,4-5"), seen("z", "1,4-5"))
        assert allocation is not None
        assert str(allocation.cpus) == "1-5"
        assert {c.name: (str(c.cpus), c.isolation) for c in allocation.containers} == {
            "db": ("2-3", Isolation.CONTAINER),
            "log": ("1,4-5", Isolation.POD),
            "met": ("1,4-5", Isolation.POD),
        }

    def test_sets_of_one_size_that_could_be_either_are_not_guessed(self) -> None:
        even = replace(self.MIXED, resources=guaranteed("cpu=4 memory=4Gi"))
        running = shown("a", "1-4", seen("x", "1-2"), seen("y", "3-4"))
        rejection = confirmed(self.RULES, even, running).rejection
        assert rejection is not None
        assert "do not show all of that, remove the pod" in rejection.remedy

    @pytest.mark.parametrize(
        ("running", "own"),
        [
            ("db 1-2, log 3-4", "1-2"),
            ("db 3-4, x.scope 1-2", "3-4"),
            ("x.scope 1-2, log 3-4", "1-2"),
            ("x1-log.scope 1-2, cri-db.scope 3-4", "3-4"),
            ("log 1-2", "3-4"),
            ("db 1-2", "1-2"),
        ],
    )
    def test_names_say_who_has_and_who_shares_sets_of_one_size(
        self, running: str, own: str
    ) -> None:
        """KEP-5526's pod of a database and what shares the rest of its budget."""
        even = pod(
            app("db", guaranteed("cpu=2 memory=1Gi")),
            app("log"),
            of_pod=guaranteed("cpu=4 memory=4Gi"),
            uid="a",
        )
        cgroups = [seen(*text.split()) for text in running.split(", ")]
        allocation = confirmed(self.RULES, even, shown("a", "1-4", *cgroups)).allocation
        assert allocation is not None
        assert {c.name: (c.cpus, c.isolation) for c in allocation.containers} == {
            "db": (Mask.parse(own), Isolation.CONTAINER),
            "log": (Mask.parse("1-4") - Mask.parse(own), Isolation.POD),
        }


def test_no_node_is_charged_for_an_init_container_that_has_ended() -> None:
    rules = make_rules(scope=CONTAINER)
    asked = pod(
        init("first", guaranteed("cpu=1 memory=4Gi")),
        app("main", guaranteed("cpu=1 memory=1Gi")),
        uid="a",
    )
    decision = confirmed(rules, asked, shown("a", "", seen("x", "1", "0")))
    assert decision.already_admitted
    charge = memory_charge(decision.ledger)
    assert {node: each.reserved[MEMORY] for node, each in charge.items()} == {0: GIB, 1: 0}


@given(data=st.data(), rules=rule_sets(), asked=st.lists(pods(), min_size=1, max_size=4))
@EVERY_SEQUENCE
def test_whatever_ran_nothing_is_allocated_twice_and_no_pod_is_moved(
    data: st.DataObject, rules: EffectivePolicy, asked: list[Pod]
) -> None:
    """Admit pods, lose the ledger, recover what their cgroups show, and ask for them again."""
    ledger = rules.empty_ledger()
    # The limits of a manifest that the agent takes: no container has more than its pod.
    valid = [one for one in asked if not find_problems(one)]
    named = [replace(one, uid=f"u-{number}") for number, one in enumerate(valid)]
    for one in named:
        ledger = admit(rules, ledger, one).ledger
    pool = shared_cpus(rules, ledger)
    limits = data.draw(st.booleans())
    running = [
        as_shown(allocation, pool, limits=limits) for allocation in ledger.allocations.values()
    ]
    recovered = without_checkpoint(rules, running).ledger
    assert broken_invariants(rules, recovered) == []
    for uid, allocation in ledger.allocations.items():
        own = any(one.cpus for one in allocation.containers if one.kind is not ContainerKind.INIT)
        if own and shared_pool(rules, ledger):
            assert uid in recovered.allocations, "a pod with exclusive CPUs still has them"
    for one in data.draw(st.permutations([one for one in named if one.uid in ledger.allocations])):
        decision = admit(rules, recovered, one)
        recovered = decision.ledger
        before = ledger.allocations[one.uid]
        if decision.already_admitted and decision.allocation is not None:
            assert running_on(decision.allocation) == running_on(before), "no pod is moved"
        assert broken_invariants(rules, recovered) == []
    for uid in list(recovered.allocations):
        recovered = remove(rules, recovered, uid)
    assert recovered == rules.empty_ledger()


def running_on(allocation: PodAllocation) -> dict[str, tuple[Mask | None, Mask]]:
    """Return the CPUs and memory nodes of what runs: init containers have ended."""
    running = [c for c in allocation.containers if c.kind is not ContainerKind.INIT]
    return {c.name: (c.cpus, c.mems) for c in running} | {"": (allocation.cpus, EMPTY)}


def as_shown(allocation: PodAllocation, pool: Mask, *, limits: bool = False) -> ObservedPod:
    """Show what the enforcement of an allocation makes of the cgroups of its app containers."""
    union = allocation.cpus or EMPTY
    containers: list[ObservedContainer] = []
    for number, one in enumerate(allocation.containers):
        cpus = pool if one.cpus is None else one.cpus
        union |= cpus
        # Of those that share a budget without a limit of their own the pod's cgroup has the limit.
        size = one.limits.get(MEMORY, 0) * limits
        if one.kind is not ContainerKind.INIT:
            scope = f"cri-containerd-{number}.scope"
            containers.append(ObservedContainer(scope, cpus, one.mems, memory=size))
    own = ObservedContainer("pod", union, EMPTY)
    return ObservedPod(allocation.uid, allocation.qos, own, tuple(containers))
