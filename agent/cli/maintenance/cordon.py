"""`numawarden cordon`, `uncordon` and `drain`: CPUs and NUMA nodes out of use for maintenance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from agent.cli.access import agent_at, socket_option
from agent.cli.errors import ExitCode
from agent.cli.terminal.output import Output, output_option, print_document, print_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agent.api.documents import Document
    from agent.api.status import StatusDocument

_TARGET = "CPUS|core:N|node:N"


@click.command()
@click.argument("target", metavar=_TARGET)
@click.option("--reason", default="", metavar="TEXT", help="Why; shown in the status.")
@output_option
@socket_option
def cordon(target: str, reason: str, output: Output, socket_path: str) -> int:
    """Allocate nothing new from CPUs, cores or NUMA nodes, until they are uncordoned.

    The target is a list of CPUs (4-7,12), of cores as the map numbers them (core:2), or of NUMA
    nodes with their CPUs, memory and devices (node:1). Pods keep what they have; pods that share
    CPUs leave the cordoned ones at once. The cordon outlives the agent's restart.
    """
    from agent.api.maintenance import CordonRequest  # noqa: PLC0415  # help needs none of it
    from agent.cli.text.cordons import cordons_lines  # noqa: PLC0415

    with agent_at(socket_path) as agent:
        answer = agent.cordon(CordonRequest(target=target, reason=reason))
    _print(answer, output, lambda: cordons_lines(answer))
    return ExitCode.NOT_ENFORCED if answer.differences else ExitCode.OK


@click.command()
@click.argument("target", metavar=_TARGET, required=False)
@click.option("--all", "everything", is_flag=True, help="Whatever is cordoned.")
@output_option
@socket_option
def uncordon(target: str | None, output: Output, socket_path: str, *, everything: bool) -> int:
    """Allocate from CPUs, cores or NUMA nodes again.

    The target is that of `cordon`, or a part of it.
    """
    if (target is None) is not everything:
        raise click.UsageError("give either a target such as 4-7, core:2 or node:1, or --all")
    from agent.api.maintenance import CordonRequest  # noqa: PLC0415  # help needs none of it
    from agent.cli.text.cordons import cordons_lines  # noqa: PLC0415

    with agent_at(socket_path) as agent:
        targets = [target] if target is not None else _cordoned(agent.status())
        if not targets:
            click.echo("nothing is cordoned")
            return ExitCode.OK
        *rest, last = targets
        for each in rest:
            agent.uncordon(CordonRequest(target=each))
        answer = agent.uncordon(CordonRequest(target=last))
    _print(answer, output, lambda: cordons_lines(answer))
    return ExitCode.NOT_ENFORCED if answer.differences else ExitCode.OK


def _cordoned(status: StatusDocument) -> list[str]:
    """Return the targets with which all cordons end."""
    nodes = [f"node:{each.nodes}" for each in status.cordons if each.nodes]
    return [*nodes, *(each.cpus for each in status.cordons if each.cpus)]


@click.command()
@click.argument("target", metavar=_TARGET)
@click.option("--dry-run", is_flag=True, help="Required: the agent ends no pods.")
@output_option
@socket_option
def drain(target: str, output: Output, socket_path: str, *, dry_run: bool) -> int:
    """Say which pods would have to end before a target is empty, and which would fit elsewhere.

    The pods are tried together by the decision function, in the order in which they were admitted,
    as if the target was cordoned. Nothing is changed. Exits with 0 if all of them would fit (or
    none has to end), else with 1.
    """
    from agent.cli.text.cordons import drain_lines  # noqa: PLC0415  # help needs none of it

    if not dry_run:
        raise click.UsageError("the agent ends no pods; --dry-run says which would have to end")
    with agent_at(socket_path) as agent:
        answer = agent.drain(target)
    _print(answer, output, lambda: drain_lines(answer))
    fits = not answer.rejection and all(pod.outcome == "fits" for pod in answer.pods)
    return ExitCode.OK if fits else ExitCode.REJECTED


def _print(answer: Document, output: Output, lines: Callable[[], Iterator[str]]) -> None:
    if output is Output.TEXT:
        print_lines(lines())
    else:
        print_document(answer, output)
