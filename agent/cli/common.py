"""What commands share: access to the agent, output, drawing again, completion."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from enum import StrEnum
from io import BufferedWriter, FileIO, TextIOWrapper
from queue import Empty, SimpleQueue
from threading import Thread
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
    from collections.abc import Callable, Sequence

    from _typeshed import ReadableBuffer as Buffer
    from click.shell_completion import CompletionItem

    from agent.api.documents import Document, EventDocument


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


class Output(StrEnum):
    """A form of output; `TEXT` is for people, `WIDE` a table with more columns."""

    TEXT = "text"
    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"
    SVG = "svg"

    @property
    def is_document(self) -> bool:
        """Whether the document of the API is printed as it is."""
        return self in {Output.JSON, Output.YAML}


class _OutputType(click.Choice[Output]):
    """The forms of one command; one without tables takes `table` for its text."""

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Output:
        if isinstance(value, str):
            value = value.removeprefix("=")  # kubectl takes -o=json, too
        if value == Output.TABLE and Output.TABLE not in self.choices:
            return Output.TEXT
        return super().convert(value, param, ctx)

    def normalize_choice(self, choice: object, ctx: click.Context | None) -> str:
        """Return the word of a form, not the name of the constant."""
        del ctx
        return str(choice)


def output_of(*forms: Output) -> Callable[[_Command], _Command]:
    """Return what adds `-o, --output` with the given forms to a command; the first is default."""

    def add(command: _Command) -> _Command:
        return click.option(
            "-o",
            "--output",
            type=_OutputType(forms),
            default=forms[0].value,  # help shows the name of an Enum's member
            show_default=True,
            help=_help(forms),
        )(command)

    return add


def output_option(command: _Command) -> _Command:
    """Add `-o, --output text|json|yaml` to a command."""
    return output_of(Output.TEXT, Output.JSON, Output.YAML)(command)


def pod_output_option(command: _Command) -> _Command:
    """Add `-o, --output text|json|yaml|name` to a command that is about one pod."""
    return output_of(Output.TEXT, Output.JSON, Output.YAML, Output.NAME)(command)


def _help(forms: Sequence[Output]) -> str:
    parts = ["Text"]
    if Output.WIDE in forms:
        parts.append("a table, one with more columns")
    parts.append("the document of docs/api.md")
    if Output.NAME in forms:
        parts.append("namespace/name alone")
    if Output.SVG in forms:
        parts.append("a picture for a browser")
    return f"{', '.join(parts[:-1])} or {parts[-1]}."


class StandardOutput(FileIO):
    """Standard output whose reader may go away: what is written afterwards is dropped.

    A command ends as it would otherwise, with its own exit code.
    """

    gone = False

    def write(self, text: Buffer, /) -> int:
        """Write to the file; raises `CommandError` once where that fails but for a closed pipe."""
        if not self.gone:
            try:
                return super().write(text)
            except BrokenPipeError:
                self.gone = True
            except OSError as error:
                self.gone = True
                message = f"standard output: {error.strerror}"
                raise CommandError(message, ExitCode.ENVIRONMENT) from error
        return memoryview(text).nbytes


def reader_is_gone() -> bool:
    """Return whether nothing reads standard output any longer."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return isinstance(raw, StandardOutput) and raw.gone


def open_standard_output() -> None:
    """Have `sys.stdout` be a `StandardOutput`, and give a place to descriptors that are closed."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest that is free
    former = sys.stdout
    encoding, errors = (former.encoding, former.errors) if former else ("utf-8", "strict")
    raw = StandardOutput(1, "wb", closefd=False)
    buffered = BufferedWriter(raw)
    lines = raw.isatty()
    sys.stdout = TextIOWrapper(buffered, encoding, errors, line_buffering=lines)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115  # a descriptor, to the end


def print_document(document: Document, output: Output) -> None:
    """Print a document as the API sends it: indented JSON, or YAML."""
    from agent.api.documents import encode  # noqa: PLC0415  # help needs no documents

    print_encoded(encode(document), output)


def print_encoded(text: bytes, output: Output) -> None:
    """Print a JSON text: indented JSON, or YAML."""
    import msgspec  # noqa: PLC0415  # help needs no documents

    if output is Output.YAML:
        click.echo(yaml_of(msgspec.json.decode(text)), nl=False)
    else:
        click.echo(msgspec.json.format(text, indent=2))


#: More characters than any line has; libyaml takes no number above 2^31.
_WIDE: Final = 1 << 30


def yaml_of(value: object) -> str:
    """Return values as `json` reads them as a YAML text, keys in their order, no line broken."""
    import yaml  # noqa: PLC0415  # of no use to any other form

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=True, width=_WIDE))


#: What needs attention at the beginning of a line: the answer no, a difference, a condition.
_FIRST: Final = (
    "rejected", "would reject", "invalid", "does not fit", "failed", "CONDITION", "DIFFERS",
    "INTRUDES", "warning:", "not enforced:",
)  # fmt: skip
#: And in its midst.
_ANYWHERE: Final = ("NOT ENFORCED", "NOT-ENFORCED", "NOT READY")


def print_lines(lines: Iterable[str]) -> None:
    """Print lines of text; on a terminal, what needs attention is red."""
    coloured = has_colours()
    for line in lines:
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


_T = TypeVar("_T")

#: Seconds after which is drawn again without an event: containers are found and memory is charged
#: without one.
REDRAW_SECONDS: Final = 5.0
#: Home, and erase what was drawn (ECMA-48, CUP and ED).
_CLEAR: Final = "\x1b[H\x1b[2J"
_DRAWN: Final = frozenset({Output.TEXT, Output.TABLE, Output.WIDE})

watch_option: Final = click.option(
    "-w",
    "--watch",
    is_flag=True,
    help="Draw again on every event, until interrupted; exits with 4 when the agent ends.",
)


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
    waiting: SimpleQueue[Callable[[], bool]] = SimpleQueue()
    Thread(target=_collect, args=(events, waiting), daemon=True).start()
    while _goes_on(waiting, seconds):
        yield


def _collect(events: Iterable[EventDocument], waiting: SimpleQueue[Callable[[], bool]]) -> None:
    def failed(error: Exception) -> bool:
        raise error

    try:
        for _ in events:
            waiting.put(lambda: True)
    except Exception as error:  # noqa: BLE001  # raised again where the events are waited for
        raised = error
        waiting.put(lambda: failed(raised))
    else:
        waiting.put(lambda: False)


def _goes_on(waiting: SimpleQueue[Callable[[], bool]], seconds: float) -> bool:
    """Wait for an event or the time, take all events that are there; return False at the end."""
    with suppress(Empty):
        go_on = waiting.get(timeout=seconds)()
        while go_on:
            go_on = waiting.get_nowait()()
        return False
    return True


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
