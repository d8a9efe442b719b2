"""`numawarden admit | remove | list | show | bind | unbind`: what is done with pods."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from agent.cli.access import (
    agent_at,
    find_pod,
    names_of,
    output_option,
    print_json,
    print_lines,
    read_manifest,
    socket_option,
)
from agent.cli.errors import CommandError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agent.api.client import AgentClient
    from agent.api.documents import (
        AdmissionDocument,
        Document,
        EnforcementDocument,
        FailedPodDocument,
        PodDocument,
    )

_Shown = TypeVar("_Shown", bound="Document")


@click.command()
@click.argument("file", metavar="FILE|-", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Decide as it would be now, and change nothing.")
@click.option(
    "--require",
    metavar="QUALITIES",
    default="",
    help="Reject the pod unless every container gets this: exclusive, aligned, whole-cores, "
    "near-device (separated by commas).",
)
@click.option(
    "--replace",
    "in_place",
    is_flag=True,
    help="Take the place of the admitted pod of the same namespace and name, if there is one: both "
    "are decided together, and that pod stays if the new one does not fit.",
)
@output_option
@socket_option
def admit(
    file: Path, output: str, socket_path: str, *, require: str, dry_run: bool, in_place: bool
) -> int:
    """Admit the pod of a manifest (YAML or JSON; - reads standard input).

    Exits with 0 once the kernel enforces the pod's allocation, 1 when it is rejected, and 7 when it
    is admitted but not enforced.
    """
    manifest, name = read_manifest(file)
    with agent_at(socket_path, name) as agent:
        answer = agent.admit(manifest, dry_run=dry_run, require=require, replace=in_place)
    from agent.cli.text.pods import admission_lines  # noqa: PLC0415  # help needs none of it

    _print(answer, output, admission_lines)
    return _admission_code(answer)


@click.command()
@click.argument("pod")
@output_option
@socket_option
def remove(pod: str, output: str, socket_path: str) -> int:
    """Remove a POD (uid, name or namespace/name) and free its allocation.

    Its processes are not ended; those that still run go on in the node's shared pool.
    """
    with agent_at(socket_path) as agent:
        answer = agent.remove(find_pod(agent, pod).uid)
    if output == "json":
        print_json(answer)
    else:
        from agent.pods.identity import name_and_uid  # noqa: PLC0415  # help needs none of it

        click.echo(f"removed {name_and_uid(answer)}")
        _print_remarks(answer.enforcement)
    return _enforcement_code(answer.enforcement)


@click.command("list")
@output_option
@socket_option
def list_pods(output: str, socket_path: str) -> None:
    """List the admitted pods, what their containers hold, and whether the kernel enforces it."""
    with agent_at(socket_path) as agent:
        pods = agent.pods()
    if output == "json":
        from agent.api.documents import PodListDocument  # noqa: PLC0415

        print_json(PodListDocument(pods=pods))
        return
    from agent.cli.text.pods import list_lines  # noqa: PLC0415

    print_lines(list_lines(pods))


@click.command()
@click.argument("pod")
@click.option("--container", help="Which container --arguments is about, if the pod has several.")
@click.option(
    "--arguments",
    "tool",
    type=click.Choice(["podman", "systemd-run", "containerd"]),
    help="Print instead the arguments of podman run, systemd-run or ctr run with which a container "
    "is started below its pod's cgroup and with its devices, quoted for a shell.",
)
@output_option
@socket_option
def show(pod: str, container: str | None, tool: str | None, output: str, socket_path: str) -> int:
    """Show a POD (uid, name or namespace/name): allocation, reasons, and the kernel's settings.

    A recently rejected pod, or one with an invalid manifest, is shown with the reason; the exit
    code is then that of its admission, 1 or 3.
    """
    from agent.api.documents import INVALID_MANIFEST  # noqa: PLC0415
    from agent.cli.text.pods import failed_lines, pod_lines  # noqa: PLC0415

    if container is not None and tool is None:
        raise click.UsageError("--container needs --arguments")
    if tool is not None and output == "json":
        raise click.UsageError("--arguments is text; --output json has them as .delivery")
    with agent_at(socket_path) as agent:
        failed = _failed(agent, pod)
        found = agent.pod(find_pod(agent, pod).uid) if failed is None else None
    if found is None:
        _print(failed, output, failed_lines)
        invalid = failed is not None and failed.reason == INVALID_MANIFEST
        return ExitCode.BAD_INPUT if invalid else ExitCode.REJECTED
    if tool is not None:
        click.echo(_arguments(tool, found, container))
    else:
        _print(found, output, pod_lines)
    return _enforcement_code(found.enforcement)


@click.command()
@click.argument("pod")
@click.argument("container")
@click.option("--cgroup", metavar="PATH", help="The container's cgroup, below the cgroup root.")
@click.option("--pid", type=click.IntRange(min=1), help="Or any process of the container.")
@output_option
@socket_option
def bind(
    pod: str, container: str, cgroup: str | None, pid: int | None, output: str, socket_path: str
) -> int:
    """Bind a CONTAINER of a POD to a cgroup that cannot be identified by its name."""
    if (cgroup is None) == (pid is None):
        raise click.UsageError("give either --cgroup or --pid")
    from agent.api.documents import BindRequest  # noqa: PLC0415

    with agent_at(socket_path) as agent:
        uid = find_pod(agent, pod).uid
        answer = agent.bind(uid, container, BindRequest(cgroup=cgroup, pid=pid))
    if output == "json":
        print_json(answer)
    else:
        click.echo(f"bound {answer.container} of {pod} to {answer.cgroup}")
        _print_remarks(answer.enforcement)
    return _enforcement_code(answer.enforcement)


@click.command()
@click.argument("pod")
@click.argument("container")
@output_option
@socket_option
def unbind(pod: str, container: str, output: str, socket_path: str) -> int:
    """Remove the binding of a CONTAINER of a POD; its cgroup is again identified by its name.

    A cgroup outside of the pod's is confined to the shared pool until its processes end.
    """
    with agent_at(socket_path) as agent:
        answer = agent.unbind(find_pod(agent, pod).uid, container)
    if output == "json":
        print_json(answer)
    else:
        click.echo(f"unbound {answer.container} of {pod} from {answer.cgroup}")
        _print_remarks(answer.enforcement)
    return _enforcement_code(answer.enforcement)


def _print(document: _Shown | None, output: str, lines: Callable[[_Shown], Iterator[str]]) -> None:
    if document is None:
        return
    if output == "json":
        print_json(document)
    else:
        print_lines(lines(document))


def _arguments(tool: str, pod: PodDocument, named: str | None) -> str:
    """Return the arguments of a tool for the named container, or the only one, for a shell."""
    from agent.cli.text.delivery import Tool, arguments  # noqa: PLC0415  # help needs none of it

    names = ", ".join(container.name for container in pod.containers)
    chosen = [each for each in pod.containers if named in (None, each.name)]
    if not chosen:
        raise CommandError(f"no container is called {named!r}; known: {names}", ExitCode.NOT_FOUND)
    if len(chosen) > 1:
        raise click.UsageError(f"name one of the containers with --container: {names}")
    return shlex.join(arguments(Tool(tool), pod, chosen[0]))


def _failed(agent: AgentClient, named: str) -> FailedPodDocument | None:
    """Return the latest status of a rejected or invalid pod that is not admitted."""
    if any(named in names_of(pod) for pod in agent.pods()):
        return None
    known = (
        failed
        for failed in reversed(agent.status().failed)
        if named.strip("/") and named in names_of(failed)
    )
    found = next(known, None)
    if found is None or not found.uid:
        return found
    return agent.failed(found.uid) or found


def _admission_code(answer: AdmissionDocument) -> ExitCode:
    if answer.pod is None:
        return ExitCode.REJECTED
    return _enforcement_code(answer.pod.enforcement)


def _enforcement_code(enforcement: EnforcementDocument) -> ExitCode:
    return ExitCode.OK if enforcement.enforced else ExitCode.NOT_ENFORCED


def _print_remarks(enforcement: EnforcementDocument) -> None:
    for difference in enforcement.differences:
        click.echo(f"  not enforced: {difference}")
    for note in enforcement.notes:
        click.echo(f"  note: {note}")
