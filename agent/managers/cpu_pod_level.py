"""The CPUs of a pod with pod-level resources: exclusive slices and the pod shared pool (KEP-5526).

"Pod Scope Allocation and Partitioning Algorithm": the budget is divided in the order in which the
containers start. Standard init containers may use what apps get later, sidecars keep what they got.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from agent.managers.cpu_assignment import take_by_topology
from agent.managers.work import Work
from agent.pods.model import ContainerKind
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.managers.cpu_topology import CpuTopology
    from agent.managers.demand import PodDemand
    from agent.managers.policy import CpuPolicyOptions


class CpuPart(Struct, frozen=True):
    """What one container gets of the budget; `exclusive` when nobody shares it."""

    cpus: Mask
    exclusive: bool


def empty_pool_problem(demand: PodDemand) -> str | None:
    """Say why some container would be left without CPUs; None when every one has some.

    KEP-5526, "Rejected Configurations": the exclusive requests of containers that run as long as
    the pod equal its budget while another container has to share it, or sidecars leave nothing to
    a standard init container.
    """
    long_running = 0
    shares = False
    for container in demand.containers:
        if container.kind is ContainerKind.INIT:
            left = demand.cpus - long_running
            if container.cpus > left:
                return (
                    f"init container {container.name} asks for {container.cpus} CPUs,"
                    f" the pod's budget of {demand.cpus} leaves {left} beside its sidecars"
                )
            if not container.cpus and left <= 0:
                return (
                    f"sidecars hold all {demand.cpus} CPUs of the pod's budget,"
                    f" none is left for the shared init container {container.name}"
                )
        elif container.cpus:
            long_running += container.cpus
        else:
            shares = True
    if shares and long_running >= demand.cpus:
        return (
            f"exclusive containers hold all {demand.cpus} CPUs of the pod's budget,"
            " none is left for its shared containers"
        )
    return None


def divide_cpus(
    topology: CpuTopology,
    options: CpuPolicyOptions,
    budget: Mask,
    demand: PodDemand,
    work: Callable[[], Work] = Work,
) -> dict[str, CpuPart]:
    """Divide a pod's CPUs between its containers, by name in the order of admission.

    `work` returns the budget of one choice.
    Raises `NotEnoughCpusError` when the exclusive requests exceed the budget.
    """
    exclusive: dict[str, CpuPart] = {}
    sidecars = EMPTY
    for container in demand.init_containers():
        pool = budget - sidecars
        if container.cpus:
            cpus = take_by_topology(topology, options, pool, container.cpus, work())
            exclusive[container.name] = CpuPart(cpus, exclusive=True)
            if container.kind is ContainerKind.SIDECAR:
                sidecars |= cpus
        elif container.is_standard_init:
            exclusive[container.name] = CpuPart(pool, exclusive=False)
    shared = budget - sidecars
    for container in demand.apps():
        if container.cpus:
            cpus = take_by_topology(topology, options, shared, container.cpus, work())
            exclusive[container.name] = CpuPart(cpus, exclusive=True)
            shared -= cpus
    pool_part = CpuPart(shared, exclusive=False)
    return {c.name: exclusive.get(c.name, pool_part) for c in demand.containers}
