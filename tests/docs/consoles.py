"""The console blocks of a page: which commands it shows, and what it says they print.

A block is fenced as `console`. A line with a prompt is a command, the lines up to the next prompt
are all of its output. What stands before the `$` of the prompt names the host, nothing where a page
has only one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_BLOCK: Final = re.compile(r"(?<=^```console\n)(.*?)(?=^```$)", re.MULTILINE | re.DOTALL)
_COMMAND: Final = re.compile(r"^([a-z-]*)\$ (.+)\n((?:(?![a-z-]*\$ ).*\n)*)", re.MULTILINE)
_SETTINGS: Final = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Shown:
    """A command of a page on one of its hosts, and the output that stands below it.

    `block` is the number of its block on the page, from 0.
    """

    host: str
    command: str
    output: str
    block: int


def shown_in(text: str) -> tuple[Shown, ...]:
    """Return the commands of a page's console blocks in their order."""
    return tuple(
        Shown(host=found[1], command=found[2], output=found[3], block=number)
        for number, block in enumerate(_BLOCK.findall(text))
        for found in _COMMAND.finditer(block)
    )


def with_outputs(text: str, outputs: Iterable[str]) -> str:
    """Return a page whose commands, in their order, have these outputs."""
    rest = iter(outputs)

    def command(found: re.Match[str]) -> str:
        host, line, _ = found.groups()
        return f"{host}$ {line}\n{next(rest)}"

    return _BLOCK.sub(lambda block: _COMMAND.sub(command, block[0]), text)


def settings_in(text: str) -> str:
    """Return the configuration that a page says its hosts have: its first block of YAML."""
    found = _SETTINGS.search(text)
    if found is None:
        raise ValueError("the page has no block of YAML with the configuration of its hosts")
    return found[1]


def changed_settings(settings: str, changes: Iterable[tuple[str, str]]) -> str:
    """Return a configuration in which keys of one line have other values.

    Raises `ValueError` for a key that is not there once.
    """
    for key, value in changes:
        settings, count = re.subn(rf"(?m)^{key}: \S+", f"{key}: {value}", settings)
        if count != 1:
            raise ValueError(f"{key} is in the configuration {count} times")
    return settings
