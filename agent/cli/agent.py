"""`numawarden agent`: the agent itself."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import click

from agent.api.documents.status import ConfigurationDocument
from agent.cli.errors import CommandError, ExitCode, text_of
from agent.cli.options import configuration_options
from agent.config.document import config_keys
from agent.config.load import load_config
from agent.files import UntrustedPathError, read_trusted
from agent.server.memory import as_if_missing, collector_at_rest
from agent.yaml import DEFAULT_MAX_BYTES
from sysfs.discover import discover
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agent.config.cluster import BesideKubeletConfig
    from agent.config.model import Config
    from agent.server.plugs import Fakes

#: The mode of the directories that the kubelet makes for itself.
_KUBELETS_MODE: Final = 0o750


@click.command()
@configuration_options("The configuration, YAML.")
@click.option(
    "--emulate-cgroups",
    is_flag=True,
    help="For trying the agent without root: write cgroups as plain "
    "files in the directory agent.cgroupMount, under the kernel's rules.",
)
@click.option(
    "--make-directories",
    is_flag=True,
    help="Only make the directory of the kubelet's device plugins, if the agent is to be one "
    "(agent.kubelet.exclusiveResource) and the directory is missing. The systemd unit does so "
    "before the agent starts, which may not make directories there.",
)
def run(
    file: Path, settings: tuple[str, ...], *, emulate_cgroups: bool, make_directories: bool
) -> None:
    """Run the agent in the foreground until it is sent SIGTERM or SIGINT.

    Stopping the agent does not change running workloads; the next start continues.
    """
    # Mistakes in the configuration are reported before the rest of the agent is imported.
    config = load_config(_content(file), str(file), settings)
    if make_directories:
        _make_directories(config.agent.kubelet)
        return
    run_agent = import_agent()
    fakes = _emulated(config) if emulate_cgroups else None
    try:
        run_agent(config, fakes, _written(config, file, settings))
    except OSError as error:
        # Not a wrong path in the configuration, but an error of the host, which may be temporary.
        raise CommandError(text_of(error), ExitCode.ENVIRONMENT) from error


def _make_directories(kubelet: BesideKubeletConfig) -> None:
    """Make what a kubelet would make at its start, with its mode, where the agent is its plugin."""
    if not kubelet.registered_resource:
        return
    try:
        for directory in (kubelet.directory, kubelet.plugin_directory):
            if not directory.exists():
                directory.mkdir(parents=True)
                directory.chmod(_KUBELETS_MODE)  # which the umask of a unit may not allow at first
    except OSError as error:
        raise CommandError(text_of(error), ExitCode.ENVIRONMENT) from error


def _written(config: Config, file: Path, settings: tuple[str, ...]) -> ConfigurationDocument:
    """Return what the status says of the configuration, to be compared with the file."""
    keys = config_keys(config)
    return ConfigurationDocument(file=str(file.absolute()), settings=settings, keys=keys)


def import_agent() -> Callable[[Config, Fakes | None, ConfigurationDocument | None], None]:
    """Import the agent; return the function that runs it.

    structlog imports rich, where another program brought it, for coloured tracebacks, which a
    service never prints: 5 MiB and 0.1 s.
    """
    with collector_at_rest(), as_if_missing("rich"):
        from agent.cluster.plugs import PLUGS  # noqa: PLC0415
        from agent.server.process import run as run_agent  # noqa: PLC0415
    return partial(run_agent, plugs=PLUGS)


def _content(file: Path) -> bytes:
    """Return a configuration; raises `CommandError` if other users could change the file."""
    try:
        return read_trusted(file, DEFAULT_MAX_BYTES)
    except UntrustedPathError as error:
        message = f"configuration {error}, who could make the agent do anything; "
        raise CommandError(message + error.risk.remedy, ExitCode.ENVIRONMENT) from error


def _emulated(config: Config) -> Fakes:
    # After `import_agent`, and of no use to an agent on the kernel's own tree.
    from agent.server.plugs import Fakes  # noqa: PLC0415
    from cgroupfs.emulated.directory import DirectoryTree  # noqa: PLC0415

    host = discover(config.agent.sysfs_root, devices=False)
    possible = Mask.from_ids(cpu.id for cpu in host.cpus)
    return Fakes(tree=DirectoryTree(config.agent.cgroup_mount, possible, host.nodes_with_memory))
