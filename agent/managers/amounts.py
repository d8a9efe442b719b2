"""Amounts as people read them (`2 CPUs`, `nodes 0-1`, `1.5 GiB`), and the CPUs that are free."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from sysfs.mask import Mask

_UNIT: Final = 1024


def cpus_text(count: int) -> str:
    """Return a number of CPUs for people: `1 CPU`, `2 CPUs`."""
    return f"{count} CPU" if count == 1 else f"{count} CPUs"


def nodes_text(nodes: Mask) -> str:
    """Return NUMA nodes for people: `node 0`, `nodes 0-1`."""
    return f"node {nodes}" if len(nodes) == 1 else f"nodes {nodes}"


def size_text(size: int) -> str:
    """Return a number of bytes for people, exact where it is a whole number of units."""
    amount, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(amount) < _UNIT:
            break
        amount, unit = amount / _UNIT, larger
    return f"{amount:.2f}".rstrip("0").rstrip(".") + f" {unit}"


class FreeCpus(Struct, frozen=True, rename="camel"):
    """How many CPUs may still be allocated exclusively."""

    free: int
    #: Those in physical cores of which every CPU is free.
    whole_cores: int
    #: The most that one NUMA node has.
    on_one_node: int
    #: How much less one node has than it could, from 0 to 1: 1 - onOneNode / min(free, the most
    #: that a node has without pods). 0 on an empty host, and where nothing is free.
    fragmentation: float
