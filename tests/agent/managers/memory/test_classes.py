"""`isolation.numawarden.dev/memory`: classes of memory that a pod asks for or shuns."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.managers.admission import admit, remove
from agent.managers.advice import AdviceKind
from agent.managers.decision import Reason
from agent.managers.machine import Machine
from agent.managers.policy import TopologyManagerPolicy, TopologyManagerScope
from agent.managers.quality import invalid_allocations, verdict
from agent.managers.trials import advise
from agent.managers.violations import Rule
from agent.pods.model import isolation_faults
from agent.server.renumbering import renumbered
from sysfs.described import regular_host, with_memory_only_nodes
from sysfs.mask import EMPTY, Mask
from tests.agent.managers.drafts import allocated, rejected
from tests.agent.managers.hosts import BEST_EFFORT, CONTAINER, GIB, POD, SINGLE, make_rules
from tests.agent.managers.test_invariants import EVERY_SEQUENCE, machines, pods
from tests.agent.pods.pods import app, guaranteed, pod
from tests.conformance.invariants import NOTHING, broken_invariants

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from agent.managers.ledger import Ledger
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Pod

MEMORY: Final = "isolation.numawarden.dev/memory"
CLASSES: Final = {0: "dram", 1: "dram", 2: "hbm", 3: "hbm", 4: "cxl", 5: ""}
_DISTANCES: Final = (
    (10, 21, 13, 23, 24, 24),
    (21, 10, 23, 13, 24, 24),
    (13, 23, 10, 25, 26, 26),
    (23, 13, 25, 10, 26, 26),
    (24, 24, 26, 26, 10, 30),
    (24, 24, 26, 26, 30, 10),
)


def machine() -> Machine:
    """Return two nodes of CPUs, HBM beside each, CXL and unknown memory as far from both."""
    sizes = [8 * GIB, 8 * GIB, 64 * GIB, 64 * GIB]
    made = Machine.of(with_memory_only_nodes(regular_host(cores_per_node=8, threads=1), sizes))
    rows = (dict(enumerate(row)) for row in _DISTANCES)
    nodes = (replace(each, distances=row) for each, row in zip(made.nodes, rows, strict=True))
    return replace(made, nodes=tuple(nodes))


def with_classes(
    rules: EffectivePolicy, classes: Mapping[int, str] = CLASSES, usual: str = "asked"
) -> EffectivePolicy:
    memory = replace(rules.policy.memory, classes=classes, usual_classes=usual)
    return replace(rules, policy=replace(rules.policy, memory=memory))


def rules_of(usual: str = "asked", **more: Any) -> EffectivePolicy:  # noqa: ANN401
    return with_classes(make_rules(machine(), **{"scope": CONTAINER, **more}), usual=usual)


def asking(classes: str | None, amounts: str = "cpu=2 memory=6Gi", uid: str = "u-1") -> Pod:
    annotations = {} if classes is None else {MEMORY: classes}
    return pod(app("a", guaranteed(amounts)), uid=uid, annotations=annotations)


# Shows in differences.md: memory-classes
@pytest.mark.parametrize("scope", TopologyManagerScope)
@pytest.mark.parametrize("policy", TopologyManagerPolicy)
def test_memory_without_cpus_is_aligned_by_the_cpus_that_are_nearest(
    policy: TopologyManagerPolicy, scope: TopologyManagerScope
) -> None:
    rules = rules_of(topology=policy, scope=scope)
    ledger = rules.empty_ledger()
    places = set()
    for uid in ("u-1", "u-2"):
        decision = admit(rules, ledger, asking("hbm", uid=uid))
        ledger = decision.ledger
        assert decision.allocation is not None
        (container,) = decision.allocation.containers
        assert container.cpus is not None
        places.add((str(rules.machine.cpus.nodes_of(container.cpus)), str(container.mems)))
        if policy is not TopologyManagerPolicy.NONE:
            assert all(each.met for each in verdict(rules, decision.allocation))
    if policy is not TopologyManagerPolicy.NONE:
        assert places == {("0", "2"), ("1", "3")}
    charge = [ledger.parts["memory"][node].reserved["memory"] for node in CLASSES]
    assert charge == [0, 0, 6 * GIB, 6 * GIB, 0, 0]
    assert invalid_allocations(rules, ledger) == ()
    rejection = rejected(rules, asking("hbm", uid="u-3"), ledger)
    assert "memory hbm is asked: nodes 2-3" in rejection.message
    assert rejection.free == {2: GIB, 3: GIB}
    assert admit(rules, ledger, asking("dram", uid="u-3")).admitted
    for uid in ("u-1", "u-2"):
        ledger = remove(rules, ledger, uid)
    assert ledger == rules.empty_ledger()


@pytest.mark.parametrize(
    ("usual", "classes", "nodes"),
    [
        ("never", "hbm", ""),
        ("asked", None, ""),
        ("asked", "dram,hbm", "0-3"),
        ("asked", "!cxl", "0-3,5"),
        ("asked", "!cxl,!hbm", "0-1,5"),
        ("dram", None, "0-1"),
        ("dram", "any", ""),
        ("dram", "cxl", "4"),
    ],
)
@pytest.mark.parametrize("memory", [True, False])
def test_a_container_without_pinned_memory_is_on_all_nodes_that_are_allowed(
    usual: str, classes: str | None, nodes: str, *, memory: bool
) -> None:
    rules = rules_of(usual, memory=memory)
    asked = replace(asking(classes), containers=(app("a"),))
    (container,) = allocated(rules, asked).containers
    assert (str(container.mems), container.memory) == (nodes, ())


@pytest.mark.parametrize("memory", [True, False])
@pytest.mark.parametrize("topology", [TopologyManagerPolicy.NONE, BEST_EFFORT])
def test_a_pod_that_asks_for_what_no_node_has_is_rejected(
    topology: TopologyManagerPolicy, *, memory: bool
) -> None:
    rules = rules_of(topology=topology, memory=memory)
    for asked in (asking("gpu"), replace(asking("gpu"), containers=(app("a"),))):
        rejection = rejected(rules, asked)
        assert rejection.reason == Reason.REQUIREMENT
        assert rejection.message == (
            "the pod asks for memory gpu, which no node has; this host has dram (nodes 0-1), "
            "hbm (nodes 2-3), cxl (node 4), unknown (node 5)"
        )


def test_a_reboot_that_renumbers_nodes_renumbers_those_that_are_allowed() -> None:
    rules = rules_of()
    ledger = admit(rules, rules.empty_ledger(), replace(asking("hbm"), containers=(app("a"),)))
    moved = renumbered(rules.managers, ledger.ledger, {2: 5, 5: 2})
    assert str(moved.allocations["u-1"].containers[0].mems) == "3,5"


def test_what_helps_is_to_ask_for_no_class() -> None:
    rules = rules_of()
    ledger = rules.empty_ledger()
    for uid in ("u-1", "u-2"):
        ledger = admit(rules, ledger, asking("hbm", uid=uid)).ledger
    found = advise(rules, ledger, asking("hbm", uid="u-3"))
    texts = {each.kind: each.text for each in found if each is not None}
    assert texts[AdviceKind.ANNOTATION] == (
        f"leave out the annotation {MEMORY} (its memory may be of any class)"
    )


def test_an_allocation_on_nodes_of_another_class_violates_the_policy() -> None:
    rules = rules_of()
    for asked in (asking("dram"), replace(asking("dram"), containers=(app("a"),))):
        ledger = admit(rules_of("never"), rules.empty_ledger(), asked).ledger
        items = MappingProxyType({"memory": "hbm"})
        ledger = ledger.with_lifetime("u-1", ledger.allocations["u-1"].lifetime, items)
        assert Rule.MEMORY_CLASS in [each.rule for each in invalid_allocations(rules, ledger)]
        again = admit(rules, rules.empty_ledger(), replace(asked, annotations={MEMORY: "hbm"}))
        ledger = again.ledger.with_lifetime("u-1", ledger.allocations["u-1"].lifetime, items)
        assert invalid_allocations(rules, ledger) == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dram, !cxl", ""),
        ("any", ""),
        ("", "names no class"),
        ("!", "not the name"),
        ("a b", "not"),
    ],
)
def test_a_list_of_classes_has_names_and_names_to_shun(text: str, said: str) -> None:
    found = dict(isolation_faults({MEMORY: text}))
    assert said in found.get(MEMORY, "")
    assert bool(found) == bool(said)


def test_on_a_host_of_many_gpus_their_memory_is_beside_the_cpus() -> None:
    host = with_memory_only_nodes(regular_host(cores_per_node=8, threads=1), [4 * GIB] * 16)
    made = Machine.of(host)

    def distance(node: int, other: int) -> int:
        """GPUs 2-9 are beside node 0, GPUs 10-17 beside node 1."""
        return 10 if node == other else 80 if (other < 10) == (node == 0) else 120

    nodes = tuple(
        replace(
            each, distances={**each.distances, 0: distance(0, each.id), 1: distance(1, each.id)}
        )
        for each in made.nodes
    )
    rules = make_rules(replace(made, nodes=nodes), SINGLE, CONTAINER)
    rules = with_classes(rules, {0: "dram", 1: "dram", **dict.fromkeys(range(2, 18), "gpu")})
    ledger = rules.empty_ledger()
    for number in range(4):
        decision = admit(rules, ledger, asking("gpu", "cpu=1 memory=11Gi", f"u-{number}"))
        assert decision.allocation is not None, decision.rejection
        ledger = decision.ledger
        (container,) = decision.allocation.containers
        assert container.cpus is not None
        (node,) = rules.machine.cpus.nodes_of(container.cpus)
        assert len(container.mems) == 4
        assert container.mems <= (Mask.parse("10-17") if node else Mask.parse("2-9"))
    assert not admit(rules, ledger, asking("gpu", "cpu=1 memory=2Gi", "u-4")).admitted


# Shows in differences.md: memory-classes
@given(st.data())
@EVERY_SEQUENCE
def test_who_shuns_nodes_without_cpus_is_served_as_on_a_host_without_them(
    data: st.DataObject,
) -> None:
    made = data.draw(machines())
    with_cpus = made.cpus.nodes_of(made.cpus.all)
    less = replace(made, nodes=tuple(each for each in made.nodes if each.id in with_cpus))
    if made.lists_hints != less.lists_hints:
        return
    policy, scope = data.draw(st.sampled_from(TopologyManagerPolicy)), data.draw(st.booleans())
    one, other = (make_rules(each, policy, POD if scope else CONTAINER) for each in (made, less))
    classes = {each.id: "dram" if each.id in with_cpus else "cxl" for each in made.nodes}
    one = with_classes(one, classes, "!cxl")
    ledger, expected = one.empty_ledger(), other.empty_ledger()
    for number, asked in enumerate(data.draw(st.lists(pods(), min_size=1, max_size=4))):
        named = replace(asked, uid=f"u-{number}")
        ledger, expected = admit(one, ledger, named).ledger, admit(other, expected, named).ledger

    def blocks(of: Ledger) -> object:
        return {
            uid: (pod.cpus, pod.memory, [(each.cpus, each.memory) for each in pod.containers])
            for uid, pod in of.allocations.items()
        }

    assert blocks(ledger) == blocks(expected)


@given(st.data())
@EVERY_SEQUENCE
def test_pods_are_on_nodes_of_their_classes_and_nothing_is_allocated_twice(
    data: st.DataObject,
) -> None:
    made = data.draw(machines())
    policy, scope = data.draw(st.sampled_from(TopologyManagerPolicy)), data.draw(st.booleans())
    rules = make_rules(made, policy, POD if scope else CONTAINER)
    names = st.sampled_from(["dram", "hbm", ""])
    classes = {each.id: data.draw(names) for each in made.nodes if each.known_memory}
    rules = with_classes(rules, classes)
    ledger = rules.empty_ledger()
    for number, asked in enumerate(data.draw(st.lists(pods(), min_size=1, max_size=5))):
        text = data.draw(st.sampled_from(["dram", "hbm", "!hbm", "any"]))
        named = replace(asked, uid=f"u-{number}", annotations={MEMORY: text})
        decision = admit(rules, ledger, named)
        assert remove(rules, decision.ledger, named.uid) == ledger or ledger.parts["memory"]
        ledger = decision.ledger
        if decision.allocation is None:
            continue
        allowed = rules.policy.memory.nodes_of(text)
        for each in decision.allocation.containers:
            assert text == "any" or EMPTY < each.mems <= allowed
            places = made.cpus.nodes_of(each.cpus or EMPTY) | rules.memory_places(each)
            if policy is SINGLE and not scope and not decision.allocation.has_budget:
                assert len(places) <= 1
        assert broken_invariants(rules, ledger, NOTHING) == []
    for uid in list(ledger.allocations):
        ledger = remove(rules, ledger, uid)
    assert ledger == rules.empty_ledger()
