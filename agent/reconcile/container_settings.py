"""The CPUs, memory nodes and quota of each cgroup in a pod: containers, sandbox and others.

In: the pod's allocation, the node's shared pool and the pod's quotas. Out: `ContainerSettings`.
No cgroup gets exclusive CPUs of another container.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from agent.managers.allocation import Isolation
from agent.pods.model import ContainerKind
from agent.reconcile.quota import pod_quotas

if TYPE_CHECKING:
    from agent.managers.allocation import ContainerAllocation, PodAllocation
    from agent.reconcile.quota import PodQuotas
    from cgroupfs.settings import CpuMax
    from sysfs.mask import Mask


class ContainerSettings(Struct, frozen=True):
    """The settings of one cgroup; None leaves a setting as it is."""

    cpus: Mask | None
    mems: Mask | None = None
    cpu_max: CpuMax | None = None
    #: Whether the CPUs are outside the node's shared pool.
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

    The CPUs are the pod's shared pool where the pod has one, else the node's.
    """
    pool = pod_shared_pool(pod)
    return ContainerSettings(
        cpus=pool or shared_pool or None, cpu_max=cpu_max, exclusive=pool is not None
    )


def ephemeral_settings(shared_pool: Mask, quotas: PodQuotas) -> ContainerSettings:
    """Return the settings of a container that is not in the pod's specification.

    It has no part in the pod's budget, so it runs in the node's shared pool; the pod's quota and
    memory limit it (KEP-5526, "Ephemeral Containers").
    """
    return ContainerSettings(cpus=shared_pool or None, cpu_max=quotas.ephemeral)


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
    """Return whether all containers of a pod have the same settings."""
    quotas = pod_quotas(pod).containers
    first, *rest = pod.containers
    alike = (first.cpus, first.mems, quotas[first.name], first.limits)
    return all((c.cpus, c.mems, quotas[c.name], c.limits) == alike for c in rest)
