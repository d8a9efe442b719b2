"""Everything that is known of the kubelet's pods, from whichever input it came.

All inputs are hints keyed by uid that may come in any order and more than once; an answer that was
asked for before a pod was last heard of says nothing of that pod. The methods can be called from
several threads; times are monotonic seconds.

Each input is late, repeats itself or is wrong at times: a kubelet that was restarted lists no pods
for a while, a sandbox is made again, a cgroup is not there yet. So no kind of evidence that a pod
has ended is enough at once: two of them are, or one that lasts. A pod that is over before the host
showed anything of it, as one that the kubelet rejected, has ended: no other evidence will come. A
pod that ended while the agent was away is missing from the first list, and its cgroup is gone: that
is two.
"""

from __future__ import annotations

import threading
from math import inf
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from agent.cluster.kubelet.pods import SpecificationUnknownError, UnreadablePodError, pod_of
from agent.pods.model import ManifestError, PodIdentity, full_name, spec_digest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from agent.cluster.kubelet.pods import ReportedPod, ReportedPods
    from agent.pods.model import Pod
    from agent.yaml import Plain

#: How long one kind of evidence has to last alone, in seconds.
ALONE_SECONDS: Final = 30.0
#: How long a pod has to be missing from the kubelet's lists to count as deleted, in seconds.
MISSING_SECONDS: Final = 30.0

#: So many pods are tracked at most; further ones are reported as a condition.
MOST_TRACKED: Final = 10_000
#: So many pods that ended last are remembered, so that a reading which was lost is repeated.
_ENDED_KEPT: Final = MOST_TRACKED


class Evidence(Struct, frozen=True):
    """Since when each kind of evidence says that a pod has ended (monotonic seconds, None: not).

    `deleted`: the kubelet reported that the pod is deleted or in a terminal phase. `missing`: the
    kubelet's lists lack it. `unlisted`: the same, confirmed by a list `MISSING_SECONDS` after the
    first, so that it has lasted. `sandbox`: the runtime removed its last sandbox. `cgroup`: its
    cgroup, which was there, is not there, or has no process while lists lack the pod.
    """

    deleted: float | None = None
    missing: float | None = None
    unlisted: float | None = None
    sandbox: float | None = None
    cgroup: float | None = None


NOTHING: Final = Evidence()


def has_ended(evidence: Evidence, now: float, *, reported: bool, with_cgroup: bool) -> bool:
    """Return whether the evidence is enough to end a pod's allocation.

    `reported`: the kubelet, connected now, has reported the pod as one that is to run; a removed
    sandbox or a cgroup that is gone can then be those of a restart. `with_cgroup`: the pod has a
    cgroup; its absence from lists can then be that of a kubelet which does not reach the API
    server.
    """
    kinds = (
        evidence.deleted is not None or evidence.missing is not None,
        evidence.sandbox is not None,
        evidence.cgroup is not None,
    )
    if sum(kinds) > 1:
        return True
    if evidence.unlisted is not None and not with_cgroup:
        return True
    alone = [evidence.deleted]
    if not reported:
        alone += [evidence.sandbox, evidence.cgroup]
    return any(since is not None and now - since >= ALONE_SECONDS for since in alone)


class PodFacts(Struct, frozen=True):
    """What is known of one pod that has not ended.

    `pod` is its specification as first read, else `error` says why there is none. `changed` says
    what of the specification has changed since. `identity` has the name as the runtime knows it.
    `begun`: the kubelet has admitted the pod, since there is a cgroup, a sandbox, or it was known
    before the start of the agent.
    """

    identity: PodIdentity
    pod: Pod | None
    error: Exception | None
    changed: str
    begun: bool = True


class _Tracked(Struct):
    """One pod.

    `reported`: the kubelet, connected now, reported it as one that is to run. `resumed`: it was
    admitted, or ran shared, before the start of the agent. `started`: a sandbox was seen to start;
    those that the runtime only listed may have been stopped long ago. `heard`: as of when the
    kubelet last said something of the pod.
    """

    uid: str
    heard: float = -inf
    evidence: Evidence = NOTHING
    pod: Pod | None = None
    error: Exception | None = None
    specification: Plain = None
    changed: str = ""
    name: str = ""
    reported: bool = False
    resumed: bool = False
    started: bool = False
    with_cgroup: bool = False
    sandboxes: set[str] = msgspec.field(default_factory=set)


