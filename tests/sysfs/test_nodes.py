from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sysfs.files import MissingFile, SysfsTree
from sysfs.host import HugePages, MemoryClass, Node
from sysfs.mask import Mask
from sysfs.nodes import nodes_of_cpus, read_nodes
from tests.sysfs.trees import CPU, NODE, lay_out

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def _node(node: int, **files: str | None) -> dict[str, str]:
    texts: Mapping[str, str | None] = {
        "cpulist": f"{node}\n",
        "meminfo": f"Node {node} MemTotal: 1024 kB\n",
        **files,
    }
    return {f"{NODE}/node{node}/{name}": t for name, t in texts.items() if t is not None}


def test_a_host_without_nodes_is_one_node_with_the_hosts_memory(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": "MemTotal: 4 kB\n",
        "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "3",
    }
    online = Mask.parse("0-3")
    assert read_nodes(SysfsTree(lay_out(tmp_path, files)), online) == (
        Node(0, online, 4096, (HugePages(2 << 20, 3),), {0: 10}),
    )


_HOSTS_MEMORY = {"proc/meminfo": "MemTotal: 8 kB\n"}


@pytest.mark.parametrize(
    ("files", "memory"),
    [
        ({}, [None]),
        ({**_node(0, meminfo=None), **_HOSTS_MEMORY}, [8192]),
        ({**_node(0), **_node(1, meminfo=None), **_HOSTS_MEMORY}, [1 << 20, None]),
    ],
    ids=["no node and no meminfo", "an only node without meminfo", "one of several without"],
)
def test_memory_is_the_hosts_where_that_can_be_meant(
    tmp_path: Path, files: dict[str, str], memory: list[int | None]
) -> None:
    nodes = read_nodes(SysfsTree(lay_out(tmp_path, files)), Mask.of(0))
    assert [node.memory_bytes for node in nodes] == memory


@pytest.mark.parametrize(
    "files", [_node(0, cpulist="0-87\n"), _node(0, cpulist=None, cpumap="00000000,0000000f\n")]
)
def test_the_online_cpus_of_a_list_or_a_map_are_a_nodes_cpus(
    tmp_path: Path, files: dict[str, str]
) -> None:
    (node,) = read_nodes(SysfsTree(lay_out(tmp_path, files)), Mask.parse("0-3"))
    assert str(node.cpus) == "0-3"


def test_a_node_must_list_its_cpus(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="node0/cpulist"):
        read_nodes(SysfsTree(lay_out(tmp_path, _node(0, cpulist=None))), Mask.of(0))


@pytest.mark.parametrize("state", ["online", "possible"])
def test_a_row_of_more_nodes_than_directories_is_read_by_the_lists(
    tmp_path: Path, state: str
) -> None:
    files = {**_node(1, distance="21 10\n"), f"{NODE}/{state}": "0-1\n"}
    (node,) = read_nodes(SysfsTree(lay_out(tmp_path, files)), Mask.of(1))
    assert dict(node.distances) == {1: 10}


@pytest.mark.parametrize(
    "row", ["10 20 30", "10", "", "10 x", "10 -20", "ten", "10 1000", "10 " + "9" * 5000]
)
def test_a_row_that_fits_no_list_of_nodes_is_a_warning(tmp_path: Path, row: str) -> None:
    files = {**_node(0, distance=row), **_node(1, distance="20 10")}
    tree = SysfsTree(lay_out(tmp_path, files))
    nodes = read_nodes(tree, Mask.of(0))
    assert [dict(node.distances) for node in nodes] == [{0: 10, 1: 20}, {0: 20, 1: 10}]
    (warning,) = tree.warnings
    assert "node0/distance: found" in warning
    assert "10 to itself and 20 to all others are taken" in warning


@pytest.mark.parametrize(
    ("links", "lists", "nodes"),
    [
        ({}, {0: "0-1", 5: "2"}, {0: 0, 1: 0, 2: 5}),
        ({3: [5]}, {0: "0", 5: "2"}, {0: 0, 2: 5, 3: 5}),
        ({1: [7]}, {0: "0"}, {0: 0}),
        ({1: [1]}, {0: "0-1", 1: "0-1"}, {0: 0, 1: 1}),
        ({0: [1, 2]}, {0: "0", 1: "0", 2: "0"}, {0: 0}),
        ({}, {0: ""}, {}),
    ],
    ids=[
        "the node that lists it",
        "of an offline CPU the node that it links to",
        "no node that is not there",
        "where all nodes list it the one that it links to, else the lowest",
        "not one of several that it links to",
        "no node without CPUs",
    ],
)
def test_the_node_of_a_cpu_is(
    tmp_path: Path, links: dict[int, list[int]], lists: dict[int, str], nodes: dict[int, int]
) -> None:
    for cpu, linked in links.items():
        lay_out(tmp_path, {f"{CPU}/cpu{cpu}/node{node}/x": "" for node in linked})
    found = tuple(Node(id=n, cpus=Mask.parse(cpus), memory_bytes=0) for n, cpus in lists.items())
    assert nodes_of_cpus(SysfsTree(tmp_path), found, Mask.parse("0-3")) == nodes


def _backed(root: Path, place: str, node: int, driver: str = "kmem") -> None:
    """Lay out a DAX device that names a node."""
    device = root / "sys/devices" / place
    lay_out(root, {f"sys/devices/{place}/target_node": f"{node}\n"})
    (device / "driver").symlink_to(f"../../bus/dax/drivers/{driver}")
    link = root / "sys/bus/dax/devices" / device.name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(f"../../../devices/{place}")


def test_the_memory_of_a_node_is_from_the_device_that_names_the_node(tmp_path: Path) -> None:
    gpu = "Node:      5\nStatus:    online\nSize:      3f0000000\n"
    files = {
        **dict(entry for node in range(7) for entry in _node(node).items()),
        f"{NODE}/has_generic_initiator": "6\n",
        "proc/driver/nvidia/gpus/0035:05:00.0/numa_status": gpu,
        "proc/driver/nvidia/gpus/0035:04:00.0/numa_status": "Status: disabled\n",
    }
    root = lay_out(tmp_path, files)
    _backed(root, "platform/ACPI0017:00/root0/decoder0.0/region0/dax_region0/dax0.0", 1)
    _backed(root, "LNXSYSTM:00/ACPI0012:00/ndbus0/region1/dax1.1/dax1.0", 2)
    _backed(root, "platform/hmem.0/dax2.0", 3)
    _backed(root, "platform/ACPI0017:00/root0/decoder0.0/region1/dax3.0", 4, "device_dax")
    nodes = read_nodes(SysfsTree(root), Mask.parse("0-6"))
    cxl, pmem, gpus = MemoryClass.CXL, MemoryClass.PMEM, MemoryClass.GPU
    assert [node.backing for node in nodes] == [None, cxl, pmem, None, None, gpus, gpus]


def test_the_bandwidth_of_a_node_is_that_of_the_nearest_cpus(tmp_path: Path) -> None:
    of_devices, of_cpus = "access0/initiators/read_bandwidth", "access1/initiators/read_bandwidth"
    files = {
        **_node(0, **{of_devices: "8192\n", of_cpus: "131072\n"}),
        **_node(1, **{of_devices: "78644\n"}),
        **_node(2, **{of_devices: "0\n"}),
    }
    nodes = read_nodes(SysfsTree(lay_out(tmp_path, files)), Mask.parse("0-2"))
    assert [node.bandwidth for node in nodes] == [131072, 78644, None]
