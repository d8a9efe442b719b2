"""`numawarden config`: check a configuration against a host and show the effective policy."""

from __future__ import annotations

import sys
from contextlib import closing, suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from msgspec.structs import replace

from agent.cli.errors import CommandError, ExitCode
from agent.cli.options import CONFIG_FILE, EXISTING_DIRECTORY, EXISTING_FILE, settings_option
from agent.cli.output import say, warn
from agent.cli.suggestions import CommandGroup
from agent.config.capacity import (
    capacity_by_node,
    nothing_allocatable,
    overcommitted_memory,
    split_cores,
)
from agent.config.document import config_schema, config_yaml
from agent.config.load import load_config, load_config_file, override
from agent.config.model import Config, ConfigError
from agent.config.notes import notes_on
from agent.config.resolve import resolve
from agent.files import read_bounded, take
from agent.isolation.places import PLACE_ERRORS, HostPlaces, why_not
from agent.isolation.resctrl import read_resctrl
from agent.isolation.shares import shares
from agent.managers.cpu.manager import exclusive_cpus, shared_pool
from agent.managers.machine import Machine
from agent.managers.node_fit import native_first, node_amount_text
from agent.managers.quality import invalid_allocations
from agent.managers.registry import MANAGERS
from agent.managers.rules import EffectivePolicy, restored, with_cordon
from agent.pods.model import MEMORY
from agent.pods.quantity import Quantity
from agent.reconcile.start_checks import make_layout
from agent.reconcile.withheld import read_withheld
from agent.state.store import CHECKPOINT_NAME, peek
from agent.tools.kubelet_config import import_kubelet_config, left_lines
from agent.yaml import DEFAULT_MAX_BYTES
from cgroupfs.errors import CgroupRootError
from cgroupfs.settings import KernelController
from cgroupfs.tree import KernelTree
from sysfs.discover import discover

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.managers.policy import Policy
    from sysfs.host import Host, WithheldCpus
    from sysfs.mask import Mask


_FILE_OR_INPUT: Final = click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)


@click.group(cls=CommandGroup)
def config() -> None:
    """Check and show a configuration."""


@config.command(short_help="Check a file against this host.")
@click.argument("file", metavar="[FILE|-]", type=_FILE_OR_INPUT, default=CONFIG_FILE)
@click.option(
    "--root",
    type=EXISTING_DIRECTORY,
    help="Check against the host whose sys/ tree is in this directory [default: agent.sysfsRoot].",
)
@settings_option()
@click.option(
    "--against-state",
    is_flag=True,
    help="Say too what the configuration would make of what pods hold now; exit code 1 when it "
    "would not give all of it. The agent may be running.",
)
@click.option(
    "--state",
    "directory",
    type=EXISTING_DIRECTORY,
    help="The directory of that state [default: agent.stateDirectory]; implies --against-state.",
)
def check(
    file: Path,
    root: Path | None,
    settings: tuple[str, ...],
    directory: Path | None,
    *,
    against_state: bool,
) -> ExitCode:
    """Judge a configuration file, and show the effective policy.

    The file is /etc/numawarden/config.yaml unless another is named, or - (standard input). Its keys
    have to agree with each other and with the host's CPUs and memory; all mistakes are reported,
    with exit code 3. What is left for pods is shown by node. Whether the agent could start here is
    said by 'numawarden doctor'.
    """
    source = str(file)
    if source == "-":
        source = "standard input"
        loaded = load_config(take(sys.stdin.buffer, DEFAULT_MAX_BYTES, "-"), source, settings)
    else:
        loaded = load_config_file(file, settings)
    described = root or loaded.agent.sysfs_root
    host = discover(described, devices=False)
    warn(host.warnings)
    if root is None and str(described) == "/":
        host = replace(host, withheld=_withheld(loaded, host.online))
    machine = Machine.of(host)
    policy = resolve(loaded, machine, offline=host.offline, source=source)
    resctrl = _resctrl_note(loaded, described, source)
    click.echo(f"{source}: no mistakes")
    click.echo(f"  host              {_host(machine, root)}")
    for withheld in machine.withheld:
        say(f"  withheld          {withheld}")
    for line in _summary(loaded, policy):
        say(line)
    rules = EffectivePolicy(machine, policy, MANAGERS)
    for line in (*_allocatable(rules), *_by_node(policy, machine)):
        say(line)
    notes = (
        notes_on(loaded),
        resctrl,
        overcommitted_memory(policy, machine),
        nothing_allocatable(rules),
    )
    for note in chain.from_iterable(notes):
        say(f"  note: {note}")
    valid = True
    if against_state or directory is not None:
        lines, valid = _against(directory or loaded.agent.state_directory, host, rules)
        for line in lines:
            say(line)
    return ExitCode.OK if valid else ExitCode.REJECTED