class TrackedPods:
    """The pods of one kubelet that have not ended. `pod_level` is the gate PodLevelResources."""

    def __init__(self, *, pod_level: bool) -> None:
        self._pod_level = pod_level
        self._pods: dict[str, _Tracked] = {}
        #: When the pods ended, those first that ended first.
        self._ended: dict[str, float] = {}
        self._overflow = False
        #: Whether a list of the kubelet that is connected now says which pods there are.
        self._listed = False
        self._lock = threading.Lock()

    def resume(self, uids: Iterable[str], *, same_boot: bool) -> None:
        """Track pods that were admitted, or ran shared, before the start of the agent.

        `same_boot`: the host was not booted since, so that they had their cgroups.
        """
        with self._lock:
            for uid in uids:
                if (pod := self._tracked(uid)) is not None:
                    pod.resumed, pod.with_cgroup = True, same_boot

    def report(self, reported: ReportedPod, asked: float) -> None:
        """Take over one pod as the kubelet reports it; one that is over is never a new pod.

        `asked`: when the kubelet was asked, or reported the pod unasked.
        """
        with self._lock:
            self._report(reported, asked)

    def unreadable(self, error: UnreadablePodError) -> None:
        """Take over that a pod of a known uid cannot be read."""
        with self._lock:
            pod = self._tracked(error.uid) if error.uid else None
            if pod is not None and pod.pod is None:
                pod.error = error

    def deleted(self, uid: str, now: float) -> None:
        """Take over that the kubelet reported a pod as deleted."""
        with self._lock:
            if (pod := self._pods.get(uid)) is not None:
                pod.heard = now
                self._over(pod, now)

    def listed(self, listing: ReportedPods, asked: float) -> None:
        """Take over all pods of the kubelet; those that it lacks are missing since it was asked."""
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
                    pod.heard, pod.reported = asked, False
                    pod.evidence = _missing(pod.evidence, asked)

    def disconnected(self) -> None:
        """Take over that the kubelet is not connected: its last reports may no longer hold."""
        with self._lock:
            self._listed = False
            for pod in self._pods.values():
                pod.reported = False
                if pod.evidence.unlisted is None:
                    pod.evidence = replace(pod.evidence, missing=None)

    def sandbox_started(self, uid: str, sandbox: str, name: str) -> None:
        """Take over that a pod has a sandbox, which takes all evidence back."""
        with self._lock:
            if (pod := self._tracked(uid)) is not None:
                pod.sandboxes.add(sandbox)
                pod.started, pod.name = True, name or pod.name
                pod.evidence = NOTHING

    def sandbox_removed(self, uid: str, sandbox: str, now: float) -> None:
        """Take over that a sandbox was removed; it counts if the pod has no other one."""
        with self._lock:
            if (pod := self._pods.get(uid)) is None:
                return
            pod.sandboxes.discard(sandbox)
            if not pod.sandboxes:
                pod.started = False
                pod.evidence = replace(pod.evidence, sandbox=_since(pod.evidence.sandbox, now))

    def synchronized(self, sandboxes: Mapping[str, Mapping[str, str]], now: float) -> None:
        """Take over all sandboxes that there are: by uid the name of the pod by sandbox.

        They may have been stopped, and take no evidence back but that of a removed sandbox. A pod
        of which nothing else is known goes with its last sandbox.
        """
        with self._lock:
            for uid, found in sandboxes.items():
                if (pod := self._tracked(uid)) is not None:
                    pod.sandboxes = set(found)
                    pod.name = next(filter(None, found.values()), pod.name)
                    pod.evidence = replace(pod.evidence, sandbox=None)
            for uid, pod in list(self._pods.items()):
                if not pod.sandboxes or uid in sandboxes:
                    continue
                pod.sandboxes.clear()
                pod.started = False
                pod.evidence = replace(pod.evidence, sandbox=_since(pod.evidence.sandbox, now))
                if pod.pod is None and not (pod.resumed or pod.reported or pod.with_cgroup):
                    self._forget(uid, now)

    def cgroups(self, uids: Collection[str], now: float) -> None:
        """Take over which pods have a cgroup.

        A cgroup is gone if it was there, as that of each pod from before the start of the agent
        was, but for a boot of the host since.
        """
        with self._lock:
            for uid, pod in self._pods.items():
                before = pod.with_cgroup or pod.evidence.cgroup is not None
                pod.with_cgroup = uid in uids
                if pod.with_cgroup:
                    pod.evidence = replace(pod.evidence, cgroup=None)
                elif before:
                    pod.evidence = replace(pod.evidence, cgroup=_since(pod.evidence.cgroup, now))

    def end(self, now: float, *, cgroups_read: bool = True) -> frozenset[str]:
        """Forget the pods that have ended; return them with those that ended before.

        `cgroups_read`: the cgroups are those of now.
        """
        with self._lock:
            for uid, pod in list(self._pods.items()):
                facts = {"reported": pod.reported, "with_cgroup": pod.with_cgroup}
                if has_ended(pod.evidence, now, **facts) or (cgroups_read and _never_ran(pod)):
                    self._forget(uid, now)
            return frozenset(self._ended) - {each.identity.uid for each in self._facts()}

    def facts(self) -> tuple[PodFacts, ...]:
        """Return what is known of each pod that runs or is to run, in the order they came."""
        with self._lock:
            return tuple(self._facts())

    def pod(self, uid: str) -> Pod | None:
        """Return the specification of a pod, None if it is not known."""
        with self._lock:
            tracked = self._pods.get(uid)
            return None if tracked is None else tracked.pod

    @property
    def missing(self) -> Mapping[str, bool]:
        """The pods that the kubelet's lists lack: by uid whether another list may confirm that."""
        with self._lock:
            found = ((uid, pod.evidence) for uid, pod in self._pods.items())
            return {uid: each.unlisted is None for uid, each in found if each.missing is not None}

    @property
    def ending(self) -> frozenset[str]:
        """The uids of the pods that may have ended: there is evidence, though not enough.

        What the host shows is none for a pod that the kubelet, connected now, reports as to run:
        its sandbox is made again, and that may fail for as long as you like.
        """
        with self._lock:
            return frozenset(
                uid
                for uid, pod in self._pods.items()
                if pod.evidence.deleted is not None
                or pod.evidence.missing is not None
                or (pod.evidence != NOTHING and not pod.reported)
            )

    @property
    def unconfirmed(self) -> frozenset[str]:
        """The uids of the pods that the kubelet, connected now, neither reported nor lists yet.

        They may have ended while it or the agent was away.
        """
        with self._lock:
            pods = () if self._listed else self._pods.values()
            return frozenset(pod.uid for pod in pods if not pod.reported)

    @property
    def overflow(self) -> bool:
        """Whether there were more pods than `MOST_TRACKED`, so that some are not known."""
        return self._overflow

    def _forget(self, uid: str, now: float) -> None:
        del self._pods[uid]
        self._ended.pop(uid, None)
        self._ended[uid] = now
        if len(self._ended) > _ENDED_KEPT:
            del self._ended[next(iter(self._ended))]

    def _tracked(self, uid: str) -> _Tracked | None:
        pod = self._pods.get(uid)
        if pod is None:
            if len(self._pods) >= MOST_TRACKED:
                self._overflow = True
                return None
            pod = self._pods[uid] = _Tracked(uid)
        return pod

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
        if reported.over:
            self._dying(pod, reported, asked)
            return
        pod.reported = True
        pod.evidence = replace(pod.evidence, deleted=None, missing=None, unlisted=None)
        self._read(pod, reported)

    def _dying(self, pod: _Tracked, reported: ReportedPod, now: float) -> None:
        """Take a terminal phase as evidence; a pod that only is being deleted is still there."""
        if reported.terminal:
            self._over(pod, now)
        else:
            pod.reported = True
            pod.evidence = replace(pod.evidence, missing=None, unlisted=None)

    @staticmethod
    def _over(pod: _Tracked, now: float) -> None:
        pod.reported = False
        pod.evidence = replace(pod.evidence, deleted=_since(pod.evidence.deleted, now))

    def _read(self, pod: _Tracked, reported: ReportedPod) -> None:
        """Read the specification; a pod that was read keeps the first one."""
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
        pod.changed = _changes(pod.pod, read)

    def _facts(self) -> Iterator[PodFacts]:
        for uid, pod in self._pods.items():
            error = pod.error
            if pod.pod is None and error is None:
                if pod.resumed or not (pod.started or pod.with_cgroup):
                    continue
                error = SpecificationUnknownError(_UNKNOWN)
            namespace, _, name = pod.name.partition("/")
            begun = pod.resumed or pod.with_cgroup or bool(pod.sandboxes)
            yield PodFacts(PodIdentity(uid, name, namespace), pod.pod, error, pod.changed, begun)


_UNKNOWN: Final = (
    "specification unknown: the pod has a sandbox, and neither the Pods API nor the kubelet's "
    "endpoint reports the pod, so it runs in the shared pool; see the conditions of the source"
)


def _never_ran(pod: _Tracked) -> bool:
    """Return whether a pod was over before it had a sandbox or a cgroup.

    The kubelet rejected it, say: nothing of it will run, so no other evidence will come.
    """
    evidence = pod.evidence
    shown = pod.sandboxes or pod.with_cgroup or pod.resumed
    before = (evidence.sandbox, evidence.cgroup)
    return evidence.deleted is not None and not shown and before == (None, None)


def _since(before: float | None, now: float) -> float:
    return now if before is None else before


def _missing(evidence: Evidence, now: float) -> Evidence:
    if evidence.missing is None:
        return replace(evidence, missing=now)
    if evidence.unlisted is None and now - evidence.missing >= MISSING_SECONDS:
        return replace(evidence, unlisted=now)
    return evidence


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
