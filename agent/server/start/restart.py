"""What a start makes of the checkpoint: everything that is held, and what has changed since."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import structlog
from msgspec.structs import replace

from agent.managers.readmission import restored
from agent.managers.recovery.beside_checkpoint import recover
from agent.managers.recovery.from_cgroups import describe_recovered
from agent.server.start.renumbering import node_moves, renumbered
from agent.server.state import AgentState, DurableState
from agent.state.checkpoint import host_changes, host_facts, policy_changes, policy_summary

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from agent.managers.allocations.ledger import Ledger
    from agent.managers.recovery.from_cgroups import ObservedPod
    from agent.server.configured_host import ConfiguredHost
    from agent.state.checkpoint import Checkpoint
    from agent.state.errors import UnusableCheckpointError
    from agent.state.store import LoadResult

log = structlog.get_logger(__name__)

#: Sections of which a checkpoint lists what is on, and nothing else (`policy_summary`).
_SWITCHES: Final = ("featureGates.", "cpuManagerPolicyOptions.", "topologyManagerPolicyOptions.")


def initial_state(
    situation: ConfiguredHost,
    loaded: LoadResult,
    boot_id: str,
    now: float,
    running: Sequence[ObservedPod] = (),
) -> AgentState:
    """Return the state that a start begins with: each allocation as it was saved.

    What the cgroups of `running` pods show is added where no usable checkpoint knows of these pods:
    it may be lost, or older than what runs. What changed since (the host, the configuration) is
    told in the log; what that makes of single allocations is `AgentState.invalid`.
    """
    held = DurableState(situation.rules.empty_ledger())
    if loaded.state is not None:
        saved = loaded.state
        _tell_changes(situation, saved)
        ledger = restored(situation.rules, _numbered(situation, saved, boot_id))
        orphaned = orphaned_since(saved, boot_id)
        held = DurableState(ledger, saved.bindings, saved.manifests, orphaned)
    state = AgentState(situation, held, boot_id, started=now)
    _recover(state, running)
    if loaded.problem is not None:
        message = _lost(loaded.problem, loaded.kept_as)
        log.error("checkpoint not usable", problem=message)
        state.troubles["checkpoint"] = message
    if situation.misfits:
        log.error("the configuration does not fit the host", misfits=situation.misfits)
    return state


def _lost(problem: UnusableCheckpointError, kept_as: Path | None) -> str:
    where = (
        "could not be set aside, so nothing is saved until it can be or is taken away"
        if kept_as is None
        else f"was set aside as {kept_as}"
    )
    return (
        f"the checkpoint {where}: {problem}; lost are names, bindings and devices of the pods in "
        "it, and which files they came from; what their cgroups show is recovered"
    )


def orphaned_since(saved: Checkpoint, boot_id: str) -> frozenset[str]:
    """Return the pods whose cgroups outlived them; no cgroup outlives a reboot."""
    rebooted = saved.boot_id and boot_id and saved.boot_id != boot_id
    return frozenset() if rebooted else saved.orphaned


def _recover(state: AgentState, running: Sequence[ObservedPod]) -> None:
    """Hold what the kernel shows, and name what is lost; the first comparison saves it."""
    held = state.held
    unknown = [
        pod.uid
        for pod in running
        if pod.uid not in held.ledger.allocations and pod.uid not in held.orphaned
    ]
    recovery = recover(state.situation.rules, held.ledger, running, held.orphaned)
    allocations = recovery.ledger.allocations
    for uid in recovery.recovered:
        shown = describe_recovered(allocations[uid])
        log.warning("pod recovered from its cgroups", uid=uid, held=shown)
    for displaced in recovery.displaced:
        log.error("allocation displaced by a running pod", uid=displaced.uid, why=str(displaced))
    if recovery.recovered:
        state.displaced = {displaced.uid: displaced for displaced in recovery.displaced}
        manifests = {uid: file for uid, file in held.manifests.items() if uid in allocations}
        state.held = replace(held, ledger=recovery.ledger, manifests=MappingProxyType(manifests))
        state.unsaved = "the recovered allocations are not saved yet"
    if recovery.notes:
        log.error("cgroups contradict each other", notes=recovery.notes)
        state.troubles["recovery"] = "; ".join(recovery.notes)
    if unknown and (devices := _unknown_devices(state)):
        state.troubles["devices"] = devices
        log.error("devices of running pods are not known", problem=devices)
    again = [uid for uid in unknown if uid not in allocations]
    if again:
        log.warning("pods run that hold nothing of their own; they are to be admitted", uids=again)


def _unknown_devices(state: AgentState) -> str:
    """Say which devices may be given twice, for no cgroup shows who has them; "" for none."""
    resources = ", ".join(sorted(state.situation.rules.policy.devices))
    if not resources:
        return ""
    return (
        f"pods run of which no checkpoint tells, and no cgroup shows which devices ({resources}) "
        "they hold: the same may be given to a second pod; end those that had some, and admit them "
        "again, before others"
    )


def _numbered(situation: ConfiguredHost, saved: Checkpoint, boot_id: str) -> Ledger:
    """Follow nodes that a reboot renumbered; between two reboots numbers do not change."""
    if not saved.boot_id or not boot_id or saved.boot_id == boot_id:
        return saved.ledger
    moves = node_moves(saved.host, host_facts(situation.host))
    if not moves:
        return saved.ledger
    log.warning("nodes were renumbered; memory follows its node", moves=dict(moves))
    return renumbered(saved.ledger, moves)


def _tell_changes(situation: ConfiguredHost, saved: Checkpoint) -> None:
    if changes := host_changes(saved.host, host_facts(situation.host)):
        log.warning("the host changed while no agent ran", changes=changes)
    if changed := policy_changes(saved.policy, policy_summary(situation.rules.policy)):
        log.warning("the rules changed since the last start; what is held stays", changes=changed)
