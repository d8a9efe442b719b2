"""`numawarden admit | remove | list | show | bind | unbind`: what is done with pods."""

from __future__ import annotations

import shlex
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import click
from msgspec.structs import replace

from agent.api.documents.admissions import AdmissionDocument, BindRequest, RemovalDocument
from agent.api.documents.pods import PodDocument, PodListDocument
from agent.api.documents.rejections import INVALID_MANIFEST, FailedPodDocument
from agent.cli.admission_text import admission_lines, failed_lines
from agent.cli.common import agent_at, find_pod, names_of, one_pod, typed_name, unknown_pod
from agent.cli.completion import (
    complete_containers,
    container_argument,
    pod_argument,
    pods_argument,
)
from agent.cli.errors import CommandError, ExitCode
from agent.cli.list_text import list_lines, list_table
from agent.cli.manifests import ManifestText, for_each_manifest
from agent.cli.options import (
    DOCUMENT,
    Output,
    output_of,
    output_option,
    pod_output_option,
    require_option,
    socket_option,
    watch_option,
)
from agent.cli.output import print_answer, print_lines, say, warn
from agent.cli.pod_text import difference_lines, enforcement_lines, pod_lines
from agent.cli.start_arguments import Tool, start_arguments, start_lines
from agent.cli.watching import check_watch, draw_again
from agent.pods.model import name_and_uid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from agent.api.client import AgentClient
    from agent.api.documents.kernel import EnforcementDocument

    _Named = TypeVar("_Named", AdmissionDocument, FailedPodDocument, PodDocument, RemovalDocument)


_files_argument: Final = click.argument(
    "files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path)
)


@click.command()
@_files_argument
@click.option("--dry-run", is_flag=True, help="Decide as it would be now, and change nothing.")
@require_option
@click.option(
    "--replace",
    "in_place",
    is_flag=True,
    help="Take the place of the admitted pod of the same namespace and name, if there is one: both "
    "are decided together, and that pod stays if the new one does not fit.",
)
@pod_output_option
@socket_option
def admit(
    files: tuple[Path, ...],
    output: Output,
    socket_path: str,
    *,
    require: str,
    dry_run: bool,
    in_place: bool,
) -> int:
    """Admit the pod of each manifest (YAML or JSON; - reads standard input), in this order.

    A directory stands for its files *.yaml, *.yml and *.json in the order of their names, a List of
    kubectl for its pods. What is wrong is reported, and what follows is still tried.

    Exits with 0 once the kernel enforces each allocation, else with the first other code: 1 for a
    pod that is rejected, 3 for a file that is wrong, 7 for a pod that is admitted but not enforced.
    """
    printed = 0

    def answered(manifest: ManifestText) -> ExitCode:
        nonlocal printed
        with agent_at(socket_path, manifest.name) as agent:
            answer = agent.admit(
                manifest.text, dry_run=dry_run, require=require, replace=in_place, advice=True
            )
            shown = answer.admitted and not dry_run and output is Output.TEXT
            pod = agent.pod(answer.uid) if shown else None
        warn(answer.warnings)
        _print(answer, output, admission_lines, printed)
        printed += 1
        if pod is not None:
            print_lines(f"  {line}" for line in islice(start_lines(pod), 1))
        return ExitCode.REJECTED if answer.pod is None else _pod_code(answer.pod)

    return for_each_manifest(files, answered)


@click.command()
@_files_argument
@socket_option
def diff(files: tuple[Path, ...], socket_path: str) -> ExitCode:
    """Show what `admit --replace` of each manifest would change, as a unified diff.

    FILEs are as for `admit`. Each pod is decided as if it were the only one, and nothing is
    changed. A pod that is not admitted is compared with /dev/null.

    Exits with 0 if nothing would change, else with the first other code: 1 if a pod would be
    changed, admitted or rejected, 3 for a file that is wrong.
    """

    def compared(manifest: ManifestText) -> ExitCode:
        with agent_at(socket_path, manifest.name) as agent:
            answer = agent.admit(manifest.text, dry_run=True, replace=True, advice=True)
            uid = answer.uid if answer.already_admitted else answer.replaced
            former = None if uid is None else agent.pod(uid)
        warn(answer.warnings)
        new = answer.pod
        lines = list(
            admission_lines(answer) if new is None else difference_lines(former, new, manifest.name)
        )
        print_lines(lines)
        return ExitCode.REJECTED if lines else ExitCode.OK

    return for_each_manifest(files, compared)


