"""`numawarden replay`: decides pods on a described host, without an agent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from agent.api.documents import AdmissionDocument, encode
from agent.api.views import explanation_document, pod_document, rejection_document
from agent.cli.common import agent_at, print_lines, warn
from agent.cli.errors import ExitCode
from agent.cli.options import EXISTING_FILE, settings_option, socket_option
from agent.cli.pod_text import admission_lines
from agent.files import LARGEST, read_bounded
from agent.managers.cpu.manager import exclusive_cpus, shared_cpus, shared_pool
from agent.managers.decision import size_text
from agent.managers.memory.state import free_memory, memory_charge
from agent.pods.model import MEMORY
from agent.tools.replay.play import (
    Admit,
    Remove,
    ReplaySequence,
    ReplayState,
    Start,
    Step,
    StepOutcome,
    operation,
    play,
    step_line,
)
from agent.tools.replay.reading import live_sequence, load_sequence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.managers.decision import Decision


@click.command()
@click.argument(
    "files",
    metavar="FILE...",
    nargs=-1,
    required=True,
    type=EXISTING_FILE,
)
@click.option(
    "--from-live",
    "live",
    is_flag=True,
    help="Take host, configuration and allocations from the running agent; each FILE is the "
    "manifest of a pod.",
)
@settings_option("With --from-live: lay a setting over the agent's configuration; may be repeated.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "jsonl"]),
    default="text",
    show_default=True,
    help="Text, or one line of JSON for each step.",
)
@socket_option
def replay(
    files: tuple[Path, ...], settings: tuple[str, ...], output: str, socket_path: str, *, live: bool
) -> int:
    """Decide sequences of pods on described hosts, without changing anything.

    A FILE is a sequence in YAML or JSON (docs/replay.md). With --from-live the pods are decided one
    after the other on what the running agent has; the agent itself is asked once and decides
    nothing.

    Exits with 0 when every pod was admitted, 1 when any was rejected, and 3 when a file is wrong;
    nothing is decided of that file then.
    """
    if settings and not live:
        raise click.UsageError("--set changes the agent's configuration: it needs --from-live")
    sequences = (
        _live(files, settings, socket_path)
        if live
        else ((file, load_sequence(file)) for file in files)
    )
    code = ExitCode.OK
    for file, sequence in sequences:
        if output == "text":
            named = sequence.name == str(file)
            click.echo(file if named else f"{file}: {sequence.name}")
        for outcome in play(sequence):
            if outcome.decision and not outcome.decision.admitted:
                code = ExitCode.REJECTED
            if output == "jsonl":
                click.echo(encode(step_line(str(file), sequence.name, outcome)))
            else:
                print_lines(_outcome_lines(outcome))
    return code


def _live(
    files: tuple[Path, ...], settings: tuple[str, ...], socket_path: str
) -> Iterator[tuple[Path, ReplaySequence]]:
    """Yield the one sequence of the pods on the host of the running agent."""
    manifests = [(file, read_bounded(file, LARGEST)) for file in files]
    with agent_at(socket_path) as agent:
        snapshot = agent.snapshot()
    warn(snapshot.mismatches)
    if snapshot.preferring:
        names = ", ".join(snapshot.preferring)
        warn([f"which devices of {names} their plugins prefer is not known here"])
    yield Path(socket_path), live_sequence(snapshot, manifests, settings)


def _outcome_lines(outcome: StepOutcome) -> Iterator[str]:
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
