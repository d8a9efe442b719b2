"""What nodes could give now: free and reclaimable memory, and free huge pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sysfs.available import Available, read_available
from tests.sysfs.trees import lay_out

if TYPE_CHECKING:
    from pathlib import Path

NODES: Final = "sys/devices/system/node"
#: As a kernel 6.12 shows it, less the lines that do not count.
MEMINFO: Final = """\
Node 0 MemTotal:       16000 kB
Node 0 MemFree:         1000 kB
Node 0 Active(anon):    5000 kB
Node 0 Active(file):      20 kB
Node 0 Inactive(file):   300 kB
Node 0 Unevictable:      700 kB
Node 0 KReclaimable:      99 kB
Node 0 SReclaimable:       4 kB
Node 0 SUnreclaim:        77 kB
"""


def test_free_and_reclaimable_memory_and_free_pages_of_each_node_count(tmp_path: Path) -> None:
    root = lay_out(
        tmp_path,
        {
            f"{NODES}/node0/meminfo": MEMINFO,
            f"{NODES}/node0/hugepages/hugepages-2048kB/nr_hugepages": "9",
            f"{NODES}/node0/hugepages/hugepages-2048kB/free_hugepages": "3",
            f"{NODES}/node0/hugepages/hugepages-1048576kB/free_hugepages": "0",
            f"{NODES}/node1/meminfo": "Node 1 MemFree: 1 kB\nNode 1 MemTotal: many kB\n",
            f"{NODES}/node1/hugepages/hugepages-2048kB/free_hugepages": "some",
            f"{NODES}/node1/hugepages/hugepages-64kB/free_hugepages": "-1",
            f"{NODES}/node1/hugepages/hugepages-32kB/nr_hugepages": "5",
            "proc/meminfo": MEMINFO.replace("Node 0 ", ""),
        },
    )
    assert read_available(root, (0, 1, 2)) == {
        0: Available(1324 << 10, {2 << 20: 6 << 20, 1 << 30: 0}),
        1: Available(),
        2: Available(),
    }


def test_the_only_node_of_a_kernel_without_numa_has_what_the_host_has(tmp_path: Path) -> None:
    pages = "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"
    root = lay_out(tmp_path, {"proc/meminfo": MEMINFO.replace("Node 0 ", ""), pages: "2"})
    assert read_available(root, (0,)) == {0: Available(1324 << 10, {2 << 20: 4 << 20})}
