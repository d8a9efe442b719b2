"""Replayed sequences as text for 80 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.api.documents import AdmissionDocument
from agent.api.views import explanation_document, pod_document, rejection_document
from agent.cli.text.pods import admission_lines
from agent.managers.cpu.parts import exclusive_cpus, shared_cpus, shared_pool
from agent.managers.errors import size_text
from agent.managers.memory.state import free_memory, memory_charge
from agent.pods.model import MEMORY
from agent.tools.replay.documents import operation
from agent.tools.replay.play import Admit, Remove, Start

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agent.managers.decision import Decision
    from agent.tools.replay.play import ReplaySequence, ReplayState, Step, StepOutcome


def title(file: Path, sequence: ReplaySequence) -> str:
    """Return the line above a sequence."""
    return str(file) if sequence.name == str(file) else f"{file}: {sequence.name}"


def outcome_lines(outcome: StepOutcome) -> Iterator[str]:
    """Yield the outcome of a step, and what is free after it."""
    yield ""
    if isinstance(outcome.step, Admit) and outcome.decision:
        done, *details = admission_lines(_answer(outcome.step, outcome.decision, outcome.state))
    else:
        done, details = _done(outcome.step), []
    yield f"step {outcome.number}: {done}"
    yield from details
    for note in outcome.notes:
        yield f"  note: {note}"
    yield from _free(outcome.state)


def _done(step: Step) -> str:
    if isinstance(step, Remove):
        return f"removed {step.name}"
    if isinstance(step, Start):
        return f"started container {step.container} of {step.name}"
    return operation(step)


def _answer(step: Admit, decision: Decision, state: ReplayState) -> AdmissionDocument:
    namespace, _, name = step.name.partition("/")
    allocation, rejection = decision.allocation, decision.rejection
    pool = shared_cpus(state.rules, state.ledger)
    return AdmissionDocument(
        uid=step.uid,
        name=name,
        namespace=namespace,
        admitted=decision.admitted,
        already_admitted=decision.already_admitted,
        pod=pod_document(allocation, pool) if allocation is not None else None,
        rejection=rejection_document(rejection) if rejection is not None else None,
        explanation=explanation_document(decision),
    )


def _free(state: ReplayState) -> Iterator[str]:
    rules, ledger = state.rules, state.ledger
    yield f"  shared pool {shared_pool(rules, ledger) or 'empty'}"
    free = rules.open_cpus - exclusive_cpus(ledger)
    charge = memory_charge(ledger)
    memory = free_memory(rules.memory, charge, MEMORY) if charge else {}
    cpus = {node.id: (node.cpus & free.bits).bit_count() for node in rules.machine.cpus.nodes}
    parts = []
    for node in rules.machine.node_mask:
        amounts = [f"{cpus[node]} CPUs"] if node in cpus and rules.static_cpus else []
        amounts += [size_text(memory[node])] if node in memory else []
        if amounts:
            parts.append(f"node {node}: {', '.join(amounts)}")
    if parts:
        yield f"  free        {'; '.join(parts)}"
