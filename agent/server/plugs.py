"""What an agent is put together of, beside its own parts: plugs, and replacements of the host.

`Plugs` are chosen once for a program: sources of pods, managers, providers of devices, and what
works beside the agent, such as a kubelet. At the start the agent calls each plug with its inputs
(`SourceInputs`, `CompanionInputs`), and a plug that is not configured does nothing. `Neighbour`
says all that differs where another program makes the pods of this host: no module of the server
reads `agent.kubelet`. `Fakes` stand in for parts of the host, in tests and in the demo.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from agent.managers.registry import MANAGERS
from agent.pods.manifest import load_pod
from agent.reconcile.diff import unknown_writer
from agent.server.configured import GoverningVersion
from agent.server.providers import device_plugins, own_devices
from agent.server.watches import directory_changes
from agent.sources.manifests import ManifestDirectory, ManifestFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from agent.clock import Clock
    from agent.config.model import Config
    from agent.managers.resource_manager import ResourceManager
    from agent.reconcile.diff import WriterOf
    from agent.reconcile.tasks import Task
    from agent.server.configured import ConfiguredHost
    from agent.server.controller import Controller
    from agent.server.intake import PodIntake
    from agent.server.lifecycle import Companion
    from agent.server.observations import DevicesGiven
    from agent.server.providers import ProviderFactory
    from agent.server.queue import Worker
    from agent.sources.source import PodSource
    from agent.state.store import Files
    from cgroupfs.tree import CgroupTree
    from systemd.bus import Systemd


class SourceInputs(Struct, frozen=True):
    """What sources of pods are made of."""

    config: Config
    clock: Clock
    #: Returns the uids of the pods that have a cgroup; of those that it is given, only the pods
    #: with a process there. Raises `OSError`.
    cgroups: Callable[[Collection[str]], Collection[str]]
    #: Whether the checkpoint was saved since the host was booted.
    same_boot: bool


#: Makes a source of pods as configured, None if it is not configured; raises `StartError`.
SourceFactory: TypeAlias = "Callable[[SourceInputs], PodSource | None]"


def manifest_directory(inputs: SourceInputs) -> PodSource | None:
    """Return the manifest directory (`staticPodPath`) as a source of pods, None without one."""
    config = inputs.config
    if config.static_pod_path is None:
        return None
    limit = config.agent.limits.manifest_bytes
    load = partial(load_pod, max_bytes=limit, pod_level=config.gates.pod_level_resources)
    return ManifestDirectory(config.static_pod_path, ManifestFormat(load, limit), directory_changes)


class Neighbour(Struct, frozen=True):
    """What works beside the agent on this host, as found at the start; by default nothing does."""

    #: Whether the neighbour makes and removes the cgroups of pods, with settings of its own. The
    #: agent then makes none, and writes only what the neighbour leaves to it.
    makes_cgroups: bool = False
    #: Why no pod is admitted over the API, "" if pods are.
    no_requests: str = ""
    #: The version whose rules hold if the configuration names none. None: the neighbour's version
    #: is not known.
    governing: GoverningVersion | None = GoverningVersion()
    #: The managers of what the neighbour gives to pods; they decide before those of `Plugs`.
    managers: tuple[ResourceManager, ...] = ()
    #: What is wrong with the neighbour, by subject.
    conditions: Mapping[str, str] = MappingProxyType({})


class CompanionInputs(Struct, frozen=True):
    """What companions are made of."""

    #: The configuration as it was given, without the version that governs.
    config: Config
    controller: Controller
    #: The intakes of all sources of pods.
    intakes: tuple[PodIntake, ...]
    #: The conditions about the neighbour that hold since the start, by subject.
    neighbour_conditions: Mapping[str, str]
    #: A kubelet's processes are looked for in `root`/proc. None: they are not looked for.
    root: Path | None
    #: Returns the host under the rules of a version, which govern from then on. Raises
    #: `ConfigError` where the configuration does not fit them.
    govern: Callable[[GoverningVersion | None], ConfiguredHost]


class Plugs(Struct, frozen=True, kw_only=True):
    """What is plugged in; a plug that is not configured does nothing. All raise `StartError`."""

    #: The sources of pods beside the API, in the order in which they are read.
    sources: tuple[SourceFactory, ...] = (manifest_directory,)
    managers: tuple[ResourceManager, ...] = MANAGERS
    #: The providers of devices, in the order in which they get a resource that several offer.
    providers: tuple[ProviderFactory, ...] = (own_devices, device_plugins)
    #: Returns what works beside the agent; the path is `CompanionInputs.root`.
    check: Callable[[Config, Path | None], Neighbour]
    #: Returns the devices that another manager of devices on this host gives.
    given_devices: Callable[[Config, Worker], DevicesGiven | None]
    companions: Callable[[CompanionInputs], Iterable[Companion]]


class Fakes(Struct, frozen=True):
    """Replacements for parts of the host, for tests and the demo; None: the host's own."""

    #: Instead of the cgroup mount.
    tree: CgroupTree | None = None
    #: Who wrote the files of `tree`.
    writer_of: WriterOf = unknown_writer
    #: The tasks of the host; beside a `tree` there are none by default.
    tasks: Callable[[], Iterable[Task]] | None = None
    #: Where a kubelet is looked for in proc; beside a `tree` nowhere by default.
    root: Path | None = None
    #: The root of the files of container runtimes; beside a `tree` there are none by default.
    runtimes: Path | None = None
    #: Instead of systemd's bus.
    systemd: Systemd | None = None
    #: Instead of the files of the checkpoint.
    files: Files | None = None
    #: Whether netlink, and inotify on cgroups, notice changes.
    live: bool = True

    @property
    def kubelet_root(self) -> Path | None:
        """Where a kubelet is looked for in proc, None: nowhere."""
        return self.root or (Path("/") if self.tree is None else None)
