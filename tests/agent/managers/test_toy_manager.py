"""A manager that no package knows takes part in every decision, by being registered alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.managers.admission import admit, remove
from agent.managers.allocation import Origin
from agent.managers.policy import NodeFit
from agent.managers.quality import invalid_allocations
from agent.managers.registry import MANAGERS
from agent.managers.rules import charged, restored
from agent.server.renumbering import renumbered
from agent.state.checkpoint import Checkpoint, decode, encode
from tests.agent.managers.drafts import rejected
from tests.agent.managers.hosts import CONTAINER, RESTRICTED, SINGLE, make_rules
from tests.agent.managers.test_invariants import EVERY_SEQUENCE, pods, rule_sets
from tests.agent.managers.toy_manager import LANE, LANE_GONE, ToyManager
from tests.agent.pods.pods import app, pod, resources

if TYPE_CHECKING:
    from agent.managers.decision import Decision
    from agent.managers.policy import TopologyManagerPolicy
    from agent.managers.resource_manager import Managers
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Pod


def rules(
    lanes: dict[int, int], topology: TopologyManagerPolicy = RESTRICTED, fit: NodeFit | None = None
) -> EffectivePolicy:
    known = make_rules(topology=topology, scope=CONTAINER, fit=fit)
    return replace(known, managers=(ToyManager(lanes), *MANAGERS))


def only(lanes: int, uid: str = "u-1") -> Pod:
    amounts = f"cpu=2 memory=1Gi {LANE}={lanes}"
    return pod(app("a", resources(amounts, amounts)), uid=uid)


def lanes_of(decision: Decision) -> object:
    assert decision.allocation is not None, decision.rejection
    return decision.allocation.containers[0].part("lanes")


def test_cpus_and_memory_follow_the_lanes_to_their_node() -> None:
    known = replace(make_rules(scope=CONTAINER), managers=(ToyManager({1: 2}, most=1), *MANAGERS))
    decision = admit(known, known.empty_ledger(), only(1))
    assert lanes_of(decision) == ["1.0"]
    assert decision.allocation is not None
    (container,) = decision.allocation.containers
    assert known.machine.cpus.nodes_of(container.cpus or known.machine.cpus.all).bits == 2
    assert container.mems.bits == 2
    assert decision.counters["toy_lanes_taken_total", ()] == 1
    # A manager may object to what all managers have allocated.
    message = rejected(known, only(1, "u-2"), decision.ledger).message
    assert message == "2 lanes would be taken, 1 may be"


def test_a_rejection_says_what_was_asked_and_what_is_free() -> None:
    rejection = rejected(rules({0: 1, 1: 1}, SINGLE), only(2))
    assert (rejection.resource, rejection.asked, rejection.free) == (LANE, 2, {0: 1, 1: 1})
    assert f"2 of {LANE} fits nowhere (free: node 0: 1, node 1: 1)" in rejection.message
    rejection = rejected(rules({0: 1, 1: 1}, fit=NodeFit()), only(3))
    assert (rejection.reason, rejection.asked) == (f"OutOf{LANE}", None)
    assert rejection.shortages[0].allocatable == 2


@pytest.mark.parametrize("others", [MANAGERS, ()])
def test_lanes_outlive_a_checkpoint_and_what_is_no_longer_there_is_reported(
    others: Managers,
) -> None:
    """Admission, draft and ledger know no resource by name: lanes may be all that there is."""
    known = replace(rules({1: 2}), managers=(ToyManager({1: 2}), *others))
    first = admit(known, known.empty_ledger(), only(2))
    assert lanes_of(first) == ["1.0", "1.1"]
    assert first.ledger.parts["lanes"] == {"1.0", "1.1"}
    rejection = rejected(known, only(1, "u-2"), first.ledger)
    assert (rejection.resource, rejection.asked, rejection.free) == (LANE, 1, {})
    saved = decode(encode(Checkpoint(first.ledger)), Path("checkpoint.json")).ledger
    assert restored(known, saved).parts == first.ledger.parts
    assert invalid_allocations(known, first.ledger) == ()
    fewer = replace(known, managers=(ToyManager({1: 1}), *others))
    (violation,) = invalid_allocations(fewer, restored(fewer, saved))
    assert (violation.rule, violation.container) == (LANE_GONE, "a")
    assert violation.message == "has lane 1.1, which is gone"
    moved = renumbered(known.managers, first.ledger, {0: 1, 1: 0})
    assert moved.allocations["u-1"].containers[0].part("lanes") == ["0.0", "0.1"]
    assert remove(known, first.ledger, "u-1") == known.empty_ledger()


def test_a_pod_recovered_from_cgroups_which_show_no_lanes_does_not_get_any() -> None:
    known = rules({1: 2})
    decided = admit(known, known.empty_ledger(), only(1))
    assert decided.allocation is not None
    (container,) = decided.allocation.containers
    bare = replace(container, others={})
    recovered = replace(
        decided.allocation, spec_digest="", origin=Origin.RECOVERED, containers=(bare,)
    )
    rejection = rejected(known, only(1), charged(known, decided.ledger, recovered))
    assert "it asks for lanes, which cgroups do not show" in rejection.message


@pytest.mark.parametrize("name", ["lanes", "cpu"])
def test_two_managers_of_one_name_are_a_mistake_of_the_build(name: str) -> None:
    other = ToyManager({0: 1})
    other.name = name
    with pytest.raises(ValueError, match=f"two resource managers called '{name}'"):
        replace(make_rules(), managers=(ToyManager({1: 1}), *MANAGERS, other))


@EVERY_SEQUENCE
@given(known=rule_sets(), asked=st.lists(pods(), min_size=1, max_size=4))
def test_a_manager_of_which_nothing_is_asked_changes_no_decision(
    known: EffectivePolicy, asked: list[Pod]
) -> None:
    more = replace(known, managers=(ToyManager({0: 2}), *known.managers))
    ledger, other = known.empty_ledger(), more.empty_ledger()
    for number, each in enumerate(asked):
        desired = replace(each, uid=f"u-{number}")
        decision, same = admit(known, ledger, desired), admit(more, other, desired)
        assert same.allocation == decision.allocation
        assert same.rejection == decision.rejection
        assert same.counters == decision.counters
        ledger, other = decision.ledger, same.ledger
    assert {**ledger.parts, "lanes": frozenset()} == other.parts
