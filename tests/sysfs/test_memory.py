from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sysfs.files import MalformedFile, SysfsTree
from sysfs.host import HugePages
from sysfs.nodes import find_memory_total, read_hugepages
from tests.sysfs.trees import lay_out

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "text",
    [
        "MemTotal:        2048 kB\nMemFree: 1 kB\n",
        "Node 3 MemTotal:        2048 kB\nNode 3 MemFree: 1 kB\n",
        "\nNode 12 MemTotal:  2048 kB\n\0",
    ],
)
def test_the_total_is_read_in_bytes(tmp_path: Path, text: str) -> None:
    tree = SysfsTree(lay_out(tmp_path, {"meminfo": text}))
    assert find_memory_total(tree, "meminfo") == 2 << 20


@pytest.mark.parametrize(
    "text",
    [
        "",
        "MemFree: 1 kB",
        "MemTotal: kB",
        "MemTotal: 1 MB",
        "MemTotal: -1 kB",
        f"MemTotal: {10**15} kB",
    ],
)
def test_a_meminfo_without_a_total_is_reported(tmp_path: Path, text: str) -> None:
    tree = SysfsTree(lay_out(tmp_path, {"meminfo": text}))
    with pytest.raises(MalformedFile, match=r"meminfo: .*MemTotal: <number> kB"):
        find_memory_total(tree, "meminfo")


def test_pools_come_by_size_and_empty_ones_too(tmp_path: Path) -> None:
    files = {
        "h/hugepages-1048576kB/nr_hugepages": "0\n",
        "h/hugepages-2048kB/nr_hugepages": "512\n",
        "h/hugepages-64kB/free_hugepages": "1\n",
        "h/other/nr_hugepages": "7\n",
    }
    assert read_hugepages(SysfsTree(lay_out(tmp_path, files)), "h") == (
        HugePages(64 << 10, 0),
        HugePages(2 << 20, 512),
        HugePages(1 << 30, 0),
    )
