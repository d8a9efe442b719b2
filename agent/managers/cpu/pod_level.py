"""The CPUs of a pod with pod-level resources: exclusive slices and the pod shared pool (KEP-5526).

"Pod Scope Allocation and Partitioning Algorithm": the budget is divided in the order in which the
containers start. Standard init containers may use what apps get later, sidecars keep what they got.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from agent.managers.amounts import cpus_text
from agent.managers.cpu.take import take_by_topology
from agent.managers.cpu.uneven_cores import most_in_whole_cores
from agent.managers.topology.hint import SearchBudget
from agent.managers.versions import NEWEST
from agent.pods.model import ContainerKind
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.managers.cpu.topology import CpuTopology
    from agent.managers.demand import ContainerDemand, PodDemand
    from agent.managers.policy import CpuPolicyOptions
    from agent.managers.versions import KubernetesVersion


class CpuPart(Struct, frozen=True):
    """The part of the budget for one container; `exclusive` if no other container shares it."""

    cpus: Mask
    exclusive: bool


def empty_pool_problem(demand: PodDemand) -> str | None:
    """Return why some container would have no CPUs, None when every container has some.

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
                    f"init container {container.name} asks for {cpus_text(container.cpus)},"
                    f" the pod's budget of {demand.cpus} leaves {left} beside its sidecars"
                )
            if not container.cpus and left <= 0:
                return (
                    f"sidecars take all {cpus_text(demand.cpus)} of the pod's budget,"
                    f" none is left for the shared init container {container.name}"
                )
        elif container.cpus:
            long_running += container.cpus
        else:
            shares = True
    if shares and long_running >= demand.cpus:
        return (
            f"exclusive containers take all {cpus_text(demand.cpus)} of the pod's budget,"
            " none is left for its shared containers"
        )
    return None


def divide_cpus(
    topology: CpuTopology,
    options: CpuPolicyOptions,
    budget: Mask,
    demand: PodDemand,
    work: Callable[[], SearchBudget] = SearchBudget,
    version: KubernetesVersion = NEWEST,
) -> dict[str, CpuPart]:
    """Divide a pod's CPUs between its containers, by name in the order of admission.

    With `full-pcpus-only` exclusive containers that run at the same time share a core only where
    the cores of the budget do not suffice; a thread that is left over belongs to the pod's pool.
    Where no container gains by that, they choose in their order, as in the kubelet.
    `work` returns the budget of one choice.
    Raises `NotEnoughCpusError` when the exclusive requests exceed the budget.
    """

    def take(cpus: Mask, count: int) -> Mask:
        return take_by_topology(topology, options, cpus, count, work(), version)

    parts = divided(budget, demand, lambda container, pool: take(pool, container.cpus))
    if not options.full_pcpus_only or not _shares_a_core(topology, demand, parts):
        return parts
    # Sidecars and apps run at the same time: choose their slices together, core by core.
    slices = slices_by_core(topology, take, budget, _long_running(demand))

    def choose(container: ContainerDemand, pool: Mask) -> Mask:
        if container.name in slices:
            return slices[container.name]
        # A standard init container avoids the cores of sidecars.
        apart = budget - topology.cores_of(budget - pool)
        return take(apart if len(apart) >= container.cpus else pool, container.cpus)

    by_core = divided(budget, demand, choose)
    pairs = zip(_cost(topology, demand, by_core), _cost(topology, demand, parts), strict=True)
    return by_core if any(ours < theirs for ours, theirs in pairs) else parts


def apart_budget(
    topology: CpuTopology, take: Take, near: Mask, demand: PodDemand, budget: Mask
) -> Mask:
    """Return a budget of whole cores out of `near` where parts of `budget` would share a core.

    Where cores differ in size the fewest cores are large ones, whose threads several exclusive
    containers would have. Of smaller ones each may have its own.
    """
    parts = divided(budget, demand, lambda container, pool: take(pool, container.cpus))
    if not _shares_a_core(topology, demand, parts):
        return budget
    slices = _apart(topology, take, near, _long_running(demand))
    if slices is None:
        return budget
    instead = Mask(sum(part.bits for part in slices.values()))
    left, rest = near - topology.cores_of(instead), len(budget) - len(instead)
    if len(left) < rest:
        return budget
    instead |= take(left, rest)
    return instead if topology.cores_of(instead) == instead else budget


