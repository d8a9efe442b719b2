"""Who shares the CPUs of a pod with whom, and what of its budget nobody uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.managers.admission import admit
from agent.managers.allocation import ContainerAllocation, Isolation, Origin, PodAllocation
from agent.managers.sharing import (
    NAMED,
    Share,
    Sharing,
    UnusedBudget,
    is_specified,
    shares,
    unused_budget,
)
from agent.pods.model import CPU, ContainerKind, QosClass
from sysfs.mask import EMPTY, Mask
from tests.agent.managers.drafts import allocated
from tests.agent.managers.hosts import GIB, make_rules
from tests.agent.managers.test_invariants import EVERY_SEQUENCE, pods, rule_sets
from tests.agent.pods.pods import app, guaranteed, init, pod, sidecar

if TYPE_CHECKING:
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Pod

TWO = guaranteed("cpu=2 memory=1Gi")
BUDGET = guaranteed("cpu=4 memory=4Gi")
THREE = guaranteed("cpu=3 memory=1Gi")


def imported(*containers: ContainerAllocation) -> PodAllocation:
    """Return an allocation of which no specification is known."""
    return PodAllocation("u", "", "", QosClass.GUARANTEED, "", containers, origin=Origin.IMPORTED)


def having(cpus: str | None, why: str = "") -> ContainerAllocation:
    isolation = Isolation.HOST if cpus is None else Isolation.CONTAINER
    mask = None if cpus is None else Mask.parse(cpus)
    return ContainerAllocation("a", ContainerKind.APP, isolation, mask, why=why)


def test_a_shared_init_container_bursts_over_the_budget_and_is_in_no_pool() -> None:
    asked = pod(init("i"), app("a", TWO), app("b"), of_pod=BUDGET)
    found = [share.sharing for share in shares(allocated(make_rules(), asked))]
    assert found == [Sharing.BUDGET, Sharing.OWN, Sharing.POD]


# Shows in differences.md: init-after-sidecar
def test_an_exclusive_init_container_meets_the_shared_sidecar_before_it() -> None:
    """KEP-5526 gives the sidecar the final pool from its start."""
    asked = pod(sidecar("s"), init("i", THREE), app("a", TWO), of_pod=BUDGET)
    allocation = allocated(make_rules(), asked)
    by_name = {c.name: c.cpus for c in allocation.containers}
    assert by_name == {"s": Mask.parse("3-4"), "i": Mask.parse("1-3"), "a": Mask.parse("1-2")}
    assert shares(allocation) == (
        Share(Sharing.POD),
        Share(Sharing.OVERLAPPING, Mask.of(3), ("s",)),
        Share(Sharing.OWN),
    )


def test_no_more_than_a_few_of_those_who_meet_are_named() -> None:
    many = [sidecar(f"s{number}") for number in range(NAMED + 3)]
    asked = pod(*many, init("i", THREE), app("a", TWO), of_pod=BUDGET)
    share = shares(allocated(make_rules(), asked))[len(many)]
    assert share.others == tuple(f"s{number}" for number in range(NAMED))


@pytest.mark.parametrize(
    ("cpus", "sharing"),
    [
        (("1-2", "3", None), (Sharing.OWN, Sharing.OWN, Sharing.NODE)),
        (("1-2", "2", "3"), (Sharing.UNKNOWN, Sharing.UNKNOWN, Sharing.OWN)),
    ],
)
def test_what_two_containers_of_an_imported_pod_hold_may_be_in_turn_or_shared(
    cpus: tuple[str | None, ...], sharing: tuple[Sharing, ...]
) -> None:
    allocation = imported(*map(having, cpus))
    assert not is_specified(allocation)
    assert tuple(share.sharing for share in shares(allocation)) == sharing


def test_a_reason_stands_for_a_specification_before_it_has_a_digest() -> None:
    """A pod that was imported together with its manifest."""
    allocation = replace(imported(having("1-2", why="Guaranteed")), cpus=Mask.parse("1-2"))
    assert is_specified(allocation)
    assert shares(allocation) == (Share(Sharing.OWN),)


def met(allocation: PodAllocation, place: int) -> Mask:
    """Return which of a container's CPUs any other may use while it runs, moment by moment."""
    places = range(len(allocation.containers))
    kinds = [container.kind for container in allocation.containers]
    moments = [
        [p for p in places if p == now or (p < now and kinds[p] is ContainerKind.SIDECAR)]
        for now in places
        if kinds[now] is not ContainerKind.APP
    ]
    moments.append([p for p in places if kinds[p] is not ContainerKind.INIT])
    used = [container.cpus or EMPTY for container in allocation.containers]
    found = EMPTY
    for other in {p for running in moments if place in running for p in running} - {place}:
        found |= used[place] & used[other]
    return found


