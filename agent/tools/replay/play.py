"""Playing a sequence: every step decided by the agent's own pure functions, one after the other.

Each outcome is a line of JSON, too (`docs/replay.md`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from agent.api.documents import (
    Document,
    ExplanationDocument,
    HintDocument,
    MemoryDocument,
    RejectionDocument,
)
from agent.api.views import explanation_document, given_document, rejection_document
from agent.managers.admission import admit, remove, start_container
from agent.managers.cpu.manager import shared_cpus, shared_pool
from agent.managers.device.kubelet import given_devices
from agent.managers.ledger import Ledger  # noqa: TC001  # msgspec reads the annotation
from agent.managers.memory.state import free_memory, memory_charge
from agent.managers.metrics import DECISION_COUNTERS
from agent.managers.rules import restored
from agent.pods.model import full_name
from agent.reconcile.quota import pod_quotas
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.managers.allocation import ContainerAllocation, MemoryBlock, PodAllocation
    from agent.managers.decision import Decision
    from agent.managers.metrics import CounterKey
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Pod
    from cgroupfs.settings import CpuMax


class Admit(Struct, frozen=True):
    """Ask for a pod."""

    name: str
    uid: str
    pod: Pod


class Remove(Struct, frozen=True):
    """End a pod."""

    name: str
    uid: str


class Start(Struct, frozen=True):
    """Start a container: the init containers before it are over."""

    name: str
    uid: str
    container: str


class Restart(Struct, frozen=True):
    """Start the agent again, on this machine under this policy."""

    rules: EffectivePolicy


Step: TypeAlias = Admit | Remove | Start | Restart


class ReplaySequence(Struct, frozen=True):
    """A named sequence; every step has the number under which it stands in its file.

    `ledger` are the allocations that exist before the first step, None for an empty host.
    """

    name: str
    rules: EffectivePolicy
    steps: tuple[tuple[int, Step], ...]
    ledger: Ledger | None = None


class ReplayState(Struct, frozen=True):
    """The effective policy and the ledger."""

    rules: EffectivePolicy
    ledger: Ledger


class StepOutcome(Struct, frozen=True):
    """The result of one step, and the state after it.

    `number` is the step's in its file. `decision` is that of an admission. `notes` say what else is
    to be known.
    """

    number: int
    step: Step
    state: ReplayState
    decision: Decision | None = None
    notes: tuple[str, ...] = ()


def play(sequence: ReplaySequence) -> Iterator[StepOutcome]:
    """Yield the outcome of every step."""
    rules, before = sequence.rules, sequence.ledger
    ledger = rules.empty_ledger() if before is None else restored(rules, before)
    state = ReplayState(rules, ledger)
    for number, step in sequence.steps:
        outcome = _take(number, step, state)
        yield outcome
        state = outcome.state


def _take(number: int, step: Step, state: ReplayState) -> StepOutcome:
    rules, ledger = state.rules, state.ledger
    if isinstance(step, Admit):
        decision = admit(rules, ledger, step.pod)
        return StepOutcome(number, step, replace(state, ledger=decision.ledger), decision)
    if isinstance(step, Restart):
        # Every allocation stays: one that was given is a fact, whatever the rules are now.
        after = ReplayState(step.rules, restored(step.rules, ledger))
        return StepOutcome(number, step, after, notes=tuple(_offline(step.rules, ledger)))
    if isinstance(step, Remove):
        left = remove(rules, ledger, step.uid)
    else:
        left = start_container(rules, ledger, step.uid, step.container)
    notes = () if step.uid in ledger.allocations else (f"pod {step.name} holds nothing",)
    return StepOutcome(number, step, replace(state, ledger=left), notes=notes)


def _offline(rules: EffectivePolicy, ledger: Ledger) -> Iterator[str]:
    """Yield the pods that hold CPUs which the machine no longer has."""
    for allocation in ledger.allocations.values():
        if gone := allocation.exclusive_cpus - rules.machine.cpus.all:
            pod = full_name(allocation)
            yield f"pod {pod} holds CPUs {gone}, which are no longer online"


_LABELS: Final = {metric.name: metric.labels for metric in DECISION_COUNTERS}


class ContainerLine(Document, frozen=True):
    """What one container holds.

    `cpus` None: none of its own; `effective_cpus` are those that it runs on. `cpu_max` is the
    text of the cgroup's file, None where the container's runtime decides. `devices` are the
    agent's, `kubelet_devices` those of the kubelet: their NUMA nodes by id by resource.
    """

    name: str
    kind: str
    isolation: str
    cpus: str | None
    effective_cpus: str
    memory: tuple[MemoryDocument, ...]
    mems: str | None
    devices: dict[str, tuple[str, ...]]
    kubelet_devices: dict[str, dict[str, str]]
    hint: HintDocument
    quota_disabled: bool
    cpu_max: str | None


class AllocationLine(Document, frozen=True):
    """What a pod holds; `cpus` and `memory` are its pod-level budget."""

    qos: str
    cpus: str | None
    memory: tuple[MemoryDocument, ...]
    quota_disabled: bool
    cpu_max: str
    containers: tuple[ContainerLine, ...]


class AmountLine(Document, frozen=True):
    """Bytes of one memory type on one node."""

    free: int
    reserved: int


class StepLine(Document, frozen=True):
    """One step and the state after it.

    `step` counts from 0; `admitted` is None for all but admissions. `memory` is by node, by type.
    """

    file: str
    sequence: str
    step: int
    op: str
    pod: str | None
    uid: str | None
    admitted: bool | None
    already_admitted: bool
    reason: str | None
    message: str | None
    rejection: RejectionDocument | None
    allocation: AllocationLine | None
    explanation: ExplanationDocument | None
    shared_pool: str
    memory: dict[str, dict[str, AmountLine]]
    counters: dict[str, int]
    notes: tuple[str, ...]


def step_line(file: str, sequence: str, outcome: StepOutcome) -> StepLine:
    """Return the line of a step."""
    decision, state, step = outcome.decision, outcome.state, outcome.step
    rejection = decision.rejection if decision is not None else None
    allocation = decision.allocation if decision is not None else None
    name, uid = (None, None) if isinstance(step, Restart) else (step.name, step.uid)
    return StepLine(
        file=file,
        sequence=sequence,
        step=outcome.number,
        op=operation(step),
        pod=name,
        uid=uid,
        admitted=decision.admitted if decision is not None else None,
        already_admitted=decision is not None and decision.already_admitted,
        reason=str(rejection.reason) if rejection is not None else None,
        message=rejection.message if rejection is not None else None,
        rejection=rejection_document(rejection) if rejection is not None else None,
        allocation=_allocation(state, allocation) if allocation is not None else None,
        explanation=explanation_document(decision) if decision is not None else None,
        shared_pool=str(shared_pool(state.rules, state.ledger)),
        memory=_memory(state),
        counters=_counters(decision.counters) if decision is not None else {},
        notes=outcome.notes,
    )


def operation(step: Step) -> str:
    """Return what a step does, in the word of the file."""
    match step:
        case Admit():
            return "admit"
        case Remove():
            return "remove"
        case Start():
            return "start"
        case Restart():
            return "restart"


def _allocation(state: ReplayState, allocation: PodAllocation) -> AllocationLine:
    pool = shared_cpus(state.rules, state.ledger)
    quotas = pod_quotas(allocation)
    return AllocationLine(
        qos=str(allocation.qos),
        cpus=None if allocation.cpus is None else str(allocation.cpus),
        memory=_blocks(allocation.memory),
        quota_disabled=allocation.quota_disabled,
        cpu_max=str(quotas.pod),
        containers=tuple(
            _container(container, pool, quotas.containers[container.name])
            for container in allocation.containers
        ),
    )


def _container(allocation: ContainerAllocation, pool: Mask, quota: CpuMax | None) -> ContainerLine:
    nodes = allocation.hint.nodes
    return ContainerLine(
        name=allocation.name,
        kind=str(allocation.kind),
        isolation=str(allocation.isolation),
        cpus=None if allocation.cpus is None else str(allocation.cpus),
        effective_cpus=str(pool if allocation.cpus is None else allocation.cpus),
        memory=_blocks(allocation.memory),
        mems=str(allocation.mems) if allocation.memory else None,
        devices={resource: tuple(ids) for resource, ids in sorted(allocation.devices.items())},
        kubelet_devices=given_document(given_devices(allocation)),
        hint=HintDocument(
            nodes=None if nodes is None else str(Mask(nodes)), preferred=allocation.hint.preferred
        ),
        quota_disabled=allocation.quota_disabled,
        cpu_max=None if quota is None else str(quota),
    )


def _blocks(blocks: Iterable[MemoryBlock]) -> tuple[MemoryDocument, ...]:
    return tuple(
        MemoryDocument(type=block.type, bytes=block.size, nodes=str(block.nodes))
        for block in blocks
    )


def _memory(state: ReplayState) -> dict[str, dict[str, AmountLine]]:
    facts, charged = state.rules.memory, memory_charge(state.ledger)
    if not charged:
        return {}
    free = {kind: free_memory(facts, charged, kind) for kind in sorted(facts.types)}
    return {
        str(node): {
            kind: AmountLine(free=free[kind][node], reserved=memory.reserved.get(kind, 0))
            for kind in facts.allocatable.get(node, ())
        }
        for node, memory in charged.items()
    }


def _counters(counters: Mapping[CounterKey, int]) -> dict[str, int]:
    return {_sample(key): value for key, value in sorted(counters.items()) if value}


def _sample(key: CounterKey) -> str:
    """Return name and labels as Prometheus writes them."""
    name, values = key
    pairs = zip(_LABELS[name], values, strict=True)
    labels = ",".join(f'{label}="{value}"' for label, value in pairs)
    return f"{name}{{{labels}}}" if labels else name
