"""The pods of a kubelet that have not ended, and when one has.

In: what three observers say of a pod, in any order and more than once. Out: the pods with their
specifications (`facts`), and those that have ended (`end`). Each observer is late, repeats itself
or is wrong at times: a kubelet that was restarted lists no pods for a while, a sandbox is made
again, a cgroup is not there yet. So one observer alone does not end a pod at once (`has_ended`).

| kubelet | what is true | what moves the pod on |
|-|-|-|
| unheard | the kubelet, connected now, has not reported it | a report; a list without it |
| reported | it is to run, or is being deleted and still there | over; a list; disconnected |
| missing | the last list lacks it | a report; `MISSING_SECONDS`; disconnected |
| unlisted | lists have lacked it for `MISSING_SECONDS` | a report |
| over | it is deleted, or in a terminal phase | a report that it is to run; a list: gone |
| gone | it is over, and the last list lacks it | a report that it is to run; disconnected: over |

| runtime | what is true | what moves the pod on |
|-|-|-|
| none | no sandbox was seen | listed; started |
| listed | the runtime listed a sandbox; it may have been stopped long ago | started; removed |
| started | a sandbox was seen to start | removed |
| removed | its last sandbox was removed | listed; started |

| cgroups | what is true | what moves the pod on |
|-|-|-|
| unseen | no cgroup was seen | present |
| present | it has a cgroup; with processes, if lists lack it | gone |
| gone | it had one | present |

A sandbox that starts takes back what speaks for the end: a pod that is not reported is unheard
again, and a cgroup that is gone is unseen. An answer of the kubelet that was asked for before the
kubelet last said something of a pod says nothing of that pod.

The methods can be called from several threads; times are monotonic seconds.
"""

from __future__ import annotations

import threading
from enum import Enum, auto
from math import inf
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from agent.cluster.kubelet.pods import SpecificationUnknownError, UnreadablePodError, pod_of
from agent.pods.model import ManifestError, PodIdentity, full_name, spec_digest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from agent.cluster.kubelet.pods import ReportedPod, ReportedPods
    from agent.pods.model import Pod
    from agent.yaml import Plain

#: How long what one observer says has to last alone, in seconds.
ALONE_SECONDS: Final = 30.0
#: How long a pod has to be missing from the kubelet's lists to count as deleted, in seconds.
MISSING_SECONDS: Final = 30.0
#: The most pods that are tracked; further ones are reported as a condition.
MOST_TRACKED: Final = 10_000
#: The most pods that are remembered after their end, so that a lost reading is repeated.
_ENDED_KEPT: Final = MOST_TRACKED


class Kubelet(Enum):
    """What the kubelet says of a pod; the tables above say what is true in each state."""

    UNHEARD = auto()
    REPORTED = auto()
    MISSING = auto()
    UNLISTED = auto()
    OVER = auto()
    GONE = auto()


class Sandbox(Enum):
    """What the runtime says of a pod's sandboxes."""

    NONE = auto()
    LISTED = auto()
    STARTED = auto()
    REMOVED = auto()


class Cgroup(Enum):
    """What the host shows of a pod's cgroup."""

    UNSEEN = auto()
    PRESENT = auto()
    GONE = auto()


_OVER: Final = (Kubelet.OVER, Kubelet.GONE)
_NOT_LISTED: Final = (Kubelet.MISSING, Kubelet.UNLISTED, Kubelet.GONE)


class TrackedPod(Struct):
    """One pod, as its observers see it; `*_since` is when the state before it began."""

    uid: str
    kubelet: Kubelet = Kubelet.UNHEARD
    kubelet_since: float = -inf
    #: As of when the kubelet last said something of the pod.
    heard: float = -inf
    sandbox: Sandbox = Sandbox.NONE
    sandbox_since: float = -inf
    #: The ids of the sandboxes that there are.
    sandboxes: set[str] = msgspec.field(default_factory=set)
    cgroup: Cgroup = Cgroup.UNSEEN
    cgroup_since: float = -inf
    #: Whether it was admitted, or ran shared, before the start of the agent.
    resumed: bool = False
    #: The specification as first read, or as the pod was resized since; else why there is none.
    pod: Pod | None = None
    error: Exception | None = None
    #: The last specification as it was reported, as it was read, and what of it differs from `pod`.
    specification: Plain = None
    read: Pod | None = None
    changed: str = ""
    #: `namespace/name` as the runtime knows it.
    name: str = ""

    def set_kubelet(self, state: Kubelet, now: float) -> None:
        """Note what the kubelet says; a pod that is over stays so since the same moment."""
        if state is self.kubelet:
            return
        if not (state in _OVER and self.kubelet in _OVER):
            self.kubelet_since = now
        self.kubelet = state

    def set_sandboxes(self, sandboxes: set[str], now: float) -> None:
        """Note the sandboxes that there are; one that was seen to start may be among them."""
        self.sandboxes = sandboxes
        if not sandboxes and self.sandbox is not Sandbox.REMOVED:
            self.sandbox, self.sandbox_since = Sandbox.REMOVED, now
        elif sandboxes and self.sandbox is not Sandbox.STARTED:
            self.sandbox = Sandbox.LISTED

    def set_cgroup(self, now: float, *, present: bool) -> None:
        """Note whether the pod has a cgroup; one that was never seen is not gone."""
        if present:
            self.cgroup = Cgroup.PRESENT
        elif self.cgroup is Cgroup.PRESENT:
            self.cgroup, self.cgroup_since = Cgroup.GONE, now

    def start_sandbox(self, sandbox: str) -> None:
        """Note that a sandbox started, which takes back what speaks for the end."""
        self.sandboxes.add(sandbox)
        self.sandbox = Sandbox.STARTED
        if self.kubelet is not Kubelet.REPORTED:
            self.kubelet = Kubelet.UNHEARD
        if self.cgroup is Cgroup.GONE:
            self.cgroup = Cgroup.UNSEEN


