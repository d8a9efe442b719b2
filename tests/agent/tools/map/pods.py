"""Pods with given CPUs, for tests of drawings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.managers.allocation import ContainerAllocation, Isolation, PodAllocation
from agent.managers.machine import Machine
from agent.pods.model import ContainerKind, QosClass
from sysfs.mask import Mask

if TYPE_CHECKING:
    from sysfs.host import Host


def pod_with(name: str, cpus: str) -> PodAllocation:
    """Return the allocation of a pod `shop/<name>` whose only container has these CPUs."""
    uid = name.replace("pod", "uid")
    container = ContainerAllocation(
        "main", ContainerKind.APP, Isolation.CONTAINER, Mask.parse(cpus)
    )
    return PodAllocation(uid, name, "shop", QosClass.GUARANTEED, "x", (container,))


def machine_of(host: Host) -> Machine:
    """Return the machine of a host."""
    return Machine.of(host)
