"""`numawarden run`, `attach` and `detach`: pods of commands and of systemd units."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar
from uuid import uuid4

import click

from agent.api.documents.admissions import BindRequest
from agent.cli.admission_text import admission_lines
from agent.cli.common import agent_at
from agent.cli.errors import CommandError, ExitCode
from agent.cli.options import require_option, socket_option
from agent.cli.output import say, warn
from agent.cli.pod_text import allocation_lines
from agent.tools.run import (
    CONTAINER,
    Amounts,
    NotConfinedError,
    NotStartedError,
    OptionError,
    OwnProcess,
    command_pod,
    connect,
    listed_amounts,
    narrowing_settings,
    node_of_interface,
    pod_of_unit,
    running_cgroup,
    start,
    this_process,
    unit_name,
)
from systemd.units import BusError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agent.api.client import AgentClient
    from agent.api.documents.pods import PodDocument
    from systemd.bus import Systemd

    _Command = TypeVar("_Command", bound=Callable[..., object])


#: Where the agent's cgroups are, for commands in a playground.
MOUNT_VARIABLE: Final = "NUMAWARDEN_CGROUP_MOUNT"


_REAL_ONLY: Final = (
    "run and attach need the agent of a real host; 'numawarden admit FILE' shows what a pod gets "
    "here, start-containers what becomes of its cgroups"
)


def check_real(mount: Path, advice: str = _REAL_ONLY) -> None:
    """Raise `CommandError` where an agent's cgroup tree is an emulation, such as a playground's.

    `advice` says what needs a real host, and what to do instead.
    """
    if (mount / "cgroup.controllers").is_file() and not mount.is_mount():
        message = f"the cgroups in {mount} are plain files, which confine no process: {advice}"
        raise CommandError(message, ExitCode.ENVIRONMENT)


def amount_options(command: _Command) -> _Command:
    """Add the options for amounts, and `--require`, to a command."""
    options = (
        click.option("--cpus", metavar="N", default="1", show_default=True, help="CPUs."),
        click.option("--memory", metavar="SIZE", default="", help="Memory, such as 32Gi."),
        click.option(
            "--hugepages", metavar="PAGE=SIZE,...", multiple=True, help="Such as 2Mi=512Mi."
        ),
        require_option,
    )
    for option in reversed(options):
        command = option(command)
    return command


def admitted(agent: AgentClient, manifest: bytes, require: str) -> PodDocument | None:
    """Return the pod of a manifest as admitted, with its cgroups; print why it was rejected.

    A pod that is not enforced, or whose CPUs another pod still uses, is removed again, and raises
    `CommandError`.
    """
    answer = agent.admit(manifest, require=require, advice=True)
    warn(answer.warnings)
    if answer.pod is None:
        for line in admission_lines(answer):
            say(line, err=True)
        return None
    # A program of the host that may use its CPUs is only reported; another pod must not be there.
    by_pods = (each.message for each in answer.pod.intruding if each.user)
    lacking = (*answer.pod.enforcement.differences, *by_pods)
    if lacking:
        agent.remove(answer.uid)
        lines = "\n".join(lacking)
        raise CommandError(f"the pod was not enforced and is removed:\n{lines}",
                           ExitCode.NOT_ENFORCED)  # fmt: skip
    return agent.pod(answer.uid)


def print_allocations(pod: PodDocument) -> None:
    """Print what a pod got, on standard error: standard output is the command's."""
    for line in allocation_lines(pod):
        say(line, err=True)


@contextmanager
def option_errors() -> Iterator[None]:
    """Raise what is wrong with an option as a mistake of the command line."""
    try:
        yield
    except OptionError as error:
        raise click.BadParameter(str(error), param_hint=error.option) from error


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
    "--interleave", is_flag=True, help="Take memory from all NUMA nodes that it has in turn."
)
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
    interleave: bool,
    quiet: bool,
) -> int:
    """Run a COMMAND in a pod of its own: exclusive CPUs, memory on their nodes, devices.

    It is confined before its first instruction, and all of it is free again when its last process
    has ended. Options after COMMAND are the command's. Needs root, as making cgroups does.

    Exits as COMMAND does; before it starts with 1 when the pod is rejected, 7 when its allocation
    is not enforced, 127 when there is no such command and 126 when it cannot be executed.
    """
    program = shutil.which(command[0])
    if program is None:
        there = "/" in command[0] and Path(command[0]).exists()
        why = "it is not executable" if there else "command not found"
        say(f"numawarden: error: {command[0]}: {why}", err=True)
        return NOT_EXECUTABLE if there else NOT_FOUND
    uid = str(uuid4())
    with option_errors():
        amounts = Amounts(cpus, memory, listed_amounts(hugepages, device))
        sysfs = Path(os.environ.get("NUMAWARDEN_ROOT", "/"))
        node = None if near is None else node_of_interface(sysfs, near)
        named = name or f"run-{uid[:8]}"
        manifest = command_pod(uid, named, amounts, shared=shared, near=node, interleave=interleave)
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
            say(f"numawarden: error: {program}: {error.strerror}", err=True)
            return NOT_EXECUTABLE
        hint = "run as root, on the agent's host, with its --cgroup-mount"
        message = f"the pod's cgroup cannot be entered: {error.strerror}; {hint}"
        raise CommandError(message, ExitCode.ENVIRONMENT) from error
    return ExitCode.OK