def has_ended(pod: TrackedPod, now: float) -> bool:
    """Return whether the observers say enough to end a pod's allocation."""
    is_over = pod.kubelet in _OVER
    removed, no_cgroup = pod.sandbox is Sandbox.REMOVED, pod.cgroup is Cgroup.GONE
    # 1. Two observers agree.
    if sum((is_over or pod.kubelet in _NOT_LISTED, removed, no_cgroup)) > 1:
        return True
    # 2. Lists have lacked the pod for long. If it has a cgroup, a kubelet that does not reach the
    #    API server may list too few.
    if pod.kubelet is Kubelet.UNLISTED and pod.cgroup is not Cgroup.PRESENT:
        return True
    # 3. The kubelet has said for long that it is over.
    if is_over and now - pod.kubelet_since >= ALONE_SECONDS:
        return True
    # 4. Its sandbox, or its cgroup, has been gone for long. A reported pod may be restarting.
    if pod.kubelet is Kubelet.REPORTED:
        return False
    return (removed and now - pod.sandbox_since >= ALONE_SECONDS) or (
        no_cgroup and now - pod.cgroup_since >= ALONE_SECONDS
    )


def never_ran(pod: TrackedPod) -> bool:
    """Return whether a pod was over before it had a sandbox or a cgroup.

    The kubelet rejected it, say: nothing of it will run, so no other observer will say more.
    """
    unseen = pod.sandbox is Sandbox.NONE and pod.cgroup is Cgroup.UNSEEN and not pod.resumed
    return pod.kubelet in _OVER and unseen


class PodFacts(Struct, frozen=True):
    """What is known of one pod that has not ended."""

    #: With the name as the runtime knows it.
    identity: PodIdentity
    #: Its specification as first read or resized, else why there is none.
    pod: Pod | None
    error: Exception | None
    #: What of the specification has changed since.
    changed: str
    #: Whether the kubelet has admitted the pod: it has a cgroup or a sandbox, or was known before
    #: the start of the agent.
    begun: bool = True


