"""The pods of the kubelet beside the agent, as a source of pods.

Two ways lead to their specifications: the Pods API, which is watched, and the kubelet's endpoint
`/pods`, which is asked from time to time. The endpoint is used while the API does not answer, and
the API is tried again as long as that lasts. A pod whose specification neither way gives is an
entry that cannot be read: nothing exclusive is allocated to it.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import structlog
from msgspec import Struct

from agent.cluster.kubelet.pods import PodsUnavailableError, UnreadablePodError
from agent.cluster.kubelet.pods_api import EventType
from agent.cluster.kubelet.tracked import TrackedPods
from agent.managers.allocation import KUBELET
from agent.pods.model import full_name
from agent.progress import uncancelled
from agent.sources.source import SourceEntry, SourceReading

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping

    from agent.clock import Clock
    from agent.cluster.kubelet.pods import ReportedPods
    from agent.cluster.kubelet.pods_api import PodEvent, PodsApi
    from agent.cluster.kubelet.pods_endpoint import PodsEndpoint
    from agent.cluster.kubelet.tracked import PodFacts
    from agent.pods.model import Pod


log = structlog.get_logger(__name__)

_PREFIX: Final = "pods/"
#: After a way failed the ways are tried again after so many seconds, twice as many each time.
FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 8.0
#: How often pods that may have ended are looked at again, in seconds; while pods are missing from
#: the last list another one is asked for.
CONFIRM_PERIOD: Final = 5.0
#: Before a call is repeated that the kubelet rejected for their number, in seconds: first and at
#: most, for each pause is twice the last. All clients together may call 100 times a second.
_RATE_PAUSE: Final = 0.02
_LONGEST_RATE_PAUSE: Final = 0.5
_TOO_MANY: Final = "RESOURCE_EXHAUSTED"
#: What a kubelet from v1.37 on answers until it has read all of its sources, also after a restart.
_NOT_SYNCHRONIZED: Final = "FAILED_PRECONDITION"
#: How long that may last before it is a condition, in seconds.
SYNC_SECONDS: Final = 60.0
#: Statuses that say nothing about the gate; with it off v1.37 serves the socket and answers errors.
_PASSING: Final = frozenset(
    {"", "UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", _TOO_MANY, _NOT_SYNCHRONIZED}
)
_GATE: Final = (
    "enable the kubelet's feature gate PodsAPI (featureGates: {PodsAPI: true} in its configuration)"
)
_REMEDY: Final = f"{_GATE}, or set agent.kubelet.podsEndpoint and agent.kubelet.tokenFile"


AnswerT = TypeVar("AnswerT")


class KubeletDeadlines(Struct, frozen=True):
    """How long the kubelet may take: to begin a watch, and to list its pods (seconds)."""

    watch: float = 10.0
    listing: float = 5.0


class KubeletWays(Struct, frozen=True):
    """The ways to a kubelet's pods: its Pods API and its endpoint (None: not configured)."""

    api: PodsApi
    endpoint: PodsEndpoint | None
    deadlines: KubeletDeadlines = KubeletDeadlines()


