"""Records of pods for reporting, kept in memory; decisions do not use them.

In go explanations, rejections, and what comparisons observed of pods: what is not enforced, which
containers run. Out comes what is recorded of a pod, admitted or rejected. A pod that a comparison
did not observe keeps its record as it was. Rejections are bounded (`REJECTIONS_KEPT`).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field
from msgspec.structs import replace

from agent.managers.allocation import KUBELET
from agent.pods.model import End

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping
    from collections.abc import Set as AbstractSet

    from agent.api.documents.admissions import AdmissionDocument
    from agent.api.documents.explanations import ExplanationDocument
    from agent.api.documents.rejections import FailedPodDocument
    from agent.managers.allocation import PodAllocation, Source
    from agent.pods.model import Pod
    from agent.reconcile.diff import Difference
    from agent.reconcile.report import CgroupReports, EnforcementReport


#: The most rejected or invalid pods that are kept for queries.
REJECTIONS_KEPT: Final = 64
#: How long a container may be without a process in its cgroup before it counts as not found, in
#: seconds: long enough to start it by hand, and to restart it.
STARTING_SECONDS: Final = 60.0


class Absence(StrEnum):
    """Why containers of a pod have no cgroup with processes."""

    #: `STARTING_SECONDS` are not over, or an init container of the pod still runs.
    STARTING = "starting"
    #: No container of the pod was found since it was admitted, or since the agent started.
    NOT_STARTED = "not started"
    #: A container of the pod was found before: these have ended, or run outside of the pod.
    NOT_FOUND = "not found"


class PodRecord(Struct):
    """The explanation of a pod's allocation, and what comparisons observed of the pod."""

    explanation: ExplanationDocument | None = None
    #: How long the admission took, from the request until what was enforced was read back, in
    #: seconds; None for one before the agent was started.
    admission_seconds: float | None = None
    #: What the kernel does not enforce of the pod.
    unenforced: tuple[Difference, ...] = ()
    #: The names of the containers that have a cgroup with processes.
    running: frozenset[str] = frozenset()
    #: The names of the lasting containers that were in no cgroup for `STARTING_SECONDS`.
    not_found: tuple[str, ...] = ()
    #: Why lasting containers do not run (`Absence`), "" if all do.
    absence: str = ""
    #: The monotonic time since which each of the others does not run, by name, in seconds.
    since: dict[str, float] = field(default_factory=dict)
    #: Whether a container of the pod was ever found.
    started: bool = False
    #: The allocation whose lasting containers, and no others, ran at the last comparison; None if
    #: they did not.
    all_run: PodAllocation | None = None

    def note_running(
        self, allocation: PodAllocation, running: Iterable[str], alike: int, now: float
    ) -> None:
        """Take over which containers have a cgroup with processes; `now` is monotonic.

        `running` are the names of those that were told apart. `alike` is the number of further
        cgroups of containers with the same settings: which is whose does not matter. The steps:

        1. As many containers as there are cgroups `alike` count as running.
        2. While an init container runs, the time of containers that do not run yet does not count.
        3. An overdue container is not found, if users start the containers of this pod.
        """
        names = set(running)
        if self.all_run is allocation and names == self.running:
            return  # nearly every pod, in each comparison
        # 1.
        lasting = [container.name for container in allocation.lasting]
        missing = [name for name in lasting if name not in names]
        names.update(missing[:alike])
        missing = missing[alike:]
        self.running = frozenset(names)
        self.started = self.started or bool(names)
        # 2.
        initializing = not names.issubset(lasting)
        self.all_run = None if missing or initializing else allocation
        former = {} if initializing else self.since
        self.since = {name: former.get(name, now) for name in missing}
        # 3.
        overdue = [name for name in missing if now - self.since[name] >= STARTING_SECONDS]
        self.not_found = tuple(overdue) if _is_started_here(allocation) else ()
        self.absence = ""
        if self.not_found:
            self.absence = Absence.NOT_FOUND if self.started else Absence.NOT_STARTED
        elif missing and _is_started_here(allocation):
            self.absence = Absence.STARTING

    @property
    def unenforced_lines(self) -> tuple[str, ...]:
        """What is not enforced, a line each."""
        return details(self.unenforced)


class RejectedPod(Struct, frozen=True):
    """A rejected or invalid pod."""

    status: FailedPodDocument
    #: Who asked for the pod.
    source: Source
    #: The answer and the pod, if it was valid and this agent decided on it.
    answer: AdmissionDocument | None = None
    pod: Pod | None = None


