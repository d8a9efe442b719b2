"""A family of hints answers every query as the list of its hints would."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.managers.admission import admit, remove, start_container
from agent.managers.machine import Machine
from agent.managers.policy import PluginDevice
from agent.managers.registry import MANAGERS
from agent.managers.rules import EffectivePolicy
from agent.managers.topology import many_nodes
from agent.managers.topology.hint import Hint, SearchBudget
from agent.managers.topology.many_nodes import (
    Cover,
    CoverDemand,
    HintFamily,
    best_few,
    is_listed,
    rank,
    smallest,
)
from sysfs.mask import Mask, iter_bits
from tests.agent.managers.test_invariants import machines, pods, rule_sets
from tests.agent.managers.topology.families import covers, hint_families, node_sets, subsets
from tests.agent.pods.pods import guaranteed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.managers.decision import Decision
    from agent.managers.ledger import Ledger
    from agent.managers.topology.many_nodes import ProviderHints
    from agent.pods.model import Pod


@given(nodes=node_sets(), data=st.data())
@settings(max_examples=200, deadline=None)
def test_it_answers_as_its_list_does(nodes: int, data: st.DataObject) -> None:
    family = data.draw(hint_families(nodes))
    hints = list(family)
    masks = [hint.nodes or 0 for hint in hints]
    assert bool(family) == bool(hints)
    assert family.narrowest(SearchBudget()) == min(mask.bit_count() for mask in masks)
    assert family.single_nodes() == [h for h in hints if (h.nodes or 0).bit_count() == 1]
    mask = data.draw(subsets(nodes))
    assert family.holds(mask) == (mask in masks)
    assert family.prefers(mask) == (Hint(mask, preferred=True) in hints)


@given(nodes=node_sets(), data=st.data(), most=st.integers(1, 6))
@settings(max_examples=200, deadline=None)
def test_the_best_few_are_those_of_its_list(nodes: int, data: st.DataObject, most: int) -> None:
    family = data.draw(hint_families(nodes))
    assert best_few(family, most) == best_few(list(family), most)


@given(nodes=node_sets(), data=st.data())
@settings(max_examples=200, deadline=None)
def test_the_best_that_contains_some_nodes_is_that_of_its_list(
    nodes: int, data: st.DataObject
) -> None:
    family = replace(data.draw(hint_families(nodes)), span=None)
    inside = data.draw(subsets(nodes))
    fitting = [hint for hint in family if not inside & ~(hint.nodes or 0)]
    assert family.best(SearchBudget(), inside) == min(fitting, key=rank, default=None)


@given(nodes=node_sets(most=6), data=st.data())
@settings(max_examples=200, deadline=None)
def test_the_smallest_set_is_found(nodes: int, data: st.DataObject) -> None:
    cover = data.draw(covers(nodes))
    sizes = [mask.bit_count() for mask in range(nodes + 1) if cover.holds(mask)]
    assert smallest(cover, SearchBudget()) == min(sizes, default=0)


def test_a_family_that_nothing_meets_has_no_smallest_set() -> None:
    assert smallest(Cover(0b11, (CoverDemand(3, ((0b01, 1), (0b10, 1))),)), SearchBudget()) == 0


def test_an_answer_that_was_found_before_still_says_that_the_budget_was_exceeded() -> None:
    hard = {node: 7919 * (node + 11) % 104_729 for node in range(60)}
    half = sum(hard.values()) // 2 + 1
    other = {node: 104_729 - weight for node, weight in hard.items()}
    third = {node: weight * weight % 104_729 for node, weight in hard.items()}
    needs = (
        CoverDemand.by_node(half, hard),
        CoverDemand.by_node(sum(other.values()) // 2 + 1, other),
        CoverDemand.by_node(sum(third.values()) // 2 + 1, third),
    )
    first, second = SearchBudget(), SearchBudget()
    cover = Cover((1 << 60) - 1, needs)
    assert smallest(cover, first) == smallest(cover, second)
    assert first.exceeded == second.exceeded


def test_eight_nodes_are_listed_and_nine_are_not() -> None:
    assert is_listed((1 << 8) - 1)
    assert not is_listed((1 << 9) - 1)


#: With CPUs, memory and small pages these are six resources.
MORE = ("gpu", "nic", "hugepages-1Gi")


@pytest.fixture(scope="module")
def lists() -> Iterator[pytest.MonkeyPatch]:
    """Let a test choose whether hints are listed."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@st.composite
