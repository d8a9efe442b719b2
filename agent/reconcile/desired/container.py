"""What one container is entitled to, as settings of a cgroup."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from agent.managers.allocations.ledger import Isolation
from agent.pods.model import ContainerKind
from agent.reconcile.desired.quota import pod_quotas

if TYPE_CHECKING:
    from agent.managers.allocations.ledger import ContainerAllocation, PodAllocation
    from agent.reconcile.desired.quota import PodQuotas
    from cgroupfs.state import CpuMax
    from sysfs.mask import Mask


class ContainerSettings(Struct, frozen=True):
    """CPUs, memory nodes and quota; None leaves a setting as it is.

    `exclusive`: the CPUs are out of the node's shared pool.
    """

    cpus: Mask | None
    mems: Mask | None = None
    cpu_max: CpuMax | None = None
    exclusive: bool = False


def container_entitlement(
    container: ContainerAllocation, shared_pool: Mask, quotas: PodQuotas
) -> ContainerSettings:
    """Return what a container may use: its own CPUs, or the node's shared pool as it is now."""
    cpus = shared_pool if container.cpus is None else container.cpus
    return ContainerSettings(
        cpus=cpus or None,
        mems=container.mems or None,
        cpu_max=quotas.containers[container.name],
        exclusive=container.cpus is not None,
    )


def default_entitlement(
    pod: PodAllocation, shared_pool: Mask, cpu_max: CpuMax | None = None
) -> ContainerSettings:
    """Return what a cgroup of a pod gets that is its sandbox, or of which nobody knows what it is.

    The pod's shared pool where it has one, else the node's: never another's exclusive CPUs.
    """
    own = pod_shared_pool(pod)
    return ContainerSettings(
        cpus=own or shared_pool or None, cpu_max=cpu_max, exclusive=own is not None
    )


def pod_shared_pool(pod: PodAllocation) -> Mask | None:
    """Return the CPUs that the containers of a pod-level pod share, None when they share none.

    A standard init container may burst over more than the pool, so its set does not tell it.
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
    """Return whether every container of a pod is entitled to the same."""
    quotas = pod_quotas(pod).containers
    first, *rest = pod.containers
    alike = (first.cpus, first.mems, quotas[first.name], first.limits)
    return all((c.cpus, c.mems, quotas[c.name], c.limits) == alike for c in rest)