@click.command()
@pods_argument(required=True)
@pod_output_option
@socket_option
def remove(pods: tuple[str, ...], output: Output, socket_path: str) -> int:
    """Remove each POD (uid, name or namespace/name) and free its allocation.

    No pod is removed unless all are found. Their processes are not ended; those that still run go
    on in the node's shared pool.
    """
    code, printed = ExitCode.OK, set[str]()

    def lines(answer: RemovalDocument) -> Iterator[str]:
        yield f"removed {name_and_uid(answer)}"
        notes = tuple(note for note in answer.enforcement.notes if note not in printed)
        printed.update(notes)
        yield from enforcement_lines(replace(answer.enforcement, notes=notes))

    with agent_at(socket_path) as agent:
        admitted = agent.pods()
        uids = dict.fromkeys(one_pod(admitted, pod).uid for pod in pods)
        for number, uid in enumerate(uids):
            answer = agent.remove(uid)
            _print(answer, output, lines, number)
            code = code or _enforcement_code(answer.enforcement)
    return code


@click.command("list")
@pods_argument(required=False)
@click.option("-n", "--namespace", metavar="NAME", help="Only pods of this namespace.")
@watch_option
@output_of(Output.TEXT, Output.TABLE, Output.WIDE, *DOCUMENT, Output.NAME)
@socket_option
def list_pods(
    pods: tuple[str, ...], namespace: str | None, output: Output, socket_path: str, *, watch: bool
) -> None:
    """List the admitted pods, what their containers hold, and whether the kernel enforces it.

    With PODs (uid, name or namespace/name) only those. The latest pods that are not admitted
    follow, with since when and why: rejected, invalid, or run shared. `name` leaves them out.
    """
    check_watch(output, watch=watch)

    def chosen(pod: PodDocument | FailedPodDocument) -> bool:
        return namespace in {None, pod.namespace} and (
            not pods or any(named in names_of(pod) for named in pods)
        )

    def draw() -> None:
        listed = agent.pod_list()
        shown = PodListDocument(
            pods=tuple(filter(chosen, listed.pods)), failed=tuple(filter(chosen, listed.failed))
        )
        names = {name for pod in shown.pods for name in names_of(pod)}
        names |= {name for pod in shown.failed for name in names_of(pod)}
        if not watch and not names.issuperset(pods):
            raise unknown_pod(next(pod for pod in pods if pod not in names))
        _print_list(shown, output)

    with agent_at(socket_path) as agent:
        draw_again(agent, draw, watch=watch)


def _print_list(listed: PodListDocument, output: Output) -> None:
    if output is Output.NAME:
        _print_names(listed.pods)
    elif output in {Output.TABLE, Output.WIDE}:
        print_lines(list_table(listed, wide=output is Output.WIDE))
    else:
        print_answer(listed, output, list_lines)


@click.command()
@pod_argument()
@click.option(
    "--container",
    shell_complete=complete_containers,
    help="Which container --arguments is about, if the pod has several.",
)
@click.option(
    "--arguments",
    "tool",
    type=click.Choice([str(tool) for tool in Tool]),
    help="Print instead the arguments of this tool's run command with which a container is started "
    "below its pod's cgroup and with its devices, quoted for a shell.",
)
@pod_output_option
@socket_option
def show(
    pod: str, container: str | None, tool: str | None, output: Output, socket_path: str
) -> int:
    """Show a POD (uid, name or namespace/name): allocation, settings, reasons, what makes it slow.

    A recently rejected pod, or one with an invalid manifest, is shown with the reason; the exit
    code is then that of its admission, 1 or 3.
    """
    if container is not None and tool is None:
        raise click.UsageError("--container needs --arguments")
    if tool is not None and output is not Output.TEXT:
        raise click.UsageError("--arguments is text; --output json has them as .delivery")
    with agent_at(socket_path) as agent:
        failed = _failed(agent, pod)
        if failed is not None:
            _print(failed, output, failed_lines)
            invalid = failed.reason == INVALID_MANIFEST
            return ExitCode.BAD_INPUT if invalid else ExitCode.REJECTED
        admitted = agent.pod(find_pod(agent, pod).uid)
    if tool is not None:
        say(_arguments(tool, admitted, container))
    else:
        _print(admitted, output, pod_lines)
    return _pod_code(admitted)


