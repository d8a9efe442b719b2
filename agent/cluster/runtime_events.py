"""The answers to a container runtime's events (NRI).

In: events of sandboxes and containers. Out: the settings of a container, or its rejection; both
come from the ledger. A pod is decided as a whole when its sandbox starts (`pod_decisions`), and by
then CPUs that become exclusive have left the shared pool, which was verified. What started while
the agent did not answer gets its settings from the next comparison.

A sandbox is never rejected: that leaks processes, and a later start of containerd 2.1.9 fails for
good (containerd#13609). A pod is rejected at the creation of its first container.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from agent.cluster.adjustments import adjustment_of, agrees
from agent.cluster.nri.handler import ContainerRejectedError
from agent.cluster.pod_decisions import PodDecisions, PodState, in_time
from agent.cluster.resizes import pod_resize_rejected, resize_rejected, resized_to
from agent.config.cluster import OnReject
from agent.managers.allocation import API, Source
from agent.managers.numa_policy import numa_policy
from agent.managers.specification import specification_of
from agent.pods.model import CPU, full_name
from agent.pods.quantity import ZERO
from agent.server import metrics as names
from agent.server.errors import RequestError, message_of
from agent.server.queue import QueueStopped
from agent.server.resizes import Resize
from agent.state.checkpoint import SharedPod
from sysfs.mask import EMPTY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.cluster.kubelet.source import KubeletPods
    from agent.cluster.nri.messages import (
        Adjustment,
        ContainerResources,
        PodSandbox,
        RuntimeContainer,
        RuntimeInfo,
    )
    from agent.managers.allocation import PodAllocation
    from agent.pods.model import Pod
    from agent.server.controller import Controller
    from agent.server.intake import PodIntake

log = structlog.get_logger(__name__)

#: gRPC's names of the statuses with which a creation or an update is rejected: for good, and until
#: the kubelet tries again.
_REJECTED: Final = "FAILED_PRECONDITION"
_NOT_YET: Final = "UNAVAILABLE"
#: Subject of the condition that the runtime is not connected.
SUBJECT: Final = "container runtime"


class RuntimeEvents:
    """Answers the events of a container runtime (`agent.cluster.nri.handler.RuntimeHandler`).

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
        self._on_reject = on_reject
        self._decisions = PodDecisions(controller, pods, intake)
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
        """End the decisions in progress."""
        await self._decisions.close()

    async def synchronize(
        self, sandboxes: Sequence[PodSandbox], containers: Sequence[RuntimeContainer]
    ) -> Mapping[str, Adjustment]:
        """Return the settings of running containers that differ from what they should have.

        Pods in the ledger are answered at once; the others are decided in the background.
        """
        uids = {sandbox.id: sandbox.uid for sandbox in sandboxes}
        pods: dict[str, dict[str, str]] = {}
        for sandbox in sandboxes:
            pods.setdefault(sandbox.uid, {})[sandbox.id] = _name(sandbox)
        self._pods.synchronized(pods)
        self._decisions.decide_all(pods.keys())
        adjusted: dict[str, Adjustment] = {}
        for container in containers:
            pod = self._decisions.allocation(uids.get(container.sandbox_id, ""))
            desired = None if pod is None else self._adjustment(pod, container.name)
            if desired is not None and not agrees(container.resources, desired):
                adjusted[container.id] = desired
        if adjusted:
            log.info("running containers adjusted", containers=len(adjusted))
        return adjusted

    async def sandbox_started(self, sandbox: PodSandbox) -> None:
        """Begin to decide the pod; its containers come later."""
        self._pods.sandbox_started(sandbox.uid, sandbox.id, _name(sandbox))
        self._decisions.reopen(sandbox.uid)
        self._decisions.decide_to_start(sandbox.uid)

    def sandbox_updated(self, sandbox: PodSandbox) -> None:
        """Have the kubelet's update of the pod's cgroup compared; raises `ContainerRejectedError`.

        Kubelets from v1.36 on ask before they resize the pod, and end the resize with an error
        (kubernetes#137555). Earlier ones go on, and only the Event tells the user.
        """
        uid = sandbox.uid
        self._decisions.reopen(uid)
        self._decisions.decide(uid)
        pod, specification = self._decisions.allocation(uid), self._pods.specification(uid)
        if pod is not None:
            overhead = {} if specification is None else specification.overhead
            millis = overhead.get(CPU, ZERO).milli_value
            self._reject_resize(pod, "", pod_resize_rejected(pod, millis, sandbox))

    def sandbox_stopped(self, sandbox: PodSandbox) -> None:
        """Do nothing: a stopped sandbox may be replaced by another of the same pod."""

    def sandbox_removed(self, sandbox: PodSandbox) -> None:
        """Pass the fact on to the source; the pod ends once a second fact agrees."""
        self._pods.sandbox_removed(sandbox.uid, sandbox.id)
        self._decisions.forget(sandbox.uid)

    async def container_created(
        self, sandbox: PodSandbox, container: RuntimeContainer, seconds: float
    ) -> Adjustment | None:
        """Return what a container gets, within so many seconds; raises `ContainerRejectedError`."""
        uid = sandbox.uid
        deadline = asyncio.get_running_loop().time() + seconds
        # 1. A pod that is not admitted is decided (again). A container of a pod that requests no
        #    exclusive resources does not wait for that.
        if self._decisions.pod(uid).state is not PodState.ADMITTED:
            self._decisions.decide_to_start(uid)
            specification = self._pods.specification(uid)
            if specification is not None and not self._requests_exclusive(specification):
                return None
            if not await self._decisions.is_done(uid, deadline):
                self._not_yet(sandbox, "undecided", "the pod is not decided yet")
                return None
        # 2. A pod that was not admitted is rejected, or runs in the shared pool.
        if self._decisions.allocation(uid) is None:
            await self._without_allocation(sandbox, deadline)
        pod = self._decisions.allocation(uid)
        if pod is None:
            return None
        # 3. No container runs on exclusive CPUs that another cgroup still uses.
        shared = self._decisions.still_shared(pod)
        if shared:
            self._decisions.reopen(uid)
            log.error("exclusive CPUs still shared", uid=uid, pod=sandbox.name, why=shared)
            why = f"CPUs of the pod have not left the shared pool: {shared[0]}"
            self._not_yet(sandbox, "still_shared", why)
            return None
        # 4. It gets its settings from the ledger.
        return self._adjustment(pod, container.name)

    async def container_updated(
        self,
        sandbox: PodSandbox,
        container: RuntimeContainer,
        asked: ContainerResources,
        seconds: float,
    ) -> Adjustment | None:
        """Return what a container has after an update, such as an in-place resize.

        Raises `ContainerRejectedError` if CPUs of a pod with exclusive ones are to be resized and
        that is rejected, or takes longer than so many seconds, so that the kubelet does not report
        the resize as done. It tries again.
        """
        uid, name = sandbox.uid, container.name
        deadline = asyncio.get_running_loop().time() + seconds
        pod = self._decisions.allocation(uid)
        if pod is None:
            return None
        # The kubelet changes the quota of the pod's cgroup as well: a decision compares it.
        self._decisions.decide(uid)
        change = resized_to(pod, name, asked)
        if change is None:
            self._reject_resize(pod, name, resize_rejected(pod, name, asked))
        else:
            resize = Resize(uid, name, change.cpu, change.memory, EMPTY)
            pod = await self._resized(pod, resize, deadline)
        # As at its creation: no container runs on exclusive CPUs that others still use.
        if pod.originals and (shared := self._decisions.still_shared(pod)):
            why = f"CPUs of the pod have not left the shared pool: {shared[0]}"
            raise ContainerRejectedError(_NOT_YET, why)
        return self._adjustment(pod, name)

    async def _resized(self, pod: PodAllocation, asked: Resize, deadline: float) -> PodAllocation:
        """Have a container resized in the line, and return what its pod has then."""
        # 1. The kubelet asks again for what is rejected, which is reported once.
        why = ""
        try:
            desired, source = asked.desired(pod), pod.source or API
            rejection = self._controller.decider.preview(desired, source, change=EMPTY).rejection
            why = "" if rejection is None else f"{rejection.reason}: {rejection.message}"
        except RequestError as error:
            why = message_of(error)
        self._reject_resize(pod, asked.container, why)
        # 2. What takes too long goes on: the kubelet finds it done when it asks again.
        done = await in_time(self._decisions.follow(self._take(asked)), deadline)
        resized = self._decisions.allocation(pod.uid)
        if not done or resized is None or resized.spec == pod.spec:
            raise ContainerRejectedError(_NOT_YET, "the resize is not done yet")
        return resized

    async def _take(self, asked: Resize) -> None:
        """Resize a container; the source of its pod has its new specification from then on."""
        try:
            await self._controller.follow_resize(asked)
        except (QueueStopped, RequestError) as error:
            log.warning("resize not done", uid=asked.uid, why=message_of(error))
            return
        pod = self._decisions.allocation(asked.uid)
        specification = None if pod is None else specification_of(pod)
        if specification is not None:
            self._pods.resized(specification)

    def container_started(self, sandbox: PodSandbox, container: RuntimeContainer) -> None:
        """Do nothing: the watch on its cgroup has the container compared."""

    def container_stopped(self, sandbox: PodSandbox, container: RuntimeContainer) -> None:
        """Do nothing: a container that ends is seen by its cgroup."""

    def container_removed(self, sandbox: PodSandbox, container: RuntimeContainer) -> None:
        """Do nothing: its allocation is the pod's."""

    def _adjustment(self, pod: PodAllocation, container: str) -> Adjustment | None:
        state = self._controller.state
        policy = numa_policy(state.configured.rules, pod)
        return adjustment_of(pod, container, state.shared_cpus_of(pod), policy)

    def _requests_exclusive(self, pod: Pod) -> bool:
        demand = self._controller.state.configured.rules.demand(pod)
        return any(each.may_have(name) for each in demand.containers for name in demand.parts)

    def _reject_resize(self, pod: PodAllocation, name: str, why: str) -> None:
        """Raise `ContainerRejectedError` if there is a reason; report each resize once."""
        resizes = self._decisions.pod(pod.uid).resizes
        if resizes.get(name, "") != why:
            resizes[name] = why
            if why:
                self._controller.rejections.report_resize(pod, why)
        if why:
            raise ContainerRejectedError(_REJECTED, why)

    async def _without_allocation(self, sandbox: PodSandbox, deadline: float) -> None:
        """Reject a pod that requests exclusive resources, unless it may run without them."""
        uid = sandbox.uid
        why, pod = self._decisions.pod(uid).reason, self._pods.specification(uid)
        # 1. A pod whose specification is not known, or that requests nothing exclusive, runs.
        if not why or pod is None or not self._requests_exclusive(pod):
            return
        # 2. The rejection is not final while a pod that may have ended has an allocation.
        ending = self._decisions.still_allocated()
        if ending:
            self._not_yet(sandbox, "ending", f"{why}; {ending}")
            return
        # 3. The configuration says whether the pod fails or runs in the shared pool.
        if self._on_reject is OnReject.FAIL:
            raise ContainerRejectedError(_REJECTED, why)
        # 4. That it runs so is saved first, to hold over restarts. A save that takes longer than
        #    the container may wait goes on.
        await in_time(self._decisions.follow(self._share(pod, why)), deadline)

    async def _share(self, pod: Pod, why: str) -> None:
        """Save that a pod runs shared, and confine its cgroup, which has all CPUs, to the pool."""
        source = Source(self._pods.name, self._pods.key(pod.uid))
        shared = SharedPod(pod.uid, pod.name, pod.namespace, source, why)
        try:
            await self._controller.share(shared)
            if self._decisions.allocation(pod.uid) is None:
                name = full_name(pod)
                log.warning("rejected pod runs in the shared pool", uid=pod.uid, pod=name, why=why)
                self._controller.rejections.report_shared(pod, source, why)
                await self._controller.reconcile()
        except QueueStopped:
            return  # the container starts without the agent, which decides once it runs again

    def _not_yet(self, sandbox: PodSandbox, reason: str, why: str) -> None:
        """Have the kubelet try again later, unless the pod may run without its resources.

        A pod of an unknown specification runs: what it requests may never be known. `reason` is a
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


def _name(sandbox: PodSandbox) -> str:
    return f"{sandbox.namespace}/{sandbox.name}"
