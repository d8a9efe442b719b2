"""Whether memory that pods were given is there, and where it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.managers.allocation import ContainerAllocation, MemoryBlock, PodAllocation
from agent.managers.available import (
    Lack,
    availability,
    blocks_of,
    lack_warning,
    lacks,
    left_to_take,
    near_nodes,
    pods_lacking,
)
from agent.managers.machine import Machine
from agent.pods.model import NEAR_NODES, ContainerKind, QosClass
from sysfs.available import Available
from sysfs.described import regular_host
from sysfs.mask import Mask
from tests.agent.managers.drafts import allocated, with_pod
from tests.agent.managers.hosts import BEST_EFFORT, GIB, RESTRICTED, SINGLE, make_rules
from tests.agent.pods.pods import app, guaranteed, pod

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.managers.policy import TopologyManagerPolicy

PAGES: Final = "hugepages-1Gi"
#: Two nodes of 16 GiB, of which 4 pages of 1 GiB.
HOST: Final = Machine.of(regular_host(cores_per_node=8, threads=1, hugepages=[(GIB, 4)]))


def block(size: int, *nodes: int, kind: str = PAGES) -> MemoryBlock:
    return MemoryBlock(kind, size * GIB, Mask.of(*nodes))


def there(*pages: int | None, memory: int | None = None) -> Mapping[int, Mapping[str, int]]:
    """Return how many pages of 1 GiB nodes could give, and how many GiB each of memory."""
    return availability(
        {
            node: Available(
                None if memory is None else memory * GIB,
                {} if count is None else {GIB: count * GIB},
            )
            for node, count in enumerate(pages)
        }
    )


#: What is given, what could be given, and what is lacking: nodes, GiB given and there.
LACKS: Final = {
    "enough": ([block(2, 0)], there(2, 0), []),
    "too few": ([block(3, 0)], there(2, 9), [("0", 3, 2)]),
    "together too few": ([block(1, 0), block(2, 0)], there(2, 9), [("0", 3, 2)]),
    "over two nodes": ([block(3, 0, 1)], there(1, 2), []),
    "over two nodes of which one is another's": (
        [block(3, 0, 1), block(1, 0)], there(1, 2), [("0-1", 4, 3)],
    ),
    "another type": ([block(3, 0, kind="memory")], there(0), []),
    "memory": ([block(3, 0, kind="memory")], there(0, memory=2), [("0", 3, 2)]),
    "not known of one": ([block(3, 0, 1)], there(0, None), []),
    "not known of any": ([block(3, 0)], {}, []),
    "nothing": ([], there(0), []),
}  # fmt: skip


@pytest.mark.parametrize("case", LACKS)
def test_what_is_not_there_is_compared_by_type_over_the_nodes_of_each_block(case: str) -> None:
    blocks, available, expected = LACKS[case]
    found = lacks(blocks, available)
    assert [(str(each.nodes), each.given // GIB, each.available // GIB) for each in found] == [
        *expected
    ]


@given(
    st.lists(st.tuples(st.integers(0, 5), st.sets(st.integers(0, 2), min_size=1)), max_size=4),
    st.lists(st.integers(0, 9), min_size=3, max_size=3),
)
def test_nothing_lacks_exactly_where_each_block_can_have_its_part(
    asked: list[tuple[int, set[int]]], pages: list[int]
) -> None:
    # Sets that contain each other: the narrowest takes first, whichever nodes it takes from.
    nested = sorted((max(nodes) + 1, size) for size, nodes in asked)
    left, fits = list(pages), True
    for width, size in nested:
        fits = fits and sum(left[:width]) >= size
        rest = size
        for node in range(width):
            taken = min(rest, left[node])
            left[node], rest = left[node] - taken, rest - taken
    found = lacks([block(size, *range(width)) for width, size in nested], there(*pages))
    assert bool(found) is not fits


@pytest.mark.parametrize(
    ("topology", "pages", "expected"),
    [
        (SINGLE, (0, 4), '"1"'),
        (RESTRICTED, (1, 2), '"1"'),
        (BEST_EFFORT, (0, 4), '"1"'),
        (SINGLE, (0, 1), None),
    ],
)
def test_the_node_that_has_all_of_it_is_advised_if_the_pod_is_admitted_there(
    topology: TopologyManagerPolicy, pages: tuple[int, ...], expected: str | None
) -> None:
    rules, asked = (
        make_rules(HOST, topology),
        pod(app("m", guaranteed(f"cpu=2 memory=1Gi {PAGES}=2Gi"))),
    )
    available = there(*pages, memory=8)
    ledger = rules.empty_ledger()
    [lack] = lacks(blocks_of(allocated(rules, asked)), available)
    said = [each for each in near_nodes(rules, ledger, asked, lack, available) if each]
    advised = f"with the annotation {NEAR_NODES}: {expected} all of it is there"
    assert said == ([] if expected is None else [advised])


def test_no_node_is_advised_that_is_full_or_beside_one_that_was_asked_for() -> None:
    rules, available = make_rules(HOST, SINGLE), there(0, 4, memory=8)
    asked = f"cpu=2 memory=1Gi {PAGES}=2Gi"
    full = with_pod(
        rules,
        pod(app("m", guaranteed("cpu=8 memory=1Gi")), uid="full", annotations={NEAR_NODES: "1"}),
    )
    lack = Lack(PAGES, Mask.of(0), 2 * GIB, 0)
    plain = pod(app("m", guaranteed(asked)))
    assert not any(near_nodes(rules, full, plain, lack, available))
    near = pod(app("m", guaranteed(asked)), annotations={NEAR_NODES: "0"})
    assert not any(near_nodes(rules, rules.empty_ledger(), near, lack, available))


def test_a_warning_says_how_much_others_have_that_were_not_given_it() -> None:
    rules = make_rules(HOST, SINGLE)
    other = pod(app("m", guaranteed(f"cpu=1 memory=1Gi {PAGES}=1Gi")), uid="other")
    ledger = with_pod(rules, other)
    lack = Lack(PAGES, Mask.of(0), 3 * GIB, GIB)
    given_text = "given 3 GiB of hugepages-1Gi on node 0, which could give 1 GiB now"
    used = "others use at least 2 GiB"
    assert lack_warning(rules, ledger, lack) == f"the pod is {given_text}; {used}"
    alone = Lack(PAGES, Mask.of(0), 4 * GIB, 3 * GIB)
    assert lack_warning(rules, ledger, alone, 2) == (
        "2 of these pods are given 4 GiB of hugepages-1Gi on node 0, which could give 3 GiB now"
    )


def with_pages(uid: str, *containers: tuple[MemoryBlock, ...]) -> PodAllocation:
    allocations = tuple(
        ContainerAllocation(f"c{number}", ContainerKind.APP, memory=blocks)
        for number, blocks in enumerate(containers)
    )
    return PodAllocation(uid, uid, "shop", QosClass.GUARANTEED, "", allocations)


def test_what_pods_have_taken_is_not_left_to_take() -> None:
    two = with_pages("two", (block(2, 0), block(1, 0, kind="memory")), (block(1, 1),))
    assert left_to_take(two, {PAGES: GIB}) == (block(2, 0, 1),)
    assert left_to_take(two, {PAGES: 3 * GIB}) == left_to_take(two, {PAGES: 9 * GIB}) == ()
    assert left_to_take(two, {}) == ()


def test_pods_that_have_yet_to_take_pages_lack_them_together() -> None:
    left = {"a": (block(2, 0),), "b": (block(2, 0),), "c": (block(2, 1),), "d": ()}
    assert pods_lacking(left, there(4, 2)) == {}
    lack = Lack(PAGES, Mask.of(0), 4 * GIB, 3 * GIB)
    assert pods_lacking(left, there(3, 2)) == {"a": (lack,), "b": (lack,)}
