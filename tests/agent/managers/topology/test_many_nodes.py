"""Covers are upward closed, and the search finds what looking at every set of nodes finds."""

from __future__ import annotations

from functools import reduce
from itertools import product
from math import prod
from operator import and_
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.managers.admission import admit, remove, start_container
from agent.managers.machine import Machine
from agent.managers.policy import PluginDevice, TopologyManagerPolicy, TopologyPolicy
from agent.managers.registry import MANAGERS
from agent.managers.rules import EffectivePolicy
from agent.managers.topology import hint
from agent.managers.topology.distances import Closest
from agent.managers.topology.hint import Hint, Order, SearchBudget, by_value, rank
from agent.managers.topology.many_nodes import (
    Cover,
    CoverDemand,
    HintFamily,
    Search,
    best_common,
    best_intersection,
    size_order,
    smallest,
)
from agent.managers.topology.merge import best_few, reachable_masks
from agent.pods.changes import without_annotation
from agent.pods.model import NUMA_POLICY
from sysfs.mask import Mask
from tests.agent.managers.test_invariants import machines, pods, rule_sets
from tests.agent.managers.topology.families import (
    covers,
    distances_of,
    hint_families,
    node_sets,
    some_of,
    subsets,
)
from tests.agent.managers.topology.merging import merge
from tests.agent.managers.topology.naive_merge import naive_merge
from tests.agent.pods.pods import guaranteed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agent.managers.decision import Decision
    from agent.managers.ledger import Ledger
    from agent.managers.topology.many_nodes import Hints, ProviderHints
    from agent.pods.model import Pod


FULL = (1 << 64) - 1


@st.composite
def families(draw: st.DrawFn, nodes: int) -> list[Cover]:
    return draw(st.lists(covers(nodes), min_size=1, max_size=3))


def outcomes(drawn: Sequence[Cover], pool: int) -> set[int]:
    """Return what one member of each family intersects to, within a pool, by trying all."""
    members = [[m for m in range(1, cover.domain + 1) if cover.holds(m)] for cover in drawn]
    return {reduce(and_, chosen, pool) for chosen in product(*members)} - {0}


@given(nodes=node_sets(most=4), data=st.data())
def test_all_sets_that_can_come_out_are_found_and_the_best_is_the_closest_then_the_lowest(
    nodes: int, data: st.DataObject
) -> None:
    drawn = data.draw(families(nodes))
    pool = reduce(and_, [cover.domain for cover in drawn])
    assume(pool)
    every = outcomes(drawn, pool)
    search = Search(drawn, pool, SearchBudget(), every=True)
    assert search.least() <= min(mask.bit_count() for mask in every)
    assert search.greedy(1) in every
    closest = Closest(data.draw(distances_of(nodes)))
    for size in range(1, pool.bit_count() + 2):
        sized = sorted(mask for mask in every if mask.bit_count() == size)
        assert size > pool.bit_count() or list(search.sets(size)) == sized
        for order in (by_value, closest):
            found = Search(drawn, pool, SearchBudget()).best(size, order)
            assert found == min(sized, key=order, default=None)


def test_interchangeable_nodes_are_tried_in_one_order_only() -> None:
    """Each demand alone could be met, both cannot: of 12,870 sets one for each mixture is tried."""
    even = CoverDemand.by_node(17, {node: 1 if node % 2 else 3 for node in range(16)})
    odd = CoverDemand.by_node(17, {node: 3 if node % 2 else 1 for node in range(16)})
    work = SearchBudget()
    assert Search([Cover(0xFFFF, (even, odd))], 0xFFFF, work).best(8, by_value) is None
    assert not work.exceeded


def test_without_work_nothing_is_found_and_one_pass_still_gives_a_member() -> None:
    cover = Cover(FULL, (CoverDemand.by_node(9, dict.fromkeys(range(64), 2)),))
    work = SearchBudget(left=3)
    search = Search([cover], FULL, work)
    assert search.best(5, by_value) is None
    assert work.exceeded
    assert search.greedy(5) == 0b11111


