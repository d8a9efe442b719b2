"""Cordons: what an operator takes out of use before maintenance, and what a drain would need.

In goes a target in words, such as `4-7`, `core:2` or `node:1`. Out come documents of cordons and of
a drain. `cordon` and `uncordon` run in a turn of the line: they save the cordons, decide by them
from then on, and enforce the shared pool. A cordon ends no pod and takes nothing that a pod has
exclusively. `drain_plan` changes nothing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog
from msgspec.structs import replace

from agent.api.documents.maintenance import (
    CordonedPodDocument,
    CordonsDocument,
    DrainDocument,
    DrainedPodDocument,
)
from agent.api.views import cordon_documents
from agent.managers.capacity import free_cpus, nodes_of
from agent.managers.cordons import CordonEntry
from agent.managers.cpu.manager import exclusive_cpus, shared_pool, uncordoned_shared_cpus
from agent.managers.drain import drain, used
from agent.managers.policy import Cordon
from agent.managers.pools import emptied
from agent.managers.rules import with_cordon
from agent.pods.model import full_name
from agent.server.errors import CordonRejectedError, CordonTargetError, NotCordonedError
from agent.server.pod_records import details
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agent.api.documents.maintenance import CordonRequest
    from agent.managers.cordons import Cordons
    from agent.managers.drain import Drain, DrainedPod
    from agent.managers.ledger import Ledger
    from agent.managers.rules import EffectivePolicy
    from agent.server.state import AgentState
    from agent.server.steps import Steps
    from sysfs.host import Host

log = structlog.get_logger(__name__)


async def cordon(steps: Steps, request: CordonRequest) -> CordonsDocument:
    """Cordon a target, save that, and let the shared pool leave the CPUs.

    Raises `CordonTargetError`, `CordonRejectedError`, `CheckpointFailedError`.
    """
    state = steps.state
    rules, host = state.configured.rules, state.configured.host
    added = present(target_of(request.target, host), host, request.target)
    if why := _rejection(rules, state.ledger, added):
        raise CordonRejectedError(added, why)
    # A cordon that is there already keeps its time.
    times = (entry.since for entry in state.durable.cordons if entry.cordon == added)
    entry = CordonEntry(added, request.reason, next(times, steps.clock.time()))

    def report() -> None:
        cordoned = str(state.configured.rules.cordoned_cpus)
        log.info("cordoned", target=str(added), reason=request.reason, cordoned=cordoned)
        why = f" ({request.reason})" if request.reason else ""
        steps.publish("Cordoned", message=f"{added}{why}")

    return await _take_effect(steps, state.durable.cordons.with_entry(entry), report)


async def uncordon(steps: Steps, request: CordonRequest) -> CordonsDocument:
    """End the cordon of a target, and let the shared pool use the CPUs.

    Raises `CordonTargetError`, `NotCordonedError`, `CheckpointFailedError`.
    """
    state, cordons = steps.state, steps.state.durable.cordons
    target, nodes = target_of(request.target, state.configured.host), cordons.total.nodes
    of_nodes = state.configured.rules.machine.cpus.cpus_in_nodes(nodes)
    if inside := (target.cpus & of_nodes) - cordons.total.cpus:
        found = f"CPUs {inside} are cordoned with their node; uncordon node:{nodes} as a whole"
        raise CordonTargetError(request.target, found)
    remaining = cordons.without(target)
    if remaining == cordons:
        raise NotCordonedError(target, cordons.total)
    ended = Cordon(target.cpus & cordons.total.cpus, target.nodes & cordons.total.nodes)

    def report() -> None:
        # A rejected pod may fit now.
        state.observed.releases += 1
        cordoned = str(state.configured.rules.cordoned_cpus)
        log.info("uncordoned", target=str(ended), cordoned=cordoned)
        steps.publish("Uncordoned", message=str(ended))

    return await _take_effect(steps, remaining, report)


async def drain_plan(state: AgentState, target: str) -> DrainDocument:
    """Return which pods would have to end before a target is empty; changes nothing.

    Other requests are served after each pod that is tried. Raises `CordonTargetError`.
    """
    rules, ledger, host = state.configured.rules, state.ledger, state.configured.host
    drained = present(target_of(target, host), host, target)
    plans: list[Drain] = []
    for plan in drain(rules, ledger, drained):
        plans.append(plan)
        await asyncio.sleep(0)
    return _drain_document(plans[-1], rules, ledger, drained)


def cordons_document(state: AgentState, differences: tuple[str, ...] = ()) -> CordonsDocument:
    """Return all that is cordoned now, and the pods that still have something of it."""
    rules = state.configured.rules
    return CordonsDocument(
        cordons=tuple(cordon_documents(state.durable.cordons)),
        cpus=str(rules.cordoned_cpus),
        shared_pool=str(state.shared_pool),
        pods=tuple(_pods(state)),
        differences=differences,
    )


def target_of(text: str, host: Host) -> Cordon:
    """Return the CPUs or nodes that a target names, whether the host has them or not.

    A core has the number that it has on the map: its lowest CPU. Raises `CordonTargetError`.
    """
    kind, colon, ids = text.strip().partition(":")
    try:
        mask = Mask.parse(ids.replace(f",{kind}:", ",") if colon else kind)
    except ValueError as error:
        forms = "give one kind: 4-7,12, core:2,3 or node:0,1"
        raise CordonTargetError(text, f"{error}; {forms}") from error
    if not mask:
        raise CordonTargetError(text, "names nothing; give 4-7, core:2 or node:1")
    if not colon:
        return Cordon(cpus=mask)
    if kind == "node":
        return Cordon(nodes=mask)
    if kind != "core":
        raise CordonTargetError(
            text, f"{kind!r} is neither core nor node; give 4-7, core:2, node:1"
        )
    cores = Mask.from_ids(cpu.core for cpu in host.cpus if cpu.core is not None)
    if unknown := mask - cores:
        raise CordonTargetError(text, f"this host has no core {unknown}; its cores are {cores}")
    return Cordon(
        cpus=Mask.from_ids(cpu.id for cpu in host.cpus if cpu.core is not None and cpu.core in mask)
    )


def present(cordon: Cordon, host: Host, text: str) -> Cordon:
    """Return the cordon if the host has all of it, online or not; raises `CordonTargetError`."""
    nodes = Mask.from_ids(node.id for node in host.nodes)
    for kind, ids, present_ids in (
        ("CPU", cordon.cpus, host.online | host.offline),
        ("node", cordon.nodes, nodes),
    ):
        if missing := ids - present_ids:
            found = f"this host has no {kind} {missing}; it has {kind}s {present_ids}"
            raise CordonTargetError(text, found)
    return cordon


async def _take_effect(
    steps: Steps, cordons: Cordons, report: Callable[[], None]
) -> CordonsDocument:
    """Save the cordons, decide by them from then on, enforce the shared pool, and report."""
    state = steps.state
    rules = with_cordon(state.configured.rules, cordons.total)
    configured = replace(state.configured, rules=rules)
    await steps.commit(replace(state.durable, cordons=cordons))
    state.configured = configured
    outcome = await steps.enforce_pool()
    failed = await steps.after_save(report)
    return cordons_document(state, details((*outcome.remaining, *failed)))


def _rejection(rules: EffectivePolicy, ledger: Ledger, cordon: Cordon) -> str:
    """Return why a cordon is rejected: it would leave shared containers no CPU; "" if it is not.

    Where none is left to them already, a cordon makes nothing worse and is not rejected.
    """
    cordoned = with_cordon(rules, rules.policy.cordon | cordon)
    before, left = uncordoned_shared_cpus(rules, ledger), uncordoned_shared_cpus(cordoned, ledger)
    pods = ledger.allocations.values()
    if pool := emptied(rules.policy, pods, before - left, left):
        return f"no CPU would be left for {pool}: {cordoned.cordoned_cpus} would be cordoned"
    if left or not before:
        return ""
    exclusive = exclusive_cpus(ledger) - cordoned.cordoned_cpus
    others = f", and {exclusive} are allocated exclusively" if exclusive else ""
    return (
        "no CPU would be left for containers without exclusive CPUs: "
        f"{cordoned.cordoned_cpus} would be cordoned{others}"
    )


def _pods(state: AgentState) -> Iterator[CordonedPodDocument]:
    rules, cordon = state.configured.rules, state.durable.cordons.total
    for allocation in state.ledger.allocations.values() if cordon else ():
        if resources := used(rules, allocation, cordon):
            yield CordonedPodDocument(
                uid=allocation.uid,
                name=allocation.name,
                namespace=allocation.namespace,
                cpus=str(resources.cpus),
                nodes=str(resources.nodes),
                devices=dict(resources.devices),
            )


def _drain_document(
    plan: Drain, now: EffectivePolicy, before: Ledger, cordon: Cordon
) -> DrainDocument:
    rules = plan.rules
    return DrainDocument(
        cpus=str(cordon.cpus | rules.machine.cpus.cpus_in_nodes(cordon.nodes)),
        nodes=str(cordon.nodes),
        pods=tuple(_drained(rules, before, pod) for pod in plan.pods),
        stay=len(before.allocations) - len(plan.pods),
        shared_pool=str(shared_pool(rules, plan.ledger)),
        free_cpus=free_cpus(rules, plan.ledger).free,
        rejection=_rejection(now, before, cordon),
    )


def _drained(rules: EffectivePolicy, before: Ledger, pod: DrainedPod) -> DrainedPodDocument:
    allocation = before.allocations[pod.uid]
    document = DrainedPodDocument(
        uid=pod.uid,
        name=allocation.name,
        namespace=allocation.namespace,
        outcome="unknown",
        message=(
            f"{full_name(allocation)} was not tried: its specification does not follow from its "
            "allocation"
        ),
        cpus=str(pod.used.cpus),
        nodes=str(pod.used.nodes),
        devices=dict(pod.used.devices),
    )
    if pod.allocation is not None:
        return replace(
            document,
            outcome="fits",
            message="",
            moved_cpus=str(pod.allocation.exclusive_cpus),
            moved_nodes=str(nodes_of(rules, pod.allocation)),
        )
    if pod.rejection is not None:
        return replace(document, outcome="rejected", message=pod.rejection.message)
    return document
