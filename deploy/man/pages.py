"""The pages: one for `numawarden`, and one for each command and subcommand."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Final

import click

from agent import __version__
from agent.cli.errors import ExitCode
from agent.cli.main import numawarden
from agent.cli.options import DEFAULT_SOCKET
from deploy.man import roff

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import date
    from pathlib import Path

NAME: Final = "numawarden"

ENVIRONMENT: Final[Mapping[str, str]] = {
    "NUMAWARDEN_SOCKET": "The agent's socket, where --socket does not name it.",
    "NO_COLOR": "Switches colours off if it is not empty.",
    "TERM": "Colours are off if it is dumb.",
    "COLUMNS": "The width for which a map is drawn on a terminal.",
}
FILES: Final[Mapping[str, str]] = {
    "/etc/numawarden/config.yaml": "The configuration; numawarden config show --defaults prints "
    "every key.",
    DEFAULT_SOCKET: "The socket of the admission API.",
    "/var/lib/numawarden/checkpoint.json": "All allocations.",
    "/usr/share/doc/numawarden": "With the Debian package: README.md, docs with every page that "
    "messages name (docs/api.md), and deploy with examples, alerts, dashboards and hooks.",
}
#: What a help text says of the exit codes, to the end of its paragraph.
_OWN_CODES: Final = re.compile(r"\bExits (?:with|as) (?:.|\n(?!\n))+")
#: Command lines by page, and what each is for.
EXAMPLES: Final[Mapping[str, Mapping[str, str]]] = {
    "numawarden-admit": {
        "numawarden admit --dry-run pod.yaml": "What would the pod get, and what would be written?",
        "numawarden admit --require exclusive,aligned pod.yaml": "Reject it rather than give less.",
        "kubectl get pods -o yaml | numawarden admit -": "Every pod of a list.",
    },
    "numawarden-diff": {
        "numawarden diff /srv/pods": "What would change if all manifests of a directory applied?",
    },
    "numawarden-run": {
        "numawarden run --cpus 4 --memory 8Gi -- ./server --port 80": "A command on its own CPUs.",
        "numawarden run --shared --cpus 500m -- make": "A command in the shared pool.",
    },
    "numawarden-attach": {
        "numawarden attach --unit postgresql --cpus 8 --memory 32Gi": "A unit of systemd.",
    },
    "numawarden-fit": {
        "numawarden fit --cpus 16 --memory 32Gi --count": "How many such pods would be admitted?",
        "numawarden fit --count pod.yaml": "How many more of this pod?",
    },
    "numawarden-remove": {
        "numawarden remove shop/web": "Free what a pod has.",
        "numawarden list -o name | xargs numawarden remove": "Free what all pods have.",
    },
    "numawarden-list": {
        "numawarden list -o wide": "A table with the nodes and devices of each pod.",
        "numawarden list -n shop -w": "The pods of a namespace, drawn again on every change.",
    },
    "numawarden-show": {
        "numawarden show --arguments podman --container db shop/web": "How to start a container.",
    },
    "numawarden-map": {
        "numawarden map shop/web": "Where a pod is.",
        "numawarden map 12": "Who has CPU 12?",
        "numawarden map node:1": "Who has the CPUs of node 1?",
    },
    "numawarden-history": {
        "numawarden history --since 1d": "What changed since yesterday?",
        "numawarden history shop/web": "What happened to a pod, and who asked for it?",
    },
    "numawarden-interference": {
        "numawarden interference shop/web --for 5m": "Who else ran on the CPUs of a pod?",
        "numawarden interference --cpus 2-3 --probe": "Without an agent: how long were they taken?",
    },
    "numawarden-check": {
        "numawarden check --quiet && start-the-job": "In a script, or as ExecCondition= of a unit.",
        "numawarden check --cgroups": "What does the kernel have in every cgroup?",
    },
    "numawarden-cordon": {
        "numawarden cordon node:1 --reason DIMM": "Nothing new on node 1.",
        "numawarden cordon 4-7,12": "Nothing new on these CPUs.",
    },
    "numawarden-uncordon": {"numawarden uncordon --all": "Use all of the host again."},
    "numawarden-drain": {
        "numawarden drain --dry-run node:0,1": "Which pods would have to end on both nodes?",
    },
    "numawarden-config-check": {
        "numawarden config check new.yaml --against-state": "What would become of the pods?",
    },
    "numawarden-isolation-restore": {
        "systemctl stop numawarden && numawarden isolation restore": "Leave the host as it was.",
    },
    "numawarden-capture": {
        "numawarden capture host.tar.gz": "An archive that 'numawarden playground --host' takes.",
    },
    "numawarden-playground": {
        "numawarden playground --host host.tar.gz": "Try pods on another host than this.",
        "numawarden playground -- numawarden admit guaranteed.yaml": "One command, and the end.",
    },
}


def write(folder: Path, day: date) -> list[Path]:
    """Write all pages into a folder, which is made, and return their files.

    `day` is the date that stands in the pages.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    for ctx in contexts():
        file = folder / f"{page_name(ctx)}.1"
        file.write_text(page(ctx, day), encoding="utf-8")
        files.append(file)
    return files