def test_nodes_of_a_place_of_several_are_ordered_beside_others() -> None:
    """Nodes with and without such a place were compared as a number with a tuple."""
    drawn = [Cover(15, (CoverDemand(0, ((1, 1),)),), 3), Cover(15, (CoverDemand(1, ((3, 1),)),))]
    search = Search(drawn, 15, SearchBudget(), every=True)
    found = {mask for size in range(1, 5) for mask in search.sets(size)}
    assert found == outcomes(drawn, 15)


@given(nodes=node_sets(), data=st.data())
def test_what_contains_a_member_is_a_member(nodes: int, data: st.DataObject) -> None:
    cover = data.draw(covers(nodes))
    member = data.draw(subsets(nodes))
    larger = (member | data.draw(subsets(nodes))) & cover.domain
    assert cover.holds(larger) or not cover.holds(member & cover.domain) or not larger
    assert cover.is_empty == (not any(map(cover.holds, range(nodes + 1))))


@given(nodes=node_sets(), data=st.data())
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
def test_the_best_few_are_those_of_its_list(nodes: int, data: st.DataObject, most: int) -> None:
    family = data.draw(hint_families(nodes))
    assert best_few(family, most) == best_few(list(family), most)


@given(nodes=node_sets(), data=st.data())
def test_the_best_that_contains_some_nodes_is_that_of_its_list(
    nodes: int, data: st.DataObject
) -> None:
    family = replace(data.draw(hint_families(nodes)), span=None)
    inside = data.draw(subsets(nodes))
    fitting = [hint for hint in family if not inside & ~(hint.nodes or 0)]
    assert family.best(SearchBudget(), inside) == min(fitting, key=rank, default=None)


@given(nodes=node_sets(most=6), data=st.data())
def test_the_smallest_set_is_found(nodes: int, data: st.DataObject) -> None:
    cover = data.draw(covers(nodes))
    sizes = [mask.bit_count() for mask in range(nodes + 1) if cover.holds(mask)]
    assert smallest(cover, SearchBudget()) == min(sizes, default=0)


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
    # Of sets that are not preferred the rules do not look at sockets, and they do not see where
    # whole cores of several sizes add up (docs/differences.md).
    options = rules.policy.cpu.options
    whole = options.full_pcpus_only and rules.machine.cpus.cores_alike
    options = replace(options, align_by_socket=False, full_pcpus_only=whole)
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
            # Memory as wide as the CPUs need is for listed hints alone.
            asked = without_annotation(data.draw(pods(f"u-{number}")), NUMA_POLICY)
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
        lists.setattr(hint, "MOST_LISTED", most)
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


#: Permutations that the naive merge tries within a moment.
_FEW = 20_000


@st.composite
def offers(draw: st.DrawFn, nodes: int) -> list[Hints]:
    """Draw the hints of one to four resources: by rules, by rules twice over, or listed."""
    families = draw(st.lists(hint_families(nodes), min_size=1, max_size=3))
    drawn: list[Hints] = [*families]
    if draw(st.booleans()):
        drawn.append(families[0])
    elif draw(st.booleans()):
        hint = st.builds(Hint, st.one_of(st.none(), some_of(nodes)), st.booleans())
        drawn.append(draw(st.lists(hint, min_size=1, max_size=3)))
    return drawn


@given(nodes=node_sets(), data=st.data())
def test_rules_merge_as_lists_do(nodes: int, data: st.DataObject) -> None:
    drawn = data.draw(offers(nodes))
    assume(prod(len(list(hints)) for hints in drawn) <= _FEW)
    policy = TopologyPolicy(
        data.draw(st.sampled_from(TopologyManagerPolicy)),
        prefer_closest_numa_nodes=data.draw(st.booleans()),
    )
    distances = data.draw(distances_of(nodes))
    by_rules: list[ProviderHints] = [{f"r{i}": hints} for i, hints in enumerate(drawn)]
    by_lists: list[ProviderHints] = [{f"r{i}": list(hints)} for i, hints in enumerate(drawn)]
    work = SearchBudget()
    merged = merge(nodes, distances, policy, by_rules, work)
    assert merged == naive_merge(nodes, distances, policy, by_lists)
    assert not work.exceeded


