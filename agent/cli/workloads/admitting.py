"""What commands that make a pod for a command or a unit have in common."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

import click

from agent.cli.access import warn
from agent.cli.errors import CommandError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from agent.api.client import AgentClient
    from agent.api.documents import PodDocument

    _Command = TypeVar("_Command", bound=Callable[..., object])

_REQUIRE: Final = (
    "Reject the pod unless it gets this: exclusive, aligned, whole-cores, near-device (separated "
    "by commas)."
)


#: Where the agent's cgroups are, for commands in a playground.
MOUNT_VARIABLE: Final = "NUMAWARDEN_CGROUP_MOUNT"


def check_real(mount: Path) -> None:
    """Raise `CommandError` where an agent's cgroup tree is an emulation, such as a playground's."""
    if (mount / "cgroup.controllers").is_file() and not mount.is_mount():
        message = (
            f"the cgroups in {mount} are plain files, which confine no process: run and attach "
            "need the agent of a real host; 'numawarden admit FILE' shows what a pod gets here, "
            "start-containers what becomes of its cgroups"
        )
        raise CommandError(message, ExitCode.ENVIRONMENT)


def amount_options(command: _Command) -> _Command:
    """Add the options for amounts, and `--require`, to a command."""
    options = (
        click.option("--cpus", metavar="N", default="1", show_default=True, help="CPUs."),
        click.option("--memory", metavar="SIZE", default="", help="Memory, such as 32Gi."),
        click.option(
            "--hugepages", metavar="PAGE=SIZE,...", multiple=True, help="Such as 2Mi=512Mi."
        ),
        click.option("--require", metavar="QUALITIES", default="", help=_REQUIRE),
    )
    for option in reversed(options):
        command = option(command)
    return command


def admitted(agent: AgentClient, manifest: bytes, require: str) -> PodDocument | None:
    """Return the pod of a manifest as admitted, with its cgroups; print why it was rejected.

    A pod that is not enforced is removed again, and raises `CommandError`.
    """
    answer = agent.admit(manifest, require=require, advice=True)
    warn(answer.warnings)
    if answer.pod is None:
        from agent.cli.text.pods import admission_lines  # noqa: PLC0415  # help needs none of it

        for line in admission_lines(answer):
            click.echo(line, err=True)
        return None
    if not answer.pod.enforcement.enforced:
        agent.remove(answer.uid)
        lines = "\n".join(answer.pod.enforcement.differences)
        raise CommandError(f"the pod was not enforced and is removed:\n{lines}",
                           ExitCode.NOT_ENFORCED)  # fmt: skip
    return agent.pod(answer.uid)


def print_allocations(pod: PodDocument) -> None:
    """Print what a pod got, on standard error: standard output is the command's."""
    from agent.cli.text.pods import allocation_lines  # noqa: PLC0415  # help needs none of it

    for line in allocation_lines(pod):
        click.echo(line, err=True)


@contextmanager
def option_errors() -> Iterator[None]:
    """Raise what is wrong with an option as a mistake of the command line."""
    from agent.tools.run.pod import OptionError  # noqa: PLC0415  # help needs none of it

    try:
        yield
    except OptionError as error:
        raise click.BadParameter(str(error), param_hint=error.option) from error
