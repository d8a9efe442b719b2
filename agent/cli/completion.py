"""Completion: what a shell offers for arguments, and the scripts that make it ask.

The agent is asked for its pods, for a short time. Without an answer nothing is offered, and no
error is printed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import click
from click.shell_completion import CompletionItem, get_completion_class

from agent.api.client import AgentClient, AgentError, Unreachable
from agent.cli.common import names_of, typed_name
from agent.cli.options import DEFAULT_SOCKET

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agent.api.documents.pods import PodDocument

    _Command = TypeVar("_Command", bound=Callable[..., object])
    _T = TypeVar("_T")

#: Seconds that completion waits for the agent. A user notices a longer wait.
DEADLINE: Final = 0.5
#: The variable with which a shell asks for completions: click derives it from the command's name.
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
    """Return the pods whose namespace/name begins with a text; if there are none, by name."""
    pods = _pods(ctx)
    by_name = {typed_name(pod): pod for pod in pods if typed_name(pod).startswith(incomplete)}
    by_name = by_name or {pod.name: pod for pod in pods if pod.name.startswith(incomplete)}
    return [CompletionItem(name, help=pod.qos) for name, pod in by_name.items()]


def complete_containers(
    ctx: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the containers of the pod typed before whose names begin with a text."""
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
