"""`numawarden run`: start a command in a pod of its own, freed when its last process ends."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from agent.cli.access import agent_at, socket_option
from agent.cli.errors import CommandError, ExitCode
from agent.cli.workloads.admitting import (
    MOUNT_VARIABLE,
    admitted,
    amount_options,
    check_real,
    option_errors,
    print_allocations,
)

if TYPE_CHECKING:
    from agent.api.client import AgentClient
    from agent.api.documents import PodDocument
    from agent.tools.run.command import OwnProcess

#: What shells and env(1) exit with for a command that does not exist, or cannot be executed.
NOT_FOUND: Final = 127
NOT_EXECUTABLE: Final = 126
_MOUNT: Final = "/sys/fs/cgroup"


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", metavar="COMMAND [ARG]...", nargs=-1, required=True)
@amount_options
@click.option("--device", metavar="NAME=N,...", multiple=True, help="Such as example.com/gpu=1.")
@click.option("--near", metavar="IFACE", help="On the NUMA node of a network interface.")
@click.option(
    "--shared", is_flag=True, help="In the shared pool: --cpus is a weight, no CPU is exclusive."
)
@click.option("--name", metavar="NAME", default="", help="The pod's name (by default run-ID).")
@click.option("-q", "--quiet", is_flag=True, help="Do not print what the command got.")
@click.option(
    "--cgroup-mount",
    envvar=MOUNT_VARIABLE,
    default=_MOUNT,
    show_default=True,
    type=click.Path(path_type=Path),
    help="Where cgroup v2 is mounted.",
)
@socket_option
def run(  # noqa: PLR0913  # each is an argument or option of the command
    *,
    command: tuple[str, ...],
    cpus: str,
    memory: str,
    hugepages: tuple[str, ...],
    device: tuple[str, ...],
    near: str | None,
    require: str,
    name: str,
    cgroup_mount: Path,
    socket_path: str,
    shared: bool,
    quiet: bool,
) -> int:
    """Run a COMMAND in a pod of its own: exclusive CPUs, memory on their nodes, devices.

    It is confined before its first instruction, and all of it is free again when its last process
    has ended. Options after COMMAND are the command's. Needs root, as making cgroups does.

    Exits as COMMAND does; before it starts with 1 when the pod is rejected, 7 when its allocation
    is not enforced, 127 when there is no such command and 126 when it cannot be executed.
    """
    # Imported here: help needs none of it.
    from uuid import uuid4  # noqa: PLC0415

    from agent.tools.run.command import this_process  # noqa: PLC0415
    from agent.tools.run.near import node_of_interface  # noqa: PLC0415
    from agent.tools.run.pod import Amounts, command_pod, listed_amounts  # noqa: PLC0415

    program = shutil.which(command[0])
    if program is None:
        there = "/" in command[0] and Path(command[0]).exists()
        why = "it is not executable" if there else "command not found"
        click.echo(f"numawarden: error: {command[0]}: {why}", err=True)
        return NOT_EXECUTABLE if there else NOT_FOUND
    uid = str(uuid4())
    with option_errors():
        amounts = Amounts(cpus, memory, listed_amounts(hugepages, device))
        sysfs = Path(os.environ.get("NUMAWARDEN_ROOT", "/"))
        node = None if near is None else node_of_interface(sysfs, near)
        named = name or f"run-{uid[:8]}"
        manifest = command_pod(uid, named, amounts, shared=shared, near=node)
    check_real(cgroup_mount)
    with agent_at(socket_path) as agent:
        pod = admitted(agent, manifest, require)
        if pod is None:
            return ExitCode.REJECTED
        if not quiet:
            print_allocations(pod)
        return _start(this_process(cgroup_mount), agent, pod, program, command)


def _start(
    caller: OwnProcess, agent: AgentClient, pod: PodDocument, program: str, command: tuple[str, ...]
) -> int:
    from agent.tools.run.command import NotConfinedError, NotStartedError, start  # noqa: PLC0415
    from systemd.errors import BusError  # noqa: PLC0415

    try:
        start(caller, agent, pod, program, command, os.environ)
    except NotConfinedError as error:
        raise CommandError(str(error), ExitCode.NOT_ENFORCED) from error
    except NotStartedError as error:
        raise CommandError(str(error), ExitCode.BAD_INPUT) from error
    except BusError as error:
        raise CommandError(f"{error}; run as root", ExitCode.ENVIRONMENT) from error
    except OSError as error:
        if error.filename == program:
            click.echo(f"numawarden: error: {program}: {error.strerror}", err=True)
            return NOT_EXECUTABLE
        hint = "run as root, on the agent's host, with its --cgroup-mount"
        message = f"the pod's cgroup cannot be entered: {error.strerror}; {hint}"
        raise CommandError(message, ExitCode.ENVIRONMENT) from error
    return ExitCode.OK
