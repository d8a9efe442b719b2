"""The state at the start: the checkpoint, running pods that it lacks, and what changed since.

In go the checkpoint as it was loaded, the host with its policy, and the pods that run; out comes
the state. No saved allocation is decided again. The steps:

1. What changed of host and policy is logged. Allocations that no longer fit are kept, and are
   `AgentState.invalid`.
2. After a boot NUMA nodes may have other numbers (`agent.server.renumbering`), no orphaned cgroup
   is left, and what ran in the shared pool is decided again.
3. Pods that run and that the checkpoint lacks are recovered from their cgroups
   (`agent.managers.recovery`); a saved allocation that contradicts them is displaced, which is
   logged as an error. Contradictions between cgroups, and the devices of such pods, which
   cgroups do not show, are conditions.

Nothing is saved here: the first comparison does that.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import structlog
from msgspec.structs import replace

from agent.managers.recovery import describe_recovered, recover
from agent.managers.rules import restored
from agent.server.renumbering import node_moves, renumbered
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

    from agent.managers.ledger import Ledger
    from agent.managers.recovery import ObservedPod
    from agent.server.configured import ConfiguredHost
    from agent.server.state import AgentState
    from agent.state.checkpoint import UnusableCheckpointError
    from agent.state.store import LoadResult

log = structlog.get_logger(__name__)


def restored_state(
    configured: ConfiguredHost, loaded: LoadResult, boot_id: str
) -> tuple[Checkpoint, FormerChanges]:
    """Return the checkpoint for this run of the agent, and what changed since it was saved.

    Without a checkpoint nothing is allocated.
    """
    saved = loaded.state
    if saved is None:
        return Checkpoint(configured.rules.empty_ledger()), FormerChanges()
    changes = _log_changes(configured, saved)
    ledger, shared = saved.ledger, saved.shared
    if _is_after_boot(saved, boot_id):
        ledger, shared = _renumbered(configured, saved), MappingProxyType({})
    durable = replace(
        saved,
        ledger=restored(configured.rules, ledger),
        orphaned=orphaned_since(saved, boot_id),
        shared=shared,
    )
    return durable, changes


def recover_pods(state: AgentState, loaded: LoadResult, running: Sequence[ObservedPod]) -> None:
    """Recover the running pods that the checkpoint lacks, and report what the start found.

    The checkpoint may be lost, or older than the pods.
    """
    _recover(state, running)
    if loaded.problem is not None:
        message = _checkpoint_lost(loaded.problem, loaded.kept_as)
        log.error("checkpoint unusable", why=message)
        state.observed.conditions["checkpoint"] = message
    if mismatches := state.configured.mismatches:
        log.error("configuration does not fit the host", mismatches=mismatches)
    for condition in state.not_allocatable:
        log.error("nothing is allocatable", why=condition.line)


def orphaned_since(saved: Checkpoint, boot_id: str) -> frozenset[str]:
    """Return the uids of the pods of orphaned cgroups; no cgroup outlives a boot."""
    return frozenset() if _is_after_boot(saved, boot_id) else saved.orphaned


def _log_changes(configured: ConfiguredHost, saved: Checkpoint) -> FormerChanges:
    """Log and return what changed since the checkpoint."""
    if of_host := host_changes(saved.host, host_facts(configured.host)):
        log.warning("host changed while the agent was stopped", changes=of_host)
    if of_policy := policy_changes(saved.policy, policy_summary(configured.rules.policy)):
        log.warning(
            "policy changed since the last start; existing allocations are kept", changes=of_policy
        )
    return FormerChanges(tuple(of_host), tuple(of_policy))


def _is_after_boot(saved: Checkpoint, boot_id: str) -> bool:
    """Return whether the host was booted since the checkpoint, as far as both boots are known."""
    return bool(saved.boot_id and boot_id) and saved.boot_id != boot_id


def _renumbered(configured: ConfiguredHost, saved: Checkpoint) -> Ledger:
    """Return the saved ledger with the numbers that NUMA nodes have since the boot."""
    moves = node_moves(saved.host, host_facts(configured.host))
    if not moves:
        return saved.ledger
    log.warning("NUMA nodes renumbered, memory allocations remapped", moves=dict(moves))
    return renumbered(configured.rules.managers, saved.ledger, moves)


def _recover(state: AgentState, running: Sequence[ObservedPod]) -> None:
    """Give running pods that the checkpoint lacks the allocations that their cgroups show."""
    durable = state.durable
    unknown = [
        pod.uid
        for pod in running
        if pod.uid not in durable.ledger.allocations and pod.uid not in durable.orphaned
    ]
    recovery = recover(state.configured.rules, durable.ledger, running, durable.orphaned)
    allocations = recovery.ledger.allocations
    for uid in recovery.recovered:
        text = describe_recovered(allocations[uid])
        log.warning("pod recovered from its cgroups", uid=uid, allocation=text)
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
    """Return the warning that devices may be allocated twice; "" if the policy has no devices."""
    resources = ", ".join(sorted(state.configured.rules.policy.devices))
    if not resources:
        return ""
    return (
        f"pods run that are not in a checkpoint, and their devices ({resources}) are unknown: "
        "cgroups do not show them, so they may be allocated to a second pod; stop the pods that "
        "had devices and admit them again before others"
    )


def _checkpoint_lost(problem: UnusableCheckpointError, kept_as: Path | None) -> str:
    where = (
        "could not be set aside, so nothing is saved until the file is moved or removed"
        if kept_as is None
        else f"was set aside as {kept_as}"
    )
    return (
        f"the checkpoint {where}: {problem}; pod names, bindings, device allocations, manifest "
        "ownership and cordons are lost; CPUs and memory are recovered from the cgroups"
    )
