from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from sysfs.described import regular_host, with_memory_only_nodes, with_offline
from sysfs.host import MemoryClass
from sysfs.mask import Mask


def test_a_node_whose_cpus_are_all_offline_is_memory_only() -> None:
    host = regular_host(packages=2)
    assert with_offline(host, host.nodes[1].cpus).memory_only_nodes == Mask.of(1)


@pytest.mark.parametrize(
    ("facts", "shown"),
    [
        ({"bandwidth": 300}, "hbm"),
        ({"bandwidth": 90}, "dram"),
        ({"bandwidth": 40}, None),
        ({"tier": 1}, "hbm"),
        ({"tier": 4}, "dram"),
        ({"tier": 9}, None),
        ({"tier": 4, "bandwidth": 300}, "hbm"),
        ({}, None),
        ({"bandwidth": 300, "backing": MemoryClass.GPU}, "gpu"),
        ({"bandwidth": 300, "memory_bytes": 0}, None),
    ],
    ids=str,
)
def test_the_class_of_a_node_without_cpus_is_its_devices_or_what_its_speed_says(
    facts: dict[str, Any], shown: str | None
) -> None:
    host = with_memory_only_nodes(regular_host(packages=1), [1 << 30])
    usual, other = host.nodes
    usual = replace(usual, bandwidth=100, tier=4)
    host = replace(host, nodes=(usual, replace(other, **facts)))
    classes = host.memory_classes
    assert classes[usual.id] is MemoryClass.DRAM
    assert classes.get(other.id) == shown
