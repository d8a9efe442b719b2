"""Completion in bash, zsh and fish: commands, options, and the pods and containers of the agent.

The shells ask `numawarden` itself, at every press of the key (click's `_NUMAWARDEN_COMPLETE`). An
agent that does not answer at once has nothing to complete; no error is shown in the middle of a
line that a user types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import click

from agent.cli.access import DEFAULT_SOCKET, names_of, typed_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from click.shell_completion import CompletionItem

    from agent.api.documents import PodDocument

    _Command = TypeVar("_Command", bound=Callable[..., object])

#: How long completion waits for the agent, in seconds: a user notices more.
DEADLINE: Final = 0.5
#: The variable by which the shell's function asks for completions: click makes it of the name.
_VARIABLE: Final = "_NUMAWARDEN_COMPLETE"
SHELLS: Final = ("bash", "zsh", "fish")


def pod_argument(*, required: bool = True) -> Callable[[_Command], _Command]:
    """Return what adds the argument POD (uid, name or namespace/name) to a command."""

    def add(command: _Command) -> _Command:
        return click.argument("pod", required=required, shell_complete=complete_pods)(command)

    return add


def container_argument(command: _Command) -> _Command:
    """Add the argument CONTAINER, a name of a container of POD, to a command."""
    return click.argument("container", shell_complete=complete_containers)(command)


def complete_pods(
    ctx: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the pods whose namespace/name begins with a text, else those whose name does."""
    from click.shell_completion import CompletionItem  # noqa: PLC0415  # only a shell needs it

    pods = _pods(ctx)
    found = {typed_name(pod): pod for pod in pods if typed_name(pod).startswith(incomplete)}
    found = found or {pod.name: pod for pod in pods if pod.name.startswith(incomplete)}
    return [CompletionItem(name, help=pod.qos) for name, pod in found.items()]


def complete_containers(
    ctx: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the containers, of the pod that was typed before, whose name begins with a text."""
    from click.shell_completion import CompletionItem  # noqa: PLC0415  # only a shell needs it

    # Before the value of an option, click has parsed no argument yet: they are in `args`.
    pod_typed = ctx.params.get("pod") or next(iter(ctx.args), None)
    return [
        CompletionItem(container.name, help=f"{container.kind} container, CPUs {container.cpus}")
        for pod in _pods(ctx)
        if pod_typed in names_of(pod)
        for container in pod.containers
        if container.name.startswith(incomplete)
    ]


def _pods(ctx: click.Context) -> tuple[PodDocument, ...]:
    """Return the pods of the agent, none if it does not answer."""
    from agent.api.client import AgentClient, AgentError, Unreachable  # noqa: PLC0415  # as above

    try:
        return AgentClient(ctx.params.get("socket_path") or DEFAULT_SOCKET, DEADLINE).pods()
    except (AgentError, Unreachable):
        return ()


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
    from click.shell_completion import get_completion_class  # noqa: PLC0415  # only this needs it

    kind = get_completion_class(shell)
    if kind is None:
        raise ValueError(f"{shell} is not one of {', '.join(SHELLS)}")
    root = click.get_current_context().find_root().command
    completer = kind(root, {}, "numawarden", _VARIABLE)
    yield from (completer.source_template % completer.source_vars()).strip().splitlines()
