"""`python -m tests.guest.inside.described DIR`: write the sysfs tree of a machine that is not.

Two packages of four cores, whose second threads are numbered after all first ones (0+8, 1+9, ...),
as most servers have it and QEMU does not. Run with the agent's Python: the tree is written by the
agent's own package.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from sysfs.described import write_tree
from sysfs.host import Cpu, Host, Node
from sysfs.mask import Mask

CORES: Final = 8
CORES_PER_NODE: Final = 4
MEMORY: Final = 6 << 30


def node_of(cpu: int) -> int:
    """Return the node of a CPU."""
    return cpu % CORES // CORES_PER_NODE


def host() -> Host:
    """Return the machine's facts."""
    numbers = range(2 * CORES)
    cpus = tuple(_cpu(number) for number in numbers)
    own = [Mask.from_ids(n for n in numbers if node_of(n) == node) for node in range(2)]
    nodes = tuple(
        Node(node, own[node], MEMORY, distances={node: 10, 1 - node: 21}) for node in range(2)
    )
    return Host(cpus, nodes)


def _cpu(number: int) -> Cpu:
    core, node = number % CORES, node_of(number)
    package = node * CORES_PER_NODE
    return Cpu(
        id=number,
        online=True,
        isolated=False,
        core=core,
        cluster=core,
        die=package,
        package=node,
        node=node,
        uncore=package,
    )


if __name__ == "__main__":
    write_tree(host(), Path(sys.argv[1]))
