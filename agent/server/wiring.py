"""Puts an agent together: opens, checks and restores what it needs, in nine steps (`Wiring`).

In go a configuration, the plugs, and replacements of parts of the host for tests; out comes a
`Service` that is ready to run. Until it runs, only the cgroup above all pods is written. If a step
fails, what was opened before it is closed, and the error keeps the agent from starting.
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog
from msgspec.structs import replace

from agent.api.topology import topology_view
from agent.config.model import VERSION_KEY, MemoryReservationPolicy, NodeAllocatable
from agent.config.reservations import reserved_amounts
from agent.devices.cdi_files import CdiFiles
from agent.isolation.host import HostIsolation
from agent.isolation.originals import Originals, running_boot
from agent.isolation.places import HostPlaces
from agent.managers.policy import NO_CORDON
from agent.progress import Progress, progressed
from agent.reconcile.assigned import AssignedFiles
from agent.reconcile.binding import cgroup_of_pid
from agent.reconcile.desired import no_host_settings
from agent.reconcile.enforced import EnforcedControllers
from agent.reconcile.report import BindingError
from agent.reconcile.running_pods import pod_uids, seen_pods
from agent.reconcile.start_checks import make_enforcer, make_layout
from agent.server.configured import situate
from agent.server.controller import Controller
from agent.server.errors import StartError, missing_extra
from agent.server.exposition import Metrics
from agent.server.governing import Governor, governed_at_start
from agent.server.handlers import Api
from agent.server.history_recorder import HistoryRecorder
from agent.server.host_parts import PROC, open_host
from agent.server.host_reader import HostReader
from agent.server.intake import PodIntake
from agent.server.kernel import HostProbes, KernelEnforcement
from agent.server.lifecycle import HostInputs, Service
from agent.server.listening import Listeners
from agent.server.observations import Observations, Parts
from agent.server.plugs import CompanionInputs, Fakes, SourceInputs
from agent.server.pod_records import details
from agent.server.providers import make_providers
from agent.server.queue import Worker
from agent.server.restart import orphaned_since, recover_pods, restored_state
from agent.server.sockets import Address, group_id, open_tcp, open_unix, tls_context
from agent.server.source_admissions import SourceAdmissions
from agent.server.state import AgentState, AtStart
from agent.server.steps import Steps
from agent.server.watches import CgroupChanges
from agent.state.history import HistoryBounds, HistoryStore
from agent.state.store import Store
from cgroupfs.names import Driver, Layout, Tier
from sysfs.uevents import watch_hotplug

if TYPE_CHECKING:
    from pathlib import Path

    from agent.clock import Clock
    from agent.config.model import Config
    from agent.devices.providers import Providers
    from agent.managers.recovery import ObservedPod
    from agent.reconcile.diff import Difference
    from agent.reconcile.enforcer import Enforcer
    from agent.server.configured import ConfiguredHost
    from agent.server.plugs import Plugs
    from agent.server.service_manager import ServiceManager
    from sysfs.host import Host
    from systemd.bus import Systemd

log = structlog.get_logger(__name__)

#: The mode of the directory of podresources: as the kubelet makes it, for its user and group alone.
_DIRECTORY_MODE: Final = 0o750


class Wiring:
    """A service and the resources that it keeps open; use it as a context manager.

    The cgroup tree and the state directory are locked. Raises errors that keep the agent from
    starting: `StartError`, `EnforcementStartError`, `CgroupRootError`, `TreeLockedError`,
    `StateDirectoryError`, `CheckpointIOError`, `ConfigError`, `SysfsError`, and `OSError` where
    neither the checkpoint nor the cgroups say which pods there are.
    """

    def __init__(
        self,
        config: Config,
        manager: ServiceManager,
        clock: Clock,
        plugs: Plugs,
        fakes: Fakes | None = None,
    ) -> None:
        #: The configuration as it was given; `_config` is that under the version that governs.
        self._given = config
        self._plugs, self._clock = plugs, clock
        self._fakes = fakes or Fakes()
        self._boot_id = running_boot(PROC)
        # 1. Find what works beside the agent; the start ends here if it must not be there.
        self._neighbour = plugs.check(config, self._fakes.kubelet_root)
        self._managers = (*self._neighbour.managers, *plugs.managers)
        #: Conditions about the neighbour and its version, by subject; companions get them, too.
        self._neighbour_conditions = dict(self._neighbour.conditions)
        #: All other conditions of the start, by subject.
        self._start_conditions = dict[str, str]()
        with ExitStack() as opened:
            # 2. Lock the state directory and the cgroup tree: each has one agent.
            self._store = Store(config.agent.state_directory, self._fakes.files)
            opened.enter_context(self._store)
            self._metrics = Metrics(self._managers, config.agent.metrics.names)
            self._history = self._make_history(opened)
            self._host = open_host(config.agent, self._fakes, opened)
            opened.callback(self._host.tree.lock().release)
            # 3. Load the checkpoint, and choose the version of Kubernetes that governs.
            self._loaded = self._store.load()
            self._governed, misfit = governed_at_start(config, self._neighbour, self._loaded.state)
            if misfit:
                self._neighbour_conditions[VERSION_KEY] = misfit
            # 4. Observe the running pods, if the checkpoint may lack any.
            self._layout = self._make_layout()
            self._running = self._observe_pods()
            # 5. Read the host; make the policy from it and from the devices that are offered.
            self._providers = self._make_providers()
            self._reader = self._make_reader()
            self._configured = self._configure()
            # 6. Listen: an address in use ends the start before any cgroup is written.
            listeners = self._open_listeners(opened)
            # 7. Make the cgroup of all pods, restore the state, and listen for podresources.
            self.controller = self._make_controller(opened)
            self.listeners = with_pod_resources(listeners, self._config, self.controller)
            # 8. Register the sources of pods.
            self._intakes = self._register_sources()
            # 9. Hand all of it to the service.
            self.service = Service(
                self.controller,
                self._make_api(),
                self.listeners,
                self._make_inputs(opened),
                manager,
                clock,
                self._config.cpu_manager_reconcile_period,
            )
            self._opened = opened.pop_all()

    def __enter__(self) -> Service:
        return self.service

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    @property
    def _config(self) -> Config:
        return self._governed.config

    def _make_history(self, opened: ExitStack) -> HistoryRecorder | None:
        config, directory = self._given.agent.history, self._given.agent.state_directory
        if not config.max_bytes:
            return None
        bounds = HistoryBounds(config.max_bytes, config.max_age)
        store = HistoryStore(directory, bounds, self._store.check)
        recorder = HistoryRecorder(store, self._clock, self._metrics.counters)
        opened.callback(recorder.close)
        return recorder

    def _make_layout(self) -> Layout:
        """Return where pods stand.

        Where no neighbour makes cgroups, a shared cgroup that exists is used, configured or not.
        """
        config = self._config
        layout = make_layout(config.cgroup_driver, config.cgroup_root)
        shares = config.agent.shared_cgroup or self._host.tree.exists(layout.tier(Tier.SHARED))
        return replace(layout, shares=shares and not self._neighbour.makes_cgroups)

    def _observe_pods(self) -> tuple[ObservedPod, ...]:
        """Return the running pods if the checkpoint may lack some of them, else none.

        The checkpoint may be lost, or older than the pods. Raises `OSError` if the tree cannot be
        read and there is no checkpoint; with a checkpoint that is a condition.
        """
        saved = self._loaded.state
        try:
            if saved is not None:
                recorded = saved.ledger.allocations.keys() | orphaned_since(saved, self._boot_id)
                if pod_uids(self._host.tree, self._layout) <= recorded:
                    return ()
            return seen_pods(self._host.tree, self._layout, self._host.identifier)
        except OSError as error:
            if saved is None:
                raise
            why = (
                f"the cgroups of running pods cannot be read: {error.strerror or error}; pods that "
                "the checkpoint does not know may be running; see the kernel log, then restart the "
                "agent"
            )
            self._start_conditions["running pods"] = why
            log.error("running pods cannot be read", why=why)  # noqa: TRY400  # not a defect of the agent
            return ()

    def _make_providers(self) -> Providers:
        state = self._loaded.state
        allocations = {} if state is None else state.ledger.allocations
        return make_providers(
            self._plugs.providers, self._config, allocations, self._clock, self._metrics
        )

    def _make_reader(self) -> HostReader:
        return HostReader(
            self._config.agent.sysfs_root,
            self._host.tree,
            self._layout.pods(),
            made_by_another=self._neighbour.makes_cgroups,
        )

    def _configure(self) -> ConfiguredHost:
        """Return the host with its policy; raises `ConfigError` and `SysfsError`.

        Where pods run or have allocations, a configuration that does not fit the host raises
        nothing: the pods keep what they have (`situate`).
        """
        state = self._loaded.state
        configured = situate(
            self._config,
            self._reader.read(),
            allocated=bool(self._running) or (state is not None and bool(state.ledger.allocations)),
            managers=self._managers,
            offer=self._providers.offer(),
            cordon=NO_CORDON if state is None else state.cordons.total,
        )
        return replace(configured, governing=self._governed.governing)

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

    def _make_controller(self, opened: ExitStack) -> Controller:
        """Return the controller of the restored state, with the cgroup of all pods prepared."""
        systemd = self._open_systemd(opened)
        isolation = self._make_isolation(systemd)
        enforcer = self._make_enforcer(systemd, isolation)
        prepared = enforcer.prepare()
        worker = Worker(progress := Progress(self._clock))
        state = self._restore_state(isolation, progress, worker, prepared.differences)
        for note in prepared.notes:
            log.warning("cgroup controller unavailable", note=note)
        if prepared.differences:
            log.error("pods cgroup not ready", conditions=details(prepared.differences))
        kernel = KernelEnforcement(
            enforcer,
            self._host.tree,
            self._layout,
            self._config.agent.cgroup_mount,
            PROC,
            _own_cgroup(),
            HostProbes(
                self._host.tasks,
                self._clock.monotonic,
                state.parts.assigned_files,
                self._config.agent.sysfs_root,
            ),
            isolation=isolation,
        )
        controller = Controller(
            Steps(state, self._metrics, kernel, self._store, worker, self._clock)
        )
        controller.note_invalid()
        return controller

    def _restore_state(
        self,
        isolation: HostIsolation,
        progress: Progress,
        worker: Worker,
        unenforced: tuple[Difference, ...],
    ) -> AgentState:
        """Return the state of the checkpoint, with the running pods that it lacked."""
        config, assigned = self._config, self._config.agent.assigned_files
        durable, changed = restored_state(self._configured, self._loaded, self._boot_id)
        state = AgentState(
            self._configured,
            durable,
            AtStart(
                boot_id=self._boot_id,
                started=self._clock.time(),
                directory=config.agent.state_directory,
                reconcile_period=config.cpu_manager_reconcile_period,
                exported_containers=config.agent.metrics.containers,
                changed_before=changed,
            ),
            Observations(unenforced=unenforced),
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
        state.observed.conditions.update(self._neighbour_conditions)
        state.observed.conditions.update(self._start_conditions)
        return state

    def _make_enforcer(self, systemd: Systemd | None, isolation: HostIsolation) -> Enforcer:
        return make_enforcer(
            self._host.tree,
            self._layout,
            systemd,
            self._host.identifier,
            self._enforced(),
            self._host.writer_of,
            beside_kubelet=self._neighbour.makes_cgroups,
            beside=isolation.slices if isolation.active else no_host_settings,
            partitions=lambda target, all_pods: isolation.partitions.desired(
                target.ledger.allocations, target.bindings, all_pods
            ),
        )

    def _make_isolation(self, systemd: Systemd | None) -> HostIsolation:
        agent = self._config.agent
        return HostIsolation(
            agent.isolation,
            HostPlaces(agent.sysfs_root, self._host.tree, systemd),
            Originals(agent.state_directory, self._boot_id, self._fakes.files),
            units=systemd is not None and self._layout.driver is Driver.SYSTEMD,
            pods=self._layout.pods(),
        )

    def _enforced(self) -> EnforcedControllers:
        """Return what is written into cgroups, and by which settings.

        A neighbour that makes cgroups has settings of its own. The agent then writes quotas only
        where there are exclusive CPUs, with the kernel's period.
        """
        config, nodes = self._config, self._configured.host.nodes
        sizes = {page.size_bytes for node in nodes for page in node.hugepages}
        enforced = EnforcedControllers(
            frozenset(map(str, config.agent.enforce)), tuple(sorted(sizes))
        )
        if self._neighbour.makes_cgroups:
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
            counts_huge_pages=self._host.counts_huge_pages,
            most_processes=self._host.most_processes,
        )

    def _open_systemd(self, opened: ExitStack) -> Systemd | None:
        if self._layout.driver is Driver.CGROUPFS or self._fakes.systemd is not None:
            return self._fakes.systemd
        from systemd.bus import SystemBus  # noqa: PLC0415  # the cgroupfs driver saves its memory

        bus = SystemBus(answered=progressed)
        opened.callback(bus.close)
        return bus

    def _make_api(self) -> Api:
        limits = self._config.agent.limits
        return Api(
            self.controller,
            _topology,
            self.group,
            limits.message_bytes,
            PROC,
            no_requests=self._neighbour.no_requests,
        )

    def _make_inputs(self, opened: ExitStack) -> HostInputs:
        live, sysfs_root = self._fakes.live, self._config.agent.sysfs_root
        state, reader = self.controller.state, self._reader
        governor = Governor(
            self._given, self._governed, state, reader, self._managers, self._providers
        )
        inputs = CompanionInputs(
            self._given,
            self.controller,
            self._intakes,
            self._neighbour_conditions,
            self._fakes.kubelet_root,
            governor.govern,
        )
        return HostInputs(
            discover=governor.read_host,
            fingerprint=reader.fingerprint,
            withheld=lambda online: reader.withheld(online, state.configured.host.withheld),
            hotplug=watch_hotplug if live and str(sysfs_root) == "/" else None,
            cgroups=self._watch_cgroups(opened) if live else None,
            intakes=self._intakes,
            offered=governor.take_offer if self._providers.all else None,
            companions=tuple(self._plugs.companions(inputs)),
        )

    def _watch_cgroups(self, opened: ExitStack) -> CgroupChanges:
        changes = CgroupChanges(self._config.agent.cgroup_mount)
        opened.callback(changes.close)
        return changes

    def _register_sources(self) -> tuple[PodIntake, ...]:
        """Register the sources of pods that are configured, and return their intakes."""
        cgroups, saved = partial(pod_uids, self._host.tree, self._layout), self._loaded.state
        same_boot = saved is not None and bool(self._boot_id) and saved.boot_id == self._boot_id
        inputs = SourceInputs(self._config, self._clock, cgroups, same_boot)
        factories = self._plugs.sources
        sources = [source for make in factories if (source := make(inputs)) is not None]
        for source in sources:
            self.controller.state.observed.sources.register(source)
        admissions = SourceAdmissions(self.controller)
        return tuple(PodIntake(source, admissions) for source in sources)


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


def _topology(host: Host) -> bytes:
    return json.dumps(topology_view(host)).encode() + b"\n"
