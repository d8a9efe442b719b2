"""Remaps allocations to NUMA nodes that a reboot renumbered.

The kernel numbers nodes in the order of the firmware's tables, which a firmware update or a node
without memory can change. Nodes are identified by their CPUs. Allocations are remapped only after a
reboot, when no process uses them: memory allocated from then on is local to the CPUs.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from agent.managers.memory.state import memory_charge, renumbered_nodes
from agent.pods.model import MEMORY
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agent.managers.allocations.allocation import ContainerAllocation, PodAllocation
    from agent.managers.allocations.ledger import Ledger
    from agent.managers.memory.state import NodeMemory
    from agent.managers.resource_manager import ResourceManager
    from agent.managers.topology.hints import Hint
    from agent.state.checkpoint import HostFacts

_UNMOVED: Final[Mapping[int, int]] = MappingProxyType({})


def node_moves(before: HostFacts, after: HostFacts) -> Mapping[int, int]:
    """Return {old number: new number} of all nodes if some were renumbered, else an empty mapping.

    Every node must be found: those with CPUs by the same CPUs, those without under their old
    number. If one is not found, the hardware changed, and nothing is remapped.
    """
    found: dict[int, int] = {}
    by_cpus = {node.cpus: node.id for node in after.nodes if node.cpus}
    bare = {node.id for node in after.nodes if not node.cpus}
    for node in before.nodes:
        if node.cpus and node.cpus in by_cpus:
            found[node.id] = by_cpus[node.cpus]
        elif not node.cpus and node.id in bare:
            found[node.id] = node.id
        else:
            return _UNMOVED
    if len(set(found.values())) < len(found) or all(old == new for old, new in found.items()):
        return _UNMOVED
    return MappingProxyType(found)


def renumbered(
    managers: Iterable[ResourceManager], ledger: Ledger, moves: Mapping[int, int]
) -> Ledger:
    """Return a ledger with every node under its new number."""
    known = tuple(managers)
    moved = {uid: _pod(known, each, moves) for uid, each in ledger.allocations.items()}
    charges = memory_charge(ledger)
    charge = {moves.get(n, n): _charge(memory, moves) for n, memory in charges.items()}
    changed = replace(ledger, allocations=MappingProxyType(moved))
    return changed.with_part(MEMORY, MappingProxyType(dict(sorted(charge.items()))))


def _charge(memory: NodeMemory, moves: Mapping[int, int]) -> NodeMemory:
    return replace(memory, cells=renumbered_nodes(memory.cells, moves))


def _pod(
    managers: Sequence[ResourceManager], allocation: PodAllocation, moves: Mapping[int, int]
) -> PodAllocation:
    containers = tuple(_container(managers, each, moves) for each in allocation.containers)
    allocation = replace(allocation, containers=containers)
    for manager in managers:
        part = allocation.part(manager.name)
        if part is not None:
            allocation = allocation.with_part(manager.name, manager.renumbered(part, moves))
    return allocation


def _container(
    managers: Sequence[ResourceManager], allocation: ContainerAllocation, moves: Mapping[int, int]
) -> ContainerAllocation:
    for manager in managers:
        part = allocation.part(manager.name)
        if part is not None:
            allocation = allocation.with_part(manager.name, manager.renumbered(part, moves))
    places = {
        resource: {device: renumbered_nodes(on, moves) for device, on in nodes.items()}
        for resource, nodes in allocation.device_nodes.items()
    }
    hint = _hint(allocation.hint, moves)
    return replace(allocation, hint=hint, device_nodes=MappingProxyType(places))


def _hint(hint: Hint, moves: Mapping[int, int]) -> Hint:
    if hint.nodes is None:
        return hint
    return hint._replace(nodes=renumbered_nodes(Mask(hint.nodes), moves).bits)