def _withheld(config: Config, online: Mask) -> tuple[WithheldCpus, ...]:
    """Return what pods could not have of the CPUs; nothing where the cgroups cannot be read."""
    layout = make_layout(config.cgroup_driver, config.cgroup_root)
    kubelet = config.beside_kubelet
    with suppress(CgroupRootError, OSError), closing(KernelTree(config.agent.cgroup_mount)) as tree:
        return read_withheld(tree, layout.pods(), online, beside_kubelet=kubelet)
    return ()


def _resctrl_note(config: Config, root: Path, source: str) -> tuple[str, ...]:
    """Return why the host has no classes of caches; raises `ConfigError` where they do not fit."""
    classes = config.agent.isolation.resctrl
    if not classes.classes:
        return ()
    try:
        mistakes = shares(classes, read_resctrl(HostPlaces(root))).mistakes
    except PLACE_ERRORS as error:
        return (f"agent.isolation.resctrl: no class has an effect: {why_not(error)}",)
    if mistakes:
        raise ConfigError(source, mistakes)
    return ()


@config.command(short_help="Print every key with its value.")
@click.argument("file", type=EXISTING_FILE, required=False)
@click.option("--defaults", is_flag=True, help="Show what holds for keys that are left out.")
@settings_option("Lay a setting over the file or the defaults; may be repeated.")
def show(file: Path | None, settings: tuple[str, ...], *, defaults: bool) -> None:
    """Print every key with its value as YAML: those of a configuration FILE, or the defaults.

    What is printed is a configuration file itself. The exit code is 3 on mistakes.
    """
    if defaults == (file is not None):
        raise click.UsageError("name a configuration file, or give --defaults, and not both")
    loaded = override(Config(), settings) if file is None else load_config_file(file, settings)
    click.echo(config_yaml(loaded), nl=False)


@config.command(short_help="Print the JSON schema of a file.")
def schema() -> None:
    """Print the JSON schema of a configuration file, for editors and pipelines.

    A file that does not meet the schema has a mistake. Whether one that meets the schema has none,
    only `config check` says: keys have to agree with each other and with the host.
    """
    click.echo(config_schema())


@config.command("import", short_help="Make a configuration from the kubelet's.")
@click.argument("file", type=EXISTING_FILE)
@click.option(
    "-o",
    "--output",
    "target",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the configuration to a new file, and print which keys were not taken.",
)
def import_config(file: Path, target: Path | None) -> None:
    """Make a configuration from the kubelet's FILE, such as /var/lib/kubelet/config.yaml.

    Keys that both have are taken; all others are listed with why not, as comments at the end. The
    exit code is 3 for a file that is not a KubeletConfiguration or contradicts itself. Compare
    with the host by `numawarden config check` before the agent is started.
    """
    imported = import_kubelet_config(read_bounded(file, DEFAULT_MAX_BYTES), str(file))
    if target is None:
        click.echo(imported.yaml(), nl=False)
        return
    try:
        with target.open("x", encoding="utf-8") as written:
            written.write(imported.yaml())
    except FileExistsError as error:
        message = f"{target} exists already; name a new file"
        raise CommandError(message, ExitCode.BAD_INPUT) from error
    click.echo(f"{target}: {len(imported.taken)} keys taken, {len(imported.left)} not")
    for line in left_lines(imported.left):
        say(line)


