"""What commands share: access to the agent, output, drawing again, completion."""

from __future__ import annotations

import json
import os
import sys
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Final, TypeVar

import click
import msgspec
from click.shell_completion import CompletionItem, get_completion_class

from agent.api.client import AgentClient, AgentError, Unreachable
from agent.api.documents import (
    INVALID_MANIFEST,
    AdmissionDocument,
    Document,
    ErrorBody,
    EventDocument,
    FailedPodDocument,
    PodDocument,
    RemovalDocument,
    encode,
)
from agent.cli.errors import CommandError, ExitCode, WrongFileError, reader_is_gone
from agent.cli.options import DEFAULT_SOCKET, TIMEOUT, Output
from agent.pods.model import full_name
from agent.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from agent.api.documents import CordonDocument

    _Command = TypeVar("_Command", bound=Callable[..., object])
    _Answer = TypeVar("_Answer", bound=Document)


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


def moment(seconds: float) -> str:
    """Return a Unix time as text, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def cordon_line(cordon: CordonDocument) -> str:
    """Return one cordon: what, since when, why."""
    parts = [
        f"{name} {ids}" for name, ids in (("node", cordon.nodes), ("CPUs", cordon.cpus)) if ids
    ]
    why = f": {cordon.reason}" if cordon.reason else ""
    return f"{' and '.join(parts)}, since {moment(cordon.since)}{why}"


def warn(warnings: Iterable[str]) -> None:
    """Print each warning on a separate line."""
    for line in warnings:
        say(f"numawarden: warning: {line}", err=True)


def say(line: str, *, err: bool = False) -> None:
    """Print a line, on standard error with `err`; what others chose in it cannot begin another."""
    click.echo(printable(line), err=err)


def print_answer(
    answer: _Answer, output: Output, lines: Callable[[_Answer], Iterable[str]]
) -> None:
    """Print an answer of the agent: its document, or lines of text."""
    if output.is_document:
        print_document(answer, output)
    else:
        print_lines(lines(answer))


def print_document(document: Document, output: Output) -> None:
    """Print a document as the API sends it (indented JSON, or YAML)."""
    print_encoded(encode(document), output)


def print_encoded(text: bytes, output: Output) -> None:
    """Print a JSON text: indented JSON, or YAML."""
    if output is Output.YAML:
        click.echo(yaml_of(msgspec.json.decode(text)), nl=False)
    else:
        click.echo(in_a_terminal(msgspec.json.format(text, indent=2)))


def in_a_terminal(text: bytes) -> bytes:
    r"""Return a JSON text in which control characters above U+007E are as `\u009b`, too."""
    if text.isascii():
        return text
    kept = (c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text.decode())
    return "".join(kept).encode()


#: More characters than any line has; libyaml takes no number above 2^31.
_WIDE: Final = 1 << 30


def yaml_of(value: object) -> str:
    """Return values as `json` reads them as a YAML text, keys in their order, no line broken."""
    import yaml  # noqa: PLC0415  # 10 ms that no other form of output needs

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=True, width=_WIDE))


#: What needs attention at the beginning of a line: the answer no, a difference, a condition.
_FIRST: Final = (
    "rejected", "would reject", "invalid", "does not fit", "failed", "CONDITION", "DIFFERS",
    "INTRUDES", "warning:", "not enforced:",
    "not exclusive:",
)  # fmt: skip
#: And in its midst.
_ANYWHERE: Final = ("NOT ENFORCED", "NOT-ENFORCED", "NOT EXCLUSIVE", "NOT-EXCLUSIVE", "NOT READY")


def print_lines(lines: Iterable[str]) -> None:
    """Print lines of text; on a terminal, what needs attention is red."""
    coloured = has_colours()
    for line in map(printable, lines):
        click.echo(_coloured(line) if coloured else line)


def has_colours() -> bool:
    """Return whether standard output is a terminal with colours (https://no-color.org)."""
    return (
        sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )


def _coloured(line: str) -> str:
    body = line.lstrip(" ")
    for words in _FIRST:
        if f"{body} ".startswith(f"{words} "):
            return line[: len(line) - len(body)] + _red(words) + body[len(words) :]
    found = next((words for words in _ANYWHERE if words in line), None)
    return line if found is None else line.replace(found, _red(found), 1)


def _red(text: str) -> str:
    return click.style(text, fg="red", bold=True)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a table as `kubectl get` prints one: columns apart by three blanks, `-` for nothing."""
    filled = [list(header), *([cell or "-" for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*filled, strict=True)]
    for row in filled:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "   ".join(cells).rstrip()


#: Seconds after which is drawn again without an event: containers are found and memory is charged
#: without one.
REDRAW_SECONDS: Final = 5.0
#: Home, and erase what was drawn (ECMA-48, CUP and ED).
_CLEAR: Final = "\x1b[H\x1b[2J"
_DRAWN: Final = frozenset({Output.TEXT, Output.TABLE, Output.WIDE})


def draw_again(agent: AgentClient, draw: Callable[[], None], *, watch: bool) -> None:
    """Draw once, or with `watch` again on every change; a terminal is cleared before."""
    clear = watch and sys.stdout.isatty()

    def cleared() -> None:
        if clear:
            click.echo(_CLEAR, nl=False)
        draw()

    cleared()
    if watch:
        for _ in until_unread(changes(agent.watch())):
            cleared()
        agent_ended()


def until_unread(events: Iterable[_T]) -> Iterator[_T]:
    """Yield events for as long as standard output has a reader."""
    for event in events:
        if reader_is_gone():
            raise click.exceptions.Exit(ExitCode.OK)
        yield event


def agent_ended() -> None:
    """Raise `CommandError`: what was to go on until interrupted has ended."""
    message = "the agent ended; see 'systemctl status numawarden' and 'journalctl -u numawarden'"
    raise CommandError(message, ExitCode.UNREACHABLE)


def check_watch(output: Output, *, watch: bool) -> None:
    """Raise `click.UsageError` for a form of output that is not drawn but printed once."""
    if watch and output not in _DRAWN:
        raise click.UsageError(f"--watch draws text; --output {output} is printed once")


def changes(events: Iterable[EventDocument], seconds: float = REDRAW_SECONDS) -> Iterator[None]:
    """Yield on events, once for all that are waiting, and after `seconds` without one.

    Ends with the events; raises what they raise.
    """
    #: None for an event, and what ended them.
    waiting: SimpleQueue[Exception | None] = SimpleQueue()

    def collect() -> None:
        try:
            for _ in events:
                waiting.put(None)
        except Exception as error:  # noqa: BLE001  # raised below, where the events are waited for
            waiting.put(error)
        else:
            waiting.put(StopIteration())

    Thread(target=collect, daemon=True).start()
    while True:
        with suppress(Empty):
            ended = waiting.get(timeout=seconds)
            while ended is None:
                ended = waiting.get_nowait()
            if isinstance(ended, StopIteration):
                return
            raise ended
        yield


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
