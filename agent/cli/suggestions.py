"""What a mistyped command or option may have been meant to be, or is called elsewhere."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

#: What other tools' commands are called here.
_OF_OTHERS: Final = {
    "apply": "admit",
    "create": "admit",
    "delete": "remove",
    "describe": "show",
    "events": "watch",
    "explain": "show",
    "get": "list",
    "help": "--help",
    "logs": "history",
    "ps": "list",
    "reload": "systemctl reload numawarden",
    "restart": "systemctl restart numawarden",
    "rm": "remove",
    "start": "agent",
    "stop": "systemctl stop numawarden",
    "top": "map",
    "version": "--version",
}
_ALL: Final = "pods of all namespaces are listed without it"
_FILE: Final = "name the FILE without an option"
_POD: Final = "name the POD, as 'numawarden list -o name' does; its file is not read"
_AFTER: Final = "it stands after the command, as in 'numawarden list"
_FILE_OPTIONS: Final = ("-f", "--file", "--filename")
#: What to do instead of other tools' options, by command.
_INSTEAD: Final = {
    **{(of, name): _FILE for of in ("admit", "diff", "fit") for name in _FILE_OPTIONS},
    **{("remove", name): _POD for name in _FILE_OPTIONS},
    ("numawarden", "--socket"): f"{_AFTER} --socket PATH'",
    ("numawarden", "--timeout"): f"{_AFTER} --timeout 5s'",
    ("numawarden", "-o"): f"{_AFTER} -o json'",
    ("numawarden", "--output"): f"{_AFTER} --output json'",
    ("list", "-A"): _ALL,
    ("list", "--all-namespaces"): _ALL,
    ("remove", "--all"): "'numawarden list -o name | xargs numawarden remove' removes all pods",
    ("drain", "--force"): "the agent ends no pods",
    ("map", "--cpu"): "'numawarden map 12' says who has CPU 12",
    ("map", "--node"): "'numawarden map node:1' says who has the CPUs of node 1",
}
#: How alike what was typed and what may have been meant are at least; with the usual 0.6 `restart`
#: was taken for `state`.
_ALIKE: Final = 0.7


class CommandGroup(click.Group):
    """A group that answers a mistyped command with the nearest."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of the first argument; fails with a suggestion if there is none."""
        name = args[0] if args else ""
        if name and self.get_command(ctx, name) is None and not name.startswith("-"):
            own = _OF_OTHERS.get(name) if ctx.parent is None else None
            nearest = own or _nearest(name, self.list_commands(ctx))
            ctx.fail(f"No such command {name!r}{_hint(nearest)}")
        return super().resolve_command(ctx, args)


def unknown_option(error: click.NoSuchOption) -> str:
    """Return the message for an option that a command does not have, with what to type instead."""
    name, context = error.option_name, error.ctx
    if context is None:
        return f"No such option {name!r}"
    if instead := _INSTEAD.get((context.command.name or "", name)):
        return f"No such option {name!r}: {instead}"
    options = [
        option
        for parameter in context.command.get_params(context)
        for option in parameter.opts
        if option.startswith("--")
    ]
    return f"No such option {name!r}{_hint(_nearest(name, options))}"


def _nearest(text: str, names: Sequence[str]) -> str:
    """Return the only name that begins with a text, else the most similar one; "" for none."""
    longer = [name for name in names if name.startswith(text)]
    if len(longer) == 1:
        return longer[0]
    by_word = {name.lstrip("-"): name for name in names}
    matches = get_close_matches(text.lstrip("-"), by_word, n=1, cutoff=_ALIKE)
    return by_word[matches[0]] if matches else ""


def _hint(nearest: str) -> str:
    return f", did you mean {nearest!r}?" if nearest else ""