def _against(directory: Path, host: Host, rules: EffectivePolicy) -> tuple[list[str], bool]:
    """Return which saved allocations a policy would make invalid, and whether there are none."""
    saved = peek(directory)
    if saved is None:
        return [f"{directory / CHECKPOINT_NAME}: no state, no allocations"], True
    rules = with_cordon(rules, saved.cordons.total)
    ledger = restored(rules, saved.ledger)
    found = invalid_allocations(rules, ledger, host.offline)
    pods, affected = len(ledger.allocations), len({violation.uid for violation in found})
    lines = [
        f"{directory / CHECKPOINT_NAME}: {pods} pods, all of them keep their allocations",
        f"  valid             {pods - affected} of {pods} pods",
        f"  exclusive CPUs    {exclusive_cpus(ledger) or 'none'}",
        f"  shared pool       {shared_pool(rules, ledger) or 'none'}",
        *(f"  not valid         {violation}" for violation in found),
    ]
    return lines, not found


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
    version = "the default" if loaded.kubernetes_version is None else "kubernetesVersion"
    if loaded.kubernetes_version is None and loaded.beside_kubelet:
        version = "the default; the agent goes by the kubelet's own, see 'numawarden doctor'"
    yield f"  Kubernetes        {policy.version} ({version})"
    enforced = [name for name in KernelController if name in loaded.agent.enforce]
    yield f"  enforced          {', '.join(enforced) or 'nothing'}"
    others = "from the kubelet" if loaded.beside_kubelet else "over the socket alone"
    yield f"  manifests         {loaded.static_pod_path or f'none, pods come {others}'}"
    for resource, devices in policy.devices.items():
        healthy = sum(device.healthy for device in devices)
        yield f"  devices           {resource}: {len(devices)}, {healthy} healthy"


def _allocatable(rules: EffectivePolicy) -> Iterator[str]:
    limits = rules.allocatable
    if limits is None:
        return
    label = "allocatable"
    for name in sorted(limits.amounts, key=native_first):
        yield f"  {label:16}  {name} {node_amount_text(name, limits.amounts[name])}"
        label = ""
    yield f"  {label:16}  pods {limits.pods}"
    if limits.ignored:
        yield f"  not looked at     {', '.join(sorted(limits.ignored))}"
    if limits.beside_kubelet:
        yield "  the kubelet's     all other extended resources"


def _host(machine: Machine, root: Path | None) -> str:
    memory = node_amount_text(MEMORY, sum(node.known_memory for node in machine.nodes))
    where = "" if root is None else f", described in {root}"
    cpus, nodes = len(machine.cpus.all), len(machine.nodes)
    return f"{cpus} CPUs on {nodes} NUMA node{'s' if nodes > 1 else ''}, {memory}{where}"


def _by_node(policy: Policy, machine: Machine) -> Iterator[str]:
    """Yield what is left for pods on each node."""
    nothing = "no exclusive CPUs"
    if policy.cpu.policy == "none":
        nothing += " (cpuManagerPolicy none)"
    for node in capacity_by_node(policy, machine):
        count = f"{len(node.exclusive)} of {len(node.cpus)}"
        parts = [f"CPUs {node.exclusive} ({count})" if node.exclusive else nothing]
        for name, (left, size) in node.memory.items():
            texts = (node_amount_text(name, amount) for amount in (left, size))
            parts.append(f"{name} {' of '.join(texts)}")
        label = f"left on node {node.node}"
        yield f"  {label:16}  {', '.join(parts)}"
    if split := split_cores(policy, machine):
        yield (
            f"  note: CPUs {split} share cores with reserved CPUs, and with full-pcpus-only no "
            "container gets them alone; reserve them as well, or whole cores instead"
        )
    reserved = policy.cpu.reserved
    if not split and (beside := machine.cpus.cores_of(reserved) - reserved):
        yield (
            f"  note: CPUs {beside} share cores with reserved CPUs and are left for pods: what the "
            "system does slows them down; reserve whole cores"
        )


def _reserved_memory(loaded: Config, policy: Policy) -> Iterator[str]:
    how = "as listed" if loaded.reserved_memory else "derived"
    for node, types in sorted(policy.memory.reserved.items()):
        amounts = ", ".join(f"{name} {Quantity.of_bytes(size)}" for name, size in types.items())
        yield f"  reserved memory   node {node}: {amounts} ({how})"


def _options(options: Mapping[str, str]) -> str:
    return f", options {', '.join(f'{k}={v}' for k, v in options.items())}" if options else ""
