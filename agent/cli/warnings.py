"""What was odd and cost a fact, for people: on standard error, so that output stays output."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterable


def warn(warnings: Iterable[str]) -> None:
    """Print each warning on a line of its own."""
    for line in warnings:
        click.echo(f"numawarden: warning: {line}", err=True)
