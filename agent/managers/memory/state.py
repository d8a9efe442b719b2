"""Allocatable memory, the charge by node, and how charges are added and released.

The memory manager's static policy (KEP-1769; kubelet v1.36, memorymanager/policy_static.go).
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003  # msgspec reads it at run time
from functools import cached_property
from typing import TYPE_CHECKING, Final, Self

from msgspec import Struct
from msgspec.structs import replace

from agent.pods.model import HUGEPAGES_PREFIX, MEMORY
from agent.values import Name, Saved, Size
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agent.managers.allocation import MemoryBlock, PodAllocation
    from agent.managers.ledger import Ledger
    from agent.managers.machine import Machine, MachineNode
    from agent.managers.policy import MemoryPolicy

_SUFFIXES: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def hugepages_type(page_bytes: int) -> str:
    """Return the resource name of a huge page size: `hugepages-2Mi`, `hugepages-1Gi`.

    The amount is a canonical Kubernetes quantity: the largest suffix that leaves a whole number.
    """
    amount, power = page_bytes, 0
    while amount and amount % 1024 == 0 and power < len(_SUFFIXES) - 1:
        amount //= 1024
        power += 1
    return f"{HUGEPAGES_PREFIX}{amount}{_SUFFIXES[power]}"


def page_size(machine: Machine, memory_type: str) -> int | None:
    """Return the unit of a memory type in bytes: 1 MiB of `memory`, a page of huge pages.

    None where no node has the type.
    """
    if memory_type == MEMORY:
        return 1 << 20
    for node in machine.nodes:
        for size in node.hugepages:
            if hugepages_type(size) == memory_type:
                return size
    return None


class MemoryFacts(Struct, frozen=True, dict=True):
    """The memory of a machine's nodes, in bytes by node by type, once reservations are made.

    `allocatable` is what pods can have: of `memory` the node's total less the reservation and all
    its huge pages, of a huge page size its pages less the reservation. It is never negative;
    `overcommitted` names the nodes whose reservations and huge pages exceed the total, and by
    how much. A node has only the huge page sizes that its own tables list. Of the nodes in
    `cordoned` nothing is free, whatever is allocatable.
    """

    nodes: tuple[int, ...]
    total: Mapping[int, Mapping[str, int]]
    reserved: Mapping[int, Mapping[str, int]]
    allocatable: Mapping[int, Mapping[str, int]]
    overcommitted: Mapping[int, int]
    cordoned: Mask = EMPTY
    #: Whether `nodes` are not all of which the amounts are known.
    partial: bool = False

    @classmethod
    def of(cls, machine: Machine, policy: MemoryPolicy, cordoned: Mask = EMPTY) -> Self:
        """Return the allocatable memory under a policy; memory-only nodes count as others."""
        nodes = sorted(machine.nodes, key=lambda node: node.id)
        total = {node.id: _totals(node) for node in nodes}
        reserved = {
            node: {name: policy.reserved.get(node, {}).get(name, 0) for name in types}
            for node, types in total.items()
        }
        spare = {node: _spare(total[node], reserved[node]) for node in total}
        return cls(
            nodes=tuple(total),
            total=total,
            reserved=reserved,
            allocatable={
                node: {name: max(size, 0) for name, size in types.items()}
                for node, types in spare.items()
            },
            overcommitted={
                node: -min(types.values())
                for node, types in spare.items()
                if min(types.values()) < 0
            },
            cordoned=cordoned,
        )

    def only(self, nodes: Mask) -> MemoryFacts:
        """Return the facts for a request that may use these nodes alone.

        What is on others still counts where a group has more than its nodes.
        """
        only = tuple(node for node in self.nodes if node in nodes)
        return replace(self, nodes=only, partial=True)

    def has_own_cpus(self, machine: Machine) -> bool:
        """Return whether every node has CPUs, or is not to be aligned by those of others."""
        return all(machine.nearest[node] == Mask.of(node) for node in self.nodes)

    @cached_property
    def mask(self) -> Mask:
        """All NUMA nodes, memory-only ones included."""
        return Mask.from_ids(self.nodes)

    @cached_property
    def open(self) -> Mapping[int, Mapping[str, int]]:
        """What pods can have of the nodes that are not cordoned, in bytes by node by type."""
        return {
            node: types for node, types in self.allocatable.items() if node not in self.cordoned
        }

    @cached_property
    def allocatable_of(self) -> Mapping[str, tuple[int, ...]]:
        """What pods can have of each memory type, in bytes by node in the order of `nodes`."""
        return {
            name: tuple(self.allocatable[node].get(name, 0) for node in self.nodes)
            for name in self.types
        }

    @cached_property
    def types(self) -> frozenset[str]:
        """The memory types that any node has."""
        return frozenset(name for types in self.allocatable.values() for name in types)


class NodeMemory(Saved, frozen=True):
    """How much of one node's memory is charged.

    `reserved` is bytes by memory type; `assignments` counts the blocks that touch the node and
    `cells` is the group of nodes it currently serves together with (itself alone when unused).
    """

    assignments: Size
    cells: Mask
    reserved: Mapping[Name, Size]


def memory_charge(ledger: Ledger) -> Mapping[int, NodeMemory]:
    """Return the charge of memory by node.

    Over a NUMA group it is the sum of the blocks, and how the charge is spread over its members
    depends on the order of releases (the kubelet's rule), so it is stored, not derived.
    """
    charge: Mapping[int, NodeMemory] = ledger.parts.get(MEMORY, {})
    return charge


def initial_memory(facts: MemoryFacts) -> dict[int, NodeMemory]:
    """Return the charge of a machine without allocated memory."""
    return {node: _unused(facts, node) for node in facts.nodes}


def free_memory(
    facts: MemoryFacts, state: Mapping[int, NodeMemory], memory_type: str
) -> dict[int, int]:
    """Return the free bytes of one type by node, 0 on nodes that do not have the type.

    Never negative: if more is allocated than a node has (memory or reservation changed), the excess
    counts against the nodes of its group, and otherwise nothing is free. Nothing is free on
    cordoned nodes. By node of `facts.nodes`.
    """
    free = {
        node: types.get(memory_type, 0) - state[node].reserved.get(memory_type, 0)
        for node, types in facts.allocatable.items()
    }
    if min(free.values(), default=0) < 0:
        free = _covered(state, free)
    if facts.partial:
        free = {node: free[node] for node in facts.nodes}
    if facts.cordoned:
        return {node: 0 if node in facts.cordoned else size for node, size in free.items()}
    return free


def _covered(state: Mapping[int, NodeMemory], free: dict[int, int]) -> dict[int, int]:
    """Return what is free after the excess of each node is taken from the others of its group."""
    for node, excess in [(node, -size) for node, size in free.items() if size < 0]:
        left = excess
        for other in state[node].cells:
            taken = min(left, max(free.get(other, 0), 0))
            if taken:
                free[other] -= taken
                left -= taken
        free[node] = 0
    return free


def charge(
    facts: MemoryFacts, state: Mapping[int, NodeMemory], block: MemoryBlock
) -> dict[int, NodeMemory]:
    """Return the charge with one more block; `block.size` is the newly taken amount.

    Nodes are filled in ascending order. Every node of the block becomes a member of its group,
    also those from which nothing is taken.
    """
    changed = dict(state)
    open_size = block.size
    for node in block.nodes:
        charge = changed[node]
        used = charge.reserved.get(block.type, 0)
        taken = min(open_size, max(facts.allocatable[node].get(block.type, 0) - used, 0))
        open_size -= taken
        changed[node] = NodeMemory(
            charge.assignments + 1, block.nodes, _with(charge.reserved, block.type, used + taken)
        )
    return changed


def charge_allocation(
    facts: MemoryFacts, state: Mapping[int, NodeMemory], allocation: PodAllocation
) -> Mapping[int, NodeMemory]:
    """Return the charge with all memory of a pod, in full.

    The part that the nodes have no room for is charged to the first of them. Nodes that the machine
    no longer has are left out.
    """
    for _, block in charged_blocks(allocation):
        nodes = block.nodes & facts.mask
        if nodes:
            state = _in_full(facts, state, replace(block, nodes=nodes))
    return state


def charged_blocks(allocation: PodAllocation) -> Iterator[tuple[str | None, MemoryBlock]]:
    """Yield the blocks that a pod is charged for, with the container's name (None: its budget)."""
    for block in allocation.memory:
        yield None, block
    if not allocation.memory:
        for container in allocation.containers:
            for block in container.memory:
                yield container.name, block


def _in_full(
    facts: MemoryFacts, state: Mapping[int, NodeMemory], block: MemoryBlock
) -> Mapping[int, NodeMemory]:
    charged = charge(facts, state, block)
    excess = block.size - sum(
        charged[node].reserved.get(block.type, 0) - state[node].reserved.get(block.type, 0)
        for node in block.nodes
    )
    if not excess:
        return charged
    first = charged[block.nodes.lowest]
    reserved = _with(first.reserved, block.type, first.reserved.get(block.type, 0) + excess)
    return {**charged, block.nodes.lowest: replace(first, reserved=reserved)}


def release(
    facts: MemoryFacts, state: Mapping[int, NodeMemory], blocks: Iterable[MemoryBlock]
) -> dict[int, NodeMemory]:
    """Return the charge without the given blocks.

    Nodes are emptied in ascending order, whichever of them the blocks were charged to, so over a
    group of nodes the sum is right and the division may have changed (the kubelet's rule). Nodes
    that are no longer in use are emptied first and become unused. Nodes that the machine no
    longer has are skipped.
    """
    changed = dict(state)
    for block in blocks:
        nodes = [node for node in block.nodes if node in changed]
        leaving = [node for node in nodes if changed[node].assignments <= 1]
        staying = [node for node in nodes if changed[node].assignments > 1]
        surplus = _sums(changed[node].reserved for node in leaving)
        surplus[block.type] = surplus.get(block.type, 0) - block.size
        for node in leaving:
            changed[node] = _unused(facts, node)
        for node in staying:
            charge = changed[node]
            reserved = _moved(facts.allocatable[node], charge.reserved, surplus)
            changed[node] = replace(charge, assignments=charge.assignments - 1, reserved=reserved)
        for name, size in surplus.items() if staying else ():
            if size > 0:  # more is allocated than these nodes have, and the excess is not free
                charge = changed[staying[-1]]
                reserved = _with(charge.reserved, name, charge.reserved.get(name, 0) + size)
                changed[staying[-1]] = replace(charge, reserved=reserved)
    return changed


def _moved(
    allocatable: Mapping[str, int], reserved: Mapping[str, int], surplus: dict[str, int]
) -> Mapping[str, int]:
    """Return the charge of a node after taking its share of `surplus`, which is reduced.

    A negative surplus is memory to give back. A positive one was charged to a node that is
    out of use by now, on behalf of blocks that stay (after a single-node block was placed on a
    member of a group, and the group's blocks were released in ascending order).
    """
    for name, size in surplus.items():
        used = reserved.get(name, 0)
        room = max(allocatable.get(name, 0) - used, 0)
        change = max(size, -used) if size < 0 else min(size, room)
        surplus[name] = size - change
        reserved = _with(reserved, name, used + change)
    return reserved


def _sums(amounts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for amount in amounts:
        for name, size in amount.items():
            total[name] = total.get(name, 0) + size
    return total


def _totals(node: MachineNode) -> dict[str, int]:
    pages = {hugepages_type(size): size * count for size, count in node.hugepages.items()}
    return {MEMORY: node.known_memory, **pages}


def _spare(total: Mapping[str, int], reserved: Mapping[str, int]) -> dict[str, int]:
    in_pages = sum(size for name, size in total.items() if name != MEMORY)
    return {
        name: size - reserved[name] - (in_pages if name == MEMORY else 0)
        for name, size in total.items()
    }


def _unused(facts: MemoryFacts, node: int) -> NodeMemory:
    return NodeMemory(0, Mask.of(node), dict.fromkeys(facts.allocatable.get(node, ()), 0))


def _with(reserved: Mapping[str, int], memory_type: str, size: int) -> Mapping[str, int]:
    if reserved.get(memory_type, 0) == size:
        return reserved
    return {**reserved, memory_type: size}


def renumbered_nodes(nodes: Mask, moves: Mapping[int, int]) -> Mask:
    """Return nodes under the new numbers of {old: new}; others keep theirs."""
    return Mask.from_ids(moves.get(node, node) for node in nodes)