def divided(
    budget: Mask, demand: PodDemand, choose: Callable[[ContainerDemand, Mask], Mask]
) -> dict[str, CpuPart]:
    """Divide a budget by the rules of the KEP, by name in the order of admission.

    `choose` returns the exclusive CPUs of a container out of those that remain for it.
    """
    parts: dict[str, CpuPart] = {}
    # a. Init containers run one after the other, so each may have all that the sidecars before it
    #    have not; a sidecar keeps its CPUs as long as the pod runs.
    sidecars = EMPTY
    for container in demand.init_containers:
        pool = budget - sidecars
        if container.cpus:
            parts[container.name] = CpuPart(choose(container, pool), exclusive=True)
            if container.kind is ContainerKind.SIDECAR:
                sidecars |= parts[container.name].cpus
        elif container.is_standard_init:
            parts[container.name] = CpuPart(pool, exclusive=False)
    # b. Apps run at the same time, each with CPUs of its own.
    shared = budget - sidecars
    for container in demand.apps:
        if container.cpus:
            parts[container.name] = CpuPart(choose(container, shared), exclusive=True)
            shared -= parts[container.name].cpus
    # c. What is left is the pod shared pool, of all other apps and sidecars.
    pool_part = CpuPart(shared, exclusive=False)
    return {c.name: parts.get(c.name, pool_part) for c in demand.containers}


def _long_running(demand: PodDemand) -> dict[str, int]:
    """Return the exclusive CPUs of sidecars and apps by name: these all run at the same time."""
    return {c.name: c.cpus for c in demand.containers if c.cpus and not c.is_standard_init}


def _cost(topology: CpuTopology, demand: PodDemand, parts: Mapping[str, CpuPart]) -> list[int]:
    """Return three numbers for each exclusive container, in order; less of each is better.

    They are the cores that it shares with those that run when it starts, its CPUs that are no whole
    cores, and all cores that it touches.
    """
    numbers: list[int] = []
    running = 0
    for container in demand.containers:
        if not container.cpus:
            continue
        cpus = parts[container.name].cpus.bits
        touched = [core.cpus for core in topology.cores if core.cpus & cpus]
        numbers.append(sum(1 for core in touched if core & running))
        numbers.append(sum((core & cpus).bit_count() for core in touched if core & ~cpus))
        numbers.append(len(touched))
        if not container.is_standard_init:
            running |= cpus
    return numbers


def _shares_a_core(topology: CpuTopology, demand: PodDemand, parts: Mapping[str, CpuPart]) -> bool:
    """Return whether exclusive containers that run at the same time have threads of one core."""
    threads = topology.cpus_per_core
    if topology.cores_alike and not any(c.cpus % threads for c in demand.containers):
        return False  # each has whole cores
    running = EMPTY
    for container in demand.containers:
        if not container.cpus:
            continue
        cpus = parts[container.name].cpus
        if topology.cores_of(running) & cpus:
            return True
        if not container.is_standard_init:
            running |= cpus
    return False


#: Takes a number of CPUs out of some, by the policy options.
Take: TypeAlias = Callable[[Mask, int], Mask]


def slices_by_core(
    topology: CpuTopology, take: Take, budget: Mask, asked: Mapping[str, int]
) -> dict[str, Mask]:
    """Return the slices of containers that run at the same time, by name.

    `asked` are numbers of CPUs, together no more than the budget has. No core is shared where that
    can be avoided; where it cannot, every container has the whole cores that it can fill, and only
    what exceeds them shares a core with another one.
    """
    apart = _apart(topology, take, budget, asked)
    return _tight(topology, take, budget, asked) if apart is None else apart


def _apart(
    topology: CpuTopology, take: Take, budget: Mask, asked: Mapping[str, int]
) -> dict[str, Mask] | None:
    """Allocate whole cores to every container; None when there are too few."""
    slices: dict[str, Mask] = {}
    touched = EMPTY
    for name, count in asked.items():
        free = budget - touched
        if len(free) < count:
            return None
        slices[name] = take(free, count)
        touched |= topology.cores_of(slices[name])
    return slices


def _tight(
    topology: CpuTopology, take: Take, budget: Mask, asked: Mapping[str, int]
) -> dict[str, Mask]:
    """Allocate whole cores to every container first, then the missing single threads."""
    slices: dict[str, Mask] = {}
    left = budget
    for name, count in asked.items():
        slices[name] = take(left, most_in_whole_cores(topology, left.bits, count))
        left -= slices[name]
    untouched = left
    for name, count in asked.items():
        missing = count - len(slices[name])
        if missing:
            source = untouched if len(untouched) >= missing else left
            single = take(_near(topology, source, slices[name], missing), missing)
            slices[name] |= single
            left -= single
            untouched -= topology.cores_of(single)
    return slices


def _near(topology: CpuTopology, free: Mask, own: Mask, count: int) -> Mask:
    """Return the part of the free CPUs that single threads are taken from.

    A single core with enough free CPUs is preferred to several, and the NUMA nodes of the
    container's whole cores are preferred to others.
    """
    inside = topology.cpus_in_nodes(topology.nodes_of(own))
    cores = [Mask(core.cpus) & free for core in topology.cores]
    fitting = [cpus for cpus in cores if len(cpus) >= count]
    if not fitting:
        return free
    return min(fitting, key=lambda cpus: (not cpus & inside, len(cpus), cpus.bits))
