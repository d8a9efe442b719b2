"""Conditions: what is not as it should be, as Kubernetes reports it.

A condition has a type that is true when all is well (`Enforced`), a status, a reason for programs
and a message for people. Only those whose status is False are kept: what is well has no condition.
Conditions follow from the state each time they are asked for; only `since`, when a condition was
found first, is remembered. It stays as long as type, reason and subject (pod, container, cgroup,
file) do, and the message of a condition without a subject.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from agent.api.documents.status import ConditionDocument
from agent.api.views import unprepared_line
from agent.managers.allocation import Origin
from agent.managers.recovery import describe_recovered
from agent.pods.model import MEMORY, full_name
from agent.server.pod_records import Absence
from agent.sources.source import ADMITTED, CONFLICT
from cgroupfs.settings import EFFECTIVE, PARTITION_FILES
from cgroupfs.tree import is_within, parent

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from agent.api.documents.status import ManifestDocument
    from agent.isolation.report import IsolationReport
    from agent.managers.allocation import PodAllocation
    from agent.managers.available import Lack
    from agent.managers.ledger import Ledger
    from agent.managers.quality import Intrusion
    from agent.managers.violations import Violation
    from agent.reconcile.diff import Difference
    from agent.server.configured import ConfiguredHost
    from agent.server.observations import Observations, Parts
    from agent.server.pod_records import PodRecord


class ConditionType(StrEnum):
    """What holds when all is well."""

    #: The kernel and systemd have what is desired.
    ENFORCED = "Enforced"
    #: No cgroup and no task of others may use the exclusive CPUs of a pod.
    EXCLUSIVE = "Exclusive"
    #: What belongs to no pod keeps off exclusive CPUs and pods are partitions, where that is asked.
    ISOLATED = "Isolated"
    #: Repairs hold: no other process writes a file again after each of them.
    REPAIRS_LAST = "RepairsLast"
    CHECKPOINT_SAVED = "CheckpointSaved"
    #: The configuration fits the host and is in effect.
    CONFIGURATION_APPLIED = "ConfigurationApplied"
    #: The configuration leaves pods something of CPUs and memory.
    RESOURCES_ALLOCATABLE = "ResourcesAllocatable"
    #: The current policy would make the allocation.
    ALLOCATION_VALID = "AllocationValid"
    #: The allocation was made for the pod's specification, not recovered from cgroups, and no other
    #: running pod uses its CPUs.
    ALLOCATION_CONFIRMED = "AllocationConfirmed"
    #: The containers of a pod run in its cgroup.
    CONTAINERS_FOUND = "ContainersFound"
    #: The huge pages that pods were given and have yet to take are there.
    MEMORY_AVAILABLE = "MemoryAvailable"
    #: A source of pods could be read.
    SOURCE_READ = "SourceRead"
    #: What a source asks for is admitted.
    ENTRY_ADMITTED = "EntryAdmitted"
    #: Device plugins and the host's own devices are as they should be.
    DEVICES_OFFERED = "DevicesOffered"
    #: Container runtimes find what containers get with their devices.
    DEVICES_DELIVERED = "DevicesDelivered"
    #: Containers find what they have in files (`agent.assignedFiles`).
    CONTAINERS_INFORMED = "ContainersInformed"
    #: What happens is recorded in the history.
    HISTORY_RECORDED = "HistoryRecorded"
    #: Watches, timers and what was read at the start work.
    AGENT_HEALTHY = "AgentHealthy"


def of_agent(configured: ConfiguredHost, observed: Observations) -> Iterator[ConditionDocument]:
    """Yield what is not well about what the agent reads and saves."""
    for message in configured.conditions():
        yield ConditionDocument(ConditionType.CONFIGURATION_APPLIED, "NotInEffect", message)
    for subject, message in observed.conditions.items():
        yield _of(ConditionType.AGENT_HEALTHY, subject, message)
    for name, source in observed.sources.by_name.items():
        if (error := source.unreadable) is not None:
            yield ConditionDocument(
                ConditionType.SOURCE_READ, error.reason, error.found, error.remedy
            )
        for message in source.conditions:
            yield _of(ConditionType.SOURCE_READ, name, message)
    if observed.unsaved is not None:
        yield _of(ConditionType.CHECKPOINT_SAVED, "NotSaved", f"checkpoint: {observed.unsaved}")


def of_parts(parts: Parts) -> Iterator[ConditionDocument]:
    """Yield what is not well about the parts of the agent, as each of them says."""
    for part, how in parts.progress.failures().items():
        yield _of(ConditionType.AGENT_HEALTHY, part, f"{part} {how}")
    for name, message in parts.providers.conditions():
        yield _of(ConditionType.DEVICES_OFFERED, name, message)
    for message in () if parts.kubelet_devices is None else parts.kubelet_devices.conditions:
        yield _of(ConditionType.DEVICES_OFFERED, "Kubelet", message)
    for message in parts.cdi_files.conditions:
        yield _of(ConditionType.DEVICES_DELIVERED, "CDI", message)
    for message in () if parts.assigned_files is None else parts.assigned_files.conditions:
        yield _of(ConditionType.CONTAINERS_INFORMED, "NotWritten", message)
    for message in () if parts.history is None else parts.history.conditions:
        yield _of(ConditionType.HISTORY_RECORDED, "NotWritten", message)


def of_kernel(
    ledger: Ledger, observed: Observations, isolation: IsolationReport
) -> Iterator[ConditionDocument]:
    """Yield what is not enforced outside of single pods, and files that others keep writing."""
    for subject, message in isolation.conditions.items():
        yield _of(ConditionType.ISOLATED, subject, message)
    for difference in without_consequences(observed.unenforced):
        yield not_enforced(difference, "")
    for difference in observed.contested:
        pod = ledger.allocations.get(difference.pod)
        yield contested(difference, "" if pod is None else full_name(pod))


def of_pods(
    ledger: Ledger,
    observed: Observations,
    intruded: Mapping[str, Sequence[Intrusion]],
    invalid: Iterable[Violation],
) -> Iterator[ConditionDocument]:
    """Yield what is not well about single pods.

    `intruded` has what may use exclusive CPUs of a pod, by its uid; `invalid` are the allocations
    that the current policy would not make.
    """
    for uid, displaced in observed.displaced.items():
        yield ConditionDocument(
            ConditionType.ALLOCATION_CONFIRMED,
            "Displaced",
            str(displaced),
            uid=uid,
            pod=full_name(displaced),
        )
    for uid, allocation in ledger.allocations.items():
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
        record = observed.records.of(uid)
        for difference in without_consequences(record.unenforced, observed.unenforced):
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
        if uid in observed.lacking:
            yield not_available(allocation, observed.lacking[uid])
    yield from map(not_valid, invalid)


def of_entries(entries: Iterable[ManifestDocument]) -> Iterator[ConditionDocument]:
    """Yield a condition for each entry of a source whose pod is not admitted."""
    for entry in entries:
        if entry.state != ADMITTED:
            state = "in conflict" if entry.state == CONFLICT else entry.state
            yield ConditionDocument(
                ConditionType.ENTRY_ADMITTED,
                camel_case(entry.state),
                f"{entry.subject} is {state}: {entry.message}",
                uid=entry.uid or "",
                file=entry.file,
            )


def _of(kind: ConditionType, subject: str, message: str) -> ConditionDocument:
    return ConditionDocument(kind, camel_case(subject), message)


def not_enforced(difference: Difference, pod: str) -> ConditionDocument:
    """Return the condition that a difference remains; `pod` is its namespace/name or ""."""
    detail = difference.detail
    isolated = difference.file in PARTITION_FILES
    of = f"container {difference.container} of " if difference.container else ""
    return ConditionDocument(
        ConditionType.ISOLATED if isolated else ConditionType.ENFORCED,
        camel_case(str(difference.cause)),
        f"{of}pod {pod} is not enforced: {detail}" if pod else detail,
        uid=difference.pod,
        pod=pod,
        container=difference.container,
        cgroup=f"/{difference.cgroup}" if difference.cgroup else "",
        file=difference.file,
        desired=difference.desired,
        observed=difference.observed,
    )


def not_exclusive(allocation: PodAllocation, found: Sequence[Intrusion]) -> ConditionDocument:
    """Return the condition that cgroups of others may use exclusive CPUs of a pod."""
    named = "; ".join(map(str, found[:_NAMED]))
    more = f"; and {len(found) - _NAMED} more cgroups" if len(found) > _NAMED else ""
    return ConditionDocument(
        ConditionType.EXCLUSIVE,
        "Intruders",
        f"pod {full_name(allocation)} is not exclusive: {named}{more}",
        uid=allocation.uid,
        pod=full_name(allocation),
    )


def contested(difference: Difference, pod: str) -> ConditionDocument:
    """Return the condition that another process writes a file again after each repair."""
    file, cgroup = difference.file, f"/{difference.cgroup}"
    return ConditionDocument(
        ConditionType.REPAIRS_LAST,
        "AnotherWriter",
        f"{file} of {cgroup} is being modified by another writer, so that repairs do not last",
        "'numawarden history' names the writer or says how to find it",
        uid=difference.pod,
        pod=pod,
        container=difference.container,
        cgroup=cgroup,
        file=file,
        desired=difference.desired,
        observed=difference.observed,
    )


def without_consequences(
    differences: Iterable[Difference], above: Iterable[Difference] = ()
) -> Iterator[Difference]:
    """Yield differences without those that follow from another in a cgroup above.

    A set that is not as desired makes the effective sets of the same kind inside differ with it:
    that is one thing to report, of the file that was written. `above` are differences of cgroups
    that may lie above.
    """
    remaining = tuple(differences)
    #: By the file of the effective set: where the set is not as desired.
    causes: dict[str, set[str]] = {}
    for difference in (*remaining, *above):
        if difference.file in EFFECTIVE:
            causes.setdefault(EFFECTIVE[difference.file], set()).add(difference.cgroup)
    for difference in remaining:
        if not is_within(parent(difference.cgroup), causes.get(difference.file, ())):
            yield difference


def not_found(allocation: PodAllocation, record: PodRecord) -> ConditionDocument:
    """Return the condition that containers of a pod were not found in its cgroup."""
    names = record.not_found[:_NAMED]
    more = len(record.not_found) - len(names)
    containers = f"{', '.join(names)}{f' and {more} more' if more else ''}"
    return ConditionDocument(
        ConditionType.CONTAINERS_FOUND,
        camel_case(record.absence),
        f"pod {full_name(allocation)}: {record.absence} in its cgroup: {containers}",
        _START[Absence(record.absence)].format(uid=allocation.uid),
        uid=allocation.uid,
        pod=full_name(allocation),
    )


def not_available(allocation: PodAllocation, lacking: Sequence[Lack]) -> ConditionDocument:
    """Return the condition that other programs have memory which a pod has yet to take."""
    name, of_pages = full_name(allocation), any(lack.type != MEMORY for lack in lacking)
    return ConditionDocument(
        ConditionType.MEMORY_AVAILABLE,
        "UsedByOthers",
        f"pod {name} was given memory that others use: pods have yet to take "
        + "; ".join(map(str, lacking[:_NAMED])),
        "end the program that uses it" + (_ADD_PAGES if of_pages else ""),
        uid=allocation.uid,
        pod=name,
    )


_ADD_PAGES: Final = ", or add huge pages on these nodes (nr_hugepages)"
#: How many containers of a pod are named in a line.
_NAMED: Final = 4
#: What to do about containers that were found before, and about those that never were.
_START: Final = {
    Absence.NOT_FOUND: "they ended, or run outside of the pod on CPUs of others: start them in the "
    "pod again, as 'numawarden show {uid}' says, or remove the pod",
    Absence.NOT_STARTED: "start them in the pod, as 'numawarden show {uid}' says, or remove the "
    "pod; if they were started elsewhere, they run on CPUs of others",
}


def not_valid(violation: Violation) -> ConditionDocument:
    """Return the condition that the current policy would not make an allocation."""
    return ConditionDocument(
        ConditionType.ALLOCATION_VALID,
        camel_case(str(violation.rule)),
        str(violation),
        uid=violation.uid,
        pod=violation.pod,
        container=violation.container,
    )


def not_allocatable(resource: str, message: str) -> ConditionDocument:
    """Return the condition that nothing of a resource (`cpu`, `memory`, `pods`) is allocatable."""
    return ConditionDocument(
        ConditionType.RESOURCES_ALLOCATABLE,
        f"No{camel_case(resource)}",
        message,
        _LEAVE_MORE[resource],
    )


#: What to do where a configuration leaves pods nothing.
_LEAVE_MORE: Final = {
    "cpu": "lower reservedSystemCPUs, or systemReserved.cpu and kubeReserved.cpu, and restart the "
    "agent",
    "memory": "lower systemReserved.memory, kubeReserved.memory, evictionHard memory.available or "
    "the number of huge pages, and restart the agent",
    "pods": "raise maxPods or podsPerCore and restart the agent",
}


def camel_case(text: str) -> str:
    """Return a reason in the form of Kubernetes: `CPU offline` becomes `CPUOffline`."""
    words = "".join(c if c.isalnum() else " " for c in text).split()
    return "".join(word[:1].upper() + word[1:] for word in words)


class ConditionTimes:
    """Remembers since when each condition has been there."""

    def __init__(self) -> None:
        self._since: dict[tuple[object, ...], float] = {}

    def dated(
        self, conditions: Iterable[ConditionDocument], now: float
    ) -> tuple[ConditionDocument, ...]:
        """Return all present conditions with their `since`; the others are forgotten.

        `now` is a Unix time in seconds, the `since` of those that are new.
        """
        dated = [replace(one, since=self._since.get(_subject(one), now)) for one in conditions]
        self._since = {_subject(one): one.since for one in dated}
        return tuple(dated)


def _subject(one: ConditionDocument) -> tuple[object, ...]:
    """Return what tells a condition from others: its message only where it has no subject."""
    subject = (one.uid, one.container, one.cgroup, one.file)
    return (one.type, one.reason, *subject, "" if any(subject) else one.message)
