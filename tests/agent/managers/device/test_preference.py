"""What device plugins prefer: where they are asked, and what becomes of their answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.managers.admission import SuspendedDecision, admit
from agent.managers.decision import Answers, Question
from agent.managers.device.manager import assign_devices
from agent.managers.policy import PluginDevice
from agent.managers.topology.hint import Hint
from sysfs.mask import Mask
from tests.agent.managers.hosts import BEST_EFFORT, CONTAINER, PLAIN, make_rules
from tests.agent.managers.test_invariants import EVERY_SEQUENCE, GPU, pods, rule_sets
from tests.agent.pods.pods import app, guaranteed, init, pod

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.managers.decision import Decision
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Pod

NIC: Final = "example.com/nic"
#: Four devices on node 0, two on node 1, one without a known node.
DEVICES: Final = (
    *[PluginDevice(name, Mask.of(0)) for name in "abcd"],
    *[PluginDevice(name, Mask.of(1)) for name in "ef"],
    PluginDevice("g"),
)
ON_0: Final = Hint(0b01, preferred=True)


def preferring(devices: Mapping[str, tuple[PluginDevice, ...]], *resources: str) -> EffectivePolicy:
    rules = make_rules(PLAIN, BEST_EFFORT, CONTAINER, devices=devices)
    policy = replace(rules.policy, preferring=frozenset(resources or devices))
    return replace(rules, policy=policy)


NONE: Final[frozenset[str]] = frozenset()


@pytest.mark.parametrize(
    ("answer", "count", "reusable", "asked", "assigned"),
    [
        pytest.param("cd", 2, "", ("abcd", "", 2), "cd", id="on the hint's nodes"),
        pytest.param("de", 2, "e", ("abcde", "e", 2), "de", id="of ended init containers"),
        pytest.param("g", 5, "", ("abcdefg", "abcd", 5), "abcdg", id="nodes that do not suffice"),
        pytest.param("", 4, "", None, "abcd", id="without a choice nothing is asked"),
        pytest.param("", 7, "", None, "abcdefg", id="nor where all are needed"),
        pytest.param("", 1, "e", None, "e", id="nor where init containers left enough"),
        # Of an answer that does not fit only what fits is used, of one too long the lowest ids.
        pytest.param("", 2, "", ("abcd", "", 2), "ab", id="no answer"),
        pytest.param("d", 2, "", ("abcd", "", 2), "ad", id="too short"),
        pytest.param("xy", 2, "", ("abcd", "", 2), "ab", id="unknown ids"),
        pytest.param("dd", 2, "", ("abcd", "", 2), "ad", id="one id twice"),
        pytest.param("ec", 2, "", ("abcd", "", 2), "ac", id="of another node"),
        pytest.param("dcb", 2, "", ("abcd", "", 2), "bc", id="too long"),
    ],
)
def test_a_plugin_chooses_where_there_is_a_choice(
    answer: str, count: int, reusable: str, asked: tuple[str, str, int] | None, assigned: str
) -> None:
    noted: list[tuple[str, str, int]] = []

    def prefer(available: frozenset[str], required: frozenset[str], size: int) -> tuple[str, ...]:
        noted.append(("".join(sorted(available)), "".join(sorted(required)), size))
        return tuple(answer)

    left = frozenset(reusable)
    assert "".join(assign_devices(GPU, DEVICES, count, ON_0, left, left, prefer)) == assigned
    assert noted == ([] if asked is None else [asked])


def outcome(rules: EffectivePolicy, asked: Pod, answers: Answers) -> Decision:
    """Decide with these answers; questions without one get no preference."""
    decision = admit(rules, rules.empty_ledger(), asked)
    for _ in range(64):
        if decision.suspended is None:
            return decision
        questions = decision.suspended.questions
        decision = decision.suspended.resume({each: answers.get(each, ()) for each in questions})
    raise AssertionError("the decision asks for ever")


def test_one_suspended_decision_has_the_questions_of_all_resources_of_a_container() -> None:
    rules = preferring({GPU: DEVICES, NIC: DEVICES})
    both = pod(app("main", guaranteed(f"cpu=1 memory=1Gi {GPU}=1 {NIC}=2")))
    suspended = admit(rules, rules.empty_ledger(), both).suspended
    assert suspended is not None
    node = frozenset("abcd")
    assert set(suspended.questions) == {Question(GPU, node, NONE, 1), Question(NIC, node, NONE, 2)}


def test_the_answers_decide_which_devices_a_container_gets() -> None:
    rules = preferring({GPU: DEVICES, NIC: DEVICES}, GPU)
    both = pod(app("main", guaranteed(f"cpu=1 memory=1Gi {GPU}=1 {NIC}=2")))
    decision = outcome(rules, both, {Question(GPU, frozenset("abcd"), NONE, 1): ("d",)})
    assert decision.allocation is not None
    assert dict(decision.allocation.containers[0].devices) == {GPU: ("d",), NIC: ("a", "b")}


def test_an_init_containers_preferred_devices_are_required_for_the_next_container() -> None:
    rules = preferring({GPU: DEVICES})
    asked = pod(
        init("first", guaranteed(f"cpu=1 memory=1Gi {GPU}=1")),
        app("main", guaranteed(f"cpu=1 memory=1Gi {GPU}=2")),
    )
    first = Question(GPU, frozenset("abcd"), NONE, 1)
    second = Question(GPU, frozenset("abcd"), frozenset("c"), 2)
    decision = outcome(rules, asked, {first: ("c",), second: ("c", "d")})
    assert decision.allocation is not None
    assert [dict(each.devices) for each in decision.allocation.containers] == [
        {GPU: ("c",)},
        {GPU: ("c", "d")},
    ]


@EVERY_SEQUENCE
@given(rules=rule_sets(), asked=pods("u-1"), data=st.data())
def test_a_resumed_decision_is_the_one_that_knows_the_answers_from_the_start(
    rules: EffectivePolicy, asked: Pod, data: st.DataObject
) -> None:
    rules = replace(rules, policy=replace(rules.policy, preferring=frozenset({GPU})))
    answers: dict[Question, tuple[str, ...]] = {}
    decision = admit(rules, rules.empty_ledger(), asked)
    first = decision.suspended
    while decision.suspended is not None:
        for question in decision.suspended.questions:
            assert question not in answers, "what was answered is not asked again"
            ids = st.lists(st.sampled_from(sorted(question.available)), unique=True)
            answers[question] = tuple(data.draw(ids))
        decision = decision.suspended.resume(answers)
    if first is not None:
        assert isinstance(first, SuspendedDecision)
        again = replace(first, traces=(), works=()).resume(answers)
        assert (again.allocation, again.rejection) == (decision.allocation, decision.rejection)
        assert (again.ledger, again.counters) == (decision.ledger, decision.counters)


@EVERY_SEQUENCE
@given(rules=rule_sets(), asked=pods("u-1"))
def test_a_plugin_without_a_preference_changes_no_decision(
    rules: EffectivePolicy, asked: Pod
) -> None:
    plain = admit(rules, rules.empty_ledger(), asked)
    with_plugin = replace(rules, policy=replace(rules.policy, preferring=frozenset({GPU})))
    decision = outcome(with_plugin, asked, {})
    assert decision.allocation == plain.allocation
    assert decision.rejection == plain.rejection
    assert decision.counters == plain.counters
