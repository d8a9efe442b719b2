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
            found = own or _nearest(name, self.list_commands(ctx))
            ctx.fail(f"No such command {name!r}{_hint(found)}")
        return super().resolve_command(ctx, args)


def unknown_option(error: click.NoSuchOption) -> str:
    """Return the message for an option that a command does not have, with what to type instead."""
    name, context = error.option_name, error.ctx
    if context is None:
        return f"No such option {name!r}"
    if instead := _INSTEAD.get((context.command.name or "", name)):
        return f"No such option {name!r}: {instead}"
    known = [each for param in context.command.get_params(context) for each in param.opts]
    options = [each for each in known if each.startswith("--")]
    return f"No such option {name!r}{_hint(_nearest(name, options))}"


def _nearest(name: str, known: Sequence[str]) -> str:
    """Return what alone begins with a text, else what is most like it; "" if nothing is."""
    longer = [each for each in known if each.startswith(name)]
    if len(longer) == 1:
        return longer[0]
    words = {each.lstrip("-"): each for each in known}
    found = get_close_matches(name.lstrip("-"), words, n=1, cutoff=_ALIKE)
    return words[found[0]] if found else ""


def _hint(found: str) -> str:
    return f", did you mean {found!r}?" if found else ""
