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


def test_a_cpu_shows_its_state_and_groups() -> None:
    cpus = topology_view(HOST)["cpus"]
    assert cpus[5] == {
        "id": 5,
        "online": True,
        "isolated": False,
        "core": 1,
        "cluster": None,
        "die": 0,
        "package": 0,
        "node": 0,
        "uncore": 0,
        "kind": "standard",
    }
    assert (cpus[1]["isolated"], cpus[7]["online"], cpus[7]["core"]) == (True, False, None)


def test_a_node_shows_cpus_in_list_format_memory_pools_and_distances() -> None:
    first, second, third = topology_view(HOST)["nodes"]
    assert first == {
        "id": 0,
        "cpus": "0-1,4-5",
        "memory_bytes": 1 << 30,
        "hugepages": [{"size_bytes": 2 << 20, "count": 5}],
        "distances": {"0": 10, "1": 21, "2": 28},
        "tier": None,
        "bandwidth": None,
        "backing": None,
        "memory_class": "dram",
    }
    assert (second["cpus"], third["cpus"], third["memory_bytes"]) == ("2-3,6", "", 3 << 30)


def test_a_device_shows_where_it_is() -> None:
    device = Device("pci", "0000:41:00.0", "0000:41:00.0", 1, Mask.of(2, 3), "0x8086", "0x1", "0x2")
    assert topology_view(replace(HOST, devices=(device,)))["devices"] == [
        {
            "kind": "pci",
            "name": "0000:41:00.0",
            "address": "0000:41:00.0",
            "node": 1,
            "cpus": "2-3",
            "vendor": "0x8086",
            "device": "0x1",
            "class": "0x2",
        }
    ]


def test_totals_count_groups_with_an_online_cpu() -> None:
    assert totals(HOST) == {
        "cpus": 8,
        "online": 7,
        "memory_bytes": 5 << 30,
        "packages": 2,
        "dies": 2,
        "clusters": 0,
        "cores": 4,
        "threads_per_core": 2,
        "uncore_caches": 2,
        "nodes": 3,
        "memory_only_nodes": 1,
    }


def test_threads_per_core_are_those_of_the_widest_core_not_a_quotient() -> None:
    host = with_offline(regular_host(packages=1, cores_per_node=4, threads=4), Mask.parse("5-15"))
    assert totals(host)["threads_per_core"] == 2


def test_core_kinds_are_named() -> None:
    first = replace(HOST.cpus[0], kind=CoreKind.EFFICIENCY)
    view = topology_view(replace(HOST, cpus=(first, *HOST.cpus[1:])))
    assert view["cpus"][0]["kind"] == "efficiency"


def test_memory_that_one_node_does_not_show_is_null_there_and_in_the_sum() -> None:
    first = replace(HOST.nodes[0], memory_bytes=None)
    view = topology_view(replace(HOST, nodes=(first, *HOST.nodes[1:])))
    assert view["nodes"][0]["memory_bytes"] is None
    assert view["totals"]["memory_bytes"] is None


def test_sets_and_warnings_of_the_host_are_reported_unchanged() -> None:
    host = replace(HOST, nohz_full=Mask.parse("1-3"), warnings=("f: odd; no caches",))
    view = topology_view(host)
    assert (view["nohz_full"], view["warnings"]) == ("1-3", ["f: odd; no caches"])
    assert (view["offline"], view["isolated"]) == (str(HOST.offline), str(HOST.isolated))


def test_the_view_is_plain_json() -> None:
    assert json.loads(json.dumps(topology_view(HOST))) == topology_view(HOST)
