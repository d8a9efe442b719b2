"""Records of pods for reporting, kept in memory; decisions do not use them."""

from __future__ import annotations

from collections import OrderedDict
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Mapping

    from agent.api.documents import AdmissionDocument, ExplanationDocument, FailedPodDocument
    from agent.managers.allocations.origin import Source
    from agent.pods.model import Pod
    from agent.reconcile.diff import Difference

#: How many rejected or invalid pods are kept for queries.
REJECTIONS_KEPT: Final = 64


class PodRecord(Struct):
    """The explanation of a pod's allocation, and what of it is not enforced.

    `running` are the names of its containers whose cgroups were found.
    """

    explanation: ExplanationDocument | None = None
    unenforced: tuple[Difference, ...] = ()
    running: frozenset[str] = frozenset()

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

    def of(self, uid: str) -> PodRecord:
        """Return the record of a pod; a restored pod gets a new record."""
        return self.pods.setdefault(uid, PodRecord())

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

    def forget_rejections(self, gone: Callable[[RejectedPod], bool]) -> None:
        """Drop the status of all pods for which `gone` is true."""
        over = [key for key, rejection in self.rejections.items() if gone(rejection)]
        for key in over:
            del self.rejections[key]

    def note_unenforced(
        self, unenforced: Mapping[str, tuple[Difference, ...]], admitted: Container[str]
    ) -> Mapping[str, tuple[Difference, ...]]:
        """Store what is not enforced now, by pod uid; return the pods for which this changed.

        Pods that are not `admitted` are left out.
        """
        found = {uid: differing for uid, differing in unenforced.items() if uid in admitted}
        news = {
            uid: differing
            for uid, differing in found.items()
            if details(differing) != details(self.of(uid).unenforced)
        }
        for uid in self._unenforced - found.keys():
            self.of(uid).unenforced = ()
        for uid, differing in found.items():
            self.of(uid).unenforced = differing
        self._unenforced = set(found)
        return MappingProxyType(news)

    def note_running(
        self, running: Mapping[str, Collection[str]], pods: Collection[str] | None
    ) -> None:
        """Take over which containers (names by pod uid) have a cgroup; None: of all pods."""
        for uid, containers in running.items():
            self.of(uid).running = frozenset(containers)
        for uid in self.pods if pods is None else pods:
            if uid not in running and uid in self.pods:
                self.pods[uid].running = frozenset()

    @property
    def unenforced(self) -> int:
        """The number of pods that are not fully enforced."""
        return len(self._unenforced)


def details(differences: Iterable[Difference]) -> tuple[str, ...]:
    """Return what differs, a line each."""
    return tuple(difference.detail for difference in differences)


def _key(status: FailedPodDocument) -> str:
    """Return the key of a rejected pod: the uid, else source and name as far as known.

    A uid contains no space.
    """
    return status.uid or f"{status.source} {status.namespace}/{status.name}"
