"""`numawarden isolation`: what was set for the whole host, and how it was before."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from agent.cli.errors import CommandError, ExitCode
from agent.cli.lines import table
from agent.cli.options import CONFIG_FILE, configuration_options
from agent.cli.output import print_lines
from agent.cli.suggestions import CommandGroup
from agent.config.isolation import IsolationConfig
from agent.config.load import load_config_file
from agent.isolation.host import HostIsolation
from agent.isolation.originals import Originals, running_boot
from agent.isolation.places import PLACE_ERRORS, HostPlaces, kind_of
from agent.reconcile.start_checks import open_tree
from agent.state.checkpoint import StateDirectoryLockedError
from agent.state.store import DirectoryLock, check_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.config.agent import AgentConfig
    from systemd.bus import Systemd

_PROC = Path("/proc")
_ABOUT = "The agent's configuration, which has the state directory."


@click.group(cls=CommandGroup)
def isolation() -> None:
    """Show or restore the host-wide settings that the agent wrote (agent.isolation)."""


@isolation.command()
@configuration_options(_ABOUT, CONFIG_FILE)
def status(file: Path, settings: tuple[str, ...]) -> None:
    """Show each setting that differs from how the agent found it.

    The agent may be running or not.
    """
    agent = load_config_file(file, settings).agent
    originals = Originals(agent.state_directory, running_boot(_PROC)).load()
    places = _places(agent, originals)
    print_lines(table(("SETTING", "WAS", "IS"), _rows(places, originals)))


def _rows(places: HostPlaces, originals: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    for place, text in sorted(originals.items()):
        try:
            shown = places.read(place).strip() or "unset"
        except PLACE_ERRORS as error:
            shown = f"? ({getattr(error, 'strerror', None) or error})"
        yield place, text.strip() or "unset", shown


@isolation.command(short_help="Give every setting back what it had.")
@configuration_options(_ABOUT, CONFIG_FILE)
def restore(file: Path, settings: tuple[str, ...]) -> None:
    """Give every setting back what it had, after the agent was stopped or killed.

    A running agent would write them again: stop it, or switch the items off in its configuration,
    with which it restores them itself. What cannot be restored is named, and tried again with the
    next call.
    """
    agent = load_config_file(file, settings).agent
    check_directory(agent.state_directory)
    try:
        lock = DirectoryLock(agent.state_directory)
    except StateDirectoryLockedError as error:
        why = "the agent runs and would write them again; stop it first, or switch the items off"
        raise CommandError(f"nothing is restored: {why} ({error})", ExitCode.ENVIRONMENT) from error
    with lock:
        store = Originals(agent.state_directory, running_boot(_PROC))
        places = _places(agent, store.load())
        failed, restored = HostIsolation(IsolationConfig(), places, store, units=False).restore()
    click.echo(f"{restored} settings restored")
    if failed:
        lines = "; ".join(f"{place}: {why}" for place, why in failed.items())
        raise CommandError(f"not restored: {lines}", ExitCode.ENVIRONMENT)


def _places(agent: AgentConfig, originals: dict[str, str]) -> HostPlaces:
    """Return the places of the host; tree and systemd are opened only where they are needed."""
    kinds = set(map(kind_of, originals))
    tree = open_tree(agent.cgroup_mount) if any(kind.in_tree for kind in kinds) else None
    systemd = _bus() if any(kind.in_systemd for kind in kinds) else None
    return HostPlaces(agent.sysfs_root, tree, systemd)


def _bus() -> Systemd:
    from systemd.bus import SystemBus  # noqa: PLC0415  # only where units were set

    return SystemBus()
