"""`numawarden status` and `watch`: the agent as it is now, and its events."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import click

from agent.api.documents.document import encode
from agent.cli.common import agent_at, cordon_line, typed_name
from agent.cli.errors import ExitCode, counted
from agent.cli.lines import labelled, moment
from agent.cli.options import (
    VERDICT_TIMEOUT,
    Output,
    output_option,
    socket_option,
    socket_option_within,
)
from agent.cli.output import escaped, print_answer, print_document, say
from agent.cli.watching import agent_ended, until_unread

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agent.api.documents.history import EventDocument
    from agent.api.documents.rejections import FailedPodDocument
    from agent.api.documents.status import RuntimeDocument, StatusDocument
    from agent.api.documents.verification import DriftDocument

#: Rejected or invalid pods that are listed at most; the document has more.
_FAILED_SHOWN: Final = 5

#: The types of conditions that are about the kernel's settings.
_OF_THE_KERNEL: Final = ("Enforced", "Exclusive", "RepairsLast")
_AGREES: Final = "the kernel agrees with the ledger"

#: Drifted settings that are listed at most.
_DRIFT_SHOWN: Final = 5


@click.command()
@output_option
@socket_option_within(VERDICT_TIMEOUT)
def status(output: Output, socket_path: str) -> int:
    """Show what is so now: the effective policies, what is allocated, and each condition.

    Exits with 0 if the agent is ready and has no condition, else with 1.
    """
    with agent_at(socket_path) as agent:
        answer = agent.status()
    print_answer(answer, output, _lines)
    well = answer.ready and not answer.conditions
    return ExitCode.OK if well else ExitCode.REJECTED


def _lines(answer: StatusDocument) -> Iterator[str]:
    ready = "ready" if answer.ready else "NOT READY"
    since = moment(answer.started)
    yield f"numawarden {answer.version}, process {answer.pid}, {ready}, since {since}"
    if answer.unready and all(answer.unready != condition.line for condition in answer.conditions):
        yield f"  not ready  {answer.unready}"
    for condition in answer.conditions:
        named = f"{condition.type}: {condition.reason}, since {moment(condition.since)}"
        yield f"  CONDITION  {condition.line} ({named})"
    yield f"  host       {answer.hostname or 'unknown'}, at {moment(answer.time)}"
    policy = answer.policy
    yield (
        f"  policies   CPU {policy.cpu_manager_policy}, memory {policy.memory_manager_policy}, "
        f"topology {policy.topology_manager_policy} (scope {policy.topology_manager_scope})"
    )
    why = answer.kubernetes_version_source
    yield f"  rules      Kubernetes {answer.kubernetes_version} ({why})"
    if answer.configuration is not None:
        from agent.cli.check import changed_configuration  # noqa: PLC0415  # reads files

        yield from (f"  file       {line}" for line in changed_configuration(answer.configuration))
    yield f"  CPUs       {answer.online_cpus} online, {policy.reserved_cpus or 'none'} reserved"
    yield from labelled("  withheld   ", (cpus.detail for cpus in answer.withheld))
    yield f"  exclusive  {answer.exclusive_cpus or 'none'}"
    yield f"  shared     {answer.shared_pool or 'none'}"
    if policy.isolated_cpus:
        yield f"  isolcpus   {policy.isolated_cpus} ({policy.isolated_for})"
    yield f"  nodes      {answer.nodes}"
    yield from labelled("  cordoned   ", map(cordon_line, answer.cordons))
    if answer.runtime is not None:
        yield f"  runtime    {_runtime(answer.runtime)}"
    yield f"  pods       {answer.pods} with {counted(answer.containers, 'container')}"
    yield f"  rejected   {f'{len(answer.rejected)} lately' if answer.rejected else 'none'}"
    yield from _failed(answer.failed)
    yield f"  reconcile  {_reconcile(answer)}"
    yield from _drift(answer.drift)
    for manifest in answer.manifests:
        why = f", {manifest.message}" if manifest.message else ""
        kind, _, name = manifest.subject.partition(" ")
        yield f"  {kind:<10} {name}: {manifest.state}{why}"
        if len(manifest.details) > 1:  # a single one is the message
            yield from (f"               {detail}" for detail in manifest.details)


def _runtime(runtime: RuntimeDocument) -> str:
    since = moment(runtime.since)
    if not runtime.connected:
        return f"not connected over NRI since {since}: {runtime.error or 'not yet'}"
    nri = f"NRI {runtime.nri_version}" if runtime.nri_version else "NRI"
    return f"{runtime.name} {runtime.version}, connected over {nri} since {since}"


def _failed(pods: Sequence[FailedPodDocument]) -> Iterator[str]:
    """Yield the latest rejected or invalid pods; `show` has the reasons."""
    for pod in reversed(pods[-_FAILED_SHOWN:]):
        name = typed_name(pod) or "a pod without a name"
        yield f"  failed     {name}: {pod.reason}, {moment(pod.time)}"
    if len(pods) > _FAILED_SHOWN:
        yield f"  failed     and {len(pods) - _FAILED_SHOWN} before"


def _drift(settings: Sequence[DriftDocument]) -> Iterator[str]:
    """Yield the latest drifted settings."""
    for drift in settings[-_DRIFT_SHOWN:]:
        yield f"  drift      {moment(drift.time)}, {drift.line()}"


def _reconcile(answer: StatusDocument) -> str:
    """Return the last comparison, and how many conditions are about the kernel's settings."""
    document = answer.last_reconcile
    if document is None:
        return "not yet"
    parts = [f"{moment(document.finished)}, {document.seconds * 1000:.0f} ms: "]
    if document.found:
        parts.append(f"found {_causes(document.found)}; repaired {_causes(document.repaired)}; ")
    wrong = sum(condition.type in _OF_THE_KERNEL for condition in answer.conditions)
    parts.append(f"{wrong} not as it should be, see CONDITION" if wrong else _AGREES)
    return "".join(parts)


def _causes(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {cause}" for cause, count in counts.items()) or "none"


@click.command()
@output_option
@socket_option
def watch(output: Output, socket_path: str) -> None:
    """Print events as they happen, a line each, until interrupted.

    Exits with 4 when the agent ends.
    """
    with agent_at(socket_path) as agent:
        for event in until_unread(agent.watch()):
            if output is Output.YAML:
                click.echo("---")
            if output is Output.TEXT:
                say(_line(event))
            elif output is Output.JSON:
                click.echo(escaped(encode(event)))
            else:
                print_document(event, output)
    agent_ended()


def _line(event: EventDocument) -> str:
    when = datetime.fromtimestamp(event.time, UTC).strftime("%H:%M:%SZ")
    parts = (when, event.type, event.pod, event.message)
    return "  ".join(part for part in parts if part)