class TrackedPods:
    """The pods of one kubelet that have not ended. `pod_level` is the gate PodLevelResources."""

    def __init__(self, *, pod_level: bool) -> None:
        self._pod_level = pod_level
        self._pods: dict[str, TrackedPod] = {}
        #: When the pods ended, in the order of their ends.
        self._ended: dict[str, float] = {}
        self._overflow = False
        #: Whether a list of the kubelet that is connected now says which pods there are.
        self._listed = False
        self._lock = threading.Lock()

    def facts(self) -> tuple[PodFacts, ...]:
        """Return what is known of each pod that runs or is to run, in the order they came."""
        with self._lock:
            return tuple(self._facts())

    def pod(self, uid: str) -> Pod | None:
        """Return the specification of a pod, None if it is not known."""
        with self._lock:
            tracked = self._pods.get(uid)
            return None if tracked is None else tracked.pod

    def resized(self, pod: Pod) -> None:
        """Note the specification to which a pod was resized; an unknown pod changes nothing."""
        with self._lock:
            tracked = self._pods.get(pod.uid)
            if tracked is not None and tracked.read is not None:
                tracked.pod, tracked.changed = pod, _changes(pod, tracked.read)

    def end(self, now: float, *, cgroups_read: bool = True) -> frozenset[str]:
        """Forget the pods that have ended; return them with those that ended before.

        `cgroups_read`: the cgroups are those of now.
        """
        with self._lock:
            for uid, pod in list(self._pods.items()):
                if has_ended(pod, now) or (cgroups_read and never_ran(pod)):
                    self._forget(uid, now)
            return frozenset(self._ended) - {each.identity.uid for each in self._facts()}

    @property
    def missing(self) -> Mapping[str, bool]:
        """The pods that the kubelet's lists lack: by uid whether another list may confirm that."""
        with self._lock:
            return {
                uid: pod.kubelet is not Kubelet.UNLISTED
                for uid, pod in self._pods.items()
                if pod.kubelet in _NOT_LISTED
            }

    @property
    def ending(self) -> frozenset[str]:
        """The uids of the pods that may have ended: one observer says so, and that is not enough.

        While the kubelet reports a pod, the host does not count: the sandbox of such a pod is made
        again, which may fail for any time.
        """
        with self._lock:
            return frozenset(
                uid
                for uid, pod in self._pods.items()
                if pod.kubelet in _OVER
                or pod.kubelet in _NOT_LISTED
                or (
                    pod.kubelet is not Kubelet.REPORTED
                    and (pod.sandbox is Sandbox.REMOVED or pod.cgroup is Cgroup.GONE)
                )
            )

    @property
    def unconfirmed(self) -> frozenset[str]:
        """The uids of the pods that the kubelet, connected now, neither reported nor lists yet.

        They may have ended while it or the agent was away.
        """
        with self._lock:
            pods = () if self._listed else self._pods.values()
            return frozenset(pod.uid for pod in pods if pod.kubelet is not Kubelet.REPORTED)

    @property
    def overflow(self) -> bool:
        """Whether there were more pods than `MOST_TRACKED`, so that some are not known."""
        return self._overflow

    def resume(self, uids: Iterable[str], *, same_boot: bool) -> None:
        """Track pods that were admitted, or ran shared, before the start of the agent.

        `same_boot`: the host was not booted since, so that they had their cgroups.
        """
        with self._lock:
            for uid in uids:
                if (pod := self._tracked(uid)) is not None:
                    pod.resumed = True
                    pod.cgroup = Cgroup.PRESENT if same_boot else Cgroup.UNSEEN

    def report(self, reported: ReportedPod, asked: float) -> None:
        """Note one pod as the kubelet reports it; one that is over is never a new pod.

        `asked`: when the kubelet was asked, or reported the pod unasked.
        """
        with self._lock:
            self._report(reported, asked)

    def unreadable(self, error: UnreadablePodError) -> None:
        """Note that a pod of a known uid cannot be read."""
        with self._lock:
            pod = self._tracked(error.uid) if error.uid else None
            if pod is not None and pod.pod is None:
                pod.error = error

    def deleted(self, uid: str, now: float) -> None:
        """Note that the kubelet reported a pod as deleted."""
        with self._lock:
            if (pod := self._pods.get(uid)) is not None:
                pod.heard = now
                self._over(pod, now)

    def listed(self, listing: ReportedPods, asked: float) -> None:
        """Note all pods of the kubelet; the others are missing since the list was asked for."""
        for reported in listing.pods:
            self.report(reported, asked)
        for error in listing.unreadable:
            self.unreadable(error)
        named = {pod.uid for pod in listing.pods} | {each.uid for each in listing.unreadable}
        if "" in named:  # any pod may be among those that cannot be read
            return
        with self._lock:
            self._listed = True
            for uid, pod in self._pods.items():
                if uid not in named and pod.heard <= asked:
                    pod.heard = asked
                    _miss(pod, asked)

    def disconnected(self) -> None:
        """Note that the kubelet is not connected: its last reports and list may no longer hold."""
        with self._lock:
            self._listed = False
            for pod in self._pods.values():
                if pod.kubelet in (Kubelet.REPORTED, Kubelet.MISSING):
                    pod.kubelet = Kubelet.UNHEARD
                elif pod.kubelet is Kubelet.GONE:
                    pod.kubelet = Kubelet.OVER

    def sandbox_started(self, uid: str, sandbox: str, name: str) -> None:
        """Note that a pod has a sandbox."""
        with self._lock:
            if (pod := self._tracked(uid)) is not None:
                pod.name = name or pod.name
                pod.start_sandbox(sandbox)

    def sandbox_removed(self, uid: str, sandbox: str, now: float) -> None:
        """Note that a sandbox was removed."""
        with self._lock:
            if (pod := self._pods.get(uid)) is not None:
                pod.set_sandboxes(pod.sandboxes - {sandbox}, now)

    def synchronized(self, sandboxes: Mapping[str, Mapping[str, str]], now: float) -> None:
        """Note all sandboxes that there are: by uid the name of the pod by sandbox.

        A pod of which nothing else is known goes with its last sandbox.
        """
        with self._lock:
            for uid, names in sandboxes.items():
                if (pod := self._tracked(uid)) is not None:
                    pod.name = next(filter(None, names.values()), pod.name)
                    pod.set_sandboxes(set(names), now)
            for uid, pod in list(self._pods.items()):
                if not pod.sandboxes or uid in sandboxes:
                    continue
                pod.set_sandboxes(set(), now)
                reported = pod.kubelet is Kubelet.REPORTED
                present = pod.cgroup is Cgroup.PRESENT
                if pod.pod is None and not (pod.resumed or reported or present):
                    self._forget(uid, now)

    def cgroups(self, uids: Collection[str], now: float) -> None:
        """Note which pods have a cgroup."""
        with self._lock:
            for uid, pod in self._pods.items():
                pod.set_cgroup(now, present=uid in uids)

    def _tracked(self, uid: str) -> TrackedPod | None:
        """Return a pod, a new one if it is not tracked; None if there are too many."""
        pod = self._pods.get(uid)
        if pod is None:
            if len(self._pods) >= MOST_TRACKED:
                self._overflow = True
                return None
            pod = self._pods[uid] = TrackedPod(uid)
        return pod

    def _forget(self, uid: str, now: float) -> None:
        del self._pods[uid]
        self._ended.pop(uid, None)
        self._ended[uid] = now
        if len(self._ended) > _ENDED_KEPT:
            del self._ended[next(iter(self._ended))]

    def _report(self, reported: ReportedPod, asked: float) -> None:
        pod = self._pods.get(reported.uid)
        heard = self._ended.get(reported.uid, asked) if pod is None else pod.heard
        if heard > asked:
            return
        if pod is None and not reported.over:
            pod = self._tracked(reported.uid)
        if pod is None:
            return
        pod.heard = asked
        if not reported.over:
            pod.set_kubelet(Kubelet.REPORTED, asked)
            self._read(pod, reported)
        elif reported.terminal:
            self._over(pod, asked)
        else:  # it is being deleted, and still there
            is_over = pod.kubelet in _OVER
            pod.set_kubelet(Kubelet.OVER if is_over else Kubelet.REPORTED, asked)

    @staticmethod
    def _over(pod: TrackedPod, now: float) -> None:
        not_listed = pod.kubelet in _NOT_LISTED
        pod.set_kubelet(Kubelet.GONE if not_listed else Kubelet.OVER, now)

    def _read(self, pod: TrackedPod, reported: ReportedPod) -> None:
        """Read the specification; a pod that was read keeps the first one until it is resized."""
        if reported.specification == pod.specification:
            return
        pod.specification = reported.specification
        try:
            read = pod_of(reported, f"pods/{reported.uid}", pod_level=self._pod_level)
        except ManifestError as error:
            if pod.pod is None:
                pod.error = error
            else:
                pod.changed = "it can no longer be read"
            return
        if pod.pod is None:
            pod.pod, pod.error = read, None
        pod.read, pod.changed = read, _changes(pod.pod, read)

    def _facts(self) -> Iterator[PodFacts]:
        for uid, pod in self._pods.items():
            error, present = pod.error, pod.cgroup is Cgroup.PRESENT
            if pod.pod is None and error is None:
                if pod.resumed or not (pod.sandbox is Sandbox.STARTED or present):
                    continue
                error = SpecificationUnknownError(_UNKNOWN)
            namespace, _, name = pod.name.partition("/")
            begun = pod.resumed or present or bool(pod.sandboxes)
            yield PodFacts(PodIdentity(uid, name, namespace), pod.pod, error, pod.changed, begun)


_UNKNOWN: Final = (
    "specification unknown: the pod has a sandbox, and neither the Pods API nor the kubelet's "
    "endpoint reports the pod, so it runs in the shared pool; see the conditions of the source"
)


def _miss(pod: TrackedPod, asked: float) -> None:
    """Note that a list lacks a pod."""
    if pod.kubelet in _OVER:
        pod.set_kubelet(Kubelet.GONE, asked)
    elif pod.kubelet not in _NOT_LISTED:
        pod.set_kubelet(Kubelet.MISSING, asked)
    elif asked - pod.kubelet_since >= MISSING_SECONDS:
        pod.set_kubelet(Kubelet.UNLISTED, asked)


def _changes(first: Pod, now: Pod) -> str:
    """Return what of a specification differs from the first, "" if a decision would not."""
    if spec_digest(first) == spec_digest(now):
        return ""
    before = {each.name: each for each in first.all_containers()}
    after = {each.name: each for each in now.all_containers()}
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    parts = [f"container {name}" for name in names]
    if first.resources != now.resources:
        parts.append("the resources of the pod")
    if first.overhead != now.overhead:
        parts.append("the overhead")
    return ", ".join(parts) or f"the order of the containers of {full_name(now)}"
