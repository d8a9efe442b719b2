"""The answers to a container runtime's events (NRI): from the ledger, at once.

What a pod gets is decided for the whole pod when its sandbox starts, in the controller's queue as
for any pod; CPUs that become exclusive have then left the shared pool, and that was verified. So
the creation of a container is answered from memory. Where it comes before the decision is ready,
the kubelet has to try again, unless the pod requests no exclusive resources. What started while the
agent did not answer gets its settings from the next comparison.

A sandbox is never rejected: that leaks processes, and a later start of containerd 2.1.9 fails for
good (containerd#13609). A pod is rejected at the creation of its first container.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import structlog

from agent.api.documents import allocation_variables
from agent.cluster.nri.messages import Adjustment, ContainerResources
from agent.cluster.nri.session import ContainerRejectedError
from agent.config.model import OnReject
from agent.managers.allocation import Isolation, Origin, Source
from agent.pods.model import CPU, full_name
from agent.pods.quantity import ZERO
from agent.reconcile.container_settings import container_settings, ephemeral_settings
from agent.reconcile.diff import Cause
from agent.reconcile.quota import cpu_max, pod_quotas
from agent.reconcile.values import SHARES_PER_CPU, cpu_shares
from agent.server import metrics as names
from agent.server.admissions import MOST_AT_ONCE
from agent.server.errors import EXPECTED, message_of
from agent.server.queue import QueueStopped
from agent.sources.source import CONFLICT, REJECTED
from agent.state.checkpoint import SharedPod
from cgroupfs.settings import CPUS, DEFAULT_PERIOD_US
from cgroupfs.state import CPUS_EFFECTIVE
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence

    from agent.api.documents import ManifestDocument
    from agent.cluster.kubelet.source import KubeletPods
    from agent.cluster.nri.messages import PodSandbox, RuntimeContainer, RuntimeInfo
    from agent.managers.allocation import PodAllocation
    from agent.pods.model import Pod
    from agent.reconcile.diff import Difference
    from agent.server.controller import Controller
    from agent.server.intake import PodIntake
    from cgroupfs.settings import CpuMax

_UNLIMITED: Final = -1
#: The kubelet may read back so many shares less than it wrote: cgroup v2 has `cpu.weight`, of which
#: one stands for 26.2 shares.
_ROUNDED: Final = 27
#: So many pods are named in a message.
_NAMED: Final = 4
_SETS: Final = (CPUS, CPUS_EFFECTIVE)

log = structlog.get_logger(__name__)

#: gRPC's names of the statuses with which a creation or an update is rejected.
_REJECTED: Final = "FAILED_PRECONDITION"
_NOT_YET: Final = "UNAVAILABLE"
#: Entries of the source whose pods were decided on and not admitted.
_NOT_ADMITTED: Final = (REJECTED, CONFLICT)
#: How long the kubelet may take to answer with a pod, in seconds, while the creation of a container
#: waits.
ASK_SECONDS: Final = 0.5
#: How long the kubelet may take for all pods that it is asked for after the runtime synchronized,
#: in seconds, and for how many it is asked at once.
ASK_ALL_SECONDS: Final = 2.0
_ASKED_AT_ONCE: Final = 64
#: Subject of the condition that the runtime is not connected.
SUBJECT: Final = "container runtime"


def adjustment_of(pod: PodAllocation, name: str, pool: Mask) -> Adjustment | None:
    """Return the settings of a container at its start, None if it has nothing of its own.

    `pool` is the node's shared pool. They are those that reconciling desires of the container's
    cgroup (`agent.reconcile.desired`), so that nothing differs afterwards. A container without CPUs
    and memory nodes of its own inherits the pool, and its quota is the kubelet's; beside exclusive
    CPUs of the same pod both are the agent's. So they are of an ephemeral container, which is not
    in the specification that was decided.
    """
    container, quotas = pod.container(name), pod_quotas(pod)
    if container is None:
        if not pod.exclusive_cpus or pod.origin is not Origin.DECIDED:
            return None
        settings = ephemeral_settings(pool, quotas)
    elif pod.exclusive_cpus or container.mems:
        settings = container_settings(container, pool, quotas)
    else:
        return None
    own = container is not None and container.cpus is not None
    variables = {}
    if own or settings.mems is not None:
        cpus, mems = str(settings.cpus or EMPTY), str(settings.mems or EMPTY)
        variables = allocation_variables(full_name(pod), pod.uid, cpus, mems)
    if not pod.exclusive_cpus:
        return Adjustment(mems=settings.mems, environment=variables)
    quota, period = _quota(settings.cpu_max)
    return Adjustment(
        cpus=settings.cpus,
        mems=settings.mems,
        quota_us=quota,
        period_us=period,
        environment=variables,
    )


def _quota(cpu_max: CpuMax | None) -> tuple[int | None, int | None]:
    if cpu_max is None:
        return None, None
    quota = _UNLIMITED if cpu_max.quota_us is None else cpu_max.quota_us
    return quota, cpu_max.period_us


def agrees(shown: ContainerResources, desired: Adjustment) -> bool:
    """Return whether a running container has what it should have, as its runtime shows it."""
    return (
        _same(shown.cpus, desired.cpus)
        and _same(shown.mems, desired.mems)
        and desired.quota_us in (None, _UNLIMITED if shown.quota_us is None else shown.quota_us)
        and (desired.quota_us in (None, _UNLIMITED) or desired.period_us == shown.period_us)
    )


def resize_rejected(pod: PodAllocation, name: str, asked: ContainerResources) -> str:
    """Return why a container does not get the CPUs that an update asks for, "" if it has them.

    Sets and quotas of a pod with exclusive CPUs are the agent's, those of containers that share
    its CPUs or the node's too.
    """
    container = pod.container(name)
    if container is None or not pod.exclusive_cpus:
        return ""
    if container.isolation is Isolation.CONTAINER and container.cpus:
        kept, millis = f"keeps its exclusive CPUs {container.cpus}", 1000 * len(container.cpus)
        return _not_resized(f"container {name} {kept}", millis, millis, asked)
    # Shares alone are a weight, which the runtime changes.
    limit = container.cpu.limit_millis or pod.cpu.limit_millis
    return _not_resized(f"container {name} keeps its CPU limit", limit, None, asked)


def pod_resize_rejected(pod: PodAllocation, overhead: int, asked: PodSandbox) -> str:
    """Return why a pod does not get the CPUs that an update of its sandbox asks for, "" if it has.

    `overhead` is the pod's in millicores: the kubelet does not ask for it.
    """
    if not pod.exclusive_cpus:
        return ""
    limit, request = (
        None if each is None else each - overhead
        for each in (pod.cpu.limit_millis, pod.cpu.request_millis)
    )
    resources = ContainerResources(
        quota_us=asked.cpu_quota, period_us=asked.cpu_period, shares=asked.cpu_shares
    )
    return _not_resized(f"the pod keeps its CPUs {pod.exclusive_cpus}", limit, request, resources)


def _not_resized(
    kept: str, limit: int | None, request: int | None, asked: ContainerResources
) -> str:
    """Return why other CPUs than those of a limit and a request (millicores) are not given.

    A quota is asked for in microseconds of a period. There is none with the kubelet's `cpuCFSQuota:
    false`, nor of a pod whose memory alone is resized: the kubelet repeats what its cgroup has.
    """
    quota, shares = max(0, asked.quota_us or 0), asked.shares or 0
    period = asked.period_us or DEFAULT_PERIOD_US
    if quota:
        same = limit is None or cpu_max(limit, period).quota_us == quota
    else:
        same = request is None or not shares or abs(cpu_shares(request) - shares) <= _ROUNDED
    if same:
        return ""
    cpus = quota / period if quota else round(shares / SHARES_PER_CPU, 2)
    return (
        f"{kept}: CPUs of a running pod are not resized, and {cpus:g} are asked for; delete and "
        "create the pod to have it decided again"
    )


def _same(shown: str, desired: Mask | None) -> bool:
    if desired is None:
        return True
    try:
        return Mask.parse(shown) == desired
    except ValueError:
        return False


def still_allocated(allocations: Mapping[str, PodAllocation], ending: frozenset[str]) -> str:
    """Return which pods that may have ended have an allocation still, "" if none has."""
    shown = [_having(allocations[uid]) for uid in sorted(ending & allocations.keys())]
    if not shown:
        return ""
    more = f" and {len(shown) - _NAMED} more" if len(shown) > _NAMED else ""
    return (
        f"pods that may have ended still have their allocation: {', '.join(shown[:_NAMED])}{more}; "
        "this pod is decided again once that is certain"
    )


def _having(pod: PodAllocation) -> str:
    cpus = pod.exclusive_cpus
    return f"{full_name(pod)} (CPUs {cpus})" if cpus else full_name(pod)


def still_shared(pod: PodAllocation, differences: Iterable[Difference]) -> tuple[str, ...]:
    """Return which cgroups of others may still use exclusive CPUs of a pod, a line each.

    `differences` are all that remain. A comparison that failed as a whole shows nothing, so that
    any cgroup may.
    """
    mine = pod.exclusive_cpus
    if not mine:
        return ()
    return tuple(
        difference.detail
        for difference in differences
        if difference.pod != pod.uid and _may_use(difference, mine)
    )


def _may_use(difference: Difference, cpus: Mask) -> bool:
    if not difference.cgroup:
        return difference.cause is Cause.UNKNOWN and not difference.pod
    if difference.file not in _SETS:
        return False
    # Without the file the cgroup has the CPUs of the one above.
    return difference.observed is None or bool(Mask.parse(difference.observed) & cpus)


class RuntimeEvents:
    """Answers the events of a container runtime (`agent.cluster.nri.session.RuntimeHandler`).

    `pods` is the source of the pods, `intake` has the controller admit and remove what it asks for.
    """

    def __init__(
        self,
        controller: Controller,
        pods: KubeletPods,
        intake: PodIntake,
        on_reject: OnReject,
    ) -> None:
        self._controller = controller
        self._pods = pods
        self._intake = intake
        self._on_reject = on_reject
        #: What is in progress: the decisions by uid, and what follows from decisions.
        self._deciding: dict[str, asyncio.Task[None]] = {}
        self._following: set[asyncio.Task[None]] = set()
        #: The comparison in progress, and the pods (uids) whose cgroups are compared after it.
        self._comparing: asyncio.Task[None] | None = None
        self._compared_next: dict[str, None] = {}
        #: The pods that were admitted and enforced since their sandbox, or the runtime, changed.
        self._decided: set[str] = set()
        #: Why the other pods were not admitted when they were last decided, by uid.
        self._rejected: dict[str, str] = {}
        #: Why containers by name, and the pod itself (""), were not resized last, by uid: the
        #: kubelet repeats an update that failed.
        self._resizes: dict[str, dict[str, str]] = {}
        self.disconnected("not yet")

    def observe(self, method: str, outcome: str, seconds: float) -> None:
        """Count an answer to the runtime, which took so many seconds."""
        metrics = self._controller.metrics
        metrics.counters.add(names.RUNTIME_REQUESTS, method, outcome)
        metrics.runtime_request_duration.observe(seconds, method)

    def configured(self, info: RuntimeInfo) -> None:
        """Take note of a runtime that connected; the session logs it."""
        _ = info
        self._controller.state.observed.conditions.pop(SUBJECT, None)

    def disconnected(self, why: str) -> None:
        """Take note of a runtime that is no longer connected."""
        self._controller.state.observed.conditions[SUBJECT] = (
            f"the container runtime is not connected over NRI ({why}): containers get their CPUs, "
            "memory nodes and quota only after they have started; see 'numawarden doctor'"
        )

    async def close(self) -> None:
        """End the decisions in progress: their pods are decided at the next Synchronize."""
        tasks = (*self._deciding.values(), *self._following)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def synchronize(
        self, sandboxes: Sequence[PodSandbox], containers: Sequence[RuntimeContainer]
    ) -> Mapping[str, Adjustment]:
        """Return the settings of running containers that differ from what they should have.

        What is in the ledger is answered at once; the other pods are decided in the background.
        """
        self._decided.clear()
        uids = {sandbox.id: sandbox.uid for sandbox in sandboxes}
        pods: dict[str, dict[str, str]] = {}
        for sandbox in sandboxes:
            pods.setdefault(sandbox.uid, {})[sandbox.id] = _name(sandbox)
        self._pods.synchronized(pods)
        self._rejected = {uid: why for uid, why in self._rejected.items() if uid in pods}
        self._resizes = {uid: why for uid, why in self._resizes.items() if uid in pods}
        self._begin("", self._settle_all(frozenset(uids.values())))
        adjusted: dict[str, Adjustment] = {}
        for container in containers:
            pod = self._allocation(uids.get(container.sandbox_id, ""))
            desired = None if pod is None else self._adjustment(pod, container.name)
            if desired is not None and not agrees(container.resources, desired):
                adjusted[container.id] = desired
        if adjusted:
            log.info("running containers adjusted", containers=len(adjusted))
        return adjusted

    async def sandbox_started(self, sandbox: PodSandbox) -> None:
        """Begin to decide the pod; its containers come later."""
        self._pods.sandbox_started(sandbox.uid, sandbox.id, _name(sandbox))
        self._decided.discard(sandbox.uid)
        self._begin_starting(sandbox.uid)

    def sandbox_updated(self, sandbox: PodSandbox) -> None:
        """Have the kubelet's update of the pod's cgroup compared; raises `ContainerRejectedError`.

        Kubelets from v1.36 on ask before they resize the pod, and end the resize with an error
        (kubernetes#137555). Earlier ones go on, and the Event alone reports it.
        """
        uid = sandbox.uid
        self._decided.discard(uid)
        self._begin(uid, self._settle(uid))
        pod, specification = self._allocation(uid), self._pods.specification(uid)
        if pod is not None:
            overhead = {} if specification is None else specification.overhead
            millis = overhead.get(CPU, ZERO).milli_value
            self._reject_resize(pod, "", pod_resize_rejected(pod, millis, sandbox))

    def sandbox_stopped(self, sandbox: PodSandbox) -> None:
        """Do nothing: a stopped sandbox may be replaced by another of the same pod."""

    def sandbox_removed(self, sandbox: PodSandbox) -> None:
        """Pass the fact on to the source; the pod ends once a second fact agrees."""
        self._pods.sandbox_removed(sandbox.uid, sandbox.id)
        self._decided.discard(sandbox.uid)
        self._rejected.pop(sandbox.uid, None)
        self._resizes.pop(sandbox.uid, None)
        self._begin(sandbox.uid, self._synced())

    async def container_created(
        self, sandbox: PodSandbox, container: RuntimeContainer, seconds: float
    ) -> Adjustment | None:
        """Return what a container gets, within so many seconds; raises `ContainerRejectedError`.

        A container of a pod that requests no exclusive resources waits for no decision.
        """
        uid = sandbox.uid
        deadline = asyncio.get_running_loop().time() + seconds
        if uid not in self._decided:
            self._begin_starting(uid)
            if self._shares(uid):
                return None
            if not await _in_time(self._deciding[uid], deadline):
                self._not_yet(sandbox, "undecided", "the pod is not decided yet")
                return None
        if self._allocation(uid) is None:
            await self._without_allocation(sandbox, deadline)
        pod = self._allocation(uid)
        if pod is None:
            return None
        shared = still_shared(pod, self._remaining())
        if shared:
            self._decided.discard(uid)
            log.error("exclusive CPUs still shared", uid=uid, pod=sandbox.name, why=shared)
            why = f"CPUs of the pod have not left the shared pool: {shared[0]}"
            self._not_yet(sandbox, "still_shared", why)
            return None
        return self._adjustment(pod, container.name)

    async def container_updated(
        self, sandbox: PodSandbox, container: RuntimeContainer, asked: ContainerResources
    ) -> Adjustment | None:
        """Return what a container keeps through an update, such as an in-place resize.

        The pod's cgroup, whose quota the kubelet changes with it, is compared. CPUs of a pod with
        exclusive ones are not resized: raises `ContainerRejectedError`, so that the kubelet does
        not report it as done.
        """
        pod = self._allocation(sandbox.uid)
        if pod is None:
            return None
        self._begin(sandbox.uid, self._settle(sandbox.uid))
        self._reject_resize(pod, container.name, resize_rejected(pod, container.name, asked))
        return self._adjustment(pod, container.name)

    def _reject_resize(self, pod: PodAllocation, name: str, why: str) -> None:
        """Raise `ContainerRejectedError` if there is a reason; report each resize once."""
        before = self._resizes.setdefault(pod.uid, {})
        if before.get(name, "") != why:
            before[name] = why
            if why:
                self._controller.rejections.resize(pod, why)
        if why:
            raise ContainerRejectedError(_REJECTED, why)

    def container_started(self, sandbox: PodSandbox, container: RuntimeContainer) -> None:
        """Do nothing: the watch on its cgroup has the container compared."""

    def container_stopped(self, sandbox: PodSandbox, container: RuntimeContainer) -> None:
        """Do nothing: a container that ends is seen by its cgroup."""

    def container_removed(self, sandbox: PodSandbox, container: RuntimeContainer) -> None:
        """Do nothing: its allocation is the pod's."""

    def _begin(self, uid: str, work: Coroutine[None, None, None]) -> None:
        """Begin work for a pod (or "", for all) in the background, unless it is in progress."""
        if uid in self._deciding:
            work.close()
            return
        task = self._deciding[uid] = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._deciding.pop(uid, None))

    def _begin_starting(self, uid: str) -> None:
        """Begin to decide a pod whose containers start, also one that ran shared before."""
        if self._controller.shared_pod(uid) is not None:
            self._intake.try_again(self._pods.key(uid))
        self._begin(uid, self._settle(uid))

    async def _settle(self, uid: str) -> None:
        known = self._allocation(uid) is not None
        await self._pods.ask_for(uid, ASK_SECONDS)
        document = await self._settled(uid)
        if _is_rejected(document) and await self._lists_too_few():
            document = await self._settled(uid)
        self._rejected.pop(uid, None)
        if self._allocation(uid) is not None:
            if known:
                await self._compare(uid)
            self._decided.add(uid)
        elif document is not None and _is_rejected(document):
            self._rejected[uid] = document.message

    async def _lists_too_few(self) -> bool:
        """Return whether the kubelet, asked now, lists fewer pods than have an allocation.

        A pod may have ended while the agent or the kubelet was away, and no list have come since,
        nor come now.
        """
        await self._pods.list_now(ASK_SECONDS)
        return bool(self._still_allocated())

    def _still_allocated(self) -> str:
        return still_allocated(self._controller.state.ledger.allocations, self._pods.ending)

    async def _compare(self, uid: str) -> None:
        """Have the cgroups of a pod compared, with those of all that come meanwhile.

        They may have been made, or changed, since its admission. It is waited for only where CPUs
        of the pod were seen to be shared still.
        """
        self._compared_next[uid] = None
        if self._comparing is None or self._comparing.done():
            self._comparing = asyncio.create_task(self._enforce())
            self._following.add(self._comparing)
            self._comparing.add_done_callback(self._following.discard)
        pod = self._allocation(uid)
        if pod is not None and still_shared(pod, self._remaining()):
            await asyncio.shield(self._comparing)

    async def _enforce(self) -> None:
        with suppress(QueueStopped):
            while self._compared_next:
                uids = [*self._compared_next][:MOST_AT_ONCE]
                for uid in uids:
                    del self._compared_next[uid]
                await self._controller.enforce(*uids)

    async def _settled(self, uid: str) -> ManifestDocument | None:
        try:
            return await self._intake.settle(self._pods.key(uid))
        except QueueStopped:
            return None
        except EXPECTED as error:
            log.warning("pods of the kubelet not read", why=message_of(error))
            return None

    async def _settle_all(self, uids: frozenset[str]) -> None:
        """Decide the pods that are known, have all compared, then ask for the other pods."""
        await self._synced()
        try:
            await self._controller.reconcile()
        except QueueStopped:
            return
        self._note_decided(uids)
        others = uids - self._decided
        unknown = [uid for uid in others if self._pods.specification(uid) is None]
        if unknown:
            await self._ask_for_all(unknown)
            await self._synced()
            self._note_decided(unknown)

    def _note_decided(self, uids: Iterable[str]) -> None:
        self._decided.update(uid for uid in uids if self._allocation(uid) is not None)

    async def _ask_for_all(self, uids: Sequence[str]) -> None:
        """Ask for pods together; those that are not answered in time come by another way."""
        left = iter(uids)

        async def ask() -> None:
            for uid in left:
                await self._pods.ask_for(uid, ASK_SECONDS)

        with suppress(TimeoutError):
            async with asyncio.timeout(ASK_ALL_SECONDS):
                await asyncio.gather(*(ask() for _ in range(_ASKED_AT_ONCE)))

    async def _synced(self) -> None:
        try:
            await self._intake.sync()
        except QueueStopped:
            return
        except EXPECTED as error:
            log.warning("pods of the kubelet not read", why=message_of(error))

    def _allocation(self, uid: str) -> PodAllocation | None:
        return self._controller.state.ledger.allocations.get(uid)

    def _adjustment(self, pod: PodAllocation, container: str) -> Adjustment | None:
        return adjustment_of(pod, container, self._controller.state.shared_cpus)

    def _remaining(self) -> Iterator[Difference]:
        state = self._controller.state
        yield from state.observed.unenforced
        for record in state.observed.records.pods.values():
            yield from record.unenforced

    async def _without_allocation(self, sandbox: PodSandbox, deadline: float) -> None:
        """Reject a pod that requests exclusive resources, unless it may run without them.

        That it runs without them is saved first, so that it goes on so over restarts; a save that
        takes until after the `deadline` of the loop's clock goes on. Nothing is final while a pod
        that may have ended has an allocation.
        """
        uid = sandbox.uid
        why, pod = self._rejected.get(uid, ""), self._pods.specification(uid)
        if not why or pod is None or not self._requests_exclusive(pod):
            return  # its specification is not known, or it requests no exclusive resources
        ending = self._still_allocated()
        if ending:
            self._not_yet(sandbox, "ending", f"{why}; {ending}")
            return
        if self._on_reject is OnReject.FAIL:
            raise ContainerRejectedError(_REJECTED, why)
        sharing = asyncio.create_task(self._share(pod, why))
        self._following.add(sharing)
        sharing.add_done_callback(self._following.discard)
        await _in_time(sharing, deadline)

    async def _share(self, pod: Pod, why: str) -> None:
        """Save that a pod runs shared, and confine its cgroup, which has all CPUs, to the pool."""
        source = Source(self._pods.name, self._pods.key(pod.uid))
        shared = SharedPod(pod.uid, pod.name, pod.namespace, source, why)
        try:
            await self._controller.share(shared)
            if self._allocation(pod.uid) is None:
                named = full_name(pod)
                log.warning("rejected pod runs in the shared pool", uid=pod.uid, pod=named, why=why)
                self._controller.rejections.shared(pod, source, why)
                await self._controller.reconcile()
        except QueueStopped:
            return  # the container starts without the agent, which decides once it runs again

    def _shares(self, uid: str) -> bool:
        """Return whether it is known that a pod requests no exclusive resources."""
        pod = self._pods.specification(uid)
        return pod is not None and not self._requests_exclusive(pod)

    def _requests_exclusive(self, pod: Pod) -> bool:
        demand = self._controller.state.configured.rules.demand(pod)
        return any(each.may_have(name) for each in demand.containers for name in demand.parts)

    def _not_yet(self, sandbox: PodSandbox, reason: str, why: str) -> None:
        """Have the kubelet try again later, unless the pod may run without its resources.

        A pod of an unknown specification runs: what it demands may never be known. `reason` is a
        value of the counter.
        """
        pod = self._pods.specification(sandbox.uid)
        fails = (
            self._on_reject is OnReject.FAIL and pod is not None and self._requests_exclusive(pod)
        )
        result = "rejected" if fails else "shared"
        self._controller.metrics.counters.add(names.CONTAINERS_NOT_READY, reason, result)
        if fails:
            raise ContainerRejectedError(_NOT_YET, why)


def _is_rejected(document: ManifestDocument | None) -> bool:
    return document is not None and document.state in _NOT_ADMITTED


def _name(sandbox: PodSandbox) -> str:
    return f"{sandbox.namespace}/{sandbox.name}"


async def _in_time(work: asyncio.Task[None], deadline: float) -> bool:
    """Wait for work until the `deadline` of the loop's clock; return whether it is done."""
    try:
        async with asyncio.timeout_at(deadline):
            await asyncio.shield(work)
    except TimeoutError:
        return False
    return True