KINDS = st.sampled_from(ContainerKind)
SETS = st.sets(st.integers(0, 5), min_size=1, max_size=3)


@given(rows=st.lists(st.tuples(KINDS, SETS, st.booleans()), min_size=1, max_size=6))
@settings(derandomize=True)
def test_own_is_said_exactly_where_no_other_container_may_run_on_it(
    rows: list[tuple[ContainerKind, set[int], bool]],
) -> None:
    """Whatever is mask, also what no decision would give."""
    order = sorted(rows, key=lambda row: row[0] is ContainerKind.APP)
    containers = tuple(
        ContainerAllocation(
            str(place), kind, Isolation.CONTAINER if alone else Isolation.POD, Mask.from_ids(cpus)
        )
        for place, (kind, cpus, alone) in enumerate(order)
    )
    allocation = PodAllocation("u", "p", "n", QosClass.GUARANTEED, "digest", containers)
    for place, share in enumerate(shares(allocation)):
        alone = containers[place].isolation is Isolation.CONTAINER
        assert (share.sharing is Sharing.OWN) is (alone and not met(allocation, place))
        assert share.cpus == (met(allocation, place) if alone else EMPTY)


@given(rules=rule_sets(), asked=pods("u-1"))
@EVERY_SEQUENCE
def test_of_what_is_admitted_only_init_containers_ever_meet_another(
    rules: EffectivePolicy, asked: Pod
) -> None:
    allocation = admit(rules, rules.empty_ledger(), asked).allocation
    for place, share in enumerate(shares(allocation) if allocation is not None else ()):
        assert allocation is not None
        if share.sharing is Sharing.OWN:
            assert not met(allocation, place)
        if share.sharing is Sharing.OVERLAPPING:
            assert allocation.containers[place].kind is ContainerKind.INIT
        assert share.sharing is not Sharing.UNKNOWN


def test_what_the_only_exclusive_container_leaves_is_unused_where_all_are_known() -> None:
    allocation = allocated(make_rules(), pod(app("a", TWO), of_pod=guaranteed("cpu=6 memory=4Gi")))
    assert unused_budget(allocation) == (
        UnusedBudget(CPU, 4, 6, Mask.parse("3-6")),
        UnusedBudget("memory", 3 * GIB, 4 * GIB),
    )
    unknown = tuple(replace(container, why="") for container in allocation.containers)
    assert unused_budget(replace(allocation, origin=Origin.IMPORTED, containers=unknown)) == ()


@given(rules=rule_sets(), asked=pods("u-1"))
@EVERY_SEQUENCE
def test_it_is_the_budget_less_what_lasts_unless_a_container_shares(
    rules: EffectivePolicy, asked: Pod
) -> None:
    allocation = admit(rules, rules.empty_ledger(), asked).allocation
    if allocation is None:
        return
    lasting = [c for c in rules.demand(asked).containers if c.kind is not ContainerKind.INIT]
    found = {each.resource: each.unused for each in unused_budget(allocation)}
    cpus = 0
    if allocation.cpus is not None and all(c.cpus for c in lasting):
        cpus = len(allocation.cpus) - sum(c.cpus for c in lasting)
    assert found.pop(CPU, 0) == cpus
    memory: dict[str, int] = {}
    if all(c.memory for c in lasting):
        for block in allocation.memory:
            used = sum(c.memory.get(block.type, 0) for c in lasting)
            memory[block.type] = block.size - used
    assert found == {name: size for name, size in memory.items() if size > 0}
