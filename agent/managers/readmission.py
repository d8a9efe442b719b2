"""Readmission: an allocation that exists already meets the specification of its pod.

A decided allocation stays as it is: the same specification returns it, another one is a conflict.
Of an imported or recovered allocation (`Origin`) the specification is not known. The first that
fits completes it: names, kinds, isolation levels and limits are filled in, the allocation counts as
decided from then on, and its CPUs and memory stay where they are. The kubelet's state files state
CPUs and memory of each container, so an imported allocation has to be exactly what the
specification requests of these; devices are not in it. Cgroups show less: a recovered allocation is
matched with containers by name and size, and what does not run gets a part of the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec.structs import replace

from agent.managers.allocation import Isolation, MemoryBlock, Origin
from agent.managers.amounts import cpus_text
from agent.managers.cpu.manager import with_idle_siblings
from agent.managers.decision import Decision, Reason, Rejection
from agent.managers.demand import PodPart, make_allocation
from agent.managers.device.kubelet import with_given_devices
from agent.managers.memory.pod_level import divide_memory
from agent.managers.rules import charged
from agent.pods.model import CPU, MEMORY, ContainerKind, full_name
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from agent.managers.allocation import ContainerAllocation, PodAllocation
    from agent.managers.demand import ContainerDemand, PodDemand
    from agent.managers.host import HostPolicy
    from agent.managers.ledger import Ledger
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Pod


#: A container of the specification, and what was imported for it: None for nothing.
_Pair: TypeAlias = "tuple[ContainerDemand, ContainerAllocation | None]"

#: The managers of what cgroups show.
_SHOWN: Final = frozenset({CPU, MEMORY})
_SEPARATORS: Final = "-_.@"
_SUFFIXES: Final = (".scope", ".service")


class NotMatchedError(Exception):
    """A specification does not fit the allocation of its uid; `differences` say where."""

    def __init__(self, differences: tuple[str, ...]) -> None:
        super().__init__("; ".join(differences))
        self.differences = differences


def readmit(
    rules: EffectivePolicy, ledger: Ledger, existing: PodAllocation, demand: PodDemand
) -> Decision | None:
    """Return the decision on a pod that has an allocation, None if there is nothing to keep of it.

    The latter is a recovered pod whose specification requests nothing exclusive: its cgroups did
    not show an allocation, and the pod has to be decided on like any other. A specification that
    does not fit is a conflict and changes nothing.
    """
    pod = demand.pod
    if existing.origin is Origin.DECIDED:
        return _with_decided(ledger, existing, demand)
    try:
        if existing.origin is Origin.IMPORTED:
            matched: PodAllocation | None = match_imported(rules, existing, demand)
        else:
            matched = match_recovered(existing, demand)
    except NotMatchedError as error:
        return Decision(pod.uid, ledger, cause=_not_matched(existing.origin, pod, error))
    if matched is None:
        return None
    matched = with_given_devices(matched, pod.given_devices)
    matched = with_idle_siblings(rules, ledger, matched, demand)
    if existing.origin is Origin.IMPORTED and not matched.idle:
        completed = ledger.with_allocation(matched)
    else:  # Cgroups show nodes, but not always amounts: only the specification has both.
        completed = charged(rules, ledger, matched)
    return Decision(pod.uid, completed, allocation=matched, already_admitted=True)


def _with_decided(ledger: Ledger, existing: PodAllocation, demand: PodDemand) -> Decision:
    uid = demand.pod.uid
    if existing.spec_digest == demand.spec_digest:
        if not existing.spec:  # an older release saved the digest alone
            existing = replace(existing, spec=demand.spec)
            ledger = ledger.with_allocation(existing)
        return Decision(uid, ledger, allocation=existing, already_admitted=True)
    rejection = Rejection(
        Reason.CONFLICT,
        f"pod {full_name(existing)} already has uid {uid} and another specification",
        remedy="remove the pod first, or give the new pod a uid of its own",
    )
    return Decision(uid, ledger, cause=rejection)


def _not_matched(origin: Origin, pod: Pod, error: NotMatchedError) -> Rejection:
    if origin is Origin.IMPORTED:
        was = "imported from the kubelet"
        remedy = "admit the specification that the kubelet ran, or"
    else:  # cgroups show no devices, and not always which container has a set
        was = "recovered from its cgroups"
        remedy = (
            "admit the specification that the pod was started with; where its cgroups do not show "
            "all of that,"
        )
    return Rejection(
        Reason.CONFLICT,
        f"pod uid {pod.uid} was {was} and does not fit this specification: {error}",
        remedy=f"{remedy} remove the pod first",
    )


def match_imported(rules: HostPolicy, imported: PodAllocation, demand: PodDemand) -> PodAllocation:
    """Return an imported allocation completed by a specification that requests the same.

    Raises `NotMatchedError` when the specification requests anything else.
    """
    differences = tuple(_differences(rules, imported, demand))
    if differences:
        raise NotMatchedError(differences)
    hints = {container.name: container.hint for container in imported.containers}
    parts = {name: _part(name, imported) for name in demand.parts}
    return make_allocation(demand, parts, hints)


def _part(manager: str, allocation: PodAllocation) -> PodPart:
    """Return what a manager has allocated to a pod and its containers."""
    parts = {container.name: container.part(manager) for container in allocation.containers}
    containers = {name: part for name, part in parts.items() if part is not None}
    return PodPart(containers, allocation.part(manager))


def _differences(rules: HostPolicy, imported: PodAllocation, demand: PodDemand) -> Iterator[str]:
    allocated = {allocation.name: allocation for allocation in imported.containers}
    pairs = [(container, allocated.pop(container.name, None)) for container in demand.containers]
    for name in allocated:
        yield f"it has no container {name}, which has an allocation"
    if rules.static_cpus:
        yield from _cpu_differences(imported, demand, pairs)
    if rules.static_memory:
        yield from _memory_differences(imported, demand, pairs)


def _cpu_differences(
    imported: PodAllocation, demand: PodDemand, pairs: Iterable[_Pair]
) -> Iterator[str]:
    if imported.cpus is not None:
        asked = demand.cpus if demand.pod_level else 0
        if len(imported.cpus) != asked:
            yield (
                f"it has a pod-level budget of {asked} exclusive CPUs,"
                f" allocated are {imported.cpus}"
            )
    for container, allocation in pairs:
        if imported.cpus is not None and not container.cpus:
            continue  # the container runs in the pod shared pool
        asked = container.cpus if container.may_have(CPU) else 0
        cpus = allocation.cpus if allocation is not None else None
        if (0 if cpus is None else len(cpus)) != asked:
            found = "none" if cpus is None else cpus
            yield (
                f"container {container.name} asks for {asked} exclusive CPUs, allocated are {found}"
            )


def _memory_differences(
    imported: PodAllocation, demand: PodDemand, pairs: Iterable[_Pair]
) -> Iterator[str]:
    if imported.memory:
        asked = demand.memory if demand.pod_level else {}
        if _sizes(imported.memory) != _positive(asked):
            yield (
                f"it has a pod-level budget of {_shown(asked)},"
                f" allocated is {_shown_blocks(imported.memory)}"
            )
    for container, allocation in pairs:
        blocks = allocation.memory if allocation is not None else ()
        if imported.memory and not container.memory:
            continue  # the container shares the pod's memory
        asked = container.memory if demand.active(MEMORY) else {}
        if not _is_asked(container, blocks, asked):
            yield (
                f"container {container.name} asks for {_shown(asked)} to be pinned,"
                f" allocated is {_shown_blocks(blocks)}"
            )


def _is_asked(
    container: ContainerDemand, blocks: Iterable[MemoryBlock], asked: Mapping[str, int]
) -> bool:
    """Compare sizes; later containers may have reused memory of a standard init container."""
    sizes = _sizes(blocks)
    if container.is_standard_init:
        return all(size <= asked.get(name, 0) for name, size in sizes.items())
    return sizes == _positive(asked)


def _sizes(blocks: Iterable[MemoryBlock]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for block in blocks:
        sizes[block.type] = sizes.get(block.type, 0) + block.size
    return _positive(sizes)


def _positive(sizes: Mapping[str, int]) -> dict[str, int]:
    return {name: size for name, size in sizes.items() if size}


def _shown(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{size} bytes of {name}" for name, size in sizes.items()) or "nothing"


def _shown_blocks(blocks: Iterable[MemoryBlock]) -> str:
    return _shown(_sizes(blocks))


def match_recovered(recovered: PodAllocation, demand: PodDemand) -> PodAllocation | None:
    """Return a recovered allocation completed by a specification that requests the same.

    None when the specification requests nothing exclusive: the cgroups did not show an allocation,
    and the pod has to be admitted like any other. Raises `NotMatchedError` when the specification
    requests anything else.
    """
    wanting = [container for container in demand.containers if container.may_have(CPU)]
    of_pod = demand.request.from_budget
    budget = of_pod and demand.active(CPU)
    if not wanting and not budget:
        recovered = _without_cpus(recovered)
        has_memory = any(one.memory for one in recovered.containers)
        if not has_memory or not _asks_for_memory(demand):
            return None
    _require_shown(recovered, demand, budget=budget)
    found = _matched(recovered, demand, wanting, of_budget=budget)
    cpus = _cpus(recovered, demand, wanting, found, budget=budget)
    memory = _divided(recovered, demand) if of_pod else PodPart(_memory(recovered, demand, found))
    parts = {CPU: PodPart(cpus, recovered.cpus if budget else None), MEMORY: memory}
    return make_allocation(demand, parts)


def _require_shown(recovered: PodAllocation, demand: PodDemand, *, budget: bool) -> None:
    """Raise `NotMatchedError` for what no cgroup shows, and for a budget of another size."""
    hidden = {name for name, part in demand.parts.items() if any(part.exclusive)} - _SHOWN
    if hidden:
        names = ", ".join(sorted(hidden))
        raise NotMatchedError((f"it asks for {names}, which cgroups do not show",))
    if budget and len(recovered.cpus or EMPTY) != demand.cpus:
        shown = recovered.cpus or "no exclusive CPUs"
        raise NotMatchedError(
            (f"it asks for a budget of {cpus_text(demand.cpus)}, its cgroup shows {shown}",)
        )


def _cpus(
    recovered: PodAllocation,
    demand: PodDemand,
    wanting: Sequence[ContainerDemand],
    found: Mapping[str, ContainerAllocation],
    *,
    budget: bool,
) -> dict[str, Mask]:
    """Return the CPUs by container; raises `NotMatchedError` when more were recovered."""
    cpus = _with_idle(
        recovered, demand, wanting, {name: shown.cpus or EMPTY for name, shown in found.items()}
    )
    if budget and recovered.cpus is not None:
        cpus |= _pool(recovered.cpus, demand, cpus)
    taken = EMPTY
    for mask in cpus.values():
        taken |= mask
    rest = recovered.exclusive_cpus - taken
    if rest and not budget:
        raise NotMatchedError((f"it does not ask for CPUs {rest}, which its cgroups show",))
    return cpus


def _without_cpus(recovered: PodAllocation) -> PodAllocation:
    containers = (replace(one, cpus=None, isolation=Isolation.HOST) for one in recovered.containers)
    return replace(recovered, cpus=None, containers=tuple(containers))


def _asks_for_memory(demand: PodDemand) -> bool:
    return demand.active(MEMORY) and bool(demand.memory)


def _divided(recovered: PodAllocation, demand: PodDemand) -> PodPart:
    """Return the memory of each container, and the budget, on the nodes that the cgroups show."""
    if not _asks_for_memory(demand):
        return PodPart()
    nodes = _nodes(recovered.containers)
    if not nodes:
        raise NotMatchedError(("its cgroups show no memory nodes for its budget",))
    parts = divide_memory(nodes, demand)
    blocks = {name: part.blocks for name, part in parts.items()}
    return PodPart(blocks, _pinned_to(demand.memory, nodes))


def _memory(
    recovered: PodAllocation,
    demand: PodDemand,
    found: Mapping[str, ContainerAllocation],
) -> dict[str, tuple[MemoryBlock, ...]]:
    """Return the memory of each container on the nodes that its cgroup, or the pod's, shows.

    A standard init container that is not shown has ended: no node is charged for it, as for one
    whose memory later containers reuse.
    """
    if not _asks_for_memory(demand):
        return {}
    alike = {container.mems for container in recovered.containers}
    blocks: dict[str, tuple[MemoryBlock, ...]] = {}
    for container in demand.containers:
        shown = found.get(container.name) or _namesake(recovered, container.name)
        nodes = shown.mems if shown is not None else next(iter(alike), EMPTY)
        if not container.memory:
            continue
        if not nodes or (shown is None and len(alike) > 1):
            raise NotMatchedError((f"no cgroup shows the memory nodes of {container.name}",))
        pinned = _pinned_to(container.memory, nodes)
        ended = container.is_standard_init and shown is None
        blocks[container.name] = tuple(
            replace(block, size=0) if ended else block for block in pinned
        )
    return blocks


def _namesake(recovered: PodAllocation, name: str) -> ContainerAllocation | None:
    return next((one for one in recovered.containers if _called(one.name, name)), None)


def _pinned_to(amounts: Mapping[str, int], nodes: Mask) -> tuple[MemoryBlock, ...]:
    return tuple(MemoryBlock(kind, size, nodes) for kind, size in sorted(amounts.items()) if size)


def _nodes(containers: Iterable[ContainerAllocation]) -> Mask:
    union = EMPTY
    for container in containers:
        union |= container.mems
    return union


def _matched(
    recovered: PodAllocation,
    demand: PodDemand,
    wanting: Sequence[ContainerDemand],
    *,
    of_budget: bool,
) -> dict[str, ContainerAllocation]:
    """Match each container that asks for CPUs with a cgroup: by name, then by number of CPUs.

    A cgroup called after a container stands for that one alone. With a budget, one more cgroup may
    show CPUs: that of a container in the pod shared pool. Raises `NotMatchedError` for a cgroup
    that matches no container, or more than one.
    """
    sets = {c.name: c for c in recovered.containers if c.isolation is Isolation.CONTAINER}
    names = [container.name for container in demand.containers]
    called = {directory: _name_of(directory, names) for directory in sets}
    found: dict[str, ContainerAllocation] = {}
    sizes: set[int] = set()
    running = [c for c in wanting if not c.is_standard_init]
    for by_name in (True, False):
        for container in running:
            if container.name in found:
                continue
            fitting = (
                directory
                for directory, shown in sets.items()
                if len(shown.cpus or EMPTY) == container.cpus
                and called[directory] == (container.name if by_name else None)
            )
            directory = next(fitting, None)
            if directory is not None:
                found[container.name] = sets.pop(directory)
                sizes |= set() if by_name else {container.cpus}
    unnamed = (shown for directory, shown in sets.items() if called[directory] is None)
    if of_budget and any(len(shown.cpus or EMPTY) in sizes for shown in unnamed):
        raise NotMatchedError(("several of its containers match the CPUs of one cgroup",))
    asking = {container.name for container in running}
    left = [each for each in sets.values() if not of_budget or called[each.name] in asking]
    if left:
        texts = ", ".join(f"{each.name} ({each.cpus})" for each in left)
        raise NotMatchedError((f"it has no container with the CPUs of {texts}",))
    return found


def _with_idle(
    recovered: PodAllocation,
    demand: PodDemand,
    wanting: Sequence[ContainerDemand],
    found: dict[str, Mask],
) -> dict[str, Mask]:
    """Add containers that do not run: they get CPUs that no cgroup of their pod shows, if possible.

    Standard init containers have ended, and later containers reuse their CPUs.
    """
    free = recovered.exclusive_cpus
    for cpus in found.values():
        free -= cpus
    shared = EMPTY
    for shown in recovered.containers:
        shared |= shown.cpus or EMPTY
    for container in wanting:
        if container.name in found:
            continue
        source = recovered.exclusive_cpus if container.is_standard_init else free
        if len(source) < container.cpus:
            text = f"container {container.name} asks for {cpus_text(container.cpus)}, available are"
            raise NotMatchedError((f"{text} {source or 'none'}",))
        # Standard init containers have ended: nothing of theirs is left to avoid.
        avoided = EMPTY if container.is_standard_init else shared
        preferred = [*(source - avoided), *(source & avoided)]
        found[container.name] = Mask.from_ids(preferred[: container.cpus])
        if not container.is_standard_init:
            free -= found[container.name]
    order = [container.name for container in demand.containers]
    return {name: found[name] for name in sorted(found, key=order.index)}


def _pool(budget: Mask, demand: PodDemand, own: Mapping[str, Mask]) -> dict[str, Mask]:
    """Return the pod shared pool by container: the rest of the budget."""
    sidecars, all_own = EMPTY, EMPTY
    for container in demand.containers:
        cpus = own.get(container.name, EMPTY)
        if container.kind is ContainerKind.SIDECAR:
            sidecars |= cpus
        if not container.is_standard_init:
            all_own |= cpus
    pools = {
        c.name: budget - (sidecars if c.is_standard_init else all_own)
        for c in demand.containers
        if c.name not in own
    }
    if any(not pool for pool in pools.values()):
        raise NotMatchedError(("no CPU of its budget is left for its shared containers",))
    return pools


def _name_of(directory: str, names: Iterable[str]) -> str | None:
    """Return the longest of the names after which a cgroup's directory is called."""
    return max((name for name in names if _called(directory, name)), key=len, default=None)


def _called(directory: str, name: str) -> bool:
    stem = directory
    for suffix in _SUFFIXES:
        stem = stem.removesuffix(suffix)
    return stem == name or any(stem.endswith(f"{mark}{name}") for mark in _SEPARATORS)
