"""The options with which commands name a configuration and override parts of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    _Command = TypeVar("_Command", bound=Callable[..., object])


def settings_option(
    about: str = "Override a setting of the configuration, such as cgroupDriver=cgroupfs; "
    "may be repeated.",
) -> Callable[[_Command], _Command]:
    """Return what adds `--set KEY=VALUE` to a command, as its parameter `settings`."""
    return click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help=about)


def configuration_options(
    about: str, default: Path | None = None
) -> Callable[[_Command], _Command]:
    """Return what adds `--config FILE` and `--set KEY=VALUE` to a command.

    They are its parameters `file` and `settings`. Without a `default` a file has to be named.
    """
    kind = click.Path(exists=True, dir_okay=False, path_type=Path)
    if default is None:
        named = click.option("--config", "file", type=kind, required=True, help=about)
    else:
        named = click.option(
            "--config", "file", type=kind, default=default, show_default=True, help=about
        )
    return lambda command: named(settings_option()(command))
