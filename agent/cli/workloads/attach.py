"""`numawarden attach | detach`: an allocation for a systemd unit, as long as the unit lasts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

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
    # Imported here: help needs none of it.
    from agent.tools.run.units import connect, pod_of_unit, running_cgroup, unit_name  # noqa: PLC0415

    name = unit_name(unit)
    if mount := os.environ.get(MOUNT_VARIABLE):
        check_real(Path(mount))
    with agent_at(socket_path) as agent:
        attached = _attached(agent, name)
        if attached is not None:
            message = f"{name} is attached already, as pod {attached.name}; detach it first"
            raise CommandError(message, ExitCode.REJECTED)
        cgroup = running_cgroup(connect(), name)
        if not cgroup:
            message = f"{name} does not run; start it first (systemctl start {name})"
            raise CommandError(message, ExitCode.NOT_FOUND)
        with option_errors():
            manifest = pod_of_unit(name, cpus, memory, hugepages)
        pod = admitted(agent, manifest, require)
        if pod is None:
            return ExitCode.REJECTED
        _bind(agent, pod, cgroup)
        print_allocations(agent.pod(pod.uid))
    return ExitCode.OK


@click.command()
@click.argument("unit")
@socket_option
def detach(unit: str, socket_path: str) -> int:
    """Free the allocation of a systemd UNIT.

    Its processes run on, in the node's shared pool until the unit is started again.
    """
    from agent.tools.run.units import unit_name  # noqa: PLC0415  # help needs none of it

    name = unit_name(unit)
    with agent_at(socket_path) as agent:
        pod = _attached(agent, name)
        if pod is None:
            message = f"{name} is not attached; see 'numawarden list'"
            raise CommandError(message, ExitCode.NOT_FOUND)
        answer = agent.remove(pod.uid)
    click.echo(f"detached {name}")
    for note in (*answer.enforcement.differences, *answer.enforcement.notes):
        click.echo(f"  note: {note}")
    return ExitCode.OK if answer.enforcement.enforced else ExitCode.NOT_ENFORCED


def _attached(agent: AgentClient, unit: str) -> PodDocument | None:
    return next((pod for pod in agent.pods() if pod.unit == unit), None)


def _bind(agent: AgentClient, pod: PodDocument, cgroup: str) -> None:
    """Bind the container to the unit's cgroup; without that the pod is removed again."""
    from agent.api.documents import BindRequest  # noqa: PLC0415  # help needs none of it
    from agent.tools.run.pod import CONTAINER  # noqa: PLC0415

    if not (pod.kernel and pod.kernel[0].cgroup.endswith(".slice")):
        agent.remove(pod.uid)
        message = "systemd writes the cgroup of a unit: the agent needs cgroupDriver: systemd"
        raise CommandError(message, ExitCode.ENVIRONMENT)
    try:
        bound = agent.bind(pod.uid, CONTAINER, BindRequest(cgroup=f"/{cgroup}"))
    except BaseException:
        agent.remove(pod.uid)
        raise
    if not bound.enforcement.enforced:
        agent.remove(pod.uid)
        lines = "\n".join(bound.enforcement.differences)
        message = f"the unit was not confined, its pod is removed:\n{lines}"
        raise CommandError(message, ExitCode.NOT_ENFORCED)
