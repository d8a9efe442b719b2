"""Options and helpers of the commands that call the agent."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypeVar

import click

from agent.cli.errors import CommandError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from agent.api.client import AgentClient
    from agent.api.documents import (
        AdmissionDocument,
        ErrorBody,
        FailedPodDocument,
        PodDocument,
        RemovalDocument,
    )
    from agent.api.maintenance import LogLevelDocument

    _Command = TypeVar("_Command", bound=Callable[..., object])

DEFAULT_SOCKET: Final = "/run/numawarden/agent.sock"
#: How long a command waits for the agent unless `--timeout` says otherwise, in seconds.
DEFAULT_TIMEOUT: Final = 60.0
#: The same for commands that are to say at once whether all is well.
VERDICT_TIMEOUT: Final = 15.0
#: The key of the context's `meta` that has the seconds of `--timeout`.
_TIMEOUT: Final = "numawarden.timeout"

_CODES: Final = {
    "PodNotFound": ExitCode.NOT_FOUND,
    "ContainerNotFound": ExitCode.NOT_FOUND,
    "BindingNotFound": ExitCode.NOT_FOUND,
    "ManagedByManifest": ExitCode.REJECTED,
    "ManagedByKubelet": ExitCode.REJECTED,
    "CordonRejected": ExitCode.REJECTED,
    "NotCordoned": ExitCode.REJECTED,
    "InvalidManifest": ExitCode.BAD_INPUT,
    "InvalidBinding": ExitCode.BAD_INPUT,
    "InvalidRequest": ExitCode.BAD_INPUT,
    "TooLarge": ExitCode.BAD_INPUT,
    "Forbidden": ExitCode.UNREACHABLE,
    "NotReady": ExitCode.UNREACHABLE,
    "Stopping": ExitCode.UNREACHABLE,
}


def socket_option_within(seconds: float) -> Callable[[_Command], _Command]:
    """Return what adds `--socket` and `--timeout`, by default so many seconds, to a command.

    `agent_at` takes the timeout from the context.
    """

    def add(command: _Command) -> _Command:
        command = click.option(
            "--timeout",
            type=click.FloatRange(min=0.0, min_open=True),
            default=seconds,
            show_default=True,
            metavar="SECONDS",
            expose_value=False,
            callback=_keep_timeout,
            help="How long to wait for the agent.",
        )(command)
        return click.option(
            "--socket",
            "socket_path",
            envvar="NUMAWARDEN_SOCKET",
            default=DEFAULT_SOCKET,
            show_default=True,
            metavar="PATH",
            help="The agent's socket; also taken from NUMAWARDEN_SOCKET.",
        )(command)

    return add


def _keep_timeout(ctx: click.Context, _option: click.Parameter, seconds: float) -> None:
    ctx.meta[_TIMEOUT] = seconds


socket_option: Final = socket_option_within(DEFAULT_TIMEOUT)


@contextmanager
def agent_at(socket_path: str, manifest: str | None = None) -> Iterator[AgentClient]:
    """Connect to the agent; its error responses raise `CommandError` with an exit code.

    Every call waits for as long as the `--timeout` of the running command says. Mistakes in a
    manifest are those of the file `manifest`, whose name the agent does not know.
    """
    # Imported here: help and completion do not need the client.
    from agent.api.client import AgentClient, AgentError  # noqa: PLC0415
    from agent.api.documents import INVALID_MANIFEST  # noqa: PLC0415

    try:
        yield AgentClient(socket_path, click.get_current_context().meta[_TIMEOUT])
    except AgentError as rejected:
        code = _CODES.get(rejected.error.code, ExitCode.AGENT_FAILED)
        message = str(rejected)
        if manifest is not None and rejected.error.code == INVALID_MANIFEST:
            message = _mistakes(rejected.error, manifest)
        raise CommandError(message, code) from rejected


def _mistakes(error: ErrorBody, file: str) -> str:
    """Return the mistakes in a manifest with its file and their lines."""
    if len(error.details) == 1:
        return f"{file}: {error.details[0]}"
    return "\n".join((f"{file}: {error.message}", *map(str, error.details)))


def read_manifest(file: Path) -> tuple[bytes, str]:
    """Return a manifest and how errors name it; `-` is standard input. Raises `OSError`."""
    from agent.safe_files import LARGEST, read_bounded, take  # noqa: PLC0415  # not for help

    if str(file) != "-":
        return read_bounded(file), str(file)
    return take(sys.stdin.buffer, LARGEST, "-"), "standard input"


def find_pod(agent: AgentClient, named: str) -> PodDocument:
    """Return the pod with a uid, name or namespace/name; raises `CommandError`."""
    found = [pod for pod in agent.pods() if named in names_of(pod)]
    if not found:
        message = f"no pod {named!r} is admitted; see 'numawarden list'"
        raise CommandError(message, ExitCode.NOT_FOUND)
    if len(found) > 1:
        from agent.pods.identity import full_name  # noqa: PLC0415  # help needs none of it

        candidates = "\n".join(f"{full_name(pod)}  uid {pod.uid}" for pod in found)
        message = f"{len(found)} pods are called {named!r}; name one by its uid:\n{candidates}"
        raise CommandError(message, ExitCode.BAD_INPUT)
    return found[0]


def names_of(pod: PodDocument | FailedPodDocument) -> tuple[str, str, str]:
    """Return the names of a pod on the command line."""
    from agent.pods.identity import full_name  # noqa: PLC0415  # help needs none of it

    return pod.uid, pod.name or pod.uid, full_name(pod)


def typed_name(pod: PodDocument | FailedPodDocument | AdmissionDocument | RemovalDocument) -> str:
    """Return what a user types for a pod: namespace/name, or the uid where no name is known."""
    return f"{pod.namespace}/{pod.name}" if pod.name else pod.uid


def moment(seconds: float) -> str:
    """Return a Unix time as text, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def level_text(level: LogLevelDocument) -> str:
    """Return the level of the log, with the configured one where they differ."""
    if level.level == level.configured:
        return level.level
    until = "until the agent ends" if level.until is None else f"until {moment(level.until)}"
    return f"{level.level} {until}, configured is {level.configured}"


def warn(warnings: Iterable[str]) -> None:
    """Print each warning on a separate line."""
    for line in warnings:
        click.echo(f"numawarden: warning: {line}", err=True)