@click.command()
@pod_argument()
@container_argument
@click.option("--cgroup", metavar="PATH", help="The container's cgroup, below the cgroup root.")
@click.option("--pid", type=click.IntRange(min=1), help="Or any process of the container.")
@output_option
@socket_option
def bind(
    pod: str, container: str, cgroup: str | None, pid: int | None, output: Output, socket_path: str
) -> int:
    """Bind a CONTAINER of a POD to a cgroup that cannot be identified by its name."""
    if (cgroup is None) == (pid is None):
        raise click.UsageError("give either --cgroup or --pid")
    with agent_at(socket_path) as agent:
        uid = find_pod(agent, pod).uid
        answer = agent.bind(uid, container, BindRequest(cgroup=cgroup, pid=pid))
    done = f"bound {answer.container} of {pod} to {answer.cgroup}"
    print_answer(answer, output, lambda bound: (done, *enforcement_lines(bound.enforcement)))
    return _enforcement_code(answer.enforcement)


@click.command()
@pod_argument()
@container_argument
@output_option
@socket_option
def unbind(pod: str, container: str, output: Output, socket_path: str) -> int:
    """Remove the binding of a CONTAINER of a POD; its cgroup is again identified by its name.

    A cgroup outside of the pod's is confined to the shared pool until its processes end.
    """
    with agent_at(socket_path) as agent:
        answer = agent.unbind(find_pod(agent, pod).uid, container)
    done = f"unbound {answer.container} of {pod} from {answer.cgroup}"
    print_answer(answer, output, lambda unbound: (done, *enforcement_lines(unbound.enforcement)))
    return _enforcement_code(answer.enforcement)


def _print(
    document: _Named,
    output: Output,
    lines: Callable[[_Named], Iterator[str]],
    number: int = 0,
) -> None:
    """Print the answer about a pod, after `number` others."""
    if number and output is Output.YAML:
        click.echo("---")
    if output is Output.NAME:
        _print_names((document,))
    else:
        print_answer(document, output, lines)


def _print_names(pods: Iterable[_Named]) -> None:
    for pod in pods:
        say(typed_name(pod))


def _arguments(tool: str, pod: PodDocument, named: str | None) -> str:
    """Return the arguments of a tool for the named container, or the only one, for a shell."""
    names = ", ".join(container.name for container in pod.containers)
    chosen = [container for container in pod.containers if named in (None, container.name)]
    if not chosen:
        raise CommandError(f"no container is called {named!r}; known: {names}", ExitCode.NOT_FOUND)
    if len(chosen) > 1:
        raise click.UsageError(f"name one of the containers with --container: {names}")
    return shlex.join(start_arguments(Tool(tool), pod, chosen[0]))


def _failed(agent: AgentClient, named: str) -> FailedPodDocument | None:
    """Return the latest status of a rejected or invalid pod that is not admitted."""
    if any(named in names_of(pod) for pod in agent.pods()):
        return None
    called_so = (
        failed
        for failed in reversed(agent.status().failed)
        if named.strip("/") and named in names_of(failed)
    )
    latest = next(called_so, None)
    if latest is None or not latest.uid:
        return latest
    return agent.failed(latest.uid) or latest


def _pod_code(pod: PodDocument) -> ExitCode:
    return ExitCode.NOT_ENFORCED if pod.intruding else _enforcement_code(pod.enforcement)


def _enforcement_code(enforcement: EnforcementDocument) -> ExitCode:
    return ExitCode.OK if enforcement.enforced else ExitCode.NOT_ENFORCED
