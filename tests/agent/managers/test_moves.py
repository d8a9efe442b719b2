"""Running pods move, so that another one has room: what is planned, decided and rejected."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.managers import move_plans
from agent.managers.admission import remove
from agent.managers.allocation import KUBELET, PodSets, Source
from agent.managers.capacity import free_cpus
from agent.managers.cpu.manager import exclusive_cpus
from agent.managers.move_plans import MovePlan, defragment, plan
from agent.managers.moves import Move, moved, sets_of
from agent.managers.policy import (
    Cordon,
    CpuManagerPolicy,
    IsolationMode,
    PluginDevice,
    TopologyManagerPolicy,
)
from agent.managers.quality import invalid_allocations
from agent.managers.resize import resize
from agent.managers.rules import restored, with_cordon
from agent.managers.trials import decided
from agent.pods.changes import with_amount
from agent.pods.model import MOVE, SMT, Movable, isolation_annotation
from sysfs.mask import EMPTY, Mask
from tests.agent.managers.drafts import with_pod
from tests.agent.managers.hosts import CONTAINER, NO_POLICY, SINGLE, make_rules
from tests.agent.managers.hosts import SMT as SMT_HOST
from tests.agent.pods.pods import app, guaranteed, init, pod

if TYPE_CHECKING:
    from agent.managers.decision import Rejection
    from agent.managers.ledger import Ledger
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Pod


def one(cpus: int, uid: str, allow: str = "memory", memory: str = "1Gi", **asked: str) -> Pod:
    annotations = {**asked, **({MOVE: allow} if allow else {})}
    containers = app("main", guaranteed(f"cpu={cpus} memory={memory}"))
    return pod(containers, uid=uid, name=uid, annotations=annotations)


def running(rules: EffectivePolicy, *pods: Pod) -> Ledger:
    ledger = rules.empty_ledger()
    for each in pods:
        ledger = with_pod(rules, each, ledger)
    return ledger


def planned(rules: EffectivePolicy, ledger: Ledger, asked: Pod) -> MovePlan:
    *_, found = plan(rules, ledger, asked)
    assert found is not None
    return found


def shown(found: MovePlan) -> dict[str, str]:
    """Return the CPUs before and after each move, by uid."""
    return {each.uid: f"{each.before.cpus} to {each.after.cpus}" for each in found.moves}


def move_to(ledger: Ledger, uid: str, cpus: str, nodes: str | None = None) -> Move:
    before = sets_of(ledger.allocations[uid])
    on = before.nodes if nodes is None else Mask.parse(nodes)
    return Move(uid, before, PodSets(Mask.parse(cpus), on))


def why_not(rules: EffectivePolicy, ledger: Ledger, move: Move) -> Rejection:
    decision = moved(rules, ledger, move)
    assert decision.rejection is not None
    assert decision.ledger is ledger
    return decision.rejection


#: Both nodes are half full: five of seven CPUs on node 0, six of eight on node 1.
SMALL, LARGE = one(2, "u-1"), one(3, "u-2")


def fragmented(rules: EffectivePolicy, *, allow: str = "memory") -> Ledger:
    small, large = one(2, "u-1", allow), one(3, "u-2", allow)
    return running(rules, small, large, one(6, "u-3", ""))


# Shows in differences.md: move
def test_the_smallest_pod_that_makes_room_moves_and_the_new_one_is_admitted() -> None:
    rules = make_rules(topology=SINGLE)
    ledger = fragmented(rules)
    asked = one(4, "u-9")
    assert not decided(rules, ledger, asked).admitted
    found = planned(rules, ledger, asked)
    assert shown(found) == {"u-1": "1-2 to 14-15"}
    [move] = found.moves
    assert (move.before.nodes, move.after.nodes, found.memory) == (Mask.of(0), Mask.of(1), 1 << 30)
    decision = moved(rules, ledger, move)
    assert decision.resized
    assert list(decision.ledger.allocations) == ["u-1", "u-2", "u-3"]
    assert decided(rules, decision.ledger, asked).allocation == found.allocation
    assert moved(rules, decision.ledger, move).already_admitted


def test_a_pod_that_fits_needs_no_move() -> None:
    rules = make_rules(topology=SINGLE)
    found = planned(rules, fragmented(rules), one(2, "u-9"))
    assert (found.moves, found.allocation is None) == ((), False)


def test_without_a_single_move_two_pods_move_in_an_order_that_has_room() -> None:
    rules = make_rules(topology=SINGLE, memory=False)
    pods = (one(2, "u-1"), one(2, "u-2"), one(2, "u-3"), one(4, "u-4", ""))
    ledger = running(rules, *pods)
    asked = one(5, "u-9")
    found = planned(rules, ledger, asked)
    assert shown(found) == {"u-1": "1-2 to 12-13", "u-2": "3-4 to 14-15"}
    for move in found.moves:
        decision = moved(rules, ledger, move)
        assert decision.admitted
        ledger = decision.ledger
    assert decided(rules, ledger, asked).admitted


@pytest.mark.parametrize(("allow", "needs"), [("", Movable.MEMORY), ("cpus", Movable.MEMORY)])
def test_who_would_make_room_but_does_not_allow_it_is_named(allow: str, needs: Movable) -> None:
    rules = make_rules(topology=SINGLE)
    found = planned(rules, fragmented(rules, allow=allow), one(4, "u-9"))
    assert (found.moves, found.allocation) == ((), None)
    assert ("u-1", needs) in found.would_help


def test_without_pinned_memory_to_allow_cpus_is_enough() -> None:
    rules = make_rules(topology=SINGLE, memory=False)
    assert shown(planned(rules, fragmented(rules, allow="cpus"), one(4, "u-9")))
    found = planned(rules, fragmented(rules, allow=""), one(4, "u-9"))
    assert ("u-1", Movable.CPUS) in found.would_help


def test_what_no_move_helps_is_said_so() -> None:
    rules = make_rules(topology=SINGLE)
    found = planned(rules, fragmented(rules), one(8, "u-9"))
    assert found == MovePlan()


def test_the_number_of_sets_that_are_tried_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(move_plans, "MOST_TRIED", 5)
    rules = make_rules(topology=SINGLE, memory=False)
    ledger = running(rules, *(one(1, f"u-{number}") for number in range(1, 8)))
    *tries, found = plan(rules, ledger, one(9, "u-9"))
    assert len(tries) == 5
    assert found is not None
    assert found.limited


@pytest.mark.parametrize(("most", "limited"), [(2, True), (3, False)])
def test_pods_that_do_not_allow_it_are_tried_up_to_a_limit(
    most: int, *, limited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(move_plans, "MOST_OTHERS", most)
    rules = make_rules(topology=SINGLE, memory=False)
    found = planned(rules, fragmented(rules, allow=""), one(4, "u-9"))
    assert found.limited is limited
    assert found.would_help == (("u-1", Movable.CPUS),)


def test_the_plan_that_moves_the_least_memory_is_taken() -> None:
    rules = make_rules(topology=SINGLE)
    # Each alone makes room, and both have two CPUs.
    ledger = running(
        rules, one(2, "u-1", memory="4Gi"), one(2, "u-2", memory="2Gi"), one(6, "u-3", "")
    )
    found = planned(rules, ledger, one(5, "u-9"))
    assert shown(found) == {"u-2": "3-4 to 14-15"}
    assert found.memory == 2 << 30


def test_defragmenting_stops_at_the_limit_of_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(move_plans, "MOST_TRIED", 1)
    rules = make_rules(topology=SINGLE)
    *tries, found = defragment(rules, fragmented(rules))
    assert found is not None
    assert (len(tries), shown(found), found.limited) == (1, {"u-1": "1-2 to 14-15"}, True)


def test_memory_that_leaves_is_that_of_a_budget_or_of_containers_that_leave() -> None:
    rules = make_rules(topology=SINGLE)
    budget = pod(
        app("own", guaranteed("cpu=2 memory=1Gi")),
        app("rest"),
        of_pod=guaranteed("cpu=3 memory=2Gi"),
        uid="u-1",
        annotations={MOVE: "memory"},
    )
    ledger = running(rules, budget, one(3, "u-2", ""), one(5, "u-3", ""))
    found = planned(rules, ledger, one(4, "u-9"))
    assert shown(found) == {"u-1": "1-3 to 13-15"}
    assert found.memory == 2 << 30


@pytest.mark.parametrize(
    ("cpus", "nodes", "expected"),
    [
        ("3-4", None, "cannot be aligned"),  # another pod has them
        ("0,6", None, "cannot be aligned"),  # one is reserved
        ("6", None, "cannot be aligned"),
        ("6-7,14", None, "would get"),  # more than it asks for
        ("14-15", None, ""),  # its memory stays behind
        ("6-7", "1", ""),
        ("6-7", "0-1", "would get"),
    ],
)
def test_what_cannot_be_is_rejected_as_an_admission_is(
    cpus: str, nodes: str | None, expected: str
) -> None:
    rules = make_rules(topology=SINGLE)
    ledger = fragmented(rules)
    assert expected in why_not(rules, ledger, move_to(ledger, "u-1", cpus, nodes)).message


def test_a_cordoned_cpu_is_no_place() -> None:
    rules = make_rules(topology=SINGLE)
    ledger = fragmented(rules)
    move = move_to(ledger, "u-1", "6-7")
    assert moved(rules, ledger, move).admitted
    cordoned = with_cordon(rules, Cordon(Mask.of(7)))
    assert not moved(cordoned, ledger, move).admitted
    # Cordoned reserved CPUs are as for an admission: the shared pool keeps one.
    cordoned = with_cordon(rules, Cordon(Mask.of(0)))
    assert moved(cordoned, ledger, move).admitted


def test_a_plan_whose_pod_is_elsewhere_by_now_is_rejected() -> None:
    rules = make_rules(topology=SINGLE)
    ledger = fragmented(rules)
    move = move_to(ledger, "u-1", "6-7")
    old = replace(move, before=PodSets(Mask.parse("4-5"), Mask.of(0)))
    found = why_not(rules, ledger, old)
    assert "has CPUs 1-2" in found.message
    assert found.remedy == "make a new plan"


def immovable(kind: str) -> tuple[EffectivePolicy, Ledger]:
    devices = {"example.com/gpu": (PluginDevice("a", Mask.of(0)),)}
    rules = make_rules(topology=SINGLE, devices=devices)
    if kind == "devices":
        asks = guaranteed("cpu=2 memory=1Gi example.com/gpu=1")
        return rules, running(rules, pod(app("main", asks), uid="u-1", annotations={MOVE: "cpus"}))
    ledger = running(rules, one(2, "u-1", "" if kind == "annotation" else "cpus"))
    if kind == "kubelet":
        ledger = ledger.with_source("u-1", Source(KUBELET))
    if kind == "specification":
        ledger = ledger.with_allocation(replace(ledger.allocations["u-1"], spec=""))
    return rules, ledger


@pytest.mark.parametrize("kind", ["annotation", "devices", "kubelet", "specification"])
def test_a_pod_that_does_not_move_says_why(kind: str) -> None:
    rules, ledger = immovable(kind)
    found = why_not(rules, ledger, move_to(ledger, "u-1", "3-4"))
    assert found.reason == "Infeasible"
    assert kind in (found.message + found.remedy)
    assert planned(rules, ledger, one(6, "u-9")).moves == ()


@pytest.mark.parametrize(
    ("pinned", "expected"), [(True, "other resources"), (False, "[memorymanager]")]
)
def test_under_another_policy_a_pod_keeps_the_kind_of_what_it_has(
    *, pinned: bool, expected: str
) -> None:
    rules, later = make_rules(memory=pinned), make_rules(memory=not pinned)
    ledger = restored(later, running(rules, one(2, "u-1")))
    assert expected in why_not(later, ledger, move_to(ledger, "u-1", "3-4")).message
    none = replace(later.policy, cpu=replace(later.policy.cpu, policy=CpuManagerPolicy.NONE))
    other = replace(rules, policy=replace(none, memory=rules.policy.memory))
    ledger = restored(other, running(rules, one(2, "u-1")))
    assert "other resources" in why_not(other, ledger, move_to(ledger, "u-1", "")).message


def test_no_quality_is_lost() -> None:
    rules = make_rules(SMT_HOST, NO_POLICY, memory=False)
    ledger = running(rules, one(2, "u-1"))
    assert sets_of(ledger.allocations["u-1"]).cpus == Mask.parse("1,9")
    found = why_not(rules, ledger, move_to(ledger, "u-1", "2-3"))
    assert "no longer be whole-cores" in found.message
    assert "aligned" in why_not(rules, ledger, move_to(ledger, "u-1", "2,4")).message
    assert moved(rules, ledger, move_to(ledger, "u-1", "2,10")).admitted


def test_idle_siblings_move_with_their_cores() -> None:
    rules = make_rules(SMT_HOST, SINGLE, memory=False, smt=IsolationMode.ASKED)
    asked = one(1, "u-1", **{isolation_annotation(SMT): "idle-siblings"})
    ledger = running(rules, asked)
    decision = moved(rules, ledger, move_to(ledger, "u-1", "3,11"))
    assert decision.allocation is not None
    assert (decision.allocation.containers[0].cpus, decision.allocation.idle) == (
        Mask.of(3),
        Mask.of(11),
    )
    assert "would get CPUs 3,11" in why_not(rules, ledger, move_to(ledger, "u-1", "3,4")).message


def test_a_pod_that_grew_shrinks_afterwards_to_its_new_cpus() -> None:
    rules = make_rules(topology=SINGLE)
    small = one(2, "u-1")
    ledger = running(rules, small, one(3, "u-2"))
    grown = resize(rules, ledger, with_amount(small, "main", "cpu", 2000))
    assert grown.admitted
    ledger = grown.ledger
    decision = moved(rules, ledger, move_to(ledger, "u-1", "6-7"))
    assert decision.allocation is not None
    assert decision.allocation.originals == {}


def test_slices_of_a_budget_come_along() -> None:
    rules = make_rules(topology=SINGLE)
    asked = pod(
        app("own", guaranteed("cpu=2 memory=1Gi")),
        app("rest"),
        of_pod=guaranteed("cpu=3 memory=2Gi"),
        uid="u-1",
        annotations={MOVE: "memory"},
    )
    ledger = running(rules, asked)
    decision = moved(rules, ledger, move_to(ledger, "u-1", "9-11", "1"))
    assert decision.allocation is not None
    assert {each.name: str(each.cpus) for each in decision.allocation.containers} == {
        "own": "9-10",
        "rest": "11",
    }
    assert str(decision.allocation.cpus) == "9-11"


@st.composite
def hosts(draw: st.DrawFn) -> tuple[EffectivePolicy, Ledger, Pod]:
    rules = make_rules(
        draw(st.sampled_from([SMT_HOST, make_rules().machine])),
        draw(st.sampled_from(list(TopologyManagerPolicy))),
        draw(st.sampled_from([CONTAINER, make_rules().policy.topology.scope])),
        memory=draw(st.booleans()),
        full_pcpus_only=draw(st.booleans()),
    )
    ledger = rules.empty_ledger()
    for number in range(draw(st.integers(2, 7))):
        allow = draw(st.sampled_from(["", "cpus", "memory", "memory"]))
        parts = [
            app(f"c{place}", guaranteed(f"cpu={draw(st.integers(1, 4))} memory=1Gi"))
            for place in range(draw(st.integers(1, 2)))
        ]
        if draw(st.booleans()):
            parts.insert(0, init("first", guaranteed("cpu=1 memory=1Gi")))
        asked = pod(*parts, uid=f"u-{number}", annotations={MOVE: allow} if allow else None)
        ledger = decided(rules, ledger, asked).ledger
    for number in range(0, 7, 3):
        ledger = remove(rules, ledger, f"u-{number}") if draw(st.booleans()) else ledger
    return rules, ledger, one(draw(st.integers(2, 7)), "u-9", require="")


@settings(deadline=None)
@given(hosts())
def test_a_plan_admits_its_pod_and_takes_nothing_from_anybody(
    drawn: tuple[EffectivePolicy, Ledger, Pod],
) -> None:
    rules, ledger, asked = drawn
    found = planned(rules, ledger, asked)
    for move in found.moves:
        before, has = ledger, exclusive_cpus(ledger)
        decision = moved(rules, ledger, move)
        assert decision == moved(rules, ledger, move)
        assert decision.allocation is not None, decision.rejection
        ledger = decision.ledger
        assert sets_of(decision.allocation) == move.after
        assert move.after.cpus.isdisjoint(has - move.before.cpus), "no CPU of another pod"
        # Each container has as many; what an init container shares with a later one may differ.
        had = before.allocations[move.uid].containers
        counts = [len(each.cpus or ()) for each in decision.allocation.containers]
        assert counts == [len(each.cpus or ()) for each in had]
        assert exclusive_cpus(ledger) == (has - move.before.cpus) | move.after.cpus
        assert list(ledger.allocations) == list(before.allocations)
        assert ledger.requests == before.requests
        assert invalid_allocations(rules, ledger) == ()
        back = moved(rules, ledger, Move(move.uid, move.after, move.before), Movable.MEMORY)
        if back.admitted:
            assert exclusive_cpus(back.ledger) == has, "what was free is free again"
    if found.allocation is not None:
        assert decided(rules, ledger, asked).allocation == found.allocation
    for uid in list(ledger.allocations):
        ledger = remove(rules, ledger, uid)
    assert exclusive_cpus(ledger) == EMPTY
    assert ledger.requests == {}


def defragmented(rules: EffectivePolicy, ledger: Ledger) -> tuple[Move, ...]:
    *_, found = defragment(rules, ledger)
    assert found is not None
    return found.moves


# Shows in differences.md: move
def test_moves_give_one_node_more_free_cpus() -> None:
    rules = make_rules(topology=SINGLE)
    # Two of seven CPUs are free on node 0, two of eight on node 1.
    ledger = fragmented(rules)
    [move] = defragmented(rules, ledger)
    assert (move.uid, str(move.before.cpus), str(move.after.cpus)) == ("u-1", "1-2", "14-15")
    after = moved(rules, ledger, move).ledger
    assert [free_cpus(rules, each).on_one_node for each in (ledger, after)] == [2, 4]
    assert defragmented(rules, after) == ()
    assert defragmented(rules, fragmented(rules, allow="")) == ()


@settings(deadline=None)
@given(drawn=hosts())
def test_defragmenting_never_leaves_a_node_less(
    drawn: tuple[EffectivePolicy, Ledger, Pod],
) -> None:
    rules, ledger, _ = drawn
    found = defragmented(rules, ledger)
    assert len({move.uid for move in found}) == len(found)
    for move in found:
        before = free_cpus(rules, ledger)
        decision = moved(rules, ledger, move)
        assert decision.resized
        ledger = decision.ledger
        assert free_cpus(rules, ledger).on_one_node > before.on_one_node
