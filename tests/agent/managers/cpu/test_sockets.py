"""`align-by-socket` (KEP-3327): one socket where one has room, under every policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.managers.cpu.hints import cpu_hints
from agent.managers.cpu.sockets import SocketOrder, on_fewer_sockets
from agent.managers.cpu.take import take_by_topology
from agent.managers.machine import Machine
from agent.managers.policy import CpuPolicyOptions
from agent.managers.topology.hint import Hint
from sysfs.described import regular_host
from sysfs.mask import EMPTY, Mask
from tests.agent.managers.cpu.cpu_hosts import Shape
from tests.agent.managers.drafts import allocated, with_pod
from tests.agent.managers.hosts import (
    BEST_EFFORT,
    CONTAINER,
    NO_POLICY,
    POD,
    RESTRICTED,
    make_rules,
)
from tests.agent.pods.pods import app, guaranteed, pod

if TYPE_CHECKING:
    from agent.managers.cpu.topology import CpuTopology
    from agent.managers.ledger import Ledger
    from agent.managers.policy import TopologyManagerPolicy, TopologyManagerScope
    from agent.managers.rules import EffectivePolicy

#: Two sockets of two nodes of eight CPUs: 0-15 and 16-31.
MACHINE = Machine.of(regular_host(packages=2, nodes_per_package=2, cores_per_node=8, threads=1))
#: The same CPUs in twelve nodes, so that hints are families: six on each socket.
MANY = Machine.of(regular_host(packages=2, nodes_per_package=6, cores_per_node=4, threads=1))
POLICIES = [NO_POLICY, BEST_EFFORT, RESTRICTED]


def sockets(topology: CpuTopology, cpus: Mask) -> int:
    return sum(1 for socket in topology.sockets if socket.cpus & cpus.bits)


def nearly_full(rules: EffectivePolicy, cpus: int) -> Ledger:
    """Return the ledger of a host whose first socket has a pod of so many CPUs."""
    return with_pod(rules, pod(app("x", guaranteed(f"cpu={cpus} memory=1Gi")), uid="other"))


# Shows in differences.md: align-by-socket
@pytest.mark.parametrize("scope", [CONTAINER, POD])
@pytest.mark.parametrize("policy", POLICIES)
def test_twelve_cpus_are_taken_on_the_socket_that_has_them(
    policy: TopologyManagerPolicy, scope: TopologyManagerScope
) -> None:
    rules = make_rules(MACHINE, policy, scope, memory=False, align_by_socket=True)
    desired = pod(app("a", guaranteed("cpu=12 memory=1Gi")))
    allocation = allocated(rules, desired, nearly_full(rules, 5))
    assert allocation.exclusive_cpus <= Mask.parse("16-31")
    assert len(allocation.exclusive_cpus) == 12


# Shows in differences.md: align-by-socket
@pytest.mark.parametrize("scope", [CONTAINER, POD])
@pytest.mark.parametrize("policy", [BEST_EFFORT, RESTRICTED])
def test_memory_of_two_nodes_is_on_that_socket_as_well(
    policy: TopologyManagerPolicy, scope: TopologyManagerScope
) -> None:
    rules = make_rules(MACHINE, policy, scope, align_by_socket=True)
    desired = pod(app("a", guaranteed("cpu=12 memory=20Gi")))
    allocation = allocated(rules, desired, nearly_full(rules, 5))
    assert allocation.exclusive_cpus <= Mask.parse("16-31")
    assert allocation.containers[0].mems == Mask.of(2, 3)


@pytest.mark.parametrize("policy", POLICIES)
def test_on_many_nodes_preferred_sets_are_on_one_socket_as_well(
    policy: TopologyManagerPolicy,
) -> None:
    rules = make_rules(MANY, policy, memory=False, align_by_socket=True)
    assert not rules.machine.lists_hints
    desired = pod(app("a", guaranteed("cpu=12 memory=1Gi")))
    allocation = allocated(rules, desired, nearly_full(rules, 15))
    assert allocation.exclusive_cpus <= Mask.parse("24-47")
    hint = allocation.containers[0].hint
    if policy is not NO_POLICY:
        assert hint.preferred
        assert Mask(hint.nodes or 0) <= Mask.parse("6-11")


def test_sets_with_room_come_first_then_those_on_few_sockets() -> None:
    order = SocketOrder.of(MACHINE.cpus, Mask.parse("12-31"), 12)
    sets = {0b0011: (1, 1), 0b1100: (0, 1), 0b0110: (0, 2), 0b1000: (0, 1)}
    assert {nodes: order(nodes) for nodes in sets} == sets


def test_the_fullest_socket_that_has_room_is_taken() -> None:
    three = Machine.of(regular_host(packages=3, cores_per_node=8, threads=1)).cpus
    free = Mask.parse("5-7,8-15,18-23")
    torn = Mask.parse("5-7,21-23")
    assert on_fewer_sockets(three, free, torn, whole_cores=False) == Mask.parse("18-23")
    assert on_fewer_sockets(three, free, Mask.parse("18-23"), whole_cores=False) is None


def test_with_whole_cores_only_free_cores_are_room() -> None:
    topology = Machine.of(regular_host(packages=2, cores_per_node=4, threads=2)).cpus
    free = Mask.parse("0-1,8,4-5,7,12-13,15")
    torn = Mask.parse("0,4,8,12")
    assert on_fewer_sockets(topology, free, torn, whole_cores=True) == Mask.parse("4-5,7,12-13,15")
    assert on_fewer_sockets(topology, free - Mask.parse("13,15"), torn, whole_cores=True) is None


@given(
    free=st.sets(st.integers(0, 31), min_size=1).map(Mask.from_ids),
    share=st.floats(0, 1),
    whole=st.booleans(),
)
def test_no_fewer_sockets_have_room(free: Mask, share: float, *, whole: bool) -> None:
    count = max(1, round(len(free) * share))
    options = CpuPolicyOptions(align_by_socket=True, full_pcpus_only=whole)
    plain = CpuPolicyOptions(full_pcpus_only=whole)
    taken = take_by_topology(MACHINE.cpus, options, free, count)
    assert len(taken) == count
    assert taken <= free
    rooms = [len(free & Mask(socket.cpus)) for socket in MACHINE.cpus.sockets]
    assert sockets(MACHINE.cpus, taken) == (1 if max(rooms) >= count else 2)
    usual = take_by_topology(MACHINE.cpus, plain, free, count)
    if sockets(MACHINE.cpus, usual) == 1:
        assert taken == usual


def test_nothing_more_is_preferred_where_nodes_span_sockets() -> None:
    spanning = Shape(sockets=2, nodes=-2).topology()
    aligned = CpuPolicyOptions(align_by_socket=True)
    assert cpu_hints(spanning, aligned, spanning.all, EMPTY, 4) == [Hint(1, preferred=True)]
