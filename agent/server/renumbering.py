"""NUMA nodes that have another number after a boot, and allocations under the new numbers.

In go the nodes of the checkpoint and those of the host, and a ledger; out come the moves of nodes,
and the ledger with each node under its new number. The kernel numbers nodes in the order of the
firmware's tables, which a firmware update or a node without memory can change. A node is known by
its CPUs. Call this only after a boot, when no process uses the allocations: memory allocated from
then on is local to the CPUs.

Two nodes without CPUs that swap their numbers are not noticed. One node whose CPUs changed leaves
all nodes under their old numbers.
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

    from agent.managers.allocation import ContainerAllocation, PodAllocation
    from agent.managers.ledger import Ledger
    from agent.managers.resource_manager import ResourceManager
    from agent.managers.topology.hint import Hint
    from agent.state.checkpoint import HostFacts

_UNMOVED: Final[Mapping[int, int]] = MappingProxyType({})


def node_moves(before: HostFacts, after: HostFacts) -> Mapping[int, int]:
    """Return {old number: new number} of all nodes if some were renumbered, else an empty mapping.

    1. A node with CPUs is the node that has the same CPUs now.
    2. A node without CPUs keeps its number, if that is still the number of a node without CPUs.
    3. If any node is neither, or two would become one, the hardware changed: nothing is renumbered.
    """
    moves: dict[int, int] = {}
    by_cpus = {node.cpus: node.id for node in after.nodes if node.cpus}
    without_cpus = {node.id for node in after.nodes if not node.cpus}
    for node in before.nodes:
        if node.cpus and node.cpus in by_cpus:
            moves[node.id] = by_cpus[node.cpus]
        elif not node.cpus and node.id in without_cpus:
            moves[node.id] = node.id
        else:
            return _UNMOVED
    if len(set(moves.values())) < len(moves) or all(old == new for old, new in moves.items()):
        return _UNMOVED
    return MappingProxyType(moves)


def renumbered(
    managers: Iterable[ResourceManager], ledger: Ledger, moves: Mapping[int, int]
) -> Ledger:
    """Return a ledger with every node under its new number; `moves` as of `node_moves`."""
    managers = tuple(managers)
    allocations = {
        uid: _pod(managers, allocation, moves) for uid, allocation in ledger.allocations.items()
    }
    charges = {
        moves.get(node, node): replace(charge, cells=renumbered_nodes(charge.cells, moves))
        for node, charge in memory_charge(ledger).items()
    }
    ledger = replace(ledger, allocations=MappingProxyType(allocations))
    return ledger.with_part(MEMORY, MappingProxyType(dict(sorted(charges.items()))))


def _pod(
    managers: Sequence[ResourceManager], allocation: PodAllocation, moves: Mapping[int, int]
) -> PodAllocation:
    containers = tuple(
        _container(managers, container, moves) for container in allocation.containers
    )
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
    device_nodes = {
        resource: {device: renumbered_nodes(nodes, moves) for device, nodes in devices.items()}
        for resource, devices in allocation.device_nodes.items()
    }
    return replace(
        allocation,
        hint=_hint(allocation.hint, moves),
        device_nodes=MappingProxyType(device_nodes),
        memory_nodes=renumbered_nodes(allocation.memory_nodes, moves),
    )


def _hint(hint: Hint, moves: Mapping[int, int]) -> Hint:
    if hint.nodes is None:
        return hint
    return hint._replace(nodes=renumbered_nodes(Mask(hint.nodes), moves).bits)
