"""Exports a ledger as the kubelet's files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.managers.cpu.manager import exclusive_cpus, idle_siblings, shared_pool
from agent.managers.memory.state import memory_charge
from agent.tools.kubelet_state.cpu import CPU_FILE, CpuState, cpu_problems
from agent.tools.kubelet_state.files import KubeletState
from agent.tools.kubelet_state.format import CannotExportError
from agent.tools.kubelet_state.memory import (
    MEMORY_FILE,
    MemoryNode,
    MemoryState,
    MemoryTable,
    allocatable_bytes,
    memory_problems,
)
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.managers.ledger import Ledger
    from agent.managers.rules import EffectivePolicy

_UINT64: Final = 1 << 64


def kubelet_state(rules: EffectivePolicy, ledger: Ledger) -> KubeletState:
    """Return what a kubelet of the same configuration would have in its files.

    Devices are not in them. Raises `CannotExportError` with every reason why the kubelet would not
    start with them, such as allocations of CPUs that are no longer online, or budgets without the
    gate PodLevelResourceManagers.
    """
    cpu, memory = _cpu_state(rules, ledger), _memory_state(rules, ledger)
    reasons = [
        *(f"{CPU_FILE}: {why}" for why in cpu_problems(rules, cpu)),
        *(f"{MEMORY_FILE}: {why}" for why in memory_problems(rules, memory)),
    ]
    if reasons:
        raise CannotExportError("a kubelet would not start with this state", reasons)
    return KubeletState(cpu, memory)


def export_notes(state: KubeletState, ledger: Ledger) -> Iterator[str]:
    """Yield notes for the operator before the kubelet is started, a line each."""
    cpu, memory = state.cpu, state.memory
    if cpu is not None and cpu.containers and not cpu.default:
        yield (
            "the shared pool is empty (strict-cpu-reservation): kubelet v1.36 rejects to start"
            " until a pod with CPUs of its own has ended; end it before the export"
        )
    if idle := idle_siblings(ledger):
        yield (
            f"CPUs {idle} stay idle beside pods that ask for it (isolation.smt), which a kubelet"
            " does not know: they are in its shared pool"
        )
    budgets = sorted(cpu.pods) if cpu is not None else []
    if budgets:
        yield (
            f"pods with a budget of CPUs ({', '.join(budgets)}): kubelets v1.36 and v1.37 reject"
            " such a pod at each of their starts, or give it a second budget"
            " (kubernetes/kubernetes#140989);"
            " end them before the kubelet starts"
        )
    if with_devices := [uid for uid, pod in ledger.allocations.items() if pod.has_devices]:
        yield (
            f"pods with devices ({', '.join(sorted(with_devices))}): the files do not have them, so"
            " a kubelet may give these devices to other pods; end these pods before the kubelet"
            " starts"
        )
    if resized := [uid for uid, pod in ledger.allocations.items() if pod.originals]:
        # KEP-5554 plans this for v1.38; what the field is called there is open.
        yield (
            f"pods that were resized ({', '.join(sorted(resized))}): the files have their current"
            " CPUs, not those of their admission; a kubelet that resizes pods with exclusive CPUs"
            " would not shrink them below the current ones"
        )
    if memory is not None and any(_is_uneven(memory, node) for node in memory.nodes):
        yield (
            "memory of one node was given beside that of a group with the node: kubelet v1.36 may"
            " reject to start until one of these pods has ended; end it before the export"
        )


def _is_uneven(memory: MemoryState, node: int) -> bool:
    """Return whether a member of a node's group serves with other nodes than the node itself."""
    cells = memory.nodes[node].cells
    return any(memory.nodes[other].cells != cells for other in cells)


def _cpu_state(rules: EffectivePolicy, ledger: Ledger) -> CpuState:
    containers = {
        uid: {c.name: c.cpus for c in allocation.containers if c.cpus is not None}
        for uid, allocation in ledger.allocations.items()
    }
    return CpuState(
        policy=str(rules.policy.cpu.policy),
        default=_default(rules, ledger) if rules.static_cpus else EMPTY,
        containers={uid: members for uid, members in containers.items() if members},
        pods={uid: g.cpus for uid, g in ledger.allocations.items() if g.cpus is not None},
    )


def _default(rules: EffectivePolicy, ledger: Ledger) -> Mask:
    # The kubelet knows of no idle CPU: each is a container's, or else in the shared pool.
    unshared = rules.policy.cpu.unshared - exclusive_cpus(ledger) - rules.cordoned_cpus
    return shared_pool(rules, ledger) | idle_siblings(ledger) | unshared


def _memory_state(rules: EffectivePolicy, ledger: Ledger) -> MemoryState:
    containers = {
        uid: {c.name: c.memory for c in allocation.containers if c.memory}
        for uid, allocation in ledger.allocations.items()
    }
    return MemoryState(
        policy=str(rules.policy.memory.policy),
        nodes={node: _node(rules, ledger, node) for node in memory_charge(ledger)},
        containers={uid: members for uid, members in containers.items() if members},
        pods={
            uid: allocation.memory
            for uid, allocation in ledger.allocations.items()
            if allocation.memory
        },
    )


def _node(rules: EffectivePolicy, ledger: Ledger, node: int) -> MemoryNode:
    memory, facts = memory_charge(ledger)[node], rules.memory
    total, reserved = facts.total[node], facts.reserved[node]
    allocatable = allocatable_bytes(total, reserved)
    tables = {}
    for name, size in total.items():
        charged = memory.reserved.get(name, 0)
        tables[name] = MemoryTable(
            total=size,
            systemReserved=reserved[name],
            allocatable=allocatable[name],
            reserved=charged,
            free=(allocatable[name] - charged) % _UINT64,
        )
    return MemoryNode(memory.assignments, memory.cells, tables)
