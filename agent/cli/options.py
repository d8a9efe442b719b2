"""The options and the forms of output that several commands have."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import click

from agent.pods.model import Quality

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    _Command = TypeVar("_Command", bound=Callable[..., object])


DEFAULT_SOCKET: Final = "/run/numawarden/agent.sock"
#: How long a command waits for the agent unless `--timeout` says otherwise, in seconds.
DEFAULT_TIMEOUT: Final = 60.0
#: The same for commands that are to say at once whether all is well.
VERDICT_TIMEOUT: Final = 15.0
#: The key of the context's `meta` that has the seconds of `--timeout`.
TIMEOUT: Final = "numawarden.timeout"

#: The configuration of the agent that runs as a service.
CONFIG_FILE: Final = Path("/etc/numawarden/config.yaml")
EXISTING_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
EXISTING_DIRECTORY: Final = click.Path(exists=True, file_okay=False, path_type=Path)


class _Seconds(click.ParamType[float]):
    """A time above 0: a number of seconds, or a duration with units."""

    name = "seconds"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        text = str(value)
        try:
            seconds = float(text)
        except ValueError:
            from agent.config.durations import seconds_of  # noqa: PLC0415  # most give a number

            seconds = seconds_of(text) or 0.0
        if not 0 < seconds < float("inf"):
            self.fail(f"{text!r} is not a time above 0 such as 5, 5s or 2m", param, ctx)
        return seconds


def socket_option_within(seconds: float) -> Callable[[_Command], _Command]:
    """Return what adds `--socket` and `--timeout`, by default so many seconds, to a command.

    `common.agent_at` takes the timeout from the context.
    """

    def keep(ctx: click.Context, _option: click.Parameter, given: float) -> None:
        ctx.meta[TIMEOUT] = given

    socket = click.option(
        "--socket",
        "socket_path",
        envvar="NUMAWARDEN_SOCKET",
        default=DEFAULT_SOCKET,
        show_default=True,
        metavar="PATH",
        help="The agent's socket; also taken from NUMAWARDEN_SOCKET.",
    )
    timeout = click.option(
        "--timeout",
        type=_Seconds(),
        default=seconds,
        show_default=True,
        metavar="SECONDS",
        expose_value=False,
        callback=keep,
        help="How long to wait for the agent.",
    )
    return lambda command: socket(timeout(command))


socket_option: Final = socket_option_within(DEFAULT_TIMEOUT)


def _complete_qualities(
    _ctx: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[str]:
    """Return the names so far with each quality that may come next."""
    *named, begun = incomplete.split(",")
    left = (each for each in Quality if each.startswith(begun) and each not in named)
    return [",".join((*named, each)) for each in left]


require_option: Final = click.option(
    "--require",
    metavar="QUALITIES",
    default="",
    help="Reject the pod unless each container gets what applies to it of this: "
    f"{', '.join(Quality)} (separated by commas).",
    shell_complete=_complete_qualities,
)


def settings_option(
    about: str = "Override a setting of the configuration, such as cgroupDriver=cgroupfs; "
    "may be repeated.",
) -> Callable[[_Command], _Command]:
    """Return what adds `--set KEY=VALUE` to a command, as its parameter `settings`."""
    return click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help=about)


def configuration_options(
    about: str, default: Path | None = None
) -> Callable[[_Command], _Command]:
    """Return what adds `--config FILE` (`file`) and `--set KEY=VALUE` (`settings`) to a command.

    Without a `default` the file must be named.
    """
    # To click a default of None is one, too.
    given = {"required": True} if default is None else {"default": default, "show_default": True}
    named = click.option("--config", "file", type=EXISTING_FILE, help=about, **given)
    return lambda command: named(settings_option()(command))


def host_option(about: str, *, envvar: str | None = None) -> Callable[[_Command], _Command]:
    """Return what adds `--root DIRECTORY` to a command: this host, or one that is described."""
    return click.option(
        "--root",
        type=EXISTING_DIRECTORY,
        default=Path("/"),
        show_default=True,
        envvar=envvar,
        help=about,
    )


watch_option: Final = click.option(
    "-w",
    "--watch",
    is_flag=True,
    help="Draw again on every event, until interrupted; exits with 4 when the agent ends.",
)


class Output(StrEnum):
    """A form of output; `TEXT` is for people, `WIDE` a table with more columns."""

    TEXT = "text"
    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"
    PROMETHEUS = "prometheus"

    @property
    def is_document(self) -> bool:
        """Whether the document of the API is printed."""
        return self in DOCUMENT


#: The forms of a command that has a document.
DOCUMENT: Final = (Output.JSON, Output.YAML)


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
        del ctx
        return str(choice)  # the word of a form, not the name of the constant


def output_of(*forms: Output) -> Callable[[_Command], _Command]:
    """Return what adds `-o, --output` with the given forms to a command; the first is default."""
    return click.option(
        "-o",
        "--output",
        type=_OutputType(forms),
        default=forms[0].value,  # help shows the name of an Enum's member
        show_default=True,
        help=_help(forms),
    )


def _help(forms: Sequence[Output]) -> str:
    parts = ["Text"]
    if Output.WIDE in forms:
        parts.append("a table, one with more columns")
    parts.append("the document of docs/api.md")
    if Output.NAME in forms:
        parts.append("namespace/name alone")
    if Output.PROMETHEUS in forms:
        parts.append("metrics in Prometheus' text format")
    return f"{', '.join(parts[:-1])} or {parts[-1]}."


output_option: Final = output_of(Output.TEXT, *DOCUMENT)
#: For a command that is about one pod.
pod_output_option: Final = output_of(Output.TEXT, *DOCUMENT, Output.NAME)
