from __future__ import annotations

import pytest

from agent.managers.cpu.topology import CpuTopologyError
from agent.managers.machine import Machine
from sysfs.described import regular_host, with_offline
from tests.agent.managers.hosts import GIB

MIB = 1 << 20
HOST = regular_host(cores_per_node=2, hugepages=[(2 * MIB, 8)])


def test_it_has_the_nodes_memory_pages_and_distances_of_the_host() -> None:
    node = Machine.of(HOST).nodes[1]
    assert (node.id, node.memory_bytes, node.hugepages) == (1, 16 * GIB, {2 * MIB: 8})
    assert node.distances == {0: 21, 1: 10}


def test_a_host_without_online_cpus_is_rejected() -> None:
    with pytest.raises(CpuTopologyError):
        Machine.of(with_offline(HOST, HOST.online))
