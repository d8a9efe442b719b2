"""`numawarden cordon`, `uncordon` and `drain`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from agent.api.client import AgentClient
from agent.api.documents.maintenance import (
    CordonRequest,
    CordonsDocument,
    DrainDocument,
    DrainedPodDocument,
)
from agent.cli.common import agent_at, cordon_line
from agent.cli.completion import asked_agent
from agent.cli.errors import ExitCode
from agent.cli.options import Output, output_option, socket_option
from agent.cli.output import print_answer
from agent.pods.model import full_name
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agent.api.documents.status import StatusDocument

_TARGET = "CPUS|core:N|node:N"


def _complete_nodes(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the host's nodes as targets that begin with a text."""
    status = asked_agent(ctx, AgentClient.status)
    nodes = Mask.parse(status.nodes) if status else ()
    return [target for node in nodes if (target := f"node:{node}").startswith(incomplete)]


def _complete_cordoned(
    ctx: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[str]:
    """Return the targets that are cordoned and begin with a text."""
    status = asked_agent(ctx, AgentClient.status)
    targets = _cordoned(status) if status else ()
    return [target for target in targets if target.startswith(incomplete)]


@click.command()
@click.argument("target", metavar=_TARGET, shell_complete=_complete_nodes)
@click.option("--reason", default="", metavar="TEXT", help="Why; shown in the status.")
@output_option
@socket_option
def cordon(target: str, reason: str, output: Output, socket_path: str) -> int:
    """Allocate nothing new from CPUs, cores or NUMA nodes, until they are uncordoned.

    The target is a list of CPUs (4-7,12), of cores as the map numbers them (core:2), or of NUMA
    nodes with their CPUs, memory and devices (node:1). Pods keep what they have; pods that share
    CPUs leave the cordoned ones at once. The cordon outlives the agent's restart.
    """
    with agent_at(socket_path) as agent:
        answer = agent.cordon(CordonRequest(target=target, reason=reason))
    print_answer(answer, output, cordons_lines)
    return ExitCode.NOT_ENFORCED if answer.differences else ExitCode.OK


@click.command()
@click.argument("target", metavar=_TARGET, required=False, shell_complete=_complete_cordoned)
@click.option("--all", "everything", is_flag=True, help="Whatever is cordoned.")
@output_option
@socket_option
def uncordon(target: str | None, output: Output, socket_path: str, *, everything: bool) -> int:
    """Allocate from CPUs, cores or NUMA nodes again.

    The target is that of `cordon`, or a part of it.
    """
    if (target is None) is not everything:
        raise click.UsageError("give either a target such as 4-7, core:2 or node:1, or --all")

    with agent_at(socket_path) as agent:
        targets = [target] if target is not None else _cordoned(agent.status())
        if not targets:
            click.echo("nothing is cordoned")
            return ExitCode.OK
        *rest, last = targets
        for cordoned in rest:
            agent.uncordon(CordonRequest(target=cordoned))
        answer = agent.uncordon(CordonRequest(target=last))
    print_answer(answer, output, cordons_lines)
    return ExitCode.NOT_ENFORCED if answer.differences else ExitCode.OK


def _cordoned(status: StatusDocument) -> list[str]:
    """Return the targets with which all cordons end."""
    nodes = [f"node:{cordon.nodes}" for cordon in status.cordons if cordon.nodes]
    return [*nodes, *(cordon.cpus for cordon in status.cordons if cordon.cpus)]


@click.command()
@click.argument("target", metavar=_TARGET, shell_complete=_complete_nodes)
@click.option("--dry-run", is_flag=True, help="Required: the agent ends no pods.")
@output_option
@socket_option
def drain(target: str, output: Output, socket_path: str, *, dry_run: bool) -> int:
    """Say which pods would have to end before a target is empty, and which would fit elsewhere.

    The pods are tried together by the decision function, in the order in which they were admitted,
    as if the target was cordoned. Nothing is changed. Exits with 0 if all of them would fit (or
    none has to end), else with 1.
    """
    if not dry_run:
        raise click.UsageError("the agent ends no pods; --dry-run says which would have to end")
    with agent_at(socket_path) as agent:
        answer = agent.drain(target)
    print_answer(answer, output, drain_lines)
    fits = not answer.rejection and all(pod.outcome == "fits" for pod in answer.pods)
    return ExitCode.OK if fits else ExitCode.REJECTED


def cordons_lines(answer: CordonsDocument) -> Iterator[str]:
    """Yield all cordons after a change, and which pods still use what is cordoned."""
    if not answer.cordons:
        yield "nothing is cordoned"
    for cordon in answer.cordons:
        yield f"cordoned: {cordon_line(cordon)}"
    yield f"shared pool: CPUs {answer.shared_pool or 'none'}"
    for pod in answer.pods:
        yield f"still in use by {full_name(pod)}: {_used(pod.cpus, pod.nodes, pod.devices)}"
    for line in answer.differences:
        yield f"not enforced: {line}"


def drain_lines(answer: DrainDocument) -> Iterator[str]:
    """Yield which pods would have to end, which of them fit elsewhere, and what is left."""
    if answer.rejection:
        yield f"cannot be cordoned now: {answer.rejection}"
    count = len(answer.pods)
    fit = sum(pod.outcome == "fits" for pod in answer.pods)
    if not count:
        yield "no pod would have to end"
    else:
        pods = "pod" if count == 1 else "pods"
        yield f"{count} {pods} would have to end, {fit} would fit elsewhere (tried in this order):"
    for pod in answer.pods:
        yield f"  {full_name(pod)}: {_used(pod.cpus, pod.nodes, pod.devices)}; {_outcome(pod)}"
    yield f"pods that stay: {answer.stay}"
    pool = answer.shared_pool or "none"
    yield f"then the shared pool is CPUs {pool}, and {answer.free_cpus} CPUs are free"


def _outcome(pod: DrainedPodDocument) -> str:
    if pod.outcome != "fits":
        return f"{'does not fit' if pod.outcome == 'rejected' else 'not known'}: {pod.message}"
    cpus = f" with CPUs {pod.moved_cpus}" if pod.moved_cpus else ""
    return f"fits on node {pod.moved_nodes}{cpus}" if pod.moved_nodes else f"fits{cpus}"


def _used(cpus: str, nodes: str, devices: Mapping[str, Sequence[str]]) -> str:
    parts = [f"CPUs {cpus}"] if cpus else []
    parts += [f"memory of node {nodes}"] if nodes else []
    parts += [f"{resource} {', '.join(ids)}" for resource, ids in devices.items()]
    return ", ".join(parts)
