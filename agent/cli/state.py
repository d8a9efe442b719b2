"""`numawarden state`: move a host from the kubelet to the agent and back, without draining."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import click
from msgspec import Struct

from agent import __version__
from agent.cli.errors import CommandError, ExitCode
from agent.cli.options import EXISTING_DIRECTORY, configuration_options
from agent.cli.output import say, warn
from agent.cli.suggestions import CommandGroup
from agent.config.load import load_config_file
from agent.config.resolve import resolve
from agent.managers.cpu.manager import exclusive_cpus, shared_pool
from agent.managers.machine import Machine
from agent.managers.registry import MANAGERS
from agent.managers.rules import EffectivePolicy, restored
from agent.managers.versions import KubernetesVersion
from agent.state.checkpoint import Checkpoint, StateDirectoryLockedError, host_facts, policy_summary
from agent.state.store import Store, peek
from agent.tools.kubelet_state.exporting import export_notes, kubelet_state
from agent.tools.kubelet_state.files import (
    KubeletState,
    encode_files,
    read_directory,
    release_of,
    write_directory,
)
from agent.tools.kubelet_state.importing import read_pods, take_over
from sysfs.discover import discover

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from agent.config.model import Config
    from agent.managers.ledger import Ledger
    from agent.pods.model import Pod
    from sysfs.host import Host

    _Command = TypeVar("_Command", bound=Callable[..., object])


#: The kubelets that an export can be for, by their numbers.
_BY_NUMBER: Final = {version.removeprefix("v"): version for version in KubernetesVersion}


class _Number(click.Choice[str]):
    """One of the numbers of versions, with or without the v before it."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the number; see `click.ParamType.convert`."""
        return super().convert(value.removeprefix("v"), param, ctx)


@click.group(cls=CommandGroup)
def state() -> None:
    """Import the kubelet's state files, or write them.

    The agent and the kubelet must both be stopped; workloads keep running.
    """


def _common_options(command: _Command) -> _Command:
    """Add the options of both commands."""
    for option in (
        click.option(
            "--root",
            type=EXISTING_DIRECTORY,
            help="Use the host whose sys/ tree is in this directory [default: agent.sysfsRoot].",
        ),
        configuration_options("The agent's configuration, which has the state directory."),
        click.option(
            "--kubelet",
            "directory",
            type=EXISTING_DIRECTORY,
            required=True,
            help="The kubelet's root directory, usually /var/lib/kubelet.",
        ),
    ):
        command = option(command)
    return command


@state.command("import")
@_common_options
@click.option(
    "--pods",
    "pods_path",
    type=click.Path(exists=True, path_type=Path),
    help="Complete data missing in the files: a directory of Pod manifests, or a file with the "
    "output of 'kubectl get pods -A -o json'.",
)
@click.option("--force", is_flag=True, help="Replace a state of the agent that has pods.")
def import_(
    directory: Path,
    file: Path,
    root: Path | None,
    settings: tuple[str, ...],
    pods_path: Path | None,
    *,
    force: bool,
) -> None:
    """Import the kubelet's state into the agent's.

    Nothing is changed if files are damaged, or do not fit this host and configuration. Devices
    are not taken over: end pods that have devices first, but with agent.kubelet.enabled, where
    devices stay with the kubelet.
    """
    place = _situate(file, settings, root)
    with _opened(place.config) as store:
        found = read_directory(directory)
        taken = take_over(place.rules, found, _pods(pods_path, found, place.rules))
        _reject_replacing(store, force=force)
        store.save(_state_of(place, taken.ledger))
    _print_lines(_summary(place.rules, taken.ledger), taken.notes)


