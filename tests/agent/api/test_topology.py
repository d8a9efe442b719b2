from __future__ import annotations

import json

from msgspec.structs import replace

from agent.api.topology import topology_view, totals
from sysfs.described import regular_host, with_memory_only_nodes, with_offline
from sysfs.host import CoreKind, Device
from sysfs.mask import Mask
from tests.sysfs.hosts import with_isolated

HOST = with_memory_only_nodes(
    with_offline(
        with_isolated(
            regular_host(
                packages=2, cores_per_node=2, memory_bytes=1 << 30, hugepages=[(2 << 20, 5)]
            ),
            Mask.of(1),
        ),
        Mask.of(7),
    ),
    [3 << 30],
)


CPU_5 = {
    "id": 5, "online": True, "isolated": False, "core": 1, "cluster": None, "die": 0, "package": 0,
    "node": 0, "uncore": 0, "kind": "standard",
}  # fmt: skip
NODE_0 = {
    "id": 0, "cpus": "0-1,4-5", "memory_bytes": 1 << 30,
    "hugepages": [{"size_bytes": 2 << 20, "count": 5}], "distances": {"0": 10, "1": 21, "2": 28},
    "tier": None, "bandwidth": None, "backing": None, "memory_class": "dram",
}  # fmt: skip
ADDRESS = "0000:41:00.0"
DEVICE = {
    "kind": "pci", "name": ADDRESS, "address": ADDRESS, "node": 1, "cpus": "2-3",
    "vendor": "0x8086", "device": "0x1", "class": "0x2",
}  # fmt: skip
TOTALS = {
    "cpus": 8, "online": 7, "memory_bytes": 5 << 30, "packages": 2, "dies": 2, "clusters": 0,
    "cores": 4, "threads_per_core": 2, "uncore_caches": 2, "nodes": 3, "memory_only_nodes": 1,
}  # fmt: skip


def test_a_host_is_shown_as_plain_json() -> None:
    device = Device("pci", ADDRESS, ADDRESS, 1, Mask.of(2, 3), "0x8086", "0x1", "0x2")
    host = replace(
        HOST, devices=(device,), nohz_full=Mask.parse("1-3"), warnings=("f: odd; no caches",)
    )
    view = topology_view(host)
    assert json.loads(json.dumps(view)) == view
    cpus, (first, second, third) = view["cpus"], view["nodes"]
    assert cpus[5] == CPU_5
    assert (cpus[1]["isolated"], cpus[7]["online"], cpus[7]["core"]) == (True, False, None)
    assert first == NODE_0
    assert (second["cpus"], third["cpus"], third["memory_bytes"]) == ("2-3,6", "", 3 << 30)
    assert (view["devices"], view["totals"]) == ([DEVICE], TOTALS)
    assert (view["nohz_full"], view["warnings"]) == ("1-3", ["f: odd; no caches"])
    assert (view["offline"], view["isolated"]) == ("7", "1")


def test_threads_per_core_are_those_of_the_widest_core_not_a_quotient() -> None:
    host = with_offline(regular_host(packages=1, cores_per_node=4, threads=4), Mask.parse("5-15"))
    assert totals(host)["threads_per_core"] == 2


def test_kinds_of_cores_and_memory_that_one_node_does_not_show() -> None:
    cpu = replace(HOST.cpus[0], kind=CoreKind.EFFICIENCY)
    node = replace(HOST.nodes[0], memory_bytes=None)
    view = topology_view(replace(HOST, cpus=(cpu, *HOST.cpus[1:]), nodes=(node, *HOST.nodes[1:])))
    assert view["cpus"][0]["kind"] == "efficiency"
    assert view["nodes"][0]["memory_bytes"] is None
    assert view["totals"]["memory_bytes"] is None
