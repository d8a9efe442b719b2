"""Small machines for the tests of the memory manager."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.managers.cpu.topology import CpuTopology
from agent.managers.machine import Machine, MachineNode
from agent.managers.memory.state import MemoryFacts
from agent.managers.policy import MemoryManagerPolicy, MemoryPolicy
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.managers.allocation import MemoryBlock
    from agent.managers.memory.state import NodeMemory

MI = 1 << 20
GI = 1 << 30


def machine(*nodes: MachineNode) -> Machine:
    return Machine(CpuTopology.from_rows([(0, 0, 0, nodes[0].id, -1)]), nodes)


def node(number: int, size: int, hugepages: Mapping[int, int] | None = None) -> MachineNode:
    return MachineNode(number, size, hugepages or {}, {})


def facts_of(
    *nodes: MachineNode, reserved: Mapping[int, Mapping[str, int]] | None = None
) -> MemoryFacts:
    return MemoryFacts.of(machine(*nodes), MemoryPolicy(MemoryManagerPolicy.STATIC, reserved or {}))


def plain_facts(*sizes: int) -> MemoryFacts:
    return facts_of(*(node(number, size) for number, size in enumerate(sizes)))


def charged(state: Mapping[int, NodeMemory], memory_type: str = "memory") -> dict[int, int]:
    return {number: charge.reserved.get(memory_type, 0) for number, charge in state.items()}


def total_charge(state: Mapping[int, NodeMemory]) -> dict[str, int]:
    total: dict[str, int] = {}
    for charge in state.values():
        for name, size in charge.reserved.items():
            total[name] = total.get(name, 0) + size
    return total


def total_size(blocks: list[MemoryBlock]) -> dict[str, int]:
    total: dict[str, int] = {}
    for block in blocks:
        total[block.type] = total.get(block.type, 0) + block.size
    return total


def bits(*ids: int) -> int:
    return Mask.of(*ids).bits
