"""The state of the running agent: what is configured, what is saved, and what was observed.

In go a `ConfiguredHost`, a `Checkpoint`, and `Observations`; each is replaced or changed by who is
named at its field. Out comes what follows from them: the shared pool, the desired state of the
kernel, intrusions, conditions, readiness, the input of gauges. What follows is computed when it is
asked for, and where that is costly kept as long as it stays the same. Always true: the state
changes on the event loop alone, and between two steps of a change only observations change.
"""

from __future__ import annotations

from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from agent import __version__
from agent.config.capacity import admits_nothing
from agent.isolation.report import NOT_APPLIED
from agent.managers.cpu.manager import shared_cpus, shared_pool
from agent.managers.device.kubelet import NOT_LISTED, KubeletListing
from agent.managers.pools import pod_pools, shared_cpus_of
from agent.managers.quality import invalid_allocations
from agent.pods.model import full_name
from agent.reconcile.exclusivity import intrusions
from agent.reconcile.target import Desired, lacking, usable
from agent.server.conditions import (
    ConditionTimes,
    not_allocatable,
    of_agent,
    of_entries,
    of_kernel,
    of_parts,
    of_pods,
)
from agent.server.errors import ContainerNotFoundError, PodNotFoundError
from agent.server.gauges import GaugeInput
from agent.server.observations import Observations, Parts
from agent.sources.source import ENTRY_STATES, PodNames
from agent.state.checkpoint import host_facts, policy_summary

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agent.api.documents.status import ConditionDocument, ConfigurationDocument
    from agent.isolation.report import IsolationReport
    from agent.managers.allocation import PodAllocation
    from agent.managers.ledger import Ledger
    from agent.managers.quality import Intrusion
    from agent.managers.rules import EffectivePolicy
    from agent.managers.violations import Violation
    from agent.pods.model import Pod
    from agent.server.configured import ConfiguredHost
    from agent.state.checkpoint import Checkpoint
    from sysfs.host import Host
    from sysfs.mask import Mask


class FormerChanges(Struct, frozen=True):
    """What changed since the last run of the agent, a line each."""

    host: tuple[str, ...] = ()
    policy: tuple[str, ...] = ()


class AtStart(Struct):
    """What the agent was started with."""

    #: The boot of the host, saved so that a later start notices a reboot.
    boot_id: str = ""
    #: The Unix time.
    started: float = 0.0
    configuration: ConfigurationDocument | None = None
    #: The directory of the checkpoint.
    directory: Path | None = None
    #: The longest time between two comparisons with the kernel, in seconds.
    reconcile_period: float = 0.0
    #: The most containers that metrics export one by one.
    exported_containers: int = 0
    changed_before: FormerChanges = FormerChanges()