class PodRecords(Struct):
    """The records of all admitted pods, and the latest rejections."""

    #: By uid.
    pods: dict[str, PodRecord] = field(default_factory=dict)
    #: By `_key`, the oldest first.
    rejections: OrderedDict[str, RejectedPod] = field(default_factory=OrderedDict)
    #: The uids of the pods with `unenforced` differences.
    _unenforced: set[str] = field(default_factory=set)
    #: The cgroups and the pods of the last comparison in which the lasting containers of all pods
    #: ran, and no others: as long as both are the same objects, there is nothing to note.
    _all_run: tuple[CgroupReports | None, Mapping[str, PodAllocation] | None] = (None, None)

    def of(self, uid: str) -> PodRecord:
        """Return the record of a pod; a pod without one, such as a restored pod, gets a new one."""
        record = self.pods.get(uid)
        if record is None:
            record = self.pods[uid] = PodRecord()
        return record

    def forget(self, uid: str) -> None:
        """Drop the record of a pod."""
        self.pods.pop(uid, None)
        self._unenforced.discard(uid)

    def note_rejection(self, rejection: RejectedPod) -> None:
        """Store a rejection, replacing an earlier one of the same pod.

        Beyond `REJECTIONS_KEPT` the oldest is dropped.
        """
        key = _key(rejection.status)
        self.rejections.pop(key, None)
        self.rejections[key] = rejection
        while len(self.rejections) > REJECTIONS_KEPT:
            self.rejections.popitem(last=False)

    def failed(self, uid: str) -> RejectedPod | None:
        """Return the rejected pod with a uid, None without one."""
        return self.rejections.get(uid) if uid else None

    def failed_pods(self) -> tuple[FailedPodDocument, ...]:
        """Return all statuses, without the full reasons: these are in the pod's document."""
        statuses = (rejection.status for rejection in self.rejections.values())
        return tuple(replace(status, rejection=None, explanation=None) for status in statuses)

    def forget_rejections(self, outdated: Callable[[RejectedPod], bool]) -> None:
        """Drop the rejections for which `outdated` is true."""
        for key in [key for key, rejection in self.rejections.items() if outdated(rejection)]:
            del self.rejections[key]

    def note_unenforced(
        self,
        unenforced: Mapping[str, tuple[Difference, ...]],
        admitted: Container[str],
        compared: AbstractSet[str] | None = None,
    ) -> Mapping[str, tuple[Difference, ...]]:
        """Store what is not enforced now, by pod uid; return the pods for which this changed.

        Pods that are not `admitted` are left out. `compared` are the pods that were observed, None
        if all were: what the others lack stays as it was.
        """
        present = {uid: lacking for uid, lacking in unenforced.items() if uid in admitted}
        news = {
            uid: lacking
            for uid, lacking in present.items()
            if details(lacking) != details(self.of(uid).unenforced)
        }
        former = self._unenforced if compared is None else self._unenforced & compared
        for uid in former - present.keys():
            self.of(uid).unenforced = ()
        for uid, lacking in present.items():
            self.of(uid).unenforced = lacking
        self._unenforced = self._unenforced - former | present.keys()
        return MappingProxyType(news)

    def add_unenforced(self, difference: Difference) -> None:
        """Store one more difference of a pod, until the pod is compared again."""
        record = self.of(difference.pod)
        record.unenforced = (*record.unenforced, difference)
        self._unenforced.add(difference.pod)

    def note_running(
        self, outcome: EnforcementReport, admitted: Mapping[str, PodAllocation], now: float
    ) -> None:
        """Take over which containers of the observed pods have a cgroup; `now` is monotonic."""
        cgroups, of_all = outcome.cgroups, outcome.pods is None
        same = cgroups is self._all_run[0] and admitted is self._all_run[1]
        if not outcome.compared or (of_all and same):
            return
        running, alike = cgroups.running, cgroups.alike
        observed = admitted.keys() if outcome.pods is None else outcome.pods & admitted.keys()
        all_run = of_all
        for uid in observed:
            allocation, record = admitted[uid], self.of(uid)
            record.note_running(allocation, running.get(uid, ()), alike.get(uid, 0), now)
            all_run = all_run and record.all_run is allocation
        self._all_run = (cgroups, admitted) if all_run else (None, None)

    def not_found(self) -> Mapping[str, int]:
        """Return how many containers were not found, for each `Absence` but `STARTING`."""
        counts = Counter[str]()
        for record in self.pods.values():
            counts[record.absence] += len(record.not_found)
        return {absence: counts[absence] for absence in (Absence.NOT_STARTED, Absence.NOT_FOUND)}

    def differences(self) -> Iterator[Difference]:
        """Yield what is not enforced of all pods."""
        for uid in self._unenforced:
            yield from self.of(uid).unenforced

    @property
    def unenforced(self) -> int:
        """The number of pods that are not fully enforced."""
        return len(self._unenforced)


def _is_started_here(allocation: PodAllocation) -> bool:
    """Return whether users start the pod's containers, and the pod stays admitted without them.

    A kubelet starts the containers of its pods itself, later or never, and does not start again
    what is complete. A pod that ends with its processes or its unit ends when it is not started
    (`agent.server.endings`).
    """
    kubelet = allocation.source is not None and allocation.source.name == KUBELET
    return allocation.lifetime.end is End.REMOVAL and not kubelet


def details(differences: Iterable[Difference]) -> tuple[str, ...]:
    """Return what differs, a line each."""
    return tuple(difference.detail for difference in differences)


def _key(status: FailedPodDocument) -> str:
    """Return the key of a rejected pod: its uid, else its source and name, if it has a name.

    The two cannot be the same: a uid contains no space.
    """
    return status.uid or f"{status.source} {status.namespace}/{status.name}"
