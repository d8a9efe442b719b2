"""Memory and huge pages, of a node or of a host without nodes, in bytes."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final

from sysfs.errors import MalformedFile
from sysfs.host import HugePages

if TYPE_CHECKING:
    from sysfs.files import Tree

HOST_MEMINFO: Final = "proc/meminfo"
HOST_HUGEPAGES: Final = "sys/kernel/mm/hugepages"
_TOTAL: Final = re.compile(r"^(?:Node\s+[0-9]+\s+)?MemTotal:\s+([0-9]{1,15}) kB\s*$", re.MULTILINE)
_POOL: Final = re.compile(r"hugepages-([1-9][0-9]{0,11})kB", re.ASCII)


def find_memory_total(tree: Tree, name: str) -> int | None:
    """Return `MemTotal` of a `meminfo` file in bytes; None if the file is absent.

    Raises `MalformedFile` if the file has no line `MemTotal: <number> kB`.
    """
    text = tree.find(name)
    if text is None:
        return None
    match = _TOTAL.search(text)
    if match is None:
        raise MalformedFile(tree.path(name), text, "a line 'MemTotal: <number> kB'")
    return int(match[1]) * 1024


def read_hugepages(tree: Tree, directory: str) -> tuple[HugePages, ...]:
    """Return the pools below a `hugepages` directory by ascending page size, empty ones too.

    None if the directory is absent (a kernel without hugetlbfs). A pool without `nr_hugepages`
    has 0 pages, and so has one whose file is odd.
    """
    sizes = tree.optional(partial(pool_sizes, tree, directory), [], "no huge pages are known by it")
    return tuple(
        HugePages(size_kib * 1024, _pages(tree, directory, size_kib)) for size_kib in sizes
    )


def _pages(tree: Tree, directory: str, size_kib: int) -> int:
    file = f"{directory}/hugepages-{size_kib}kB/nr_hugepages"

    def read() -> int:
        count = tree.find_integer(file) or 0
        if count < 0:
            raise MalformedFile(tree.path(file), str(count), "a number of pages")
        return count

    return tree.optional(read, 0, "no huge pages are known by it")


def pool_sizes(tree: Tree, directory: str) -> list[int]:
    """Return the page sizes in KiB that have a pool below a `hugepages` directory, ascending."""
    matches = map(_POOL.fullmatch, tree.names(directory))
    return sorted(int(match[1]) for match in matches if match is not None)
