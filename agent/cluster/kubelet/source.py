"""The pods of the kubelet beside the agent, as a source of pods.

In: what the kubelet says of its pods, over one of two ways (`ways`), what the runtime says of
sandboxes, and the pods' cgroups. Out: readings, with an entry for each pod that is to run and the
keys of those that have ended. When a pod has ended is `tracked`'s matter.

The Pods API is watched. While it does not answer, the kubelet's endpoint is asked in its place, and
the API is tried again. A pod whose specification neither way gives is an entry that cannot be read:
nothing exclusive is allocated to it.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from agent.cluster.kubelet.pods import PodsUnavailableError, UnreadablePodError
from agent.cluster.kubelet.pods_api import EventType
from agent.cluster.kubelet.tracked import TrackedPods
from agent.cluster.kubelet.ways import WayInUse, is_off, patiently
from agent.managers.allocation import KUBELET
from agent.pods.model import full_name
from agent.progress import uncancelled
from agent.sources.source import SourceEntry, SourceReading

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping

    from agent.clock import Clock
    from agent.cluster.kubelet.pods import ReportedPods
    from agent.cluster.kubelet.pods_api import PodEvent
    from agent.cluster.kubelet.pods_endpoint import PodsEndpoint
    from agent.cluster.kubelet.tracked import PodFacts
    from agent.cluster.kubelet.ways import KubeletWays
    from agent.pods.model import Pod


log = structlog.get_logger(__name__)

_PREFIX: Final = "pods/"
#: The first and the longest pause after a way failed, in seconds; each is twice the one before.
FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 8.0
#: How often pods that may have ended are read again, in seconds; another list is asked for if the
#: last one lacks pods.
CONFIRM_PERIOD: Final = 5.0


class KubeletPods:
    """The pods of the kubelet (`agent.sources.source.PodSource`).

    The key of a pod is `pods/<uid>`.

    - `cgroups` is called with uids, and returns the uids of all pods that have a cgroup; those that
      it was called with only if a process is in it. It raises `OSError`.
    - `pod_level` is the gate PodLevelResources.
    - `awaits` says of a pod whether the kubelet has yet to give it devices; it runs in the thread
      that reads.
    - `same_boot`: the host was not booted since the agent ran last.

    `synchronized`, `sandbox_started` and `sandbox_removed` can be called from any thread.
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
        #: The question to the endpoint that serves all who wait for a pod.
        self._fetching: asyncio.Task[None] | None = None
        self._in_use = WayInUse(ways, clock)
        #: Whether a list of the kubelet is to come; False after it showed that no way is on.
        self._lists = True
        #: The condition that pods cannot be read.
        self._unreadable = ""

    def key(self, uid: str) -> str:
        """Return the key of a pod."""
        return _key(uid)

    def specification(self, uid: str) -> Pod | None:
        """Return the specification of a pod, None if it is not known yet or cannot be read."""
        return self._tracked.pod(uid)

    def resized(self, pod: Pod) -> None:
        """Take over the specification to which a pod was resized."""
        self._tracked.resized(pod)
        self._changed.set()

    def covers(self, key: str) -> bool:
        """Return whether a key is that of a pod of the kubelet."""
        return key.startswith(_PREFIX)

    def resume(self, keys: Collection[str]) -> None:
        """Note which pods were admitted, or ran shared, before the start of the agent."""
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

        The kubelet lists a pod, then admits it with its devices, then makes its cgroup. A pod that
        has one waits no longer.
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
            self._lists = self._ways.endpoint is not None or not is_off(error)
            return None
        self._lists = True
        pods = (self._tracked.pod(each.uid) for each in listing.pods if not each.over)
        return [pod for pod in pods if pod is not None]

    @property
    def ending(self) -> frozenset[str]:
        """The uids of the pods that may have ended, and of which that is not certain yet.

        Until the kubelet lists its pods, all that it has not reported since it connected are among
        them; not if no way is on, since no list will come.
        """
        return self._tracked.ending | (self._tracked.unconfirmed if self._lists else frozenset())

    def synchronized(self, sandboxes: Mapping[str, Mapping[str, str]]) -> None:
        """Note all sandboxes of the runtime: by uid the name of the pod by sandbox."""
        self._tracked.synchronized(sandboxes, self._clock.monotonic())

    def sandbox_started(self, uid: str, sandbox: str = "", name: str = "") -> None:
        """Note that a pod has a sandbox; `name` is `namespace/name`, for messages."""
        self._tracked.sandbox_started(uid, sandbox, name)

    def sandbox_removed(self, uid: str, sandbox: str = "") -> None:
        """Note that the runtime removed a sandbox of a pod."""
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
        """Follow the Pods API until it breaks; return whether it listed the pods."""
        api, synced = self._ways.api, False
        try:
            async with aclosing(api.watch()) as events:
                while True:
                    limit = None if synced else self._ways.deadlines.watch
                    async with asyncio.timeout(limit):
                        event = await anext(events)
                    if event.type is EventType.INITIAL_SYNC_COMPLETE:
                        seconds = self._ways.deadlines.listing
                        await self._take(partial(patiently, partial(api.pods, seconds), seconds))
                        self._in_use.answered(api.way)
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
            self._in_use.answered(endpoint.way)

    async def _confirm(self) -> None:
        """Have pods that may have ended read again; ask for another list while some are missing."""
        api = self._ways.api
        while True:
            await self._clock.sleep(CONFIRM_PERIOD)
            if self._in_use.name == api.way and any(self._tracked.missing.values()):
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

        An answer serves all who wait, and goes on if one of them has no time left. The answer that
        is in progress may lack the pod: then the next one is waited for.
        """
        for _ in range(2):
            fetching = self._fetching
            is_new = fetching is None or fetching.done()
            if fetching is None or is_new:
                fetching = self._fetching = asyncio.create_task(self._fetch(endpoint))
            await asyncio.shield(fetching)
            if is_new or self._tracked.pod(uid) is not None:
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
            pod = await patiently(partial(self._ways.api.pod, uid, seconds), seconds)
        except UnreadablePodError as error:
            self._tracked.unreadable(UnreadablePodError(error.found, uid))
            return True
        if pod is not None:
            self._tracked.report(pod, asked)
        return pod is not None

    async def _listed(self, seconds: float) -> ReportedPods:
        endpoint = self._ways.endpoint
        try:
            return await patiently(partial(self._ways.api.pods, seconds), seconds)
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
        """Ask for a list and note it, as of when the kubelet was asked; return the list."""
        asked = self._clock.monotonic()
        listing = await ask()
        faults = listing.unreadable
        self._unreadable = (
            f"{len(faults)} pods of the kubelet cannot be read, the first: {faults[0]}"
            if faults
            else ""
        )
        # In a thread: thousands of new pods take a second to read.
        await asyncio.to_thread(self._tracked.listed, listing, asked)
        return listing

    def _failed(self, error: PodsUnavailableError) -> None:
        if self._in_use.failed(error):
            self._tracked.disconnected()

    def _conditions(self, facts: tuple[PodFacts, ...], blind: str) -> Iterator[str]:
        yield from self._in_use.conditions()
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


def _entry(facts: PodFacts) -> SourceEntry:
    identity = facts.identity
    return SourceEntry(_key(identity.uid), facts.pod, facts.error, identity)


def _key(uid: str) -> str:
    return f"{_PREFIX}{uid}"