@given(nodes=node_sets(), data=st.data())
def test_without_any_budget_the_choice_is_one_of_those_that_can_be_made(
    nodes: int, data: st.DataObject
) -> None:
    drawn = data.draw(offers(nodes))
    desired = data.draw(st.integers(1, 4))
    work = SearchBudget(left=0)
    chosen = best_intersection(drawn, nodes, desired, by_value, work)
    reachable = reachable_masks([list(hints) for hints in drawn], nodes)
    assert chosen in reachable if reachable else chosen is None


def capacity(nodes: int, amount: int, need: int, fewest: int) -> HintFamily:
    """Return hints of a resource of which every one of the nodes has the same amount."""
    demand = CoverDemand.by_node(need, dict.fromkeys(range(nodes), amount))
    return HintFamily((), Cover((1 << nodes) - 1, (demand,)), fewest)


def test_sixty_four_nodes_are_no_more_work_than_four() -> None:
    nodes = (1 << 64) - 1
    families = [capacity(64, 10, 25, 3), capacity(64, 7, 20, 3)]
    work = SearchBudget()
    assert best_common(families, nodes, Order(by_value), work) == 0b111
    families[1] = capacity(64, 7, 30, 5)
    assert best_common(families, nodes, Order(by_value), work) is None
    assert best_intersection(families, nodes, 5, by_value, work) == 0b11111
    assert not work.exceeded
    assert SearchBudget().left - work.left < 500


@given(nodes=node_sets(), data=st.data())
def test_sets_on_few_sockets_come_first_where_sockets_count(
    nodes: int, data: st.DataObject
) -> None:
    families = data.draw(st.lists(hint_families(nodes), min_size=1, max_size=3))
    spanned = [family.span for family in families if family.span is not None]

    def key(mask: int) -> tuple[bool, int, int]:
        return not all(span.met_by(mask) for span in spanned), mask.bit_count(), mask

    preferred = (
        mask
        for mask in range(1, nodes + 1)
        if not mask & ~nodes and all(family.prefers(mask) for family in families)
    )
    work = SearchBudget()
    order = Order(by_value, sockets=lambda _: (0,))
    assert best_common(families, nodes, order, work) == min(preferred, key=key, default=None)
    assert not work.exceeded


def uneven(nodes: int, resources: int, desired: int) -> HintFamily:
    """Return hints for amounts that differ on every node, nearly too much work to search."""
    needs = []
    for resource in range(1, resources + 1):
        amounts = {node: pow(node + 7, resource + 2, 1_000_003) for node in range(nodes)}
        most = sum(sorted(amounts.values())[-desired:])
        needs.append(CoverDemand.by_node(most * 8 // 10, amounts))
    return HintFamily((), Cover((1 << nodes) - 1, tuple(needs)), desired)


def test_a_choice_that_takes_too_much_work_is_valid_and_says_so() -> None:
    family, nodes = uneven(40, 5, 20), (1 << 40) - 1
    work = SearchBudget()
    assert best_common([family], nodes, Order(by_value), work) is None
    assert work.exceeded
    chosen = best_intersection([family], nodes, 20, by_value, work)
    assert chosen is not None
    assert family.holds(chosen)


def test_the_desired_number_of_nodes_is_best_then_fewer_then_more() -> None:
    assert sorted(range(1, 6), key=lambda count: size_order(count, 3)) == [3, 2, 1, 4, 5]


def test_steps_are_taken_until_none_is_left_and_what_was_exceeded_stays_so() -> None:
    work = SearchBudget(left=3)
    assert work.take(2)
    assert not work.take(2)
    assert work.take()
    assert (work.exceeded, work.left) == (True, 0)