class AgentState(Struct):
    """The state of the running agent: what is configured, what is saved, what was observed."""

    #: What decisions are based on; replaced in a turn of the line (`agent.server.queue`).
    configured: ConfiguredHost
    #: What the checkpoint contains; replaced by `Steps`, and before the first turn by
    #: `agent.server.restart`.
    durable: Checkpoint
    start: AtStart = field(default_factory=AtStart)
    #: Changed by actions in the line, and by the loops that watch sources and parts.
    observed: Observations = field(default_factory=Observations)
    parts: Parts = field(default_factory=Parts)

    # Costly results, each behind what it was computed from: as long as that is the same object, so
    # is the result.

    #: `invalid`.
    _violations: tuple[EffectivePolicy, Ledger, tuple[Violation, ...]] | None = None
    #: `not_allocatable`.
    _not_allocatable: tuple[EffectivePolicy, tuple[ConditionDocument, ...]] | None = None
    #: A host, and the last ledger all of which that host can have (`target`).
    _usable: tuple[Host, Ledger] | None = None
    #: `namesakes`.
    _names: PodNames = field(default_factory=PodNames)

    #: Since when each condition holds.
    _times: ConditionTimes = field(default_factory=ConditionTimes)

    @property
    def ledger(self) -> Ledger:
        """All allocations."""
        return self.durable.ledger

    @property
    def invalid(self) -> tuple[Violation, ...]:
        """The allocations that the current policy would not make."""
        rules, ledger, last = self.configured.rules, self.ledger, self._violations
        if last is None or last[0] is not rules or last[1] is not ledger:
            violations = invalid_allocations(rules, ledger, self.configured.host.offline)
            last = self._violations = (rules, ledger, violations)
        return last[2]

    @property
    def not_allocatable(self) -> tuple[ConditionDocument, ...]:
        """The conditions that the configuration leaves pods no CPUs, no memory, or no pods."""
        rules, last = self.configured.rules, self._not_allocatable
        if last is None or last[0] is not rules:
            conditions = (not_allocatable(name, line) for name, line in admits_nothing(rules))
            last = self._not_allocatable = (rules, tuple(conditions))
        return last[1]

    @property
    def shared_pool(self) -> Mask:
        """The node's shared pool; it may be empty (`strict-cpu-reservation`)."""
        return shared_pool(self.configured.rules, self.ledger)

    @property
    def shared_cpus(self) -> Mask:
        """The CPUs of containers without exclusive CPUs; never empty."""
        return shared_cpus(self.configured.rules, self.ledger)

    @property
    def intrusions(self) -> Mapping[str, tuple[Intrusion, ...]]:
        """The cgroups that may use exclusive CPUs of a pod they do not belong to, by its uid.

        They follow from what is not enforced now, from what another process writes again after each
        repair, and from the tasks that were found.
        """
        observed = self.observed
        differences = (*observed.unenforced, *observed.contested, *observed.records.differences())
        tasks = () if observed.intruding is None else observed.intruding.confined
        if not (differences or tasks):
            return MappingProxyType({})
        return intrusions(self.ledger.allocations, differences, tasks)

    @property
    def kubelet_listing(self) -> KubeletListing:
        """The devices that the kubelet beside the agent listed last; the list may be old."""
        devices = self.parts.kubelet_devices
        return NOT_LISTED if devices is None else devices.listed

    def allocation(self, uid: str, container: str | None = None) -> PodAllocation:
        """Return a pod's allocation.

        Raises `PodNotFoundError`, and `ContainerNotFoundError` if `container` is unknown.
        """
        allocation = self.ledger.allocations.get(uid)
        if allocation is None:
            raise PodNotFoundError(uid)
        if container is not None and allocation.container(container) is None:
            names = tuple(member.name for member in allocation.containers)
            raise ContainerNotFoundError(full_name(allocation), container, names)
        return allocation

    def namesakes(self, pod: Pod) -> tuple[PodAllocation, ...]:
        """Return the admitted pods that have the name of a pod which is not admitted."""
        return self._names.others(self.ledger, pod)

    def target(self) -> Desired:
        """Return the desired state of the kernel, without what the host withholds from pods."""
        desired = self.desired_of(self.ledger)
        if desired.ledger is self.ledger:
            self._usable = (self.configured.host, self.ledger)
        return desired

    def desired_of(self, ledger: Ledger) -> Desired:
        """Return the desired state of the kernel for another ledger, such as that of a dry run."""
        host, rules = self.configured.host, self.configured.rules
        before = self._usable[1] if self._usable and self._usable[0] is host else None
        allocated, shared = usable(ledger, host, before), shared_cpus(rules, ledger)
        return Desired(
            allocated,
            shared,
            self.durable.bindings,
            rules.capacity,
            lacking(ledger, host.withheld),
            pod_pools(rules, allocated.allocations.values(), shared),
        )

    def shared_cpus_of(self, allocation: PodAllocation) -> Mask:
        """Return the CPUs of a pod's containers without CPUs of their own; never empty."""
        return shared_cpus_of(self.configured.rules, allocation, self.shared_cpus)

    def unready(self) -> str | None:
        """Return why no pod can be admitted now, in one line; None if pods can be admitted."""
        if (failure := self.parts.progress.failure()) is not None:
            return failure
        if not self.observed.ready:
            return "the state is being restored"
        pending = (*self.observed.sources.pending(), *self.observed.pending.values())
        if pending:
            return "; ".join(pending)
        if self.configured.frozen:
            return self.configured.conditions()[0]
        if self.not_allocatable:
            return self.not_allocatable[0].message
        return None if self.observed.unsaved is None else f"checkpoint: {self.observed.unsaved}"

    def present_conditions(self) -> tuple[ConditionDocument, ...]:
        """Return what is not as it should be, as conditions whose status is False."""
        observed = self.observed
        return (
            *self.not_allocatable,
            *of_agent(self.configured, observed),
            *of_parts(self.parts),
            *of_kernel(self.ledger, observed, self.isolation),
            *of_pods(self.ledger, observed, self.intrusions, self.invalid),
            *of_entries(self.observed.sources.entries()),
        )

    def dated_conditions(self, now: float) -> tuple[ConditionDocument, ...]:
        """Return what is not as it should be, with since when; `now` is the Unix time."""
        return self._times.dated(self.present_conditions(), now)

    def condition_lines(self) -> tuple[str, ...]:
        """Return what is not as it should be, one line each."""
        return tuple(condition.line for condition in self.present_conditions())

    def to_save(self, durable: Checkpoint) -> Checkpoint:
        """Return a checkpoint stamped with the present boot, host, policy and release."""
        return replace(
            durable,
            boot_id=self.start.boot_id,
            host=host_facts(self.configured.host),
            policy=policy_summary(self.configured.rules.policy),
            agent_version=__version__,
        )

    def reading(self) -> GaugeInput:
        """Return the input of the gauges."""
        observed = self.observed
        entries = dict.fromkeys(ENTRY_STATES, 0)
        for entry in observed.sources.entries():
            entries[entry.state] += 1
        return GaugeInput(
            version=__version__,
            rules=self.configured.rules,
            ledger=self.ledger,
            started=self.start.started,
            unenforced_pods=observed.records.unenforced,
            not_found=observed.records.not_found(),
            ready=self.unready() is None,
            conditions=Counter(str(condition.type) for condition in self.present_conditions()),
            intrusions=self.intrusions,
            contested=len({difference.cgroup for difference in observed.contested}),
            isolation_settings=self.isolation.changed,
            cache_counts=self.isolation.counts,
            late=self.isolation.late,
            manifests=MappingProxyType(entries),
            invalid=MappingProxyType(Counter(str(violation.rule) for violation in self.invalid)),
            last_reconcile=observed.last_agreement,
            last_publication=observed.last_publication,
            reconcile_period=self.start.reconcile_period,
            intruding=None if observed.intruding is None else observed.intruding.threads,
            containers=self.start.exported_containers,
            plugins=MappingProxyType(self.parts.providers.connected()),
        )

    @property
    def isolation(self) -> IsolationReport:
        """What came of the host-wide settings."""
        return NOT_APPLIED if self.parts.isolation is None else self.parts.isolation.report
