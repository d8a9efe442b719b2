from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.managers.admission import admit
from agent.managers.allocation import ContainerAllocation, Isolation, Origin, PodAllocation
from agent.managers.sharing import NAMED, Share, Sharing, is_specified, shares
from agent.pods.model import ContainerKind, QosClass
from sysfs.mask import Mask
from tests.agent.managers.hosts import make_rules
from tests.agent.managers.test_invariants import pods, rule_sets
from tests.agent.pods.pods import app, guaranteed, init, pod, sidecar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Container, Pod

TWO = guaranteed("cpu=2 memory=1Gi")


def allocated(rules: EffectivePolicy, *containers: Container, budget: str = "") -> PodAllocation:
    of_pod = guaranteed(budget) if budget else None
    allocation = admit(rules, rules.empty_ledger(), pod(*containers, of_pod=of_pod)).allocation
    assert allocation is not None
    return allocation


def sharing_of(allocation: PodAllocation) -> dict[str, Sharing]:
    names = (container.name for container in allocation.containers)
    return dict(zip(names, (share.sharing for share in shares(allocation)), strict=True))


def imported(*containers: ContainerAllocation, budget: str = "") -> PodAllocation:
    """Return an allocation of which no specification is known."""
    cpus = Mask.parse(budget) if budget else None
    return PodAllocation(
        "u", "", "", QosClass.GUARANTEED, "", containers, cpus, origin=Origin.IMPORTED
    )


def having(
    name: str, cpus: str | None, kind: ContainerKind = ContainerKind.APP, why: str = ""
) -> ContainerAllocation:
    mask = None if cpus is None else Mask.parse(cpus)
    isolation = Isolation.HOST if mask is None else Isolation.CONTAINER
    return ContainerAllocation(name, kind, isolation, mask, why=why)


def test_a_shared_init_container_bursts_over_the_budget_and_is_in_no_pool() -> None:
    allocation = allocated(
        make_rules(), init("i"), app("a", TWO), app("b"), budget="cpu=4 memory=4Gi"
    )
    assert sharing_of(allocation) == {"i": Sharing.BUDGET, "a": Sharing.OWN, "b": Sharing.POD}


# Shows in differences.md: init-after-sidecar
def test_an_exclusive_init_container_meets_the_shared_sidecar_before_it() -> None:
    """KEP-5526 gives the sidecar the final pool from its start."""
    containers = (sidecar("s"), init("i", guaranteed("cpu=3 memory=1Gi")), app("a", TWO))
    allocation = allocated(make_rules(), *containers, budget="cpu=4 memory=4Gi")
    by_name = {c.name: c.cpus for c in allocation.containers}
    assert by_name == {"s": Mask.parse("3-4"), "i": Mask.parse("1-3"), "a": Mask.parse("1-2")}
    assert shares(allocation) == (
        Share(Sharing.POD),
        Share(Sharing.OVERLAPPING, Mask.of(3), ("s",)),
        Share(Sharing.OWN),
    )


def test_no_more_than_a_few_of_those_who_meet_are_named() -> None:
    many = [sidecar(f"s{number}") for number in range(NAMED + 3)]
    last = init("i", guaranteed("cpu=3 memory=1Gi"))
    allocation = allocated(make_rules(), *many, last, app("a", TWO), budget="cpu=4 memory=4Gi")
    share = shares(allocation)[len(many)]
    assert share.others == tuple(f"s{number}" for number in range(NAMED))


def test_cpus_that_no_other_container_of_an_imported_pod_has_are_its_own() -> None:
    allocation = imported(having("a", "1-2"), having("b", "3"), having("c", None))
    assert sharing_of(allocation) == {"a": Sharing.OWN, "b": Sharing.OWN, "c": Sharing.NODE}


def test_what_two_containers_of_an_imported_pod_hold_may_be_in_turn_or_shared() -> None:
    allocation = imported(having("a", "1-2"), having("b", "2"), having("c", "3"))
    assert sharing_of(allocation) == {"a": Sharing.UNKNOWN, "b": Sharing.UNKNOWN, "c": Sharing.OWN}


def test_a_reason_stands_for_a_specification_before_it_has_a_digest() -> None:
    """A pod that was imported together with its manifest."""
    allocation = imported(having("a", "1-2", why="Guaranteed"), budget="1-2")
    assert not is_specified(imported(having("a", "1-2")))
    assert is_specified(allocation)
    assert sharing_of(allocation) == {"a": Sharing.OWN}


def moments(allocation: PodAllocation) -> Iterator[list[int]]:
    """Yield the places of the containers that run together, step by step of the pod's start."""
    started: list[int] = []
    for place, container in enumerate(allocation.containers):
        if container.kind is ContainerKind.APP:
            continue
        yield [*started, place]
        if container.kind is ContainerKind.SIDECAR:
            started.append(place)
    apps = [p for p, c in enumerate(allocation.containers) if c.kind is ContainerKind.APP]
    yield [*started, *apps]


def met(allocation: PodAllocation, place: int) -> Mask:
    """Return which of a container's CPUs any other may use while it runs, moment by moment."""
    found, mine = Mask(0), allocation.containers[place].cpus or Mask(0)
    for running in moments(allocation):
        for other in running if place in running else ():
            if other != place:
                found |= mine & (allocation.containers[other].cpus or Mask(0))
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
        assert share.cpus == (met(allocation, place) if alone else Mask(0))


@given(rules=rule_sets(), asked=pods("u-1"))
@settings(
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
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
