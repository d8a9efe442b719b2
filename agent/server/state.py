"""The state of the running agent: what is configured, what is saved, and what was observed.

Everything else that is known of pods, the kernel and the agent is computed from these three. They
change on the event loop alone: what is saved in `Steps.commit`, what is configured in a turn of the
line (`agent.server.queue`).
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
from agent.managers.allocation import API, Source
from agent.managers.cpu.manager import shared_cpus, shared_pool
from agent.managers.device.kubelet import NOT_LISTED, KubeletListing
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
from agent.server.observations import Observations, Parts, SourceState
from agent.sources.source import ENTRY_STATES, PodNames
from agent.state.checkpoint import host_facts, policy_summary

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from agent.api.documents import (
        ConditionDocument,
        ConfigurationDocument,
        ManifestDocument,
    )
    from agent.isolation.report import IsolationReport
    from agent.managers.allocation import PodAllocation
    from agent.managers.ledger import Ledger
    from agent.managers.quality import Intrusion
    from agent.managers.rules import EffectivePolicy
    from agent.managers.violations import Violation
    from agent.pods.model import Pod
    from agent.server.configured import ConfiguredHost
    from agent.sources.source import PodSource, SourceUnreadableError
    from agent.state.checkpoint import Checkpoint
    from sysfs.host import Host
    from sysfs.mask import Mask


class FormerChanges(Struct, frozen=True):
    """What of the host and of the policy changed since the last run of the agent, a line each."""

    host: tuple[str, ...] = ()
    policy: tuple[str, ...] = ()


class AtStart(Struct):
    """What the agent was started with."""

    #: The boot of the host, saved so that a later start notices a reboot.
    boot_id: str = ""
    #: The Unix time.
    started: float = 0.0
    configuration: ConfigurationDocument | None = None
    #: Where the checkpoint is.
    directory: Path | None = None
    #: Seconds between two comparisons with the kernel.
    reconcile_period: float = 0.0
    #: The most containers that are in the metrics.
    exported_containers: int = 0
    #: What changed since the last run of the agent.
    changed_before: FormerChanges = FormerChanges()


class AgentState(Struct):
    """The state of the running agent: what is configured, what is saved, what was observed."""

    #: What decisions are based on; changed in a turn of the line.
    configured: ConfiguredHost
    #: What the checkpoint contains; changed by `Steps.commit` alone.
    durable: Checkpoint
    start: AtStart = field(default_factory=AtStart)
    observed: Observations = field(default_factory=Observations)
    parts: Parts = field(default_factory=Parts)
    # Costly properties below, with the values from which they were computed last.
    _judged: tuple[EffectivePolicy, Ledger, tuple[Violation, ...]] | None = None
    _names: PodNames = field(default_factory=PodNames)
    _fitting: tuple[Host, Ledger] | None = None
    _left: tuple[EffectivePolicy, tuple[ConditionDocument, ...]] | None = None
    #: Since when each condition holds.
    _times: ConditionTimes = field(default_factory=ConditionTimes)

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
        """The conditions that the configuration leaves pods no CPUs, no memory, or no pods."""
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
        """What of others may use exclusive CPUs of a pod, by the pod's uid.

        It follows from what is not enforced now, from what another process writes again after each
        repair, and from the tasks that were found.
        """
        observed = self.observed
        found = (*observed.unenforced, *observed.contested, *observed.records.differences())
        tasks = () if observed.intruding is None else observed.intruding.confined
        if not (found or tasks):
            return MappingProxyType({})
        return intrusions(self.ledger.allocations, found, tasks)

    @property
    def kubelet_listing(self) -> KubeletListing:
        """What the kubelet beside the agent listed last; it may be old."""
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
        """Return the desired state of the kernel, without what the host withholds from pods."""
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
        observed = self.observed
        return (
            *self.not_allocatable,
            *of_agent(self.configured, observed),
            *of_parts(self.parts),
            *of_kernel(self.ledger, observed, self._isolation),
            *of_pods(self.ledger, observed, self.intrusions, self.invalid),
            *of_entries(self.entries()),
        )

    def dated_conditions(self, now: float) -> tuple[ConditionDocument, ...]:
        """Return what is not as it should be, with since when; `now` is the Unix time."""
        return self._times.dated(self.present_conditions(), now)

    def condition_lines(self) -> tuple[str, ...]:
        """Return what is not as it should be, one line each."""
        return tuple(condition.line for condition in self.present_conditions())

    @property
    def _isolation(self) -> IsolationReport:
        return NOT_APPLIED if self.parts.isolation is None else self.parts.isolation.report

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

        A source that was not read yet may still ask for its pods. The API may ask for any pod, and
        does not become its owner.
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