class KubeletPods:
    """The pods of the kubelet (`agent.sources.source.PodSource`).

    The key of a pod is `pods/<uid>`. `cgroups` returns the uids of the pods that have a cgroup, and
    for those that it gets one with processes; raises `OSError`. `pod_level` is the gate
    PodLevelResources. `awaits` says of a pod whether the kubelet has yet to give it devices; it
    runs in the thread that reads. `same_boot`: the host was not booted since the agent ran last.

    What the runtime reports is passed on with `synchronized`, `sandbox_started` and
    `sandbox_removed`, from any thread.
    """

    name: Final = KUBELET
    removal: Final = "delete that pod from the cluster (kubectl delete pod)"

    def __init__(
        self,
        ways: KubeletWays,
        clock: Clock,
        cgroups: Callable[[Collection[str]], Collection[str]],
        *,
        pod_level: bool,
        awaits: Callable[[Pod], bool],
        same_boot: bool,
    ) -> None:
        self._ways = ways
        self._awaits = awaits
        self._same_boot = same_boot
        self._clock = clock
        self._cgroups = cgroups
        self._tracked = TrackedPods(pod_level=pod_level)
        self._changed = asyncio.Event()
        self._fetching: asyncio.Task[None] | None = None
        self._in_use = ""
        #: Whether a list of the kubelet's pods is to be expected, since the last was asked for.
        self._lists = True
        self._faults: dict[str, PodsUnavailableError] = {}
        #: Since when the kubelet answers that it has not read its sources, None if it does not.
        self._waits_since: float | None = None
        self._unreadable = ""

    def key(self, uid: str) -> str:
        """Return the key of a pod."""
        return _key(uid)

    def specification(self, uid: str) -> Pod | None:
        """Return a pod as far as it is known already, None if it is not or cannot be read."""
        return self._tracked.pod(uid)

    def covers(self, key: str) -> bool:
        """Return whether a key is that of a pod of the kubelet."""
        return key.startswith(_PREFIX)

    def resume(self, keys: Collection[str]) -> None:
        """Take over which pods were admitted, or ran shared, before the start of the agent."""
        uids = (key.removeprefix(_PREFIX) for key in keys)
        self._tracked.resume(uids, same_boot=self._same_boot)

    def read(self) -> SourceReading:
        """Return the pods as they are known, without asking the kubelet; looks at cgroups."""
        now, blind = self._clock.monotonic(), ""
        try:
            self._tracked.cgroups(self._cgroups(self._tracked.missing), now)
        except OSError as error:
            why = error.strerror or str(error)
            blind = f"the cgroups of the kubelet's pods cannot be read: {why}"
        ended = self._tracked.end(now, cgroups_read=not blind)
        facts = self._tracked.facts()
        return SourceReading(
            tuple(_entry(each) for each in facts if not self._is_under_admission(each)),
            complete=False,
            removed=frozenset(map(_key, ended)),
            conditions=tuple(self._conditions(facts, blind)),
        )

    def _is_under_admission(self, facts: PodFacts) -> bool:
        """Return whether a pod waits for devices, near which it is to have CPUs and memory.

        The kubelet lists a pod before it admits it, and gives it devices when it does. After that
        the pod gets a cgroup, so that a pod which has one waits no longer, whatever is known.
        """
        return not facts.begun and facts.pod is not None and self._awaits(facts.pod)

    async def changes(self) -> AsyncIterator[None]:
        """Follow the kubelet, and yield whenever pods changed."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(uncancelled(self._follow()))
                tasks.create_task(uncancelled(self._confirm()))
                while True:
                    await self._changed.wait()
                    self._changed.clear()
                    yield
        finally:
            if self._fetching is not None:
                self._fetching.cancel()
            await self._ways.api.close()
            if self._ways.endpoint is not None:
                await self._ways.endpoint.close()

    async def ask_for(self, uid: str, seconds: float) -> Pod | None:
        """Return the specification of one pod, asking the kubelet now if it is not known.

        None if no way gives it within `seconds`. The pod is an entry of the next reading.
        """
        pod = self._tracked.pod(uid)
        if pod is not None:
            return pod
        try:
            async with asyncio.timeout(seconds):
                await self._ask(uid, seconds)
        except TimeoutError:
            log.debug("kubelet not asked in time", uid=uid, seconds=seconds)
        return self._tracked.pod(uid)

    async def list_now(self, seconds: float) -> Collection[Pod] | None:
        """Return the pods that the kubelet has now and that are to run, those before admission too.

        They are entries of the next reading. A pod that cannot be read is left out. None if the
        kubelet does not list its pods within `seconds`.
        """
        try:
            async with asyncio.timeout(seconds):
                listing = await self._take(partial(self._listed, seconds))
        except (TimeoutError, PodsUnavailableError) as error:
            log.debug("kubelet pods not listed", why=str(error), seconds=seconds)
            self._lists = self._ways.endpoint is not None or not _is_off(error)
            return None
        self._lists = True
        known = (self._tracked.pod(each.uid) for each in listing.pods if not each.over)
        return [pod for pod in known if pod is not None]

    @property
    def ending(self) -> frozenset[str]:
        """The uids of the pods that may have ended, and of which that is not certain yet.

        Until the kubelet lists its pods, which it does unless no way to them is on, they are all
        that it has not reported since the agent, or it, started.
        """
        return self._tracked.ending | (self._tracked.unconfirmed if self._lists else frozenset())

    def synchronized(self, sandboxes: Mapping[str, Mapping[str, str]]) -> None:
        """Take over all sandboxes of the runtime: by uid the name of the pod by sandbox."""
        self._tracked.synchronized(sandboxes, self._clock.monotonic())

    def sandbox_started(self, uid: str, sandbox: str = "", name: str = "") -> None:
        """Take over that a pod has a sandbox; `name` is `namespace/name`, for messages."""
        self._tracked.sandbox_started(uid, sandbox, name)

    def sandbox_removed(self, uid: str, sandbox: str = "") -> None:
        """Take over that the runtime removed a sandbox of a pod."""
        self._tracked.sandbox_removed(uid, sandbox, self._clock.monotonic())

    async def _follow(self) -> None:
        pause = FIRST_PAUSE
        while True:
            if await self._watch():
                pause = FIRST_PAUSE
            await self._read_endpoint()
            self._changed.set()
            await self._clock.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _watch(self) -> bool:
        """Follow the Pods API until it breaks; return whether it was of use."""
        api, synced = self._ways.api, False
        try:
            async with aclosing(api.watch()) as events:
                while True:
                    limit = None if synced else self._ways.deadlines.watch
                    async with asyncio.timeout(limit):
                        event = await anext(events)
                    if event.type is EventType.INITIAL_SYNC_COMPLETE:
                        seconds = self._ways.deadlines.listing
                        await self._take(partial(_patiently, partial(api.pods, seconds), seconds))
                        self._use(api.way)
                        synced = True
                    else:
                        self._note(event)
                    self._changed.set()
        except TimeoutError:
            silent = f"no event within {self._ways.deadlines.watch:g} s"
            self._failed(PodsUnavailableError(api.way, silent))
        except PodsUnavailableError as error:
            self._failed(error)
        return synced

    async def _read_endpoint(self) -> None:
        endpoint = self._ways.endpoint
        if endpoint is None:
            return
        try:
            await self._take(partial(endpoint.pods, self._ways.deadlines.listing))
        except PodsUnavailableError as error:
            self._failed(error)
        else:
            self._use(endpoint.way)

    async def _confirm(self) -> None:
        """Have pods read again that may have ended; list those missing from the last of a watch."""
        api = self._ways.api
        while True:
            await self._clock.sleep(CONFIRM_PERIOD)
            if self._in_use == api.way and any(self._tracked.missing.values()):
                try:
                    await self._take(partial(api.pods, self._ways.deadlines.listing))
                except PodsUnavailableError as error:
                    log.debug("kubelet pods not listed", why=str(error))
            if self._tracked.ending:
                self._changed.set()

    async def _ask(self, uid: str, seconds: float) -> None:
        try:
            if await self._asked_api(uid, seconds):
                return
        except PodsUnavailableError as error:
            log.debug("kubelet pod not answered", uid=uid, why=str(error))
        if self._ways.endpoint is not None:
            await self._ask_endpoint(uid, self._ways.endpoint)

    async def _ask_endpoint(self, uid: str, endpoint: PodsEndpoint) -> None:
        """Wait for one answer of the endpoint that was asked for after the pod came.

        An answer serves all who wait, and goes on if one of them has no time left.
        """
        for _ in range(2):
            fetching = self._fetching
            late = fetching is None or fetching.done()
            if fetching is None or late:
                fetching = self._fetching = asyncio.create_task(self._fetch(endpoint))
            await asyncio.shield(fetching)
            if late or self._tracked.pod(uid) is not None:
                return

    async def _fetch(self, endpoint: PodsEndpoint) -> None:
        try:
            await self._take(partial(endpoint.pods, self._ways.deadlines.listing))
        except PodsUnavailableError as error:
            log.debug("kubelet pods not listed", why=str(error))

    async def _asked_api(self, uid: str, seconds: float) -> bool:
        """Ask the Pods API for a pod; return whether it knows the pod."""
        asked = self._clock.monotonic()
        try:
            pod = await _patiently(partial(self._ways.api.pod, uid, seconds), seconds)
        except UnreadablePodError as error:
            self._tracked.unreadable(UnreadablePodError(error.found, uid))
            return True
        if pod is not None:
            self._tracked.report(pod, asked)
        return pod is not None

    async def _listed(self, seconds: float) -> ReportedPods:
        endpoint = self._ways.endpoint
        try:
            return await _patiently(partial(self._ways.api.pods, seconds), seconds)
        except PodsUnavailableError:
            if endpoint is None:
                raise
            return await endpoint.pods(seconds)

    def _note(self, event: PodEvent) -> None:
        now = self._clock.monotonic()
        if event.error is not None:
            self._unreadable = f"a pod of the kubelet cannot be read: {event.error}"
        elif event.pod is not None and event.type is EventType.DELETED:
            self._tracked.deleted(event.pod.uid, now)
        elif event.pod is not None:
            self._tracked.report(event.pod, now)

    async def _take(self, ask: Callable[[], Awaitable[ReportedPods]]) -> ReportedPods:
        """Ask for a list and take it over, as of when the kubelet was asked; return the list."""
        asked = self._clock.monotonic()
        listing = await ask()
        bad = listing.unreadable
        self._unreadable = (
            f"{len(bad)} pods of the kubelet cannot be read, the first: {bad[0]}" if bad else ""
        )
        # Thousands of pods that are new take a second to read, in which others are answered.
        await asyncio.to_thread(self._tracked.listed, listing, asked)
        return listing

    def _use(self, way: str) -> None:
        self._faults.pop(way, None)
        if way == self._ways.api.way:
            self._waits_since = None
        if self._in_use != way:
            log.info("kubelet pods are known", way=way)
        self._in_use = way

    def _failed(self, error: PodsUnavailableError) -> None:
        known = self._faults.get(error.way)
        waits = error.code == _NOT_SYNCHRONIZED
        if error.way == self._ways.api.way:
            began = self._clock.monotonic() if self._waits_since is None else self._waits_since
            self._waits_since = began if waits else None
        if not error.expected and str(known) != str(error):
            level = log.info if waits else log.warning
            level("kubelet pods unavailable", way=error.way, why=error.found)
        self._faults[error.way] = error
        if self._in_use in ("", error.way):
            self._in_use = ""
            self._tracked.disconnected()

    def _faulty_ways(self) -> Iterator[str]:
        remedy, began = _REMEDY, self._waits_since
        if began is not None:
            waited = self._clock.monotonic() - began
            if waited < SYNC_SECONDS:
                return
            remedy = (
                f"the kubelet has not read all of its sources for {waited:.0f} s: see in its log "
                "whether it reaches the API server"
            )
        faults = tuple(self._faults.values())
        if not self._in_use and faults:
            ways = "; ".join(map(str, faults))
            yield f"specifications of the kubelet's pods are not known: {ways}; {remedy}"
        elif self._in_use != self._ways.api.way:
            for error in faults:
                if not error.expected:
                    line = "" if error.code in _PASSING else f"; {_GATE}"
                    yield f"pods of the kubelet are read over the {self._in_use}: {error}{line}"

    def _conditions(self, facts: tuple[PodFacts, ...], blind: str) -> Iterator[str]:
        yield from self._faulty_ways()
        if self._unreadable:
            yield self._unreadable
        if self._tracked.overflow:
            yield "the kubelet has too many pods: some are not known and run in the shared pool"
        if blind:
            yield blind
        for each in facts:
            if each.changed and each.pod is not None:
                yield (
                    f"pod {full_name(each.pod)}: its specification changed ({each.changed}) and "
                    "its allocation did not; delete and create the pod to have it decided again"
                )


def _is_off(error: TimeoutError | PodsUnavailableError) -> bool:
    """Return whether the Pods API is not there, or its gate is off."""
    if isinstance(error, TimeoutError):
        return False
    return error.expected or error.code not in _PASSING


async def _patiently(call: Callable[[], Awaitable[AnswerT]], seconds: float) -> AnswerT:
    """Return the answer to a call, which is repeated while the kubelet rejects it for its rate.

    The last rejection is raised once `seconds` are over.
    """
    pause, now = _RATE_PAUSE, asyncio.get_running_loop().time
    ends = now() + seconds
    while True:
        try:
            return await call()
        except PodsUnavailableError as error:
            if error.code != _TOO_MANY or now() + pause > ends:
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_RATE_PAUSE)


def _entry(facts: PodFacts) -> SourceEntry:
    identity = facts.identity
    return SourceEntry(_key(identity.uid), facts.pod, facts.error, identity)


def _key(uid: str) -> str:
    return f"{_PREFIX}{uid}"
