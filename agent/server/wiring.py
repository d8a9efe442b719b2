"""Builds a service from a configuration: opens, checks and restores everything it needs."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

import structlog
from msgspec import Struct
from msgspec.structs import replace

from agent.api.topology import topology_view
from agent.config.checks import find_problems
from agent.config.model import VERSION_KEY, ConfigError, MemoryReservationPolicy, NodeAllocatable
from agent.config.reservations import reserved_amounts
from agent.config.resolve import managers_beside_kubelet
from agent.devices.cdi import CdiFiles
from agent.isolation.host import HostIsolation
from agent.isolation.originals import Originals, running_boot
from agent.isolation.places import HostPlaces
from agent.managers.policy import NO_CORDON
from agent.managers.registry import MANAGERS
from agent.managers.versions import KubernetesVersion
from agent.pods.manifest import load_pod
from agent.progress import Progress, moved
from agent.reconcile.assigned import AssignedFiles
from agent.reconcile.binding import cgroup_of_pid
from agent.reconcile.desired import no_host_settings
from agent.reconcile.diff import unknown_writer
from agent.reconcile.enforced import EnforcedControllers
from agent.reconcile.report import BindingError
from agent.reconcile.running_pods import pod_uids, seen_pods
from agent.reconcile.start_checks import make_enforcer, make_layout, open_tree
from agent.reconcile.tasks import read_tasks
from agent.reconcile.withheld import read_withheld
from agent.runtimes import RuntimeFiles
from agent.server.configured import GoverningVersion, situate
from agent.server.controller import Controller
from agent.server.errors import StartError, missing_extra
from agent.server.events import HistoryRecorder
from agent.server.gauges import Metrics
from agent.server.handlers import Api
from agent.server.intake import PodIntake, SourceAdmissions
from agent.server.kernel import HostProbes, KernelEnforcement
from agent.server.lifecycle import Companion, HostInputs, Listeners, Service
from agent.server.observations import Observations, Parts
from agent.server.pod_records import details
from agent.server.providers import device_plugins, make_providers, own_devices
from agent.server.queue import Worker
from agent.server.restart import orphaned_since, recover_pods, restored_state
from agent.server.sockets import Address, group_id, open_tcp, open_unix, tls_context
from agent.server.state import AgentState, AtStart
from agent.server.steps import Steps
from agent.server.watches import CgroupChanges, directory_changes
from agent.sources.manifests import ManifestDirectory, ManifestFormat
from agent.state.history import HistoryBounds, HistoryStore
from agent.state.store import Store
from cgroupfs.names import Driver, Layout, Tier
from cgroupfs.tree import counts_huge_pages
from cgroupfs.writers import CgroupWriters, Fanotify
from sysfs.discover import discover
from sysfs.uevents import watch_hotplug

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from agent.clock import Clock
    from agent.config.model import Config
    from agent.managers.recovery import ObservedPod
    from agent.managers.resource_manager import ResourceManager
    from agent.reconcile.diff import WriterOf
    from agent.reconcile.tasks import Task
    from agent.runtimes import ContainerIdentifier
    from agent.server.configured import ConfiguredHost
    from agent.server.observations import DevicesGiven
    from agent.server.providers import ProviderFactory
    from agent.server.service_manager import ServiceManager
    from agent.sources.source import PodSource
    from agent.state.store import Files, LoadResult
    from cgroupfs.tree import CgroupTree
    from sysfs.host import Host, WithheldCpus
    from sysfs.mask import Mask
    from systemd.bus import Systemd

log = structlog.get_logger(__name__)

#: Processes are those of the running kernel, whatever `agent.sysfsRoot` is.
PROC: Final = Path("/proc")
#: As the kubelet makes the directory: for its user and group alone.
_DIRECTORY_MODE: Final = 0o750
_ONLINE_FILES: Final = ("sys/devices/system/cpu/online", "sys/devices/system/node/online")


class Fakes(Struct, frozen=True):
    """Replacements for parts of the system, for tests and the demo.

    `tree` replaces the cgroup mount, `systemd` its bus, `tasks` the tasks of the host, `files` the
    files of the checkpoint. `root` is where a kubelet is looked for in proc (None: beside a `tree`
    nowhere). `runtimes` is the root of the files of container runtimes. With `live`
    False neither netlink nor inotify on cgroups is used. `writer_of` knows who wrote the files of
    `tree`.
    """

    tree: CgroupTree | None = None
    systemd: Systemd | None = None
    live: bool = True
    tasks: Callable[[], Iterable[Task]] | None = None
    root: Path | None = None
    runtimes: Path | None = None
    files: Files | None = None
    writer_of: WriterOf = unknown_writer


class SourceInputs(Struct, frozen=True):
    """What sources of pods are made of.

    `cgroups` returns the uids of the pods that have a cgroup, and for those that it gets one with
    processes; raises `OSError`. `same_boot`: the host was not booted since the checkpoint.
    """

    config: Config
    clock: Clock
    cgroups: Callable[[Collection[str]], Collection[str]]
    same_boot: bool


def manifest_directory(inputs: SourceInputs) -> PodSource | None:
    """Return the manifest directory (`staticPodPath`) as a source of pods, None without one."""
    config = inputs.config
    if config.static_pod_path is None:
        return None
    limit = config.agent.limits.manifest_bytes
    load = partial(load_pod, max_bytes=limit, pod_level=config.gates.pod_level_resources)
    return ManifestDirectory(config.static_pod_path, ManifestFormat(load, limit), directory_changes)


#: Makes a source of pods as configured, None if it is not configured; raises `StartError`.
SourceFactory: TypeAlias = "Callable[[SourceInputs], PodSource | None]"


class Surroundings(Struct, frozen=True):
    """What companions are made of.

    `config` is as it was given. `intakes` are those of all sources of pods, `noted` are the
    conditions that `Plugs.check` returned. Processes of a kubelet are looked for below `root`/proc,
    nowhere if it is None. `govern` returns the host under the rules of a version, and raises
    `ConfigError` where the configuration does not fit it.
    """

    config: Config
    controller: Controller
    intakes: tuple[PodIntake, ...]
    noted: Mapping[str, str]
    root: Path | None
    govern: Callable[[GoverningVersion | None], ConfiguredHost]


class Beside(Struct, frozen=True):
    """What there is beside the agent on this host.

    `conditions` are what is not as it should be, by subject. `governing` is for a configuration
    that does not say whose rules hold.
    """

    conditions: Mapping[str, str] = MappingProxyType({})
    governing: GoverningVersion | None = None


class Plugs(Struct, frozen=True, kw_only=True):
    """What an agent is put together of, beside itself; each entry does nothing if not configured.

    All of them raise `StartError`.
    """

    #: The sources of pods beside the API, in the order in which they are read.
    sources: tuple[SourceFactory, ...] = (manifest_directory,)
    managers: tuple[ResourceManager, ...] = MANAGERS
    #: The providers of devices, in the order in which they get a resource that several offer.
    providers: tuple[ProviderFactory, ...] = (own_devices, device_plugins)
    #: Return what there is beside the agent; `root` as of `Surroundings`.
    check: Callable[[Config, Path | None], Beside]
    #: Return the devices that another manager of devices on this host gives.
    given_devices: Callable[[Config, Worker], DevicesGiven | None]
    companions: Callable[[Surroundings], Iterable[Companion]]


class Wiring:
    """A service and the resources that it keeps open; use it as a context manager.

    The cgroup tree and the state directory are locked. Raises errors that keep the agent from
    starting: `StartError`, `EnforcementStartError`, `CgroupRootError`, `TreeLockedError`,
    `StateDirectoryError`, `CheckpointIOError`, `ConfigError`, `SysfsError`.
    """

    def __init__(
        self,
        config: Config,
        manager: ServiceManager,
        clock: Clock,
        plugs: Plugs,
        fakes: Fakes | None = None,
    ) -> None:
        self._given = config
        self._plugs = plugs
        self._managers = (*managers_beside_kubelet(config), *plugs.managers)
        self._fakes = fakes or Fakes()
        self._warned: frozenset[str] = frozenset()
        self._unreadable: str | None = None
        self._boot_id = running_boot(PROC)
        self._root = self._fakes.root or (None if self._fakes.tree is not None else Path("/"))
        found = plugs.check(config, self._root)
        self._noted = found.conditions
        self._begin_with(found.governing)
        config = self._config
        with ExitStack() as opened:
            store = Store(config.agent.state_directory, self._fakes.files)
            self._store = opened.enter_context(store)
            self._metrics = Metrics(self._managers, config.agent.metrics.names)
            self._history = self._make_history(clock, opened)
            self._tree = self._open_tree()
            opened.callback(self._tree.lock().release)
            self._layout = self._make_layout()
            self._finder = self._make_finder()
            self._loaded = self._store.load()
            if found.governing is None:
                self._begin_with(self._of_last_decision())
            config = self._config
            self._running = self._observe_pods()
            state = self._loaded.state
            saved = {} if state is None else state.ledger.allocations
            self._providers = make_providers(plugs.providers, config, saved, clock, self._metrics)
            allocated = bool(self._running) or _has_pods(self._loaded)
            configured = situate(
                config,
                self._read_host(known=()),
                allocated=allocated,
                managers=self._managers,
                offer=self._providers.offer(),
                cordon=NO_CORDON if state is None else state.cordons.total,
            )
            self._configured = replace(configured, governing=self._governing)
            self.listeners = self._open_listeners(opened)
            self.controller = self._restore(clock, opened)
            self.listeners = with_pod_resources(self.listeners, config, self.controller)
            self._intakes = self._register(clock)
            self.service = Service(
                self.controller,
                self._api(),
                self.listeners,
                self._inputs(opened),
                manager,
                clock,
                config.cpu_manager_reconcile_period,
            )
            self._opened = opened.pop_all()

    def __enter__(self) -> Service:
        return self.service

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def _make_history(self, clock: Clock, opened: ExitStack) -> HistoryRecorder | None:
        config = self._config.agent.history
        if not config.max_bytes:
            return None
        bounds = HistoryBounds(config.max_bytes, config.max_age)
        directory = self._config.agent.state_directory
        recorder = HistoryRecorder(
            HistoryStore(directory, bounds, self._store.check), clock, self._metrics.counters
        )
        opened.callback(recorder.close)
        return recorder

    def _open_tree(self) -> CgroupTree:
        if self._fakes.tree is not None:
            return self._fakes.tree
        return open_tree(self._config.agent.cgroup_mount)

    def _observe_pods(self) -> tuple[ObservedPod, ...]:
        """Return the running pods if the checkpoint may not know all of them, else none.

        The checkpoint may be lost, or older than the pods. Raises `OSError` if the tree cannot be
        read and there is no checkpoint.
        """
        saved = self._loaded.state
        try:
            if saved is not None:
                known = saved.ledger.allocations.keys() | orphaned_since(saved, self._boot_id)
                if pod_uids(self._tree, self._layout) <= known:
                    return ()
            return seen_pods(self._tree, self._layout, self._finder)
        except OSError as error:
            if saved is None:
                raise
            self._unreadable = (
                f"the cgroups of running pods cannot be read: {error.strerror or error}; pods that "
                "the checkpoint does not know may be running; see the kernel log, then restart the "
                "agent"
            )
            log.error("running pods cannot be read", why=self._unreadable)  # noqa: TRY400  # not a defect of the agent
            return ()

    def _read_host(self, known: tuple[WithheldCpus, ...] | None = None) -> Host:
        # Devices of pods are listed in the configuration; the host's own list is for display only.
        host = discover(self._config.agent.sysfs_root, devices=False)
        for warning in sorted({*host.warnings} - self._warned):
            log.warning("unexpected host data", why=warning)
        self._warned = frozenset(host.warnings)
        return replace(host, withheld=self._read_withheld(host.online, known))

    def _read_withheld(
        self, online: Mask, known: tuple[WithheldCpus, ...] | None = None
    ) -> tuple[WithheldCpus, ...]:
        """Return what pods cannot have of the online CPUs; `known` where no cgroup can be read."""
        if known is None:
            known = self.controller.state.configured.host.withheld
        kubelet = self._config.agent.kubelet.enabled
        try:
            return read_withheld(self._tree, self._layout.pods(), online, beside_kubelet=kubelet)
        except OSError:  # the comparison, which reads all of them, says so
            return known

    def _open_listeners(self, opened: ExitStack) -> Listeners:
        agent, metrics = self._config.agent, self._config.agent.metrics
        address = Address(metrics.address, metrics.port, metrics.tls_certificate, metrics.tls_key)
        tls = tls_context(address)
        self.group = None if agent.socket_group is None else group_id(agent.socket_group)
        admission = open_unix(agent.socket_path, self.group)
        opened.callback(admission.close)
        monitoring = open_tcp(address)
        opened.callback(monitoring.close)
        return Listeners(admission, monitoring, tls)

    def _make_layout(self) -> Layout:
        """Return where pods stand; a shared cgroup that was asked for before is still used."""
        config = self._config
        layout = make_layout(config.cgroup_driver, config.cgroup_root)
        shares = config.agent.shared_cgroup or self._tree.exists(layout.tier(Tier.SHARED))
        return replace(layout, shares=shares and not config.agent.kubelet.enabled)

    def _restore(self, clock: Clock, opened: ExitStack) -> Controller:
        systemd = self._systemd(opened)
        isolation = self._isolation(systemd)
        enforcer = make_enforcer(
            self._tree,
            self._layout,
            systemd,
            self._finder,
            self._enforced(),
            self._writer_of(opened),
            beside_kubelet=self._config.agent.kubelet.enabled,
            beside=isolation.slices if isolation.active else no_host_settings,
            partitions=lambda target, all_pods: isolation.partitions.wanted(
                target.ledger.allocations, target.bindings, all_pods
            ),
        )
        prepared = enforcer.prepare()
        config, progress = self._config, Progress(clock)
        assigned = config.agent.assigned_files
        worker = Worker(progress)
        durable, changed = restored_state(self._configured, self._loaded, self._boot_id)
        state = AgentState(
            self._configured,
            durable,
            AtStart(
                boot_id=self._boot_id,
                started=clock.time(),
                directory=config.agent.state_directory,
                reconcile_period=config.cpu_manager_reconcile_period,
                exported_containers=config.agent.metrics.containers,
                changed_before=changed,
            ),
            Observations(unenforced=prepared.differences),
            Parts(
                providers=self._providers,
                kubelet_devices=self._plugs.given_devices(config, worker),
                cdi_files=CdiFiles(config.agent.cdi_directory),
                assigned_files=AssignedFiles(assigned) if assigned else None,
                history=self._history,
                isolation=isolation,
                progress=progress,
            ),
        )
        recover_pods(state, self._loaded, self._running)
        state.observed.conditions.update(self._noted)
        if self._unreadable is not None:
            state.observed.conditions["running pods"] = self._unreadable
        for note in prepared.notes:
            log.warning("cgroup controller unavailable", note=note)
        if state.observed.unenforced:
            log.error("pods cgroup not ready", conditions=details(state.observed.unenforced))
        kernel = KernelEnforcement(
            enforcer,
            self._tree,
            self._layout,
            self._config.agent.cgroup_mount,
            PROC,
            _own_cgroup(),
            HostProbes(self._tasks(), clock.monotonic, state.parts.assigned_files),
            isolation=isolation,
        )
        steps = Steps(state, self._metrics, kernel, self._store, worker, clock)
        controller = Controller(steps)
        controller.note_invalid()
        return controller

    def _isolation(self, systemd: Systemd | None) -> HostIsolation:
        agent = self._config.agent
        return HostIsolation(
            agent.isolation,
            HostPlaces(agent.sysfs_root, self._tree, systemd),
            Originals(agent.state_directory, self._boot_id, self._fakes.files),
            units=systemd is not None and self._layout.driver is Driver.SYSTEMD,
            pods=self._layout.pods(),
        )

    def _writer_of(self, opened: ExitStack) -> WriterOf:
        """Return who names the processes that write cgroup files, where the kernel reports them."""
        if self._fakes.tree is not None:
            return self._fakes.writer_of
        mount = self._config.agent.cgroup_mount
        try:
            events = Fanotify(mount)
        except OSError as error:
            log.info("writers of cgroup files not known", why=error.strerror)
            return unknown_writer
        writers = CgroupWriters(mount, PROC, events)
        opened.callback(writers.close)
        log.info("writers of cgroup files are recorded")
        return writers.writer_of

    def _enforced(self) -> EnforcedControllers:
        """Return what is written into cgroups, and by which settings.

        Beside a kubelet the settings are its own, and quotas, which the agent writes where there
        are exclusive CPUs alone, have the kernel's period.
        """
        config, nodes = self._config, self._configured.host.nodes
        sizes = {page.size_bytes for node in nodes for page in node.hugepages}
        enforced = EnforcedControllers(
            frozenset(map(str, config.agent.enforce)), tuple(sorted(sizes))
        )
        if config.agent.kubelet.enabled:
            return enforced
        tiered = config.memory_reservation_policy is MemoryReservationPolicy.TIERED
        period_us = round(config.cpu_cfs_quota_period * 1e6)
        return replace(
            enforced,
            period_us=period_us if config.cpu_cfs_quota else None,
            reserves_memory=tiered and config.memory_qos,
            throttling=config.throttling_factor,
            reserved=reserved_amounts(config, self._configured.rules.machine),
            limits_all_pods=NodeAllocatable.PODS in config.enforce_node_allocatable,
            counts_huge_pages=self._fakes.tree is None and counts_huge_pages(PROC),
            most_processes=0 if self._fakes.tree is not None else most_processes(PROC),
        )

    def _tasks(self) -> Callable[[], Iterable[Task]]:
        """Return the reader of tasks; tasks of this kernel are not in a fake tree."""
        if self._fakes.tasks is not None:
            return self._fakes.tasks
        return partial(read_tasks, PROC) if self._fakes.tree is None else tuple

    def _make_finder(self) -> ContainerIdentifier | None:
        """Return the identifier of containers; containers of this host are not in a fake tree."""
        if self._fakes.tree is not None and self._fakes.runtimes is None:
            return None
        root = self._fakes.runtimes or Path("/")
        return RuntimeFiles(root, lambda why: log.warning("runtime file unusable", why=why))

    def _systemd(self, opened: ExitStack) -> Systemd | None:
        if self._layout.driver is Driver.CGROUPFS or self._fakes.systemd is not None:
            return self._fakes.systemd
        from systemd.bus import SystemBus  # noqa: PLC0415  # the cgroupfs driver saves its memory

        bus = SystemBus(answered=moved)
        opened.callback(bus.close)
        return bus

    def _api(self) -> Api:
        limits, group = self._config.agent.limits, self.group
        size = limits.message_bytes
        return Api(self.controller, _topology, self._config, group, size, PROC)

    def _inputs(self, opened: ExitStack) -> HostInputs:
        live = self._fakes.live
        return HostInputs(
            discover=self._configure_host,
            fingerprint=lambda: _fingerprint(self._config.agent.sysfs_root),
            withheld=self._read_withheld,
            hotplug=watch_hotplug if live and str(self._config.agent.sysfs_root) == "/" else None,
            cgroups=self._cgroup_changes(opened) if live else None,
            intakes=self._intakes,
            offered=self._take_offer if self._providers.all else None,
            companions=tuple(self._plugs.companions(self._surroundings())),
        )

    def _surroundings(self) -> Surroundings:
        return Surroundings(
            self._given, self.controller, self._intakes, self._noted, self._root, self._govern
        )

    def _of_last_decision(self) -> GoverningVersion | None:
        """Return by whose rules that was made, for where the kubelet does not say its version."""
        state = self._loaded.state
        saved = "" if state is None else state.policy.get(VERSION_KEY, "")
        if not self._given.agent.kubelet.enabled or saved not in set(KubernetesVersion):
            return None
        return GoverningVersion(KubernetesVersion(saved), "the last decision")

    def _begin_with(self, governing: GoverningVersion | None) -> None:
        """Go by these rules, or by the newest where the configuration does not fit these."""
        try:
            self._govern_by(governing)
        except ConfigError as error:
            self._noted = {**self._noted, VERSION_KEY: str(error)}
            log.error("configuration does not fit the version", why=str(error))  # noqa: TRY400  # not a defect of the agent
            self._govern_by(None)

    def _govern_by(self, governing: GoverningVersion | None) -> None:
        """Go by the rules of the configured version, else of this; raises `ConfigError`."""
        given = self._given
        if given.kubernetes_version is not None:
            governing = GoverningVersion(given.kubernetes_version, VERSION_KEY)
        governing = governing or GoverningVersion()
        config = replace(given, kubernetes_version=governing.version)
        before = find_problems(given)
        if problems := [each for each in find_problems(config) if each not in before]:
            source = f"configuration under {config.version} ({governing.source})"
            raise ConfigError(source, tuple(problems))
        self._config, self._governing = config, governing

    def _govern(self, governing: GoverningVersion | None) -> ConfiguredHost:
        self._govern_by(governing)
        return self._configure_host()

    def _configure_host(self) -> ConfiguredHost:
        return self._situated(self._read_host())

    def _take_offer(self) -> ConfiguredHost:
        """Return the policy with the devices that are offered now, on the host as last read."""
        return self._situated(self.controller.state.configured.host)

    def _situated(self, host: Host) -> ConfiguredHost:
        state = self.controller.state
        found = situate(
            self._config,
            host,
            state.configured,
            managers=self._managers,
            offer=self._providers.offer(),
            cordon=state.durable.cordons.total,
        )
        # Where the configuration does not fit the host, the former policy stays, and its version.
        return found if found.mismatches else replace(found, governing=self._governing)

    def _cgroup_changes(self, opened: ExitStack) -> CgroupChanges:
        changes = CgroupChanges(self._config.agent.cgroup_mount)
        opened.callback(changes.close)
        return changes

    def _register(self, clock: Clock) -> tuple[PodIntake, ...]:
        """Register the sources of pods that are configured, and return their intakes."""
        cgroups, saved = partial(pod_uids, self._tree, self._layout), self._loaded.state
        same_boot = saved is not None and bool(self._boot_id) and saved.boot_id == self._boot_id
        inputs = SourceInputs(self._config, clock, cgroups, same_boot)
        made = [source for make in self._plugs.sources if (source := make(inputs)) is not None]
        for source in made:
            self.controller.state.register(source)
        admissions = SourceAdmissions(self.controller)
        return tuple(PodIntake(source, admissions) for source in made)


def with_pod_resources(listeners: Listeners, config: Config, controller: Controller) -> Listeners:
    """Return the listeners with that of podresources, unchanged if it is not configured.

    Its directory is created. Raises `StartError` if another process listens on the socket, if the
    path cannot be used, or without the extra grpc.
    """
    path, version = config.agent.pod_resources.socket, config.agent.pod_resources.version
    if path is None:
        return listeners
    try:
        from agent.server.pod_resources import PodResourcesListener  # noqa: PLC0415  # needs the extra
    except ImportError as error:
        raise missing_extra("agent.podResources.socket", error) from error
    _make_directory(path.parent)
    counters = controller.metrics.counters
    listener = PodResourcesListener(path, controller.state, counters, controller.clock, version)
    return replace(listeners, pod_resources=listener)


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True)
        path.chmod(_DIRECTORY_MODE)
    except FileExistsError:
        return
    except OSError as error:
        remedy = f"create the directory: install -d -m 0750 {path}"
        raise StartError(f"directory {path}", error.strerror or str(error), remedy) from error


def _own_cgroup() -> str:
    try:
        return cgroup_of_pid(PROC, os.getpid())
    except BindingError:  # no cgroup v2 (emulated tree), or another cgroup namespace
        return ""


def most_processes(proc: Path) -> int:
    """Return how many processes the kernel allows (the kubelet's pidlimit.Stats); 0: not known."""
    kernel = proc / "sys/kernel"
    texts = (_text(kernel / name).strip() for name in ("pid_max", "threads-max"))
    return min((int(text) for text in texts if text.isdigit()), default=0)


def _has_pods(loaded: LoadResult) -> bool:
    return loaded.state is not None and bool(loaded.state.ledger.allocations)


def _topology(host: Host) -> bytes:
    return json.dumps(topology_view(host)).encode() + b"\n"


def _fingerprint(root: Path) -> str:
    """Return the online CPUs and nodes as text; cheap enough for every reconcile."""
    return "\n".join(_text(root / file) for file in _ONLINE_FILES)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
