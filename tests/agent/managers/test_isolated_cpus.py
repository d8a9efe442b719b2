"""`agent.isolatedCPUs`: exclusive CPUs come from those of isolcpus first, shared ones never."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.managers.admission import admit
from agent.managers.capacity import free_cpus
from agent.managers.cpu.manager import exclusive_cpus, shared_cpus, shared_pool
from agent.managers.moves import Move, moved, sets_of
from agent.managers.policy import IsolcpusUse, PluginDevice
from agent.managers.resize import resize
from agent.pods.model import Movable
from sysfs.mask import Mask
from tests.agent.managers.drafts import allocated, with_pod
from tests.agent.managers.hosts import BEST_EFFORT, CONTAINER, SINGLE, SMT, make_rules
from tests.agent.managers.test_invariants import EVERY_SEQUENCE, GPU, pods, rule_sets
from tests.agent.pods.pods import app, guaranteed, pod

if TYPE_CHECKING:
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Pod


def isolating(
    rules: EffectivePolicy, cpus: str, isolated_for: IsolcpusUse = IsolcpusUse.EXCLUSIVE
) -> EffectivePolicy:
    cpu = replace(rules.policy.cpu, isolated=Mask.parse(cpus), isolated_for=isolated_for)
    return replace(rules, policy=replace(rules.policy, cpu=cpu))


def own(cpus: int, uid: str = "u-1", more: str = "") -> Pod:
    return pod(app("main", guaranteed(f"cpu={cpus} memory=1Gi {more}".strip())), uid=uid)


RULES: Final = isolating(make_rules(topology=BEST_EFFORT), "4-6,12-15")


# Shows in differences.md: isolated-cpus
@pytest.mark.parametrize(
    ("cpus", "expected"), [(1, "4"), (3, "4-6"), (4, "12-15"), (5, "4-6,12-13"), (8, "8-15")]
)
def test_exclusive_cpus_are_isolated_ones_where_these_suffice(cpus: int, expected: str) -> None:
    assert allocated(RULES, own(cpus)).exclusive_cpus == Mask.parse(expected)


def test_the_kubelets_choice_stays_where_they_are_ignored() -> None:
    ignoring = isolating(make_rules(topology=BEST_EFFORT), "4-6,12-15", IsolcpusUse.IGNORED)
    found = allocated(ignoring, own(2)).exclusive_cpus
    assert found == allocated(make_rules(topology=BEST_EFFORT), own(2)).exclusive_cpus
    assert shared_pool(ignoring, ignoring.empty_ledger()) == ignoring.machine.cpus.all


def test_the_shared_pool_has_none_of_them_and_what_is_free_counts_them() -> None:
    empty = RULES.empty_ledger()
    assert shared_pool(RULES, empty) == Mask.parse("0-3,7-11")
    assert free_cpus(RULES, empty) == free_cpus(make_rules(topology=BEST_EFFORT), empty)
    ledger = with_pod(RULES, own(15))
    assert (shared_pool(RULES, ledger), shared_cpus(RULES, ledger)) == (Mask.of(0), Mask.of(0))


def test_alignment_comes_before_isolation_where_the_policy_demands_it() -> None:
    rules = isolating(make_rules(topology=SINGLE), "6-9")
    assert allocated(rules, own(2)).exclusive_cpus == Mask.parse("6-7")
    assert allocated(rules, own(3)).exclusive_cpus == Mask.parse("1-3")
    devices = {GPU: (PluginDevice("d", Mask.of(1)),)}
    beside = isolating(make_rules(topology=SINGLE, devices=devices), "6-7")
    assert allocated(beside, own(2, more=f"{GPU}=1")).exclusive_cpus == Mask.parse("8-9")


# A pod that is on one node stays on one: 6 and 12 are not.
@pytest.mark.parametrize(("cpus", "admitted"), [("6-7", True), ("2-3", True), ("6,12", False)])
def test_a_pod_moves_to_the_named_cpus_whichever_are_isolated(cpus: str, *, admitted: bool) -> None:
    ledger = with_pod(RULES, own(2))
    before = sets_of(ledger.allocations["u-1"])
    assert before.cpus == Mask.parse("4-5")
    move = Move("u-1", before, replace(before, cpus=Mask.parse(cpus)))
    found = moved(RULES, ledger, move, Movable.MEMORY)
    assert found.admitted == admitted
    cpus_now = found.ledger.allocations["u-1"].exclusive_cpus
    assert cpus_now == (move.after if admitted else before).cpus


def test_whole_cores_are_isolated_ones() -> None:
    """Siblings are n and n + 8: of core 3 one thread is isolated, of core 2 both are."""
    rules = make_rules(SMT, BEST_EFFORT, full_pcpus_only=True)
    assert allocated(isolating(rules, "2-3,10"), own(2)).exclusive_cpus == Mask.parse("2,10")
    assert allocated(isolating(rules, "3"), own(2)).exclusive_cpus == Mask.parse("1,9")


@pytest.mark.parametrize(
    ("others", "cpus", "after"),
    [
        # (CPUs of another pod, what the pod on 4-5 grows to, what it has then)
        (0, 3, "4-6"),
        # Where these do not suffice on its node, any on its node; where none do, any.
        (0, 5, "1-5"),
        (0, 7, "1-7"),
        (0, 8, "1-8"),
        # With CPUs 1-3 and 8-11 gone.
        (7, 4, "4-7"),
        (7, 6, "4-6,12-14"),
    ],
)
def test_a_resize_grows_into_them_on_its_own_node_first(others: int, cpus: int, after: str) -> None:
    ledger = with_pod(RULES, own(2))
    if others:
        ledger = with_pod(RULES.on(Mask.parse("1-3,8-11")), own(others, "u-2"), ledger)
    grown = resize(RULES, ledger, own(cpus)).allocation
    assert grown is not None
    assert grown.exclusive_cpus == Mask.parse(after)


def test_a_decision_that_asks_a_plugin_keeps_to_them() -> None:
    devices = tuple(PluginDevice(name, Mask.of(1)) for name in "ab")
    rules = make_rules(topology=BEST_EFFORT, scope=CONTAINER, devices={GPU: devices})
    rules = isolating(rules, "12-15")
    rules = replace(rules, policy=replace(rules.policy, preferring=frozenset({GPU})))
    decision = admit(rules, rules.empty_ledger(), own(2, more=f"{GPU}=1"))
    while decision.suspended is not None:
        answers = dict.fromkeys(decision.suspended.questions, ("b",))
        decision = decision.suspended.resume(answers)
    assert decision.allocation is not None
    assert decision.allocation.exclusive_cpus == Mask.parse("12-13")
    assert decision.allocation.containers[0].devices == {GPU: ("b",)}


def test_an_admission_says_that_threads_stay_where_they_start() -> None:
    for rules in (RULES, isolating(make_rules(), "1-2", IsolcpusUse.IGNORED)):
        [warning] = admit(rules, rules.empty_ledger(), own(2)).warnings
        assert "of isolcpus, over which the kernel spreads no threads" in warning
        assert admit(rules, rules.empty_ledger(), own(1)).warnings == ()


@given(drawn=rule_sets(), data=st.data())
@EVERY_SEQUENCE
def test_whatever_comes_they_are_no_shared_cpus_and_no_pod_more_is_rejected(
    drawn: EffectivePolicy, data: st.DataObject
) -> None:
    cpus = list(drawn.machine.cpus.all)
    isolated = Mask.from_ids(data.draw(st.sets(st.sampled_from(cpus))))
    rules = isolating(drawn, str(isolated))
    ledger = rules.empty_ledger()
    for number in range(data.draw(st.integers(1, 4))):
        asked = data.draw(pods(f"u-{number}"))
        plain = admit(drawn, ledger, asked)
        decision = admit(rules, ledger, asked)
        assert decision.admitted or not plain.admitted
        assert decision == admit(rules, ledger, asked)
        ledger = decision.ledger
        shared = shared_pool(rules, ledger)
        assert not shared & (isolated | exclusive_cpus(ledger))
        assert shared_cpus(rules, ledger)
