"""`numawarden config`: check a configuration against a host and show what follows from it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.config.config import Config
    from agent.managers.policy import Policy


@click.group()
def config() -> None:
    """Check and show a configuration."""


@config.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Check against the host whose sys/ stands here [default: agent.sysfsRoot].",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Lay a setting over the file, such as cgroupDriver=cgroupfs; may be repeated.",
)
def check(file: Path, root: Path | None, settings: tuple[str, ...]) -> None:
    """Check a configuration file against this host and show what follows from it.

    Every mistake is told at once, and the exit code is 3 then.
    """
    # Imported here: help and completion neither read files nor hosts.
    from agent.config.loader import load_config_file  # noqa: PLC0415
    from agent.config.resolve import overcommitted_memory, resolve  # noqa: PLC0415
    from agent.managers.machine import Machine  # noqa: PLC0415
    from sysfs.discover import discover  # noqa: PLC0415

    loaded = load_config_file(file, settings)
    host = discover(root or loaded.agent.sysfs_root)
    machine = Machine.of(host)
    policy = resolve(loaded, machine, offline=host.offline, source=str(file))
    click.echo(f"{file}: no mistakes")
    for line in _summary(loaded, policy):
        click.echo(line)
    for line in overcommitted_memory(policy, machine):
        click.echo(f"  note: {line}")


def _summary(loaded: Config, policy: Policy) -> Iterator[str]:
    yield f"  CPU manager       {policy.cpu.policy}{_options(loaded.cpu_manager_policy_options)}"
    if policy.cpu.reserved:
        how = "derived from systemReserved and kubeReserved"
        given = loaded.reserved_system_cpus is not None
        yield f"  reserved CPUs     {policy.cpu.reserved} ({'as listed' if given else how})"
    yield f"  memory manager    {policy.memory.policy}"
    yield from _reserved_memory(loaded, policy)
    topology = policy.topology
    options = _options(loaded.topology_manager_policy_options)
    yield f"  topology manager  {topology.policy}, scope {topology.scope}{options}"
    yield f"  cgroups           {loaded.cgroup_driver} driver below {loaded.cgroup_root}"
    manifests = loaded.static_pod_path or "none, pods come over the socket alone"
    yield f"  manifests         {manifests}"
    for resource, devices in policy.devices.items():
        healthy = sum(device.healthy for device in devices)
        yield f"  devices           {resource}: {len(devices)}, {healthy} healthy"
    yield from _notes(loaded)


def _reserved_memory(loaded: Config, policy: Policy) -> Iterator[str]:
    from agent.pods.quantity import Quantity  # noqa: PLC0415

    how = "as listed" if loaded.reserved_memory else "derived"
    for node, types in sorted(policy.memory.reserved.items()):
        amounts = ", ".join(f"{name} {Quantity.of_bytes(size)}" for name, size in types.items())
        yield f"  reserved memory   node {node}: {amounts} ({how})"


def _options(options: Mapping[str, str]) -> str:
    return f", options {', '.join(f'{k}={v}' for k, v in options.items())}" if options else ""


def _notes(loaded: Config) -> Iterator[str]:
    from agent.config.notes import notes_on  # noqa: PLC0415

    for note in notes_on(loaded):
        yield f"  note: {note}"
