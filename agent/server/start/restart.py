"""The state at the start: checkpoint, recovered pods, and changes since the checkpoint."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import structlog
from msgspec.structs import replace

from agent.managers.effective_policy import restored
from agent.managers.recovery.beside_checkpoint import recover
from agent.managers.recovery.from_cgroups import describe_recovered
from agent.server.start.renumbering import node_moves, renumbered
from agent.server.state import FormerChanges
from agent.state.checkpoint import (
    Checkpoint,
    host_changes,
    host_facts,
    policy_changes,
    policy_summary,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from agent.managers.allocations.ledger import Ledger
    from agent.managers.recovery.from_cgroups import ObservedPod
    from agent.server.configured_host import ConfiguredHost
    from agent.server.state import AgentState
    from agent.state.errors import UnusableCheckpointError
    from agent.state.store import LoadResult

log = structlog.get_logger(__name__)


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
        state.conditions["checkpoint"] = message
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
        state.displaced = {displaced.uid: displaced for displaced in recovery.displaced}
        state.durable = replace(durable, ledger=recovery.ledger)
        state.unsaved = "the recovered allocations are not saved yet"
    if recovery.notes:
        log.error("cgroups contradict each other", notes=recovery.notes)
        state.conditions["recovery"] = "; ".join(recovery.notes)
    if unknown and (devices := _unknown_devices(state)):
        state.conditions["devices"] = devices
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