def rules_with_devices(draw: st.DrawFn) -> EffectivePolicy:
    """Draw rules as for every sequence, with devices, large pages and closest nodes besides."""
    machine = draw(machines().filter(lambda machine: len(machine.nodes) <= 6))
    large = [draw(st.integers(0, 2)) for _ in machine.nodes]
    with_pages = (
        replace(node, hugepages={**node.hugepages, 1 << 30: pages})
        for node, pages in zip(machine.nodes, large, strict=True)
    )
    rules = draw(rule_sets(Machine(machine.cpus, tuple(with_pages))))
    nodes = [node.id for node in rules.machine.nodes]
    places = st.sets(st.sampled_from(nodes), max_size=2).map(Mask.from_ids)
    devices = {
        name: tuple(
            PluginDevice(f"{name}-{number}", draw(places), draw(st.integers(0, 4)) > 0)
            for number in range(draw(st.integers(1, 4)))
        )
        for name in ("gpu", "nic")
    }
    topology = replace(rules.policy.topology, prefer_closest_numa_nodes=draw(st.booleans()))
    # Of sets that are not preferred the rules do not look at sockets (docs/differences.md).
    options = replace(rules.policy.cpu.options, align_by_socket=False)
    cpu = replace(rules.policy.cpu, options=options)
    policy = replace(rules.policy, cpu=cpu, topology=topology, devices=devices)
    return EffectivePolicy(rules.machine, policy, MANAGERS)


def with_more(asked: Pod, desired: dict[str, int]) -> Pod:
    """Return a pod whose first app asks for devices and large pages as well."""
    first = asked.containers[0]
    devices = guaranteed(" ".join(f"{name}={count}" for name, count in desired.items()))
    limits = {**first.resources.limits, **devices.limits}
    requests = {**first.resources.requests, **devices.requests}
    resources = replace(first.resources, limits=limits, requests=requests)
    return replace(asked, containers=(replace(first, resources=resources), *asked.containers[1:]))


@given(rules=rules_with_devices(), data=st.data())
@settings(max_examples=200, deadline=None)
def test_whole_admissions_are_the_same_by_rules_as_by_lists(
    lists: pytest.MonkeyPatch, rules: EffectivePolicy, data: st.DataObject
) -> None:
    ledger = rules.empty_ledger()
    for number in range(data.draw(st.integers(1, 8))):
        step = data.draw(st.sampled_from(["admit", "admit", "admit", "remove", "start"]))
        if step == "admit":
            desired = data.draw(st.dictionaries(st.sampled_from(MORE), st.integers(1, 3)))
            desired = {
                name: count << 30 * (name not in ("gpu", "nic")) for name, count in desired.items()
            }
            asked = data.draw(pods(f"u-{number}"))
            ledger = _admitted(
                lists, rules, ledger, with_more(asked, desired) if desired else asked
            )
        elif ledger.allocations:
            uid = data.draw(st.sampled_from(sorted(ledger.allocations)))
            names = [container.name for container in ledger.allocations[uid].containers]
            if step == "remove":
                ledger = remove(rules, ledger, uid)
            else:
                ledger = start_container(rules, ledger, uid, data.draw(st.sampled_from(names)))


def _admitted(
    lists: pytest.MonkeyPatch, rules: EffectivePolicy, ledger: Ledger, asked: Pod
) -> Ledger:
    answers: list[Decision] = []
    for most in (8, 0):
        lists.setattr(many_nodes, "MOST_LISTED", most)
        answers.append(admit(rules, ledger, asked))
    by_lists, by_rules = answers
    assert by_rules.allocation == by_lists.allocation
    assert by_rules.rejection == by_lists.rejection
    assert by_rules.ledger == by_lists.ledger
    assert by_rules.counters == by_lists.counters
    for ours, theirs in zip(by_rules.hints, by_lists.hints, strict=True):
        for (_, implicit), (_, written) in zip(ours.providers, theirs.providers, strict=True):
            assert _in_full(implicit) == _in_full(written)
    return by_rules.ledger


def _in_full(offered: ProviderHints) -> dict[str, list[Hint] | None]:
    return {name: None if hints is None else list(hints) for name, hints in offered.items()}


def test_what_it_stands_for_is_listed_in_the_kubelets_order() -> None:
    three = HintFamily((1,), Cover(0b111, (CoverDemand(2, ((1, 1), (2, 1), (4, 1))),)), 1)
    assert [tuple(iter_bits(hint.nodes or 0)) for hint in three] == [
        (0,),
        (0, 1),
        (0, 2),
        (1, 2),
        (0, 1, 2),
    ]