@state.command()
@_common_options
@click.option(
    "--for",
    "release",
    type=_Number(list(_BY_NUMBER)),
    help="Write the formats of this kubelet; later ones read them as well [default: those of the "
    f"files that are there, else {next(iter(_BY_NUMBER))}].",
)
@click.option("--force", is_flag=True, help="Replace files that are already there.")
def export(
    directory: Path,
    file: Path,
    root: Path | None,
    settings: tuple[str, ...],
    release: str | None,
    *,
    force: bool,
) -> None:
    """Write the agent's state as the kubelet's files.

    The oldest formats depend on featureGates.PodLevelResourceManagers. The file of the device
    manager is left as it is.
    """
    place = _situate(file, settings, root)
    with _opened(place.config) as store:
        ledger = _saved_ledger(store, place.rules)
        found = kubelet_state(place.rules, ledger)
        chosen = release_of(directory) if release is None else _BY_NUMBER[release]
        pod_level = place.rules.policy.pod_level_managers
        contents = encode_files(found, pod_level=pod_level, release=chosen)
        write_directory(directory, contents, force=force)
    written = (f"{directory / name}: written for kubelet {chosen}" for name in contents)
    _print_lines(written, export_notes(found, ledger))


class _Place(Struct, frozen=True):
    """The configuration, the host, and the effective policy derived from both."""

    config: Config
    host: Host
    rules: EffectivePolicy


def _situate(file: Path, settings: tuple[str, ...], root: Path | None) -> _Place:
    config = load_config_file(file, settings)
    host = discover(root or config.agent.sysfs_root, devices=False)
    warn(host.warnings)
    machine = Machine.of(host)
    policy = resolve(config, machine, offline=host.offline, source=str(file))
    return _Place(config, host, EffectivePolicy(machine, policy, MANAGERS))


@contextmanager
def _opened(config: Config) -> Iterator[Store]:
    """Open the agent's state directory; a running agent is reported as an error."""
    try:
        store = Store(config.agent.state_directory)
    except StateDirectoryLockedError as error:
        who = "" if error.holder is None else f" (process {error.holder})"
        message = f"the agent is running{who}; stop it first, its pods run on"
        raise CommandError(message, ExitCode.ENVIRONMENT) from error
    with store:
        yield store


def _pods(path: Path | None, found: KubeletState, rules: EffectivePolicy) -> Mapping[str, Pod]:
    if path is None:
        return {}
    desired: set[str] = set()
    for part in (found.cpu, found.memory):
        if part is not None:
            desired |= {*part.containers, *part.pods}
    return read_pods(path, desired, pod_level=rules.policy.gates.pod_level_resources)


def _reject_replacing(store: Store, *, force: bool) -> None:
    """Check the existing state: an unusable one is set aside, one with pods is an error."""
    loaded = store.load()
    pods = 0 if loaded.state is None else len(loaded.state.ledger.allocations)
    if pods and not force:
        message = f"{store.path}: has {pods} pods already; --force replaces them"
        raise CommandError(message, ExitCode.BAD_INPUT)
    if loaded.kept_as is not None:
        say(f"note: the previous checkpoint was not usable and is kept as {loaded.kept_as}")


def _saved_ledger(store: Store, rules: EffectivePolicy) -> Ledger:
    """Return the checkpoint's ledger under the effective policy; nothing is set aside."""
    saved = peek(store.path.parent)
    if saved is None:
        message = f"{store.path}: there is no state to export; has the agent ever run?"
        raise CommandError(message, ExitCode.BAD_INPUT)
    return restored(rules, saved.ledger)


def _state_of(place: _Place, ledger: Ledger) -> Checkpoint:
    return Checkpoint(
        ledger=ledger,
        host=host_facts(place.host),
        policy=policy_summary(place.rules.policy),
        agent_version=__version__,
    )


def _summary(rules: EffectivePolicy, ledger: Ledger) -> Iterator[str]:
    yield f"{len(ledger.allocations)} pods taken over"
    if rules.static_cpus:
        exclusive = exclusive_cpus(ledger) or "none"
        yield f"  exclusive CPUs  {exclusive}"
        yield f"  shared pool     {shared_pool(rules, ledger) or 'none'}"


def _print_lines(lines: Iterable[str], notes: Iterable[str]) -> None:
    for line in lines:
        say(line)
    for note in notes:
        say(f"note: {note}")