@click.command()
@click.option("--unit", required=True, metavar="NAME", help="A service or scope that runs.")
@amount_options
@socket_option
def attach(
    unit: str,
    cpus: str,
    memory: str,
    hugepages: tuple[str, ...],
    require: str,
    socket_path: str,
) -> int:
    """Give a systemd unit that runs exclusive CPUs, and memory on their nodes.

    It keeps them over its restarts; they are free again once it has been stopped for half a minute,
    or with 'numawarden detach'. The limits of the unit stay its own.
    """
    name = unit_name(unit)
    if mount := os.environ.get(MOUNT_VARIABLE):
        check_real(Path(mount))
    with agent_at(socket_path) as agent:
        attached = _attached(agent, name)
        if attached is not None:
            message = f"{name} is attached already, as pod {attached.name}; detach it first"
            raise CommandError(message, ExitCode.REJECTED)
        systemd = connect()
        cgroup = running_cgroup(systemd, name)
        if not cgroup:
            message = f"{name} does not run; start it first (systemctl start {name})"
            raise CommandError(message, ExitCode.NOT_FOUND)
        with option_errors():
            manifest = pod_of_unit(name, cpus, memory, hugepages)
        pod = admitted(agent, manifest, require)
        if pod is None:
            return ExitCode.REJECTED
        _bind(agent, pod, systemd, name, cgroup)
        print_allocations(agent.pod(pod.uid))
    return ExitCode.OK


@click.command()
@click.argument("unit")
@socket_option
def detach(unit: str, socket_path: str) -> int:
    """Free the allocation of a systemd UNIT.

    Its processes run on, in the node's shared pool until the unit is started again.
    """
    name = unit_name(unit)
    with agent_at(socket_path) as agent:
        pod = _attached(agent, name)
        if pod is None:
            message = f"{name} is not attached; see 'numawarden list'"
            raise CommandError(message, ExitCode.NOT_FOUND)
        answer = agent.remove(pod.uid)
    say(f"detached {name}")
    for note in (*answer.enforcement.differences, *answer.enforcement.notes):
        say(f"  note: {note}")
    return ExitCode.OK if answer.enforcement.enforced else ExitCode.NOT_ENFORCED


def _attached(agent: AgentClient, unit: str) -> PodDocument | None:
    return next((pod for pod in agent.pods() if pod.unit == unit), None)


def _bind(agent: AgentClient, pod: PodDocument, systemd: Systemd, unit: str, cgroup: str) -> None:
    """Bind the container to the unit's cgroup; without that the pod is removed again."""
    if not (pod.kernel and pod.kernel[0].cgroup.endswith(".slice")):
        agent.remove(pod.uid)
        message = "systemd writes the cgroup of a unit: the agent needs cgroupDriver: systemd"
        raise CommandError(message, ExitCode.ENVIRONMENT)
    try:
        warn(narrowing_settings(systemd, unit, pod.containers[0]))
        bound = agent.bind(pod.uid, CONTAINER, BindRequest(cgroup=f"/{cgroup}"))
    except NotConfinedError as error:
        agent.remove(pod.uid)
        raise CommandError(str(error), ExitCode.NOT_ENFORCED) from error
    except BaseException:
        agent.remove(pod.uid)
        raise
    if not bound.enforcement.enforced:
        agent.remove(pod.uid)
        lines = "\n".join(bound.enforcement.differences)
        message = f"the unit was not confined, its pod is removed:\n{lines}"
        raise CommandError(message, ExitCode.NOT_ENFORCED)
