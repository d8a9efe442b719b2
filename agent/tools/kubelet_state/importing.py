"""From the kubelet's files to a ledger.

The files know pod uids, container names, CPUs and memory. That is what an allocation holds; the
rest of it (the pod's name, kinds of containers, isolation, limits) is completed by the pods'
manifests where these are given, and otherwise left open until the pod is asked for
(`agent.managers.readmission`).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from agent.managers.allocations.ledger import (
    ContainerAllocation,
    Isolation,
    Ledger,
    NodeMemory,
    PodAllocation,
)
from agent.managers.allocations.origin import Origin
from agent.managers.readmission import NotMatchedError, match_imported
from agent.parsing.nodes import shown
from agent.pods.identity import full_name
from agent.pods.model import ContainerKind, QosClass
from agent.pods.names import label_fault, uid_fault
from agent.tools.kubelet_state import cpu_check, cpu_file, memory_check, memory_file
from agent.tools.kubelet_state.cpu_file import CpuState
from agent.tools.kubelet_state.errors import UnfitStateError
from agent.tools.kubelet_state.memory_file import MemoryState

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.managers.effective_policy import EffectivePolicy
    from agent.pods.model import Pod
    from agent.tools.kubelet_state.files import KubeletState

_NO_PODS: Final[Mapping[str, Pod]] = MappingProxyType({})


class Imported(Struct, frozen=True):
    """The ledger of a kubelet's state, and notes for the operator, a line each."""

    ledger: Ledger
    notes: tuple[str, ...] = ()


def take_over(
    rules: EffectivePolicy, state: KubeletState, pods: Mapping[str, Pod] = _NO_PODS
) -> Imported:
    """Return the ledger of a kubelet's state; `pods` by uid complete what they describe.

    Raises `UnfitStateError` with every reason why the state cannot be taken over.
    """
    cpu = state.cpu or CpuState(str(rules.policy.cpu.policy))
    memory = state.memory or MemoryState(str(rules.policy.memory.policy))
    # First, because the following messages contain names of pods and containers.
    if misnamed := list(_misnamed(cpu, memory)):
        raise UnfitStateError("the kubelet's state is not taken over", misnamed)
    reasons = [
        *(f"{cpu_file.FILE_NAME}: {why}" for why in cpu_check.cpu_problems(rules, cpu)),
        *(f"{memory_file.FILE_NAME}: {why}" for why in memory_check.memory_problems(rules, memory)),
    ]
    if reasons:
        raise UnfitStateError("the kubelet's state is not taken over", reasons)
    allocations = {allocation.uid: allocation for allocation in _allocations(rules, cpu, memory)}
    completed = _completed(rules, allocations, pods)
    return Imported(
        Ledger.of(completed.values(), _charge(rules, memory)),
        tuple(_notes(rules, state, completed, pods)),
    )


def _misnamed(cpu: CpuState, memory: MemoryState) -> Iterator[str]:
    """Yield the invalid names of pods and containers."""
    files = (
        (cpu_file.FILE_NAME, {*cpu.containers, *cpu.pods}, cpu.containers.values()),
        (memory_file.FILE_NAME, {*memory.containers, *memory.pods}, memory.containers.values()),
    )
    for file, uids, containers in files:
        for uid in sorted(uids):
            if fault := uid_fault(uid):
                yield f"{file}: {shown(uid)} is not a valid uid: {fault}"
        for name in sorted({name for members in containers for name in members}):
            if fault := label_fault(name):
                yield f"{file}: {shown(name)} is not a valid name of a container: {fault}"


def _allocations(
    rules: EffectivePolicy, cpu: CpuState, memory: MemoryState
) -> Iterator[PodAllocation]:
    inert = cpu_check.inert_budgets(cpu)
    budgets = {uid: cpus for uid, cpus in cpu.pods.items() if uid not in inert}
    for uid in sorted({*cpu.containers, *budgets, *memory.containers}):
        containers = tuple(_containers(rules, uid, cpu, memory))
        if containers or uid in budgets:
            yield PodAllocation(
                uid=uid,
                name="",
                namespace="",
                qos=QosClass.GUARANTEED,  # no other holds anything of its own
                spec_digest="",
                containers=containers,
                cpus=budgets.get(uid),
                memory=memory.pods.get(uid, ()) if uid in memory.containers else (),
                quota_disabled=any(container.quota_disabled for container in containers),
                origin=Origin.IMPORTED,
            )


