"""What pods may request of a node, against amounts worked out by hand."""

from __future__ import annotations

import pytest

from agent.managers.machine import Machine
from agent.managers.policy import NodeFit, PluginDevice, Policy
from agent.managers.registry import MANAGERS
from agent.managers.rules import EffectivePolicy
from sysfs.described import regular_host, with_offline
from sysfs.mask import Mask
from tests.agent.managers.hosts import GIB, PLAIN

MIB = 1 << 20
#: 16 CPUs, 32 GiB on two nodes, 512 pages of 2 MiB on each.
PAGED = Machine.of(regular_host(cores_per_node=8, threads=1, hugepages=((2 * MIB, 512),)))


def amounts(machine: Machine, fit: NodeFit, **more: object) -> dict[str, int]:
    found = EffectivePolicy(machine, Policy(fit=fit, **more), MANAGERS).allocatable  # type: ignore[arg-type]  # by keyword
    assert found is not None
    return dict(found.amounts)


def test_without_reservations_it_is_all_that_the_machine_has() -> None:
    assert amounts(PLAIN, NodeFit()) == {"cpu": 16_000, "memory": 32 * GIB}


def test_reservations_are_kept_to_the_millicore_and_byte() -> None:
    kept = NodeFit({"cpu": 1500, "memory": GIB + 1})
    assert amounts(PLAIN, kept) == {"cpu": 14_500, "memory": 31 * GIB - 1}


def test_huge_pages_are_no_memory_and_reserved_ones_are_not_either() -> None:
    """The kubelet takes the capacity in huge pages out of memory, not what is allocatable."""
    kept = NodeFit({"memory": GIB, "hugepages-2Mi": 64 * MIB})
    assert amounts(PAGED, kept) == {
        "cpu": 16_000,
        "memory": 29 * GIB,
        "hugepages-2Mi": 2 * GIB - 64 * MIB,
    }


def test_it_is_never_negative() -> None:
    kept = NodeFit({"cpu": 17_000, "memory": 31 * GIB, "hugepages-2Mi": 4 * GIB})
    assert set(amounts(PAGED, kept).values()) == {0}


def test_cpus_that_do_not_run_do_not_count() -> None:
    host = with_offline(regular_host(cores_per_node=8, threads=1), Mask.parse("3-5"))
    assert amounts(Machine.of(host), NodeFit())["cpu"] == 13_000


def test_devices_that_are_not_healthy_do_not_count() -> None:
    devices = {
        "a.b/gpu": (PluginDevice("0"), PluginDevice("1", healthy=False), PluginDevice("2")),
        "a.b/nic": (),
    }
    found = amounts(PLAIN, NodeFit(), devices=devices)
    assert (found["a.b/gpu"], found["a.b/nic"]) == (2, 0)


@pytest.mark.parametrize(
    ("most", "per_core", "pods", "by"),
    [
        (110, 0, 110, ("maxPods",)),
        (110, 10, 110, ("maxPods",)),
        (110, 5, 80, ("podsPerCore",)),
        (160, 10, 160, ("maxPods", "podsPerCore")),
    ],
)
def test_the_lower_limit_of_pods_holds(
    most: int, per_core: int, pods: int, by: tuple[str, ...]
) -> None:
    found = EffectivePolicy(
        PLAIN, Policy(fit=NodeFit(max_pods=most, pods_per_core=per_core)), MANAGERS
    ).allocatable
    assert found is not None
    assert (found.pods, found.limited_by) == (pods, by)


def test_where_it_is_not_looked_at_there_is_none() -> None:
    assert EffectivePolicy(PLAIN, Policy(), MANAGERS).allocatable is None
