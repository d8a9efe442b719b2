"""The state at the start: checkpoint, recovered pods, and changes since the checkpoint.

The kernel numbers NUMA nodes in the order of the firmware's tables, which a firmware update or a
node without memory can change. Nodes are known by their CPUs. Allocations are remapped only after a
reboot, when no process uses them: memory allocated from then on is local to the CPUs.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import structlog
from msgspec.structs import replace

from agent.managers.memory.state import memory_charge, renumbered_nodes
from agent.managers.recovery import describe_recovered, recover
from agent.managers.rules import restored
from agent.pods.model import MEMORY
from agent.server.state import FormerChanges
from agent.state.checkpoint import (
    Checkpoint,
    host_changes,
    host_facts,
    policy_changes,
    policy_summary,
)
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from agent.managers.allocation import ContainerAllocation, PodAllocation
    from agent.managers.ledger import Ledger
    from agent.managers.memory.state import NodeMemory
    from agent.managers.recovery import ObservedPod
    from agent.managers.resource_manager import ResourceManager
    from agent.managers.topology.hint import Hint
    from agent.server.configured import ConfiguredHost
    from agent.server.state import AgentState
    from agent.state.checkpoint import HostFacts, UnusableCheckpointError
    from agent.state.store import LoadResult


log = structlog.get_logger(__name__)

_UNMOVED: Final[Mapping[int, int]] = MappingProxyType({})


def restored_state(
    configured: ConfiguredHost, loaded: LoadResult, boot_id: str
) -> tuple[Checkpoint, FormerChanges]:
    """Return each allocation as it was saved, and what changed since, which is logged.

    `AgentState.invalid` has the allocations that the changes make invalid.
    """
    if loaded.state is None:
        return Checkpoint(configured.rules.empty_ledger()), FormerChanges()
    saved = loaded.state
    changed = _log_changes(configured, saved)
    state = replace(
        saved,
        ledger=restored(configured.rules, _numbered(configured, saved, boot_id)),
        orphaned=orphaned_since(saved, boot_id),
        # What runs shared is decided again at a boot, before its containers start.
        shared=MappingProxyType({}) if _rebooted(saved, boot_id) else saved.shared,
    )
    return state, changed


def recover_pods(state: AgentState, loaded: LoadResult, running: Sequence[ObservedPod]) -> None:
    """Recover running pods that the checkpoint does not know, and report what the start found.

    The checkpoint may be lost, or older than the pods.
    """
    _recover(state, running)
    if loaded.problem is not None:
        message = _lost(loaded.problem, loaded.kept_as)
        log.error("checkpoint unusable", why=message)
        state.observed.conditions["checkpoint"] = message
    if mismatches := state.configured.mismatches:
        log.error("configuration does not fit the host", mismatches=mismatches)
    for condition in state.not_allocatable:
        log.error("nothing is allocatable", why=condition.line)


def _lost(problem: UnusableCheckpointError, kept_as: Path | None) -> str:
    where = (
        "could not be set aside, so nothing is saved until the file is moved or removed"
        if kept_as is None
        else f"was set aside as {kept_as}"
    )
    return (
        f"the checkpoint {where}: {problem}; pod names, bindings, device allocations, manifest "
        "ownership and cordons are lost; CPUs and memory are recovered from the cgroups"
    )


def orphaned_since(saved: Checkpoint, boot_id: str) -> frozenset[str]:
    """Return the pods of orphaned cgroups; no cgroup outlives a reboot."""
    return frozenset() if _rebooted(saved, boot_id) else saved.orphaned


def _rebooted(saved: Checkpoint, boot_id: str) -> bool:
    """Return whether the host is known to have been booted since the checkpoint."""
    return bool(saved.boot_id and boot_id) and saved.boot_id != boot_id


def _recover(state: AgentState, running: Sequence[ObservedPod]) -> None:
    """Recover unknown pods from cgroups; the first comparison saves the ledger."""
    durable = state.durable
    unknown = [
        pod.uid
        for pod in running
        if pod.uid not in durable.ledger.allocations and pod.uid not in durable.orphaned
    ]
    recovery = recover(state.configured.rules, durable.ledger, running, durable.orphaned)
    allocations = recovery.ledger.allocations
    for uid in recovery.recovered:
        shown = describe_recovered(allocations[uid])
        log.warning("pod recovered from its cgroups", uid=uid, allocation=shown)
    for displaced in recovery.displaced:
        log.error("allocation displaced by a running pod", uid=displaced.uid, why=str(displaced))
    if recovery.recovered:
        state.observed.displaced = {displaced.uid: displaced for displaced in recovery.displaced}
        state.durable = replace(durable, ledger=recovery.ledger)
        state.observed.unsaved = "the recovered allocations are not saved yet"
    if recovery.notes:
        log.error("cgroups contradict each other", notes=recovery.notes)
        state.observed.conditions["recovery"] = "; ".join(recovery.notes)
    if unknown and (devices := _unknown_devices(state)):
        state.observed.conditions["devices"] = devices
        log.error("devices of running pods unknown", why=devices)
    unallocated = [uid for uid in unknown if uid not in allocations]
    if unallocated:
        log.warning("running pods without an allocation found", uids=unallocated)


def _unknown_devices(state: AgentState) -> str:
    """Return a warning that devices may be allocated twice, since cgroups do not show them."""
    resources = ", ".join(sorted(state.configured.rules.policy.devices))
    if not resources:
        return ""
    return (
        f"pods run that are not in a checkpoint, and their devices ({resources}) are unknown: "
        "cgroups do not show them, so they may be allocated to a second pod; stop the pods that "
        "had devices and admit them again before others"
    )


def _numbered(configured: ConfiguredHost, saved: Checkpoint, boot_id: str) -> Ledger:
    """Remap nodes that a reboot renumbered; numbers do not change between reboots."""
    if not _rebooted(saved, boot_id):
        return saved.ledger
    moves = node_moves(saved.host, host_facts(configured.host))
    if not moves:
        return saved.ledger
    log.warning("NUMA nodes renumbered, memory allocations remapped", moves=dict(moves))
    return renumbered(configured.rules.managers, saved.ledger, moves)


def _log_changes(configured: ConfiguredHost, saved: Checkpoint) -> FormerChanges:
    """Log and return what changed since the checkpoint."""
    if changes := host_changes(saved.host, host_facts(configured.host)):
        log.warning("host changed while the agent was stopped", changes=changes)
    if changed := policy_changes(saved.policy, policy_summary(configured.rules.policy)):
        log.warning(
            "policy changed since the last start; existing allocations are kept", changes=changed
        )
    return FormerChanges(tuple(changes), tuple(changed))


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
    return replace(
        allocation,
        hint=hint,
        device_nodes=MappingProxyType(places),
        memory_nodes=renumbered_nodes(allocation.memory_nodes, moves),
    )


def _hint(hint: Hint, moves: Mapping[int, int]) -> Hint:
    if hint.nodes is None:
        return hint
    return hint._replace(nodes=renumbered_nodes(Mask(hint.nodes), moves).bits)
