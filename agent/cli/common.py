"""What commands share: the connection to the agent, pods by their names, completion.

A mistake of the user or an error of the agent becomes a `CommandError` with its exit code here.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

import click
from click.shell_completion import CompletionItem, get_completion_class

from agent.api.client import AgentClient, AgentError, Unreachable
from agent.api.documents import (
    INVALID_MANIFEST,
    AdmissionDocument,
    ErrorBody,
    FailedPodDocument,
    PodDocument,
    RemovalDocument,
)
from agent.cli.errors import CommandError, ExitCode, WrongFileError
from agent.cli.lines import moment
from agent.cli.options import DEFAULT_SOCKET, TIMEOUT
from agent.pods.model import full_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from agent.api.documents import CordonDocument

    _Command = TypeVar("_Command", bound=Callable[..., object])
    _T = TypeVar("_T")


_CODES: Final = {
    "PodNotFound": ExitCode.NOT_FOUND,
    "ContainerNotFound": ExitCode.NOT_FOUND,
    "BindingNotFound": ExitCode.NOT_FOUND,
    "ManagedByManifest": ExitCode.REJECTED,
    "ManagedByKubelet": ExitCode.REJECTED,
    "CordonRejected": ExitCode.REJECTED,
    "NotCordoned": ExitCode.REJECTED,
    "PodRemoved": ExitCode.REJECTED,
    "InvalidManifest": ExitCode.BAD_INPUT,
    "InvalidBinding": ExitCode.BAD_INPUT,
    "InvalidRequest": ExitCode.BAD_INPUT,
    "TooLarge": ExitCode.BAD_INPUT,
    "Forbidden": ExitCode.UNREACHABLE,
    "NotReady": ExitCode.UNREACHABLE,
    "Stopping": ExitCode.UNREACHABLE,
}


@contextmanager
def agent_at(socket_path: str, manifest: str | None = None) -> Iterator[AgentClient]:
    """Connect to the agent; its error responses raise `CommandError` with an exit code.

    Every call waits for as long as the `--timeout` of the running command says. Mistakes in a
    manifest are those of the file `manifest`, whose name the agent does not know.
    """
    try:
        yield AgentClient(socket_path, click.get_current_context().meta[TIMEOUT])
    except AgentError as rejected:
        code = _CODES.get(rejected.error.code, ExitCode.AGENT_FAILED)
        if manifest is not None and rejected.error.code == INVALID_MANIFEST:
            raise WrongFileError(_mistakes(rejected.error, manifest), code) from rejected
        raise CommandError(str(rejected), code) from rejected


def _mistakes(error: ErrorBody, file: str) -> str:
    """Return the mistakes in a manifest with its file and their lines."""
    if len(error.details) == 1:
        return f"{file}: {error.details[0]}"
    return "\n".join((f"{file}: {error.message}", *map(str, error.details)))


def find_pod(agent: AgentClient, named: str) -> PodDocument:
    """Return the pod with a uid, name or namespace/name; raises `CommandError`."""
    return one_pod(agent.pods(), named)


def one_pod(admitted: Iterable[PodDocument], named: str) -> PodDocument:
    """Return the pod with a uid, name or namespace/name; raises `CommandError`."""
    found = [pod for pod in admitted if named in names_of(pod)]
    if not found:
        raise unknown_pod(named)
    if len(found) > 1:
        candidates = "\n".join(f"{full_name(pod)}  uid {pod.uid}" for pod in found)
        message = f"{len(found)} pods are called {named!r}; name one by its uid:\n{candidates}"
        raise CommandError(message, ExitCode.BAD_INPUT)
    return found[0]


def unknown_pod(named: str) -> CommandError:
    """Return the error for a pod that the agent does not know."""
    file = ", and a pod is not named by its file" if os.path.isfile(named) else ""  # noqa: PTH113
    message = f"no pod {named!r} is admitted{file}; see 'numawarden list'"
    return CommandError(message, ExitCode.NOT_FOUND)


def names_of(pod: PodDocument | FailedPodDocument) -> tuple[str, str, str]:
    """Return the names of a pod on the command line."""
    return pod.uid, pod.name or pod.uid, full_name(pod)


def typed_name(pod: PodDocument | FailedPodDocument | AdmissionDocument | RemovalDocument) -> str:
    """Return what a user types for a pod: namespace/name, or the uid where no name is known."""
    return f"{pod.namespace}/{pod.name}" if pod.name else pod.uid


def cordon_line(cordon: CordonDocument) -> str:
    """Return one cordon: what, since when, why."""
    parts = [
        f"{name} {ids}" for name, ids in (("node", cordon.nodes), ("CPUs", cordon.cpus)) if ids
    ]
    why = f": {cordon.reason}" if cordon.reason else ""
    return f"{' and '.join(parts)}, since {moment(cordon.since)}{why}"


#: How long completion waits for the agent, in seconds: a user notices more.
DEADLINE: Final = 0.5
#: The variable by which the shell's function asks for completions: click makes it of the name.
_VARIABLE: Final = "_NUMAWARDEN_COMPLETE"
SHELLS: Final = ("bash", "zsh", "fish")


def pod_argument(*, required: bool = True) -> Callable[[_Command], _Command]:
    """Return what adds the argument POD (uid, name or namespace/name) to a command."""
    return click.argument("pod", required=required, shell_complete=complete_pods)


def pods_argument(*, required: bool) -> Callable[[_Command], _Command]:
    """Return what adds the arguments POD to a command, as `pods`."""
    return click.argument(
        "pods", metavar="POD...", nargs=-1, required=required, shell_complete=complete_pods
    )


def complete_pods(
    ctx: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the pods whose namespace/name begins with a text, else those whose name does."""
    pods = _pods(ctx)
    found = {typed_name(pod): pod for pod in pods if typed_name(pod).startswith(incomplete)}
    found = found or {pod.name: pod for pod in pods if pod.name.startswith(incomplete)}
    return [CompletionItem(name, help=pod.qos) for name, pod in found.items()]


