"""With which NUMA policy the processes of a pod start."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.managers.admission import admit
from agent.managers.moves import sets_of
from agent.managers.numa_policy import NumaMode, NumaPolicy, numa_policy
from agent.managers.policy import Pool, PoolMemory
from agent.managers.trials import advise
from agent.pods.model import INTERLEAVE, NUMA_POLICY, POOL
from agent.pods.validation import find_problems
from sysfs.mask import Mask
from tests.agent.managers.drafts import allocated, with_pod
from tests.agent.managers.hosts import (
    BEST_EFFORT,
    CONTAINER,
    PLAIN,
    POD,
    RESTRICTED,
    SINGLE,
    make_rules,
)
from tests.agent.pods.pods import app, guaranteed, pod

if TYPE_CHECKING:
    from agent.managers.ledger import Ledger
    from agent.managers.policy import TopologyManagerPolicy, TopologyManagerScope
    from agent.managers.rules import EffectivePolicy

PREFERRED = PoolMemory.PREFERRED
POOLS = (
    Pool("near", Mask.parse("8-15"), memory=PREFERRED),
    Pool("wide", Mask.parse("0,9"), memory=PREFERRED),
    Pool("bound", Mask.parse("8-15"), memory=PoolMemory.BOUND),
    Pool("gone", Mask.parse("99"), memory=PREFERRED),
)
#: Two nodes of eight CPUs each.
RULES = make_rules()
RULES = replace(RULES, policy=replace(RULES.policy, pools=POOLS))
EVERY_NODE = NumaPolicy(NumaMode.INTERLEAVE, Mask.parse("0-1"))


@pytest.mark.parametrize(
    ("annotations", "own", "expected"),
    [
        ({}, True, None),
        ({NUMA_POLICY: INTERLEAVE}, True, EVERY_NODE),
        ({NUMA_POLICY: INTERLEAVE}, False, EVERY_NODE),
        ({POOL: "near"}, False, NumaPolicy(NumaMode.PREFERRED, Mask.of(1))),
        ({POOL: "wide"}, False, NumaPolicy(NumaMode.PREFERRED, Mask.parse("0-1"))),
        ({POOL: "bound"}, False, None),
        ({POOL: "near"}, True, None),  # such a pod is in no pool
        ({POOL: "near", NUMA_POLICY: INTERLEAVE}, False, EVERY_NODE),
    ],
)
def test_the_annotation_goes_before_the_pool(
    annotations: dict[str, str], expected: NumaPolicy | None, *, own: bool
) -> None:
    asks = guaranteed("cpu=2 memory=1Gi") if own else None
    asked = pod(app("main", asks), annotations=annotations)
    assert numa_policy(RULES, allocated(RULES, asked)) == expected


def test_pinned_memory_has_no_preference_for_a_pool() -> None:
    """A Guaranteed pod with a part of a CPU is in a pool, and its memory is on another node."""
    asked = pod(app("main", guaranteed("cpu=500m memory=1Gi")), annotations={POOL: "near"})
    found = allocated(RULES, asked)
    assert str(sets_of(found).nodes) == "0"
    assert numa_policy(RULES, found) is None


def test_a_pool_without_a_node_prefers_none() -> None:
    rules = replace(RULES, policy=replace(RULES.policy, pools=POOLS[3:]))
    asked = allocated(RULES, pod(app("main"), annotations={POOL: "near"}))
    gone = replace(asked, annotations={POOL: "gone"})
    assert numa_policy(rules, gone) is None


def sets(
    rules: EffectivePolicy, *amounts: str, budget: str = "", ledger: Ledger | None = None
) -> tuple[str, str]:
    """Return the nodes of the memory of a pod, as usual and interleaved; "" if it is rejected."""

    def nodes(annotations: dict[str, str]) -> str:
        containers = [app(f"c{place}", guaranteed(each)) for place, each in enumerate(amounts)]
        of_pod = guaranteed(budget) if budget else None
        asked = pod(*containers, of_pod=of_pod, uid="u-9", annotations=annotations)
        allocation = admit(rules, ledger or rules.empty_ledger(), asked).allocation
        return "" if allocation is None else str(sets_of(allocation).nodes)

    return nodes({}), nodes({NUMA_POLICY: INTERLEAVE})


# Shows in differences.md: numa-policy
@pytest.mark.parametrize("scope", [POD, CONTAINER])
@pytest.mark.parametrize(
    ("policy", "amounts", "expected"),
    [
        (RESTRICTED, "cpu=2 memory=1Gi", ("0", "0")),
        (RESTRICTED, "cpu=8 memory=1Gi", ("1", "1")),
        (RESTRICTED, "cpu=10 memory=1Gi", ("", "0-1")),
        (RESTRICTED, "cpu=10 memory=20Gi", ("0-1", "0-1")),
        (RESTRICTED, "cpu=2 memory=20Gi", ("", "")),
        (BEST_EFFORT, "cpu=10 memory=1Gi", ("0-1", "0-1")),
        (BEST_EFFORT, "cpu=2 memory=20Gi", ("0-1", "0-1")),
        (SINGLE, "cpu=10 memory=1Gi", ("", "")),
    ],
)
def test_interleaved_memory_is_on_as_many_nodes_as_the_cpus_need(
    scope: TopologyManagerScope,
    policy: TopologyManagerPolicy,
    amounts: str,
    expected: tuple[str, str],
) -> None:
    # Two nodes with 8 CPUs, of which one is reserved, and 15 GiB for pods each.
    assert sets(make_rules(PLAIN, policy, scope), amounts) == expected


def test_the_annotation_is_advised_where_it_helps() -> None:
    text = "add the annotation memory.numawarden.dev/policy: interleave"
    told = {}
    for amounts in ("cpu=10 memory=1Gi", "cpu=2 memory=20Gi"):
        asked = pod(app("main", guaranteed(amounts)))
        found = advise(make_rules(), make_rules().empty_ledger(), asked)
        told[amounts] = [each.text for each in found if each and each.text.startswith(text)]
    assert told == {
        "cpu=10 memory=1Gi": [f"{text} (its memory is on as many NUMA nodes as its CPUs need)"],
        "cpu=2 memory=20Gi": [],
    }


def test_so_is_that_of_a_pod_as_a_whole() -> None:
    rules = make_rules()
    two = ("cpu=5 memory=1Gi", "cpu=6 memory=1Gi")
    assert sets(rules, *two) == ("", "0-1")
    assert sets(rules, *two, budget="cpu=12 memory=4Gi") == ("", "0-1")
    assert sets(make_rules(scope=CONTAINER), *two) == ("0-1", "0-1")  # one on each


def test_where_the_nodes_cannot_be_joined_it_is_as_usual() -> None:
    rules = make_rules(topology=BEST_EFFORT)
    ledger = with_pod(rules, pod(app("main", guaranteed("cpu=1 memory=1Gi")), uid="u-1"))
    assert sets(rules, "cpu=10 memory=1Gi", ledger=ledger) == ("0", "0")


def test_another_policy_is_no_valid_annotation() -> None:
    asked = pod(app("main"), annotations={NUMA_POLICY: "bind"})
    [problem] = find_problems(asked)
    assert "'bind' is not one of interleave" in str(problem)
