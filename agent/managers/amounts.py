"""Amounts: of CPUs, NUMA nodes and bytes as people read them, and of free CPUs as numbers."""

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
    """The CPUs that may still be allocated exclusively.

    `wholeCores` are those in physical cores of which every CPU is free, `onOneNode` the most that
    one NUMA node has. `fragmentation` (0 to 1) is the share that one request on one node cannot get
    of what would fit one node: 1 - onOneNode / min(free, the most that a node has without pods).
    """

    free: int
    whole_cores: int
    on_one_node: int
    #: 0 on an empty host, and where nothing is free.
    fragmentation: float