def complete_containers(
    ctx: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the containers, of the pod that was typed before, whose name begins with a text."""
    # Before the value of an option, click has parsed no argument yet: they are in `args`.
    pod_typed = ctx.params.get("pod") or next(iter(ctx.args), None)
    return [
        CompletionItem(container.name, help=f"{container.kind} container, CPUs {container.cpus}")
        for pod in _pods(ctx)
        if pod_typed in names_of(pod)
        for container in pod.containers
        if container.name.startswith(incomplete)
    ]


#: The argument CONTAINER, a name of a container of POD.
container_argument: Final = click.argument("container", shell_complete=complete_containers)


def _pods(ctx: click.Context) -> tuple[PodDocument, ...]:
    """Return the pods of the agent, none if it does not answer."""
    return asked_agent(ctx, AgentClient.pods) or ()


def asked_agent(ctx: click.Context, ask: Callable[[AgentClient], _T]) -> _T | None:
    """Return what the agent answers to completion, None if it does not answer in time."""
    try:
        return ask(AgentClient(ctx.params.get("socket_path") or DEFAULT_SOCKET, DEADLINE))
    except (AgentError, Unreachable):
        return None


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the completion script of a SHELL: bash, zsh or fish.

    For one session of bash: source <(numawarden completion bash). For all of them write the output
    to /usr/share/bash-completion/completions/numawarden, of zsh to a file _numawarden in a
    directory of its fpath, of fish to /usr/share/fish/vendor_completions.d/numawarden.fish.
    """
    for line in script_lines(shell):
        click.echo(line)


def script_lines(shell: str) -> Iterator[str]:
    """Yield the completion script of a shell, which calls this program; starts no shell."""
    kind = get_completion_class(shell)
    if kind is None:
        raise ValueError(f"{shell} is not one of {', '.join(SHELLS)}")
    root = click.get_current_context().find_root().command
    completer = kind(root, {}, "numawarden", _VARIABLE)
    yield from (completer.source_template % completer.source_vars()).strip().splitlines()
