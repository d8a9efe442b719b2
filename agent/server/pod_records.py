"""Records of pods for reporting, kept in memory; decisions do not use them.

In go explanations, rejections, and what comparisons found of pods: what is not enforced, which
containers run. Out comes what is known of a pod now, also of one that was rejected.
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

    from agent.api.documents import AdmissionDocument, ExplanationDocument, FailedPodDocument
    from agent.managers.allocation import PodAllocation, Source
    from agent.pods.model import Pod
    from agent.reconcile.diff import Difference
    from agent.reconcile.report import CgroupReports, EnforcementReport


#: How many rejected or invalid pods are kept for queries.
REJECTIONS_KEPT: Final = 64
#: How long containers may be without processes in their cgroups before they count as not found, in
#: seconds: long enough to be started by hand, and to be restarted.
STARTING_SECONDS: Final = 60.0


class Absence(StrEnum):
    """Why containers of a pod have no cgroup with processes."""

    #: They are given time (`STARTING_SECONDS`), or an init container of the pod still runs.
    STARTING = "starting"
    #: No container of the pod was found since it was admitted, or since the agent started.
    NOT_STARTED = "not started"
    #: Others of the pod, or they themselves, were found: they ended, or run outside of the pod.
    NOT_FOUND = "not found"


class PodRecord(Struct):
    """The explanation of a pod's allocation, and what of it is not enforced.

    `running` are the names of its containers whose cgroups were found. `not_found` are those that
    are to run and were found in no cgroup for `STARTING_SECONDS`, `absence` says why ("": all were
    found). `since` has the monotonic time since which each was not found, in seconds.
    """

    explanation: ExplanationDocument | None = None
    unenforced: tuple[Difference, ...] = ()
    running: frozenset[str] = frozenset()
    not_found: tuple[str, ...] = ()
    absence: str = ""
    since: dict[str, float] = field(default_factory=dict)
    started: bool = False
    #: The allocation all of whose lasting containers, and no other, ran when that was last noted.
    all_run: PodAllocation | None = None

    def note_running(
        self, allocation: PodAllocation, running: Iterable[str], alike: int, now: float
    ) -> None:
        """Take over which containers have a cgroup with processes.

        So many more `alike` do: all containers of the pod have the same settings, so that it does
        not matter which of them these are.
        """
        found = set(running)
        if self.all_run is allocation and found == self.running:
            return  # nearly every pod, in each comparison
        missing = [each.name for each in allocation.lasting if each.name not in found]
        found.update(missing[:alike])
        missing = missing[alike:]
        self.running = frozenset(found)
        self.started = self.started or bool(found)
        before = found - {each.name for each in allocation.lasting}
        self.all_run = None if missing or before else allocation
        if before:  # an init container still runs
            self.since = dict.fromkeys(missing, now)
        else:
            self.since = {name: self.since.get(name, now) for name in missing}
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
    """A rejected or invalid pod: its status, who asked for it and, if decided, pod and answer."""

    status: FailedPodDocument
    source: Source
    answer: AdmissionDocument | None = None
    pod: Pod | None = None


class PodRecords(Struct):
    """The records of all admitted pods by uid, and the latest rejections."""

    pods: dict[str, PodRecord] = field(default_factory=dict)
    rejections: OrderedDict[str, RejectedPod] = field(default_factory=OrderedDict)
    _unenforced: set[str] = field(default_factory=set)
    #: The cgroups and the pods by which all containers ran, and no other, when that was last noted:
    #: as long as both are the same, there is nothing to note.
    _all_run: tuple[CgroupReports | None, Mapping[str, PodAllocation] | None] = (None, None)

    def of(self, uid: str) -> PodRecord:
        """Return the record of a pod; a restored pod gets a new record."""
        found = self.pods.get(uid)
        if found is None:
            found = self.pods[uid] = PodRecord()
        return found

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
        """Return the status of each, without the full reasons: these are in the pod's document."""
        statuses = (each.status for each in self.rejections.values())
        return tuple(replace(status, rejection=None, explanation=None) for status in statuses)

    def forget_rejections(self, gone: Callable[[RejectedPod], bool]) -> None:
        """Drop the status of all pods for which `gone` is true."""
        over = [key for key, rejection in self.rejections.items() if gone(rejection)]
        for key in over:
            del self.rejections[key]

    def note_unenforced(
        self,
        unenforced: Mapping[str, tuple[Difference, ...]],
        admitted: Container[str],
        compared: AbstractSet[str] | None = None,
    ) -> Mapping[str, tuple[Difference, ...]]:
        """Store what is not enforced now, by pod uid; return the pods for which this changed.

        Pods that are not `admitted` are left out. `compared` are the pods that were looked at, None
        if all were: what the others lack stays as it was.
        """
        found = {uid: differing for uid, differing in unenforced.items() if uid in admitted}
        news = {
            uid: differing
            for uid, differing in found.items()
            if details(differing) != details(self.of(uid).unenforced)
        }
        over = self._unenforced if compared is None else self._unenforced & compared
        for uid in over - found.keys():
            self.of(uid).unenforced = ()
        for uid, differing in found.items():
            self.of(uid).unenforced = differing
        self._unenforced = self._unenforced - over | found.keys()
        return MappingProxyType(news)

    def add_unenforced(self, difference: Difference) -> None:
        """Store one more thing that is not enforced of a pod, until the pod is compared again."""
        record = self.of(difference.pod)
        record.unenforced = (*record.unenforced, difference)
        self._unenforced.add(difference.pod)

    def note_running(
        self, outcome: EnforcementReport, admitted: Mapping[str, PodAllocation], now: float
    ) -> None:
        """Take over which containers of the observed pods have a cgroup; `now` is monotonic."""
        cgroups, some = outcome.cgroups, outcome.pods
        if not outcome.compared or (
            some is None and cgroups is self._all_run[0] and admitted is self._all_run[1]
        ):
            return
        running, alike = cgroups.running, cgroups.alike
        here = admitted if some is None else {u: admitted[u] for u in some & admitted.keys()}
        all_run = some is None
        for uid, allocation in here.items():
            record = self.of(uid)
            record.note_running(allocation, running.get(uid, ()), alike.get(uid, 0), now)
            all_run = all_run and record.all_run is allocation
        self._all_run = (cgroups, admitted) if all_run else (None, None)

    def not_found(self) -> Mapping[str, int]:
        """Return how many containers were not found, by `Absence`, none in their grace."""
        count = Counter[str]()
        for record in self.pods.values():
            count[record.absence] += len(record.not_found)
        return {each: count[each] for each in (Absence.NOT_STARTED, Absence.NOT_FOUND)}

    def differences(self) -> Iterator[Difference]:
        """Yield what is not enforced of all pods."""
        for uid in self._unenforced:
            yield from self.of(uid).unenforced

    @property
    def unenforced(self) -> int:
        """The number of pods that are not fully enforced."""
        return len(self._unenforced)


def _is_started_here(allocation: PodAllocation) -> bool:
    """Return whether users start the pod's containers, and it stays admitted without them.

    A kubelet starts its pods' containers in their cgroups itself, later or never, and not again
    what is complete. Other pods end by themselves when they are not started
    (`agent.server.endings`).
    """
    kubelet = allocation.source is not None and allocation.source.name == KUBELET
    return allocation.lifetime.end is End.REMOVAL and not kubelet


def details(differences: Iterable[Difference]) -> tuple[str, ...]:
    """Return what differs, a line each."""
    return tuple(difference.detail for difference in differences)


def _key(status: FailedPodDocument) -> str:
    """Return the key of a rejected pod: the uid, else source and name as far as known.

    A uid contains no space.
    """
    return status.uid or f"{status.source} {status.namespace}/{status.name}"
