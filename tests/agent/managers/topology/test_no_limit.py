"""The number of NUMA nodes has no limit: what cannot matter costs nothing, what is hard is bounded.

Memory-only nodes are HBM, CXL or a GPU's memory, dozens of them on some machines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.managers.admission import admit, align_and_allocate
from agent.managers.machine import Machine
from agent.managers.metrics import BOUNDED_CHOICES
from agent.managers.policy import PluginDevice, TopologyManagerPolicy, TopologyPolicy
from agent.managers.topology.hint import BUDGET
from sysfs.described import regular_host, with_memory_only_nodes
from sysfs.mask import Mask
from tests.agent.managers.hosts import BEST_EFFORT, CONTAINER, GIB, POD, make_rules
from tests.agent.pods.pods import app, guaranteed, pod

if TYPE_CHECKING:
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Pod
    from sysfs.host import Host

TWELVE = regular_host(4, 3, 4, memory_bytes=16 * GIB)


def rules_of(host: Host, topology: TopologyPolicy, *, memory: bool = False) -> EffectivePolicy:
    machine = Machine.of(host)
    devices = {
        "gpu": tuple(PluginDevice(f"gpu-{n}", Mask.of(n)) for n in machine.cpus.cpus_of_node)
    }
    rules = make_rules(machine, memory=memory, devices=devices)
    return replace(rules, policy=replace(rules.policy, topology=topology))


def asking(text: str, uid: str = "new") -> Pod:
    return pod(app("main", guaranteed(text)), uid=uid)


def steps(rules: EffectivePolicy, asked: Pod) -> int:
    """Return how many steps the choices of an admission on an empty host take."""
    draft = rules.draft(rules.empty_ledger(), rules.demand(asked))
    align_and_allocate(draft)
    return sum(BUDGET - work.left for work in draft.works)


@given(
    policy=st.builds(
        TopologyPolicy,
        st.sampled_from(TopologyManagerPolicy),
        st.sampled_from([CONTAINER, POD]),
        st.booleans(),
    ),
    pods=st.lists(
        st.tuples(st.integers(1, 40), st.integers(0, 4)).map(
            lambda desired: f"cpu={desired[0]} memory=1Gi" + f" gpu={desired[1]}" * (desired[1] > 0)
        ),
        min_size=1,
        max_size=5,
    ),
)
@settings(max_examples=80)
def test_thirty_memory_only_nodes_change_no_decision_on_cpus(
    policy: TopologyPolicy, pods: list[str]
) -> None:
    few = rules_of(TWELVE, policy)
    many = rules_of(with_memory_only_nodes(TWELVE, [96 * GIB] * 30), policy)
    without, with_them = few.empty_ledger(), many.empty_ledger()
    for number, text in enumerate(pods):
        asked = asking(text, f"u-{number}")
        one, other = admit(few, without, asked), admit(many, with_them, asked)
        assert one.allocation == other.allocation
        assert one.admitted == other.admitted
        without, with_them = one.ledger, other.ledger


@pytest.mark.parametrize("closest", [False, True])
@pytest.mark.parametrize("text", ["cpu=3 memory=1Gi", "cpu=30 memory=1Gi gpu=5"])
def test_thirty_memory_only_nodes_cost_a_decision_on_cpus_no_step(
    text: str, *, closest: bool
) -> None:
    policy = TopologyPolicy(BEST_EFFORT, POD, prefer_closest_numa_nodes=closest)
    many = with_memory_only_nodes(TWELVE, [96 * GIB] * 30)
    taken = steps(rules_of(many, policy), asking(text))
    assert taken == steps(rules_of(TWELVE, policy), asking(text))
    assert taken < 60


def uneven(nodes: int) -> Host:
    """Return a machine of which every node has another amount of memory and of huge pages."""
    host = regular_host(nodes, 1, 1, hugepages=[(2 << 20, 0)])
    amounts = [pow(place + 7, 3, 4099) + 1 for place in range(nodes)]
    pages = [pow(place + 3, 5, 4093) + 1 for place in range(nodes)]
    unlike = (
        replace(
            node,
            memory_bytes=(amount + 2 * count) << 20,
            hugepages=tuple(replace(each, count=count) for each in node.hugepages),
        )
        for node, amount, count in zip(host.nodes, amounts, pages, strict=True)
    )
    return replace(host, nodes=tuple(unlike))


# Shows in differences.md: many-nodes
def test_a_choice_that_exceeds_the_budget_of_work_is_valid_and_counted() -> None:
    policy = TopologyPolicy(BEST_EFFORT, POD, prefer_closest_numa_nodes=True)
    rules = rules_of(uneven(48), policy, memory=True)
    free = rules.memory.allocatable.values()
    memory, pages = (sum(types[name] for types in free) for name in ("memory", "hugepages-2Mi"))
    asked = asking(
        f"cpu=2 memory={memory * 63 // 100} hugepages-2Mi={(pages * 62 // 100 >> 21) * 2}Mi"
    )
    decision = admit(rules, rules.empty_ledger(), asked)
    assert decision.counters[(BOUNDED_CHOICES.name, ())] >= 1
    assert decision.allocation is not None
    blocks = decision.allocation.containers[0].memory
    for block in blocks:
        room = sum(rules.memory.allocatable[node][block.type] for node in block.nodes)
        assert room >= block.size
    assert admit(rules, rules.empty_ledger(), asked) == decision