def _containers(
    rules: EffectivePolicy, uid: str, cpu: CpuState, memory: MemoryState
) -> Iterator[ContainerAllocation]:
    """Yield the containers of a pod; which of a pod-level budget share their CPUs is not known.

    Outside of a budget, a container with CPUs of its own is exclusive, and the kubelet has lifted
    its quota. Inside, the quota that it has is left alone.
    """
    cpus, blocks = cpu.containers.get(uid, {}), memory.containers.get(uid, {})
    lifted = rules.policy.gates.disable_cpu_quota_with_exclusive_cpus and uid not in cpu.pods
    for name in sorted({*cpus, *blocks}):
        own = cpus.get(name)
        yield ContainerAllocation(
            name=name,
            kind=ContainerKind.APP,
            isolation=Isolation.HOST if own is None else Isolation.CONTAINER,
            cpus=own,
            memory=blocks.get(name, ()),
            quota_disabled=own is not None and lifted,
        )


def _completed(
    rules: EffectivePolicy, allocations: Mapping[str, PodAllocation], pods: Mapping[str, Pod]
) -> dict[str, PodAllocation]:
    """Complete allocations by manifests; still without a digest, which the first admission sets.

    A manifest from a cluster says more (such as its QoS class) than the one that asks later.
    """
    completed: dict[str, PodAllocation] = {}
    reasons: list[str] = []
    for uid, allocation in allocations.items():
        pod = pods.get(uid)
        completed[uid] = allocation
        if pod is None:
            continue
        try:
            completed[uid] = _described(match_imported(rules.policy, allocation, pod))
        except NotMatchedError as error:
            reasons.append(f"pod {full_name(pod)} ({uid}): by its manifest {error}")
    if reasons:
        raise UnfitStateError("the manifests do not fit the kubelet's state", reasons)
    return completed


def _described(matched: PodAllocation) -> PodAllocation:
    return replace(matched, spec_digest="", origin=Origin.IMPORTED)


def _charge(rules: EffectivePolicy, memory: MemoryState) -> Mapping[int, NodeMemory]:
    if not rules.static_memory or memory_check.is_fresh(memory):
        return rules.empty_ledger().memory
    return MappingProxyType(
        {
            node: NodeMemory(
                state.assignments,
                state.cells,
                MappingProxyType({name: table.reserved for name, table in state.tables.items()}),
            )
            for node, state in sorted(memory.nodes.items())
        }
    )


def _notes(
    rules: EffectivePolicy,
    state: KubeletState,
    allocations: Mapping[str, PodAllocation],
    pods: Mapping[str, Pod],
) -> Iterator[str]:
    yield from _missing_files(rules, state)
    if state.cpu is not None:
        for uid in sorted(cpu_check.inert_budgets(state.cpu)):
            yield f"pod {uid} is left out: it only has a budget whose CPUs are all free"
    for allocation in allocations.values():
        if not allocation.containers:
            yield (
                f"pod {allocation.uid} holds CPUs {allocation.cpus} without any container;"
                f" 'numawarden remove {allocation.uid}' frees them"
            )
    open_allocations = [
        uid for uid, allocation in allocations.items() if allocation.containers and uid not in pods
    ]
    if open_allocations:
        yield (
            f"known by uid alone until they are asked for: {len(open_allocations)} pods"
            f" ({', '.join(open_allocations)})"
        )


def _missing_files(rules: EffectivePolicy, state: KubeletState) -> Iterator[str]:
    if state.cpu is None and rules.static_cpus:
        yield f"there is no {cpu_file.FILE_NAME}: no pod holds CPUs of its own"
    if state.memory is None and rules.static_memory:
        yield f"there is no {memory_file.FILE_NAME}: no pod holds pinned memory"
