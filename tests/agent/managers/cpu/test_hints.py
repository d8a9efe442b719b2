from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.managers.cpu.hints import cpu_hints
from agent.managers.policy import CpuPolicyOptions
from agent.managers.topology.hint import Hint
from sysfs.mask import EMPTY, Mask
from tests.agent.managers.cpu.cpu_hosts import Shape, any_hosts, masks_of

if TYPE_CHECKING:
    from agent.managers.cpu.topology import CpuTopology

PLAIN = CpuPolicyOptions()


def test_by_socket_nothing_more_is_preferred_where_nodes_span_sockets() -> None:
    spanning = Shape(sockets=2, nodes=-2).topology()
    aligned = CpuPolicyOptions(align_by_socket=True)
    assert cpu_hints(spanning, aligned, spanning.all, EMPTY, 4) == [Hint(1, preferred=True)]


def naive_hints(topology: CpuTopology, free: Mask, reusable: Mask, request: int) -> list[Hint]:
    nodes = [node.id for node in topology.nodes]
    sets = [
        Mask.from_ids(some) for n in range(1, len(nodes) + 1) for some in combinations(nodes, n)
    ]
    enough = [len(some) for some in sets if len(topology.cpus_in_nodes(some)) >= request]
    fewest = min(enough, default=len(nodes))
    return [
        Hint(some.bits, preferred=len(some) == fewest)
        for some in sets
        if reusable <= topology.cpus_in_nodes(some)
        and len(topology.cpus_in_nodes(some) & (free | reusable)) >= request
    ]


@settings(deadline=None, max_examples=100)
@given(any_hosts(), st.data())
def test_hints_equal_trying_every_set_of_nodes(topology: CpuTopology, data: st.DataObject) -> None:
    free = data.draw(masks_of(topology))
    reusable = data.draw(st.one_of(st.just(EMPTY), masks_of(topology)))
    request = data.draw(st.integers(min_value=1, max_value=len(topology.all) + 1))
    hints = cpu_hints(topology, PLAIN, free - reusable, reusable, request)
    assert hints == naive_hints(topology, free - reusable, reusable, request)
