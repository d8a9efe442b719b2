"""Cordons: what an operator takes out of use before maintenance, and what a drain would need.

`cordon` and `uncordon` are actions of the controller's queue. All of it is answered with the
documents of cordons and of a drain.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog
from msgspec.structs import replace

from agent.api.documents import (
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
from agent.managers.rules import with_cordon
from agent.pods.model import full_name
from agent.server.errors import CordonRejectedError, CordonTargetError, NotCordonedError
from agent.server.pod_records import details
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agent.api.documents import CordonRequest
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
    again = (each.since for each in state.durable.cordons if each.cordon == added)
    entry = CordonEntry(added, request.reason, next(again, steps.clock.time()))

    def report() -> None:
        cordoned = str(state.configured.rules.cordoned_cpus)
        log.info("cordoned", target=str(added), reason=request.reason, cordoned=cordoned)
        why = f" ({request.reason})" if request.reason else ""
        steps.publish("Cordoned", message=f"{added}{why}")

    return await _take(steps, state.durable.cordons.with_entry(entry), report)


async def uncordon(steps: Steps, request: CordonRequest) -> CordonsDocument:
    """End the cordon of a target, and let the shared pool use the CPUs.

    Raises `CordonTargetError`, `NotCordonedError`, `CheckpointFailedError`.
    """
    state, cordons = steps.state, steps.state.durable.cordons
    asked, nodes = target_of(request.target, state.configured.host), cordons.total.nodes
    of_nodes = state.configured.rules.machine.cpus.cpus_in_nodes(nodes)
    if inside := (asked.cpus & of_nodes) - cordons.total.cpus:
        found = f"CPUs {inside} are cordoned with their node; uncordon node:{nodes} as a whole"
        raise CordonTargetError(request.target, found)
    left = cordons.without(asked)
    if left == cordons:
        raise NotCordonedError(asked, cordons.total)
    ended = Cordon(asked.cpus & cordons.total.cpus, asked.nodes & cordons.total.nodes)

    def report() -> None:
        # There may be room now for what was rejected.
        state.observed.releases += 1
        cordoned = str(state.configured.rules.cordoned_cpus)
        log.info("uncordoned", target=str(ended), cordoned=cordoned)
        steps.publish("Uncordoned", message=str(ended))

    return await _take(steps, left, report)


async def _take(steps: Steps, cordons: Cordons, report: Callable[[], None]) -> CordonsDocument:
    """Save the cordons, decide by them from then on, enforce the shared pool, and report."""
    state = steps.state
    rules = with_cordon(state.configured.rules, cordons.total)
    configured = replace(state.configured, rules=rules)
    await steps.commit(replace(state.durable, cordons=cordons))
    state.configured = configured
    outcome = await steps.enforce_pool()
    failed = await steps.after_save(report)
    return cordons_document(state, details((*outcome.remaining, *failed)))


async def drain_plan(state: AgentState, target: str) -> DrainDocument:
    """Return which pods would have to end before a target is empty; changes nothing.

    Each pod is tried in a turn of its own, so that no other request waits for more than one.
    Raises `CordonTargetError`.
    """
    rules, ledger, host = state.configured.rules, state.ledger, state.configured.host
    drained = present(target_of(target, host), host, target)
    plans: list[Drain] = []
    for plan in drain(rules, ledger, drained):
        plans.append(plan)
        await asyncio.sleep(0)
    return _drain_document(plans[-1], rules, ledger, drained)


def target_of(text: str, host: Host) -> Cordon:
    """Return the CPUs or nodes that a target names, whether the host has them or not.

    Cores are those of the host, by their numbers on the map: the lowest CPU of each. Raises
    `CordonTargetError`.
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
    """Return a cordon that the host has, online or not; raises `CordonTargetError`."""
    nodes = Mask.from_ids(node.id for node in host.nodes)
    for what, asked, known in (
        ("CPU", cordon.cpus, host.online | host.offline),
        ("node", cordon.nodes, nodes),
    ):
        if unknown := asked - known:
            found = f"this host has no {what} {unknown}; it has {what}s {known}"
            raise CordonTargetError(text, found)
    return cordon


def _rejection(rules: EffectivePolicy, ledger: Ledger, cordon: Cordon) -> str:
    """Return why a cordon would leave containers without exclusive CPUs no CPU, "" if it would not.

    What leaves none already does not get worse.
    """
    beside = with_cordon(rules, rules.policy.cordon | cordon)
    if uncordoned_shared_cpus(beside, ledger) or not uncordoned_shared_cpus(rules, ledger):
        return ""
    exclusive = exclusive_cpus(ledger) - beside.cordoned_cpus
    others = f", and {exclusive} are allocated exclusively" if exclusive else ""
    return (
        "no CPU would be left for containers without exclusive CPUs: "
        f"{beside.cordoned_cpus} would be cordoned{others}"
    )


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


def _pods(state: AgentState) -> Iterator[CordonedPodDocument]:
    rules, cordon = state.configured.rules, state.durable.cordons.total
    for allocation in state.ledger.allocations.values() if cordon else ():
        if found := used(rules, allocation, cordon):
            yield CordonedPodDocument(
                uid=allocation.uid,
                name=allocation.name,
                namespace=allocation.namespace,
                cpus=str(found.cpus),
                nodes=str(found.nodes),
                devices=dict(found.devices),
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
