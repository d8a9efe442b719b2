"""The state of the running agent: what is configured, what is saved, and what was observed.

What is configured is the host as last read and the effective policy that follows from it and from
the configuration (`situate`).
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from agent import __version__
from agent.api.documents import ConditionDocument
from agent.api.views import unprepared_line
from agent.clock import SystemClock
from agent.config.model import Config, ConfigError
from agent.config.resolve import admits_nothing, resolve, resolve_what_fits
from agent.devices.cdi import CdiFiles
from agent.devices.provider import NO_OFFER
from agent.devices.providers import Providers
from agent.isolation.host import NOT_APPLIED
from agent.managers.admission import admit
from agent.managers.allocation import API, Origin, Source
from agent.managers.cpu.manager import shared_cpus, shared_pool
from agent.managers.decision import Decision, Reason, Rejection
from agent.managers.device.kubelet import NOT_LISTED, KubeletListing
from agent.managers.machine import Machine
from agent.managers.policy import NO_CORDON
from agent.managers.quality import invalid_allocations
from agent.managers.recovery import describe_recovered
from agent.managers.registry import MANAGERS
from agent.managers.rules import EffectivePolicy, with_cordon
from agent.managers.versions import NEWEST, KubernetesVersion
from agent.pods.model import full_name
from agent.progress import Progress
from agent.reconcile.exclusivity import intrusions
from agent.reconcile.target import Desired, lacking, usable
from agent.server.conditions import (
    ConditionTimes,
    ConditionType,
    camel_case,
    contested,
    not_allocatable,
    not_enforced,
    not_exclusive,
    not_found,
    not_valid,
    without_consequences,
)
from agent.server.errors import ContainerNotFoundError, PodNotFoundError
from agent.server.gauges import GaugeInput
from agent.server.pod_records import PodRecords
from agent.sources.source import ADMITTED, ENTRY_STATES, PodNames
from agent.state.checkpoint import host_facts, policy_summary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from agent.api.documents import (
        ConfigurationDocument,
        DriftDocument,
        ManifestDocument,
        ReconcileDocument,
        RuntimeDocument,
    )
    from agent.devices.provider import Offer
    from agent.isolation.host import HostIsolation, IsolationReport
    from agent.managers.allocation import PodAllocation
    from agent.managers.decision import Violation
    from agent.managers.ledger import Ledger
    from agent.managers.policy import Cordon, PluginDevice, Policy
    from agent.managers.quality import Intrusion
    from agent.managers.recovery import Displaced
    from agent.managers.resource_manager import ResourceManager
    from agent.pods.model import GivenDevices, Pod
    from agent.reconcile.assigned import AssignedFiles
    from agent.reconcile.diff import Difference
    from agent.reconcile.tasks import Intruders
    from agent.server.events import HistoryRecorder
    from agent.sources.source import PodSource, SourceUnreadableError
    from agent.state.checkpoint import Checkpoint
    from sysfs.host import Host
    from sysfs.mask import Mask


class GoverningVersion(Struct, frozen=True):
    """Whose rules hold where those of versions of Kubernetes differ, and what says so."""

    version: KubernetesVersion = NEWEST
    source: str = "the default"


class ConfiguredHost(Struct, frozen=True):
    """What decisions and enforcement are based on.

    `governing` says by which version's rules the policy goes.
    `mismatches` are the settings of the configuration that do not fit the host, a line each.
    `frozen`: the configuration has not fitted the host since the start, so that `rules` has only
    the settings that fit, and no new pod is admitted.
    """

    host: Host
    rules: EffectivePolicy
    mismatches: tuple[str, ...] = ()
    frozen: bool = False
    governing: GoverningVersion = GoverningVersion()

    def conditions(self) -> tuple[str, ...]:
        """Return the mismatches and their effect, a line each."""
        effect = (
            "pods keep their allocations and no new pod is admitted"
            if self.frozen
            else "the previous policy stays in effect"
        )
        return tuple(
            f"{mismatch}; until the configuration fits the host, {effect}"
            for mismatch in self.mismatches
        )


def decide(configured: ConfiguredHost, ledger: Ledger, pod: Pod) -> Decision:
    """Decide by the effective policy; a frozen host admits no new pod."""
    if configured.frozen and pod.uid not in ledger.allocations:
        rejection = Rejection(
            Reason.UNEXPECTED,
            f"the configuration does not fit this host: {'; '.join(configured.mismatches)}",
            remedy="correct the configuration and restart the agent; running pods are not affected",
        )
        return Decision(pod.uid, ledger, cause=rejection)
    return admit(configured.rules, ledger, pod)


def situate(
    config: Config,
    host: Host,
    previous: ConfiguredHost | None = None,
    *,
    allocated: bool = False,
    managers: tuple[ResourceManager, ...] = MANAGERS,
    offer: Offer = NO_OFFER,
    cordon: Cordon = NO_CORDON,
) -> ConfiguredHost:
    """Return the effective policy of a configuration on a host, with the `managers`.

    The devices are those that the configuration lists, and those that providers `offer`. Nothing
    new is allocated from what the `cordon` has.

    If the configuration does not fit (for example, its reserved CPUs are gone), the `previous`
    policy stays in effect on the host as it is now. Without a previous policy, the settings that
    fit are used to keep existing allocations (`allocated`: there are some); if there are none,
    `ConfigError` is raised.
    """
    machine = Machine.of(host)

    def ruled(policy: Policy) -> EffectivePolicy:
        offered = _with_offer(policy, config, machine, offer)
        return with_cordon(EffectivePolicy(machine, offered, managers), cordon)

    try:
        return ConfiguredHost(host, ruled(resolve(config, machine, offline=host.offline)))
    except ConfigError as error:
        mismatches = tuple(f"{problem.path}: {problem.message}" for problem in error.problems)
        if previous is not None:
            rules = ruled(previous.rules.policy)
            return ConfiguredHost(host, rules, mismatches, previous.frozen, previous.governing)
        if not allocated:
            raise
        rules = ruled(resolve_what_fits(config, machine))
        return ConfiguredHost(host, rules, mismatches, frozen=True)


class _Inventory:
    """The devices of a resource, the same only as themselves: comparing thousands takes long."""

    def __init__(self, devices: tuple[PluginDevice, ...]) -> None:
        self.devices = devices

    def __hash__(self) -> int:
        return id(self.devices)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Inventory) and self.devices is other.devices


@lru_cache(maxsize=128)
def _placed(inventory: _Inventory, nodes: Mask) -> tuple[PluginDevice, ...]:
    """Return devices with those of their nodes that a machine has; of one change, not of all."""
    if all(device.nodes <= nodes for device in inventory.devices):
        return inventory.devices
    return tuple(replace(device, nodes=device.nodes & nodes) for device in inventory.devices)


def _with_offer(policy: Policy, config: Config, machine: Machine, offer: Offer) -> Policy:
    """Return the policy with the devices of the configuration and those that are offered.

    A node that the machine does not have says nothing about where a device is.
    """
    offered = {
        resource: _placed(_Inventory(inventory), machine.node_mask)
        for resource, inventory in offer.devices.items()
    }
    devices = MappingProxyType({**offered, **config.agent.devices})
    preferring = offer.preferring - config.agent.devices.keys()
    if (devices, preferring) == (policy.devices, policy.preferring):
        return policy
    return replace(policy, devices=devices, preferring=preferring)


#: Subject of the first comparison in `Observations.pending`.
COMPARISON: Final = "comparison"


class SourceState(Struct):
    """One registered source of pods.

    `removal` says how a pod of it is ended. `entries` is what it asked for when it was last read,
    by key. `conditions` is what it could not find out, `unreadable` why it cannot be read now.
    """

    removal: str
    unreadable: SourceUnreadableError | None = None
    entries: Mapping[str, ManifestDocument] = MappingProxyType({})
    conditions: tuple[str, ...] = ()


class FormerChanges(Struct, frozen=True):
    """What of the host and of the policy changed since the last run of the agent, a line each."""

    host: tuple[str, ...] = ()
    policy: tuple[str, ...] = ()


class DevicesGiven(Protocol):
    """The devices that a kubelet beside the agent gave to containers, a plug of the agent."""

    #: What the kubelet listed last.
    listed: KubeletListing

    @property
    def conditions(self) -> tuple[str, ...]:
        """What keeps the agent from knowing these devices."""

    async def of(self, pod: Pod) -> GivenDevices:
        """Return the devices of a pod; asks the kubelet."""


class AtStart(Struct):
    """What the agent was started with."""

    #: The boot of the host, by which a later start sees that it was another one.
    boot_id: str = ""
    #: The Unix time.
    started: float = 0.0
    configuration: ConfigurationDocument | None = None
    #: Where the checkpoint is.
    directory: Path | None = None
    #: Seconds between two comparisons with the kernel.
    reconcile_period: float = 0.0
    #: At most so many containers are in the metrics.
    exported_containers: int = 0
    #: What changed since the last run of the agent.
    changed_before: FormerChanges = FormerChanges()


class Observations(Struct):
    """What the agent saw since its start; none of it is saved."""

    #: Whether changes are accepted.
    ready: bool = False
    #: The steps of the start that are not done yet, by subject.
    pending: dict[str, str] = field(default_factory=dict)
    #: What was seen of each pod.
    records: PodRecords = field(default_factory=PodRecords)
    #: The registered sources of pods by name.
    sources: dict[str, SourceState] = field(default_factory=dict)
    #: The latest comparison with the kernel.
    last_reconcile: ReconcileDocument | None = None
    #: The Unix time of the latest comparison that found no difference.
    last_agreement: float | None = None
    #: The Unix time at which the topology was last published to a cluster.
    last_publication: float | None = None
    #: How many changes there were that may have made room for a rejected pod.
    releases: int = 0
    #: Why the checkpoint could not be saved, or may not be durable.
    unsaved: str | None = None
    #: The room that was last found for the checkpoint, None before it was looked for.
    free_bytes: int | None = None
    #: What the kernel or systemd does not enforce outside of single pods.
    unenforced: tuple[Difference, ...] = ()
    #: What another process writes again after each repair.
    contested: tuple[Difference, ...] = ()
    #: The latest settings that another process changed.
    drift: tuple[DriftDocument, ...] = ()
    #: Allocations of the checkpoint whose CPUs another running pod uses, by uid, until their pods
    #: are admitted or removed.
    displaced: dict[str, Displaced] = field(default_factory=dict)
    #: The tasks that may run on exclusive CPUs of pods they do not belong to, None before they were
    #: looked for.
    intruding: Intruders | None = None
    #: All other conditions by subject, beside the parts of `progress` that stand still.
    conditions: dict[str, str] = field(default_factory=dict)
    #: Since when each condition holds.
    condition_times: ConditionTimes = field(default_factory=ConditionTimes)


class Parts(Struct):
    """The parts of the agent that have state and conditions of their own."""

    #: Offer devices beside the configuration.
    providers: Providers = field(default_factory=Providers)
    #: Devices of the plugins of a kubelet beside the agent, None without one.
    kubelet_devices: DevicesGiven | None = None
    #: Describes the session with the container runtime, None without one.
    runtime: Callable[[], RuntimeDocument] | None = None
    #: Hand over what providers deliver.
    cdi_files: CdiFiles = field(default_factory=lambda: CdiFiles(None))
    #: Say to containers what they have, None where that is not configured.
    assigned_files: AssignedFiles | None = None
    #: None where no history is kept.
    history: HistoryRecorder | None = None
    #: The host-wide settings.
    isolation: HostIsolation | None = None
    #: Which parts stand still.
    progress: Progress = field(default_factory=lambda: Progress(SystemClock()))


class AgentState(Struct):
    """The state of the running agent: what is configured, what is saved, what was observed."""

    #: What decisions are based on; changed in a turn of the line.
    configured: ConfiguredHost
    #: What the checkpoint contains; changed by `Steps.commit` alone.
    durable: Checkpoint
    start: AtStart = field(default_factory=AtStart)
    observed: Observations = field(default_factory=Observations)
    parts: Parts = field(default_factory=Parts)
    #: The properties below of the values that they follow from, which are costly.
    _judged: tuple[EffectivePolicy, Ledger, tuple[Violation, ...]] | None = None
    _names: PodNames = field(default_factory=PodNames)
    _fitting: tuple[Host, Ledger] | None = None
    _left: tuple[EffectivePolicy, tuple[ConditionDocument, ...]] | None = None

    @property
    def invalid(self) -> tuple[Violation, ...]:
        """The allocations that the current policy would not make."""
        rules, ledger = self.configured.rules, self.ledger
        if self._judged is None or self._judged[0] is not rules or self._judged[1] is not ledger:
            found = invalid_allocations(rules, ledger, self.configured.host.offline)
            self._judged = (rules, ledger, found)
        return self._judged[2]

    @property
    def not_allocatable(self) -> tuple[ConditionDocument, ...]:
        """The conditions that the configuration leaves pods nothing of CPUs or memory."""
        rules = self.configured.rules
        if self._left is None or self._left[0] is not rules:
            found = (not_allocatable(name, line) for name, line in admits_nothing(rules))
            self._left = (rules, tuple(found))
        return self._left[1]

    @property
    def ledger(self) -> Ledger:
        """All allocations."""
        return self.durable.ledger

    @property
    def shared_pool(self) -> Mask:
        """The node's shared pool; it may be empty (`strict-cpu-reservation`)."""
        return shared_pool(self.configured.rules, self.ledger)

    @property
    def intrusions(self) -> Mapping[str, tuple[Intrusion, ...]]:
        """What may use exclusive CPUs of pods that are not its own, by the uid of these pods.

        A pod in here is not exclusive, whatever else is asked of it. It follows from what is not
        enforced now, and from the tasks that were found.
        """
        found = (*self.observed.unenforced, *self.observed.records.differences())
        tasks = () if self.observed.intruding is None else self.observed.intruding.confined
        if not (found or tasks):
            return MappingProxyType({})
        return intrusions(self.ledger.allocations, found, tasks)

    @property
    def kubelet_listing(self) -> KubeletListing:
        """What the kubelet beside the agent listed last; nothing waits for it."""
        return (
            NOT_LISTED if self.parts.kubelet_devices is None else self.parts.kubelet_devices.listed
        )

    @property
    def shared_cpus(self) -> Mask:
        """The CPUs of containers without exclusive CPUs; never empty."""
        return shared_cpus(self.configured.rules, self.ledger)

    def allocation(self, uid: str, container: str | None = None) -> PodAllocation:
        """Return a pod's allocation.

        Raises `PodNotFoundError`, and `ContainerNotFoundError` if `container` is unknown.
        """
        allocation = self.ledger.allocations.get(uid)
        if allocation is None:
            raise PodNotFoundError(uid)
        if container is not None and allocation.container(container) is None:
            known = tuple(member.name for member in allocation.containers)
            raise ContainerNotFoundError(full_name(allocation), container, known)
        return allocation

    def target(self) -> Desired:
        """Return the desired state of the kernel, limited to what pods can have."""
        desired = self.desired_of(self.ledger)
        if desired.ledger is self.ledger:
            self._fitting = (self.configured.host, self.ledger)
        return desired

    def desired_of(self, ledger: Ledger) -> Desired:
        """Return the desired state of the kernel for another ledger, such as that of a dry run."""
        host = self.configured.host
        known = self._fitting[1] if self._fitting and self._fitting[0] is host else None
        pool = shared_cpus(self.configured.rules, ledger)
        rules, bindings = self.configured.rules, self.durable.bindings
        lost = lacking(ledger, host.withheld)
        return Desired(usable(ledger, host, known), pool, bindings, rules.capacity, lost)

    def unready(self) -> str | None:
        """Return why no pod can be admitted now, in one line; None if pods can be admitted."""
        if (failure := self.parts.progress.failure()) is not None:
            return failure
        if not self.observed.ready:
            return "the state is being restored"
        if self.observed.pending:
            return "; ".join(self.observed.pending.values())
        if self.configured.frozen:
            return self.configured.conditions()[0]
        if self.not_allocatable:
            return self.not_allocatable[0].message
        return None if self.observed.unsaved is None else f"checkpoint: {self.observed.unsaved}"

    def present_conditions(self) -> tuple[ConditionDocument, ...]:
        """Return what is not as it should be, as conditions whose status is False."""
        return (*self._of_agent(), *self._of_kernel(), *self._of_pods(), *self._of_sources())

    def dated_conditions(self, now: float) -> tuple[ConditionDocument, ...]:
        """Return what is not as it should be, with since when; `now` is the Unix time."""
        return self.observed.condition_times.dated(self.present_conditions(), now)

    def condition_lines(self) -> tuple[str, ...]:
        """Return what is not as it should be, one line each."""
        return tuple(condition.line for condition in self.present_conditions())

    def _of_agent(self) -> Iterator[ConditionDocument]:
        for message in self.configured.conditions():
            yield ConditionDocument(ConditionType.CONFIGURATION_APPLIED, "NotInEffect", message)
        yield from self.not_allocatable
        for part, how in self.parts.progress.failures().items():
            message = f"{part} {how}"
            yield ConditionDocument(ConditionType.AGENT_HEALTHY, camel_case(part), message)
        for subject, message in self.observed.conditions.items():
            yield ConditionDocument(ConditionType.AGENT_HEALTHY, camel_case(subject), message)
        for name, source in self.observed.sources.items():
            if (error := source.unreadable) is not None:
                yield ConditionDocument(
                    ConditionType.SOURCE_READ, error.reason, error.found, error.remedy
                )
            for message in source.conditions:
                yield ConditionDocument(ConditionType.SOURCE_READ, camel_case(name), message)
        yield from self._of_devices()
        for message in () if self.parts.history is None else self.parts.history.conditions:
            yield ConditionDocument(ConditionType.HISTORY_RECORDED, "NotWritten", message)
        if self.observed.unsaved is not None:
            message = f"checkpoint: {self.observed.unsaved}"
            yield ConditionDocument(ConditionType.CHECKPOINT_SAVED, "NotSaved", message)

    def _of_devices(self) -> Iterator[ConditionDocument]:
        for name, message in self.parts.providers.conditions():
            yield ConditionDocument(ConditionType.DEVICES_OFFERED, camel_case(name), message)
        for message in (
            () if self.parts.kubelet_devices is None else self.parts.kubelet_devices.conditions
        ):
            yield ConditionDocument(ConditionType.DEVICES_OFFERED, "Kubelet", message)
        for message in self.parts.cdi_files.conditions:
            yield ConditionDocument(ConditionType.DEVICES_DELIVERED, "CDI", message)
        for message in (
            () if self.parts.assigned_files is None else self.parts.assigned_files.conditions
        ):
            yield ConditionDocument(ConditionType.CONTAINERS_INFORMED, "NotWritten", message)

    @property
    def _isolation(self) -> IsolationReport:
        return NOT_APPLIED if self.parts.isolation is None else self.parts.isolation.report

    def _of_kernel(self) -> Iterator[ConditionDocument]:
        for subject, message in self._isolation.conditions.items():
            yield ConditionDocument(ConditionType.ISOLATED, camel_case(subject), message)
        for difference in without_consequences(self.observed.unenforced):
            yield not_enforced(difference, "")
        for difference in self.observed.contested:
            pod = self.ledger.allocations.get(difference.pod)
            yield contested(difference, "" if pod is None else full_name(pod))

    def _of_pods(self) -> Iterator[ConditionDocument]:
        intruded = self.intrusions
        for uid, displaced in self.observed.displaced.items():
            yield ConditionDocument(
                ConditionType.ALLOCATION_CONFIRMED,
                "Displaced",
                str(displaced),
                uid=uid,
                pod=full_name(displaced),
            )
        for uid, allocation in self.ledger.allocations.items():
            if allocation.origin is Origin.RECOVERED:
                yield ConditionDocument(
                    ConditionType.ALLOCATION_CONFIRMED,
                    "Recovered",
                    f"pod uid {uid} was recovered from its cgroups with "
                    f"{describe_recovered(allocation)}",
                    f"admit it to confirm that, or free it with 'numawarden remove {uid}'",
                    uid=uid,
                    pod=full_name(allocation),
                )
            record = self.observed.records.of(uid)
            for difference in without_consequences(record.unenforced, self.observed.unenforced):
                yield not_enforced(difference, full_name(allocation))
            if allocation.unprepared:
                yield ConditionDocument(
                    ConditionType.DEVICES_DELIVERED,
                    "NotPrepared",
                    unprepared_line(allocation),
                    "look at the plugin's log, then admit the pod again: the plugin is asked again",
                    uid=uid,
                    pod=full_name(allocation),
                )
            if uid in intruded:
                yield not_exclusive(allocation, intruded[uid])
            if record.not_found:
                yield not_found(allocation, record)
        for violation in self.invalid:
            yield not_valid(violation)

    def _of_sources(self) -> Iterator[ConditionDocument]:
        for entry in self.entries():
            if entry.state != ADMITTED:
                yield ConditionDocument(
                    ConditionType.ENTRY_ADMITTED,
                    camel_case(entry.state),
                    f"{entry.subject} is {entry.state}: {entry.message}",
                    uid=entry.uid or "",
                    file=entry.file,
                )

    def register(self, source: PodSource) -> None:
        """Add a source of pods, which has not been read yet.

        Raises `ValueError` for a name that another source has.
        """
        if source.name in (*self.observed.sources, API.name):
            raise ValueError(f"there are two sources of pods called {source.name!r}")
        self.observed.sources[source.name] = SourceState(source.removal)
        self.observed.pending[_unread(source.name)] = _not_read(source.name)

    def note_source(
        self, name: str, entries: Mapping[str, ManifestDocument], conditions: tuple[str, ...]
    ) -> None:
        """Take over what a registered source asks for now."""
        source = self.observed.sources[name]
        source.entries, source.conditions, source.unreadable = entries, conditions, None
        self.observed.pending.pop(_unread(name), None)

    def note_unreadable(self, name: str, error: SourceUnreadableError) -> bool:
        """Take over that a registered source cannot be read; return whether that is news."""
        source = self.observed.sources[name]
        news = str(source.unreadable) != str(error)
        source.unreadable = error
        if _unread(name) in self.observed.pending:
            self.observed.pending[_unread(name)] = f"{_not_read(name)}: {error}"
        return news

    def entries(self) -> Iterator[ManifestDocument]:
        """Yield what all sources ask for."""
        for source in self.observed.sources.values():
            yield from source.entries.values()

    def other_owner(self, uid: str, asking: Source) -> tuple[Source, str] | None:
        """Return another source that a pod belongs to, and how to end the pod there, else None.

        A source that was not read yet may ask for its pods still. The API asks for any pod: it
        takes none over.
        """
        allocation = self.ledger.allocations.get(uid)
        owner = None if allocation is None else allocation.source
        if owner is None or not asking.key or owner.name == asking.name:
            return None
        if _unread(owner.name) in self.observed.pending:
            return owner, self.observed.sources[owner.name].removal
        return self.asked_for_by(uid)

    def namesakes(self, pod: Pod) -> tuple[PodAllocation, ...]:
        """Return the admitted pods that have the name of a pod which is not admitted."""
        return self._names.others(self.ledger, pod)

    def asked_for_by(self, uid: str) -> tuple[Source, str] | None:
        """Return the source that asks for an admitted pod now, and how to end the pod there.

        None for a pod of the API, of a source that is no longer configured, or without an entry
        there.
        """
        owner = self.ledger.allocations[uid].source
        known = None if owner is None else self.observed.sources.get(owner.name)
        if owner is None or known is None or owner.key not in known.entries:
            return None
        return owner, known.removal

    def to_save(self, durable: Checkpoint) -> Checkpoint:
        """Return a state with what it is valid for now: boot, host, policy, release."""
        return replace(
            durable,
            boot_id=self.start.boot_id,
            host=host_facts(self.configured.host),
            policy=policy_summary(self.configured.rules.policy),
            agent_version=__version__,
        )

    def reading(self) -> GaugeInput:
        """Return the input of the gauges."""
        counts = dict.fromkeys(ENTRY_STATES, 0)
        for manifest in self.entries():
            counts[manifest.state] += 1
        return GaugeInput(
            version=__version__,
            rules=self.configured.rules,
            ledger=self.ledger,
            started=self.start.started,
            unenforced_pods=self.observed.records.unenforced,
            not_found=self.observed.records.not_found(),
            ready=self.unready() is None,
            conditions=Counter(str(each.type) for each in self.present_conditions()),
            intrusions=self.intrusions,
            contested=len({each.cgroup for each in self.observed.contested}),
            isolation_settings=self._isolation.changed,
            cache_counts=self._isolation.counts,
            manifests=MappingProxyType(counts),
            invalid=MappingProxyType(Counter(str(violation.rule) for violation in self.invalid)),
            last_reconcile=self.observed.last_agreement,
            last_publication=self.observed.last_publication,
            reconcile_period=self.start.reconcile_period,
            intruding=None if self.observed.intruding is None else self.observed.intruding.threads,
            containers=self.start.exported_containers,
            plugins=MappingProxyType(self.parts.providers.connected()),
        )


def _not_read(source: str) -> str:
    return f"the source {source} has not been read yet"


def _unread(source: str) -> str:
    """Return the subject of the first reading of a source in `Observations.pending`."""
    return f"source {source}"