def contexts() -> Iterator[click.Context]:
    """Yield the context of each command, groups before what they contain."""
    waiting = [click.Context(numawarden, info_name=NAME, **numawarden.context_settings)]
    while waiting:
        ctx = waiting.pop(0)
        yield ctx
        waiting += [_inside(ctx, name) for name in _names(ctx)]


def page_name(ctx: click.Context) -> str:
    """Return the name of the page of a command: `numawarden-config-check`."""
    return ctx.command_path.replace(" ", "-")


def page(ctx: click.Context, day: date) -> str:
    """Return the page of a command."""
    command = ctx.command
    text = inspect.cleandoc(command.help or "").partition("\f")[0]
    first = text.partition("\n\n")[0]
    usage = f"{roff.bold(ctx.command_path)} {roff.escaped(' '.join(_usage(ctx)))}"
    lines = [
        roff.title(page_name(ctx), day.isoformat(), f"{NAME} {__version__}"),
        *roff.section("name", [f"{roff.escaped(page_name(ctx))} \\- {_summary(first)}"]),
        *roff.section("synopsis", [usage]),
        *roff.section("description", roff.paragraphs(text)),
        *roff.section("commands", _commands(ctx)),
        *roff.section("options", _options(ctx)),
        *roff.section("examples", _table(EXAMPLES.get(page_name(ctx), {}))),
        *roff.section("exit status", _exit_codes(text)),
        *roff.section("environment", _table(ENVIRONMENT)),
        *(roff.section("files", _table(FILES)) if ctx.parent is None else ()),
        *roff.section("see also", [_see_also(ctx)]),
    ]
    return "\n".join(lines) + "\n"


def _summary(first: str) -> str:
    """Return the first paragraph as whatis(1) wants it: no period at the end."""
    return roff.escaped(first).rstrip(".")


def _usage(ctx: click.Context) -> list[str]:
    return ctx.command.collect_usage_pieces(ctx)


def _options(ctx: click.Context) -> Iterator[str]:
    for parameter in ctx.command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None:
            names, text = record
            yield from roff.entry(roff.bold(names), text)


def _commands(ctx: click.Context) -> Iterator[str]:
    for name in _names(ctx):
        inner = _inside(ctx, name)
        text = inner.command.get_short_help_str(limit=1000)
        yield from roff.entry(f"{roff.bold(page_name(inner))}(1)", text)


def _exit_codes(text: str) -> Iterator[str]:
    """Yield what a command says of its exit codes; all of them for one that says nothing."""
    own = _OWN_CODES.search(text)
    if own is not None:
        yield roff.escaped(own[0])
        yield from (".PP", f"All others are those of {roff.bold(NAME)}(1).")
        return
    for code in ExitCode:
        yield from roff.entry(roff.bold(str(code.value)), code.meaning)


def _table(rows: Mapping[str, str]) -> Iterator[str]:
    for name, text in rows.items():
        yield from roff.entry(roff.bold(name), text)


def _see_also(ctx: click.Context) -> str:
    above = ctx.parent
    if above is None:
        others = ["systemctl", "journalctl", "taskset", "numactl"]
        return ", ".join(f"{roff.bold(name)}(1)" for name in others)
    return f"{roff.bold(page_name(above))}(1)"


def _names(ctx: click.Context) -> list[str]:
    return ctx.command.list_commands(ctx) if isinstance(ctx.command, click.Group) else []


def _inside(ctx: click.Context, name: str) -> click.Context:
    """Return the context of a command of a group."""
    command = ctx.command.get_command(ctx, name) if isinstance(ctx.command, click.Group) else None
    if command is None:
        raise ValueError(f"{ctx.command_path} has no command {name}")
    return click.Context(command, info_name=name, parent=ctx)
