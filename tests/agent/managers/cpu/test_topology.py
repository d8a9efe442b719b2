from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings

from agent.managers.cpu.topology import CpuCounts, CpuTopology, CpuTopologyError
from agent.managers.machine import Machine
from sysfs.described import regular_host, with_offline
from sysfs.discover import discover
from sysfs.host import Cpu, Host
from sysfs.mask import Mask
from tests.agent.managers.cpu.cpu_hosts import Shape, any_hosts
from tests.agent.managers.hosts import GIB
from tests.shared import needs_shared
from tests.sysfs.machines import machines, unpack

if TYPE_CHECKING:
    from pathlib import Path


def cpu(ident: int, core: int | None, **facts: int | None) -> Cpu:
    return Cpu(
        id=ident,
        online=core is not None,
        isolated=False,
        core=core,
        cluster=None,
        die=None,
        package=facts.get("package", 0),
        node=facts.get("node", 0),
        uncore=facts.get("uncore"),
    )


def ids(groups: tuple[tuple[int, int, int], ...]) -> dict[int, str]:
    return {ident: str(Mask(cpus)) for ident, cpus, _ in groups}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([(3, 3, 0, 0, 0), (3, 3, 0, 0, 0)], "cpu 3 is listed twice"),
        ([(0, 0, 0, -1, 0)], "cpu 0 in node -1"),
        ([], "at least one online CPU"),
    ],
)
def test_rows_of_no_machine_are_rejected(
    rows: list[tuple[int, int, int, int, int]], said: str
) -> None:
    with pytest.raises(CpuTopologyError, match=said):
        CpuTopology.from_rows(rows)


def test_as_many_sockets_as_nodes_put_nodes_outside() -> None:
    assert Shape(sockets=2, nodes=1).topology().numa_first
    assert Shape(sockets=2, nodes=-2).topology().numa_first
    assert not Shape(sockets=2, nodes=2).topology().numa_first


def test_a_host_names_cores_by_their_lowest_online_thread_and_leaves_out_the_others() -> None:
    host = Host(cpus=(cpu(0, None), cpu(1, 1), cpu(8, 0), cpu(9, 1)), nodes=())
    assert CpuTopology.from_host(host).rows == ((1, 1, 0, 0, 0), (8, 8, 0, 0, 0), (9, 1, 0, 0, 0))


def test_a_host_without_packages_and_nodes_has_one_of_each() -> None:
    host = Host(cpus=(cpu(0, 0, package=None, node=None), cpu(1, 1, package=-1)), nodes=())
    topology = CpuTopology.from_host(host)
    assert ids(topology.sockets) == ids(topology.nodes) == ids(topology.uncores) == {0: "0-1"}


def test_cpus_without_a_cache_never_join_the_cache_of_others() -> None:
    host = Host(
        cpus=(cpu(0, 0, uncore=0), cpu(1, 1, uncore=0), cpu(2, 2), cpu(3, 3), cpu(4, 4, package=1)),
        nodes=(),
    )
    assert ids(CpuTopology.from_host(host).uncores) == {0: "0-1", 2: "2-3", 4: "4"}


@settings(max_examples=50)
@given(any_hosts())
def test_every_kind_of_group_parts_the_cpus(topology: CpuTopology) -> None:
    for groups in (topology.cores, topology.sockets, topology.nodes, topology.uncores):
        assert sum(group.size for group in groups) == len(topology.all)
        assert sum(group.cpus for group in groups) == topology.all.bits
        assert all(group.size == group.cpus.bit_count() for group in groups)
        assert [group.id for group in groups] == sorted(group.id for group in groups)


@pytest.mark.shared
@needs_shared("hosts")
@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("hwloc-16em64t-4s2c2t-offlines", CpuCounts(12, 7, 4, 1, 4)),
        ("hwloc-20em64t-hybrid-1p6c2t+2ca4co1t", CpuCounts(20, 14, 1, 1, 1)),
        ("hwloc-48amd64-4pa2n6c-sparse", CpuCounts(48, 48, 4, 8, 8)),
    ],
)
def test_real_machines_have_their_known_groups(
    tmp_path: Path, name: str, counts: CpuCounts
) -> None:
    host = discover(unpack(next(m for m in machines() if m.name == name), tmp_path))
    topology = CpuTopology.from_host(host)
    assert topology.all == host.online
    assert topology.counted == counts


MIB = 1 << 20
HOST = regular_host(cores_per_node=2, hugepages=[(2 * MIB, 8)])


def test_it_has_the_nodes_memory_pages_and_distances_of_the_host() -> None:
    node = Machine.of(HOST).nodes[1]
    assert (node.id, node.memory_bytes, node.hugepages) == (1, 16 * GIB, {2 * MIB: 8})
    assert node.distances == {0: 21, 1: 10}


def test_a_host_without_online_cpus_is_rejected() -> None:
    with pytest.raises(CpuTopologyError):
        Machine.of(with_offline(HOST, HOST.online))
