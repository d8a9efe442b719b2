from __future__ import annotations

import pytest

from sysfs.described import regular_host, with_offline
from sysfs.mask import Mask


@pytest.mark.parametrize(
    ("adjacent", "cpus", "core"),
    [(False, ["0-3,8-11", "4-7,12-15"], 5), (True, ["0-7", "8-15"], 12)],
    ids=["after all cores", "side by side"],
)
def test_threads_are_numbered(*, adjacent: bool, cpus: list[str], core: int) -> None:
    host = regular_host(packages=2, cores_per_node=4, threads=2, adjacent_threads=adjacent)
    assert [str(node.cpus) for node in host.nodes] == cpus
    assert [cpu.id for cpu in host.cpus] == list(range(16))
    assert host.cpus[13].core == core


def test_packages_hold_their_nodes_and_are_one_die() -> None:
    host = regular_host(packages=2, nodes_per_package=2, cores_per_node=2, threads=1)
    assert [(cpu.package, cpu.node, cpu.die) for cpu in host.cpus] == [
        (0, 0, 0),
        (0, 0, 0),
        (0, 1, 0),
        (0, 1, 0),
        (1, 2, 4),
        (1, 2, 4),
        (1, 3, 4),
        (1, 3, 4),
    ]


def test_caches_take_a_nodes_cores_in_order_and_the_last_takes_the_rest() -> None:
    host = regular_host(packages=1, cores_per_node=5, threads=1, uncores_per_node=2)
    assert [cpu.uncore for cpu in host.cpus] == [0, 0, 0, 3, 3]


def test_distances_grow_from_node_to_package_to_machine() -> None:
    host = regular_host(packages=2, nodes_per_package=2)
    assert dict(host.nodes[1].distances) == {0: 12, 1: 10, 2: 21, 3: 21}


def test_going_offline_takes_topology_and_renames_what_is_left() -> None:
    host = with_offline(regular_host(packages=1, cores_per_node=2, threads=2), Mask.of(0))
    first, _, second, _ = host.cpus
    assert (first.online, first.core, first.die, first.package, first.node) == (
        False,
        None,
        None,
        None,
        0,
    )
    assert (second.core, second.die, second.uncore) == (2, 1, 1)
    assert str(host.nodes[0].cpus) == "1-3"
