"""The settings that the cgroup of one container should have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from agent.managers.allocations.allocation import Isolation
from agent.pods.model import ContainerKind
from agent.reconcile.desired.quota import pod_quotas

if TYPE_CHECKING:
    from agent.managers.allocations.allocation import ContainerAllocation, PodAllocation
    from agent.reconcile.desired.quota import PodQuotas
    from cgroupfs.settings import CpuMax
    from sysfs.mask import Mask


class ContainerSettings(Struct, frozen=True):
    """CPUs, memory nodes and quota; None leaves a setting as it is.

    `exclusive`: the CPUs are out of the node's shared pool.
    """

    cpus: Mask | None
    mems: Mask | None = None
    cpu_max: CpuMax | None = None
    exclusive: bool = False


def container_settings(
    container: ContainerAllocation, shared_pool: Mask, quotas: PodQuotas
) -> ContainerSettings:
    """Return the settings of a container: its own CPUs, or the node's current shared pool."""
    cpus = shared_pool if container.cpus is None else container.cpus
    return ContainerSettings(
        cpus=cpus or None,
        mems=container.mems or None,
        cpu_max=quotas.containers[container.name],
        exclusive=container.cpus is not None,
    )


def default_settings(
    pod: PodAllocation, shared_pool: Mask, cpu_max: CpuMax | None = None
) -> ContainerSettings:
    """Return the settings of a sandbox or of an unidentified cgroup of a pod.

    The CPUs are the pod's shared pool where there is one, else the node's: never the exclusive
    CPUs of another container.
    """
    own = pod_shared_pool(pod)
    return ContainerSettings(
        cpus=own or shared_pool or None, cpu_max=cpu_max, exclusive=own is not None
    )


def pod_shared_pool(pod: PodAllocation) -> Mask | None:
    """Return the CPUs that the containers of a pod-level pod share, None when they share none.

    A standard init container may run on more CPUs than the pool, so its set is not used.
    """
    return next(
        (
            container.cpus
            for container in pod.containers
            if container.isolation is Isolation.POD and container.kind is not ContainerKind.INIT
        ),
        None,
    )


def all_alike(pod: PodAllocation) -> bool:
    """Return whether every container of a pod has the same settings."""
    quotas = pod_quotas(pod).containers
    first, *rest = pod.containers
    alike = (first.cpus, first.mems, quotas[first.name], first.limits)
    return all((c.cpus, c.mems, quotas[c.name], c.limits) == alike for c in rest)
