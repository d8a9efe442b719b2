"""What the CPU manager is asked for, and has in the draft of an admission."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.managers.allocations.allocation import PodPart
from agent.managers.allocations.demand import NOT_GUARANTEED, ResourceDemand
from agent.managers.policy import CpuManagerPolicy
from agent.pods.model import CPU
from agent.pods.quantity import MAX_INT64, ZERO
from agent.pods.requests import exclusive_cpus, pod_exclusive_cpus
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from agent.managers.allocations.demand import PodRequest
    from agent.managers.effective_policy import Draft
    from agent.pods.model import Container


class CpuDraft(PodPart):
    """The free CPUs for the pod under admission, and what it has.

    `containers` are masks by name, `pod` the mask of the budget. `reusable` are CPUs of standard
    init containers of this pod, which a later container of the pod may get.
    """

    free: Mask = EMPTY
    reusable: Mask = EMPTY

    @property
    def available(self) -> Mask:
        """All CPUs that the next container of the pod may get."""
        return self.free | self.reusable


def cpus_of(draft: Draft) -> CpuDraft:
    """Return the CPU manager's part of a draft."""
    part: CpuDraft = draft.parts[CPU]
    return part


def cpu_demand(request: PodRequest) -> ResourceDemand:
    """Return the whole CPUs that a pod and its containers request, 0 for what shares CPUs.

    In pod scope, the containers of a pod-level budget that is not a whole number get no exclusive
    CPUs (KEP-5526).
    """
    pod, qos, managed = request.pod, request.qos, request.policy.pod_level_managers
    counts = tuple(
        [exclusive_cpus(pod, each, qos, pod_level_managers=managed) for each in request.containers]
    )
    of_pod = min(pod_exclusive_cpus(pod, qos, pod_level_managers=managed), MAX_INT64)
    none = _why_none(request)
    undivided = request.from_budget and not of_pod
    active = none is None and not undivided
    why = (
        none or _why(request, each, count, guaranteed=guaranteed, undivided=undivided)
        for each, count, guaranteed in zip(
            request.containers, counts, request.guaranteed, strict=True
        )
    )
    exclusive = tuple([active and count > 0 for count in counts])
    return ResourceDemand(of_pod, counts, active, exclusive, tuple(why))


def _why_none(request: PodRequest) -> str | None:
    """Return why no container of the pod may have exclusive CPUs, None when some may."""
    kind = request.policy.cpu.policy
    if kind is not CpuManagerPolicy.STATIC:
        return f"cpuManagerPolicy is {kind}; exclusive CPUs need static"
    return request.why_none()


def _why(
    request: PodRequest, container: Container, count: int, *, guaranteed: bool, undivided: bool
) -> str:
    if request.pod_level and not guaranteed:
        return NOT_GUARANTEED
    if undivided:
        return "the pod's cpu budget is not a positive whole number; pod scope divides no other"
    if count:
        return f"Guaranteed with a whole number of CPUs ({count})"
    asked = container.resources.requests.get(CPU, ZERO)
    return f"its cpu request {asked} is not a positive whole number"
