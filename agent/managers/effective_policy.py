"""The effective policy: the machine, the configured policy and values derived from both."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from agent.managers.allocations.allocatable import Allocatable, allocatable
from agent.managers.allocations.ledger import Ledger
from agent.managers.cpu.reservation import reserved_physical_cpus
from agent.managers.memory.state import MemoryFacts, charge_allocation, initial_memory
from agent.managers.policy import CpuManagerPolicy, MemoryManagerPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.managers.allocations.ledger import NodeMemory
    from agent.managers.machine import Machine
    from agent.managers.policy import Policy
    from sysfs.mask import Mask


class EffectivePolicy(Struct, frozen=True, dict=True):
    """The input of every decision; built again when the host or the configuration changes."""

    machine: Machine
    policy: Policy

    @cached_property
    def assignable_cpus(self) -> Mask:
        """The CPUs that may be allocated exclusively: online and not reserved."""
        return self.machine.cpus.all - self.policy.cpu.reserved

    @cached_property
    def reserved_physical_cpus(self) -> Mask:
        """The reserved CPUs and their siblings, which whole-core requests cannot use."""
        return reserved_physical_cpus(self.machine.cpus, self.policy.cpu.reserved)

    @cached_property
    def memory(self) -> MemoryFacts:
        """Allocatable memory by node and type."""
        return MemoryFacts.of(self.machine, self.policy.memory)

    @cached_property
    def allocatable(self) -> Allocatable | None:
        """What pods together may request; None when node fit is not checked."""
        return allocatable(self.machine, self.policy)

    @property
    def static_cpus(self) -> bool:
        """Whether the CPU manager allocates exclusive CPUs (policy static)."""
        return self.policy.cpu.policy is CpuManagerPolicy.STATIC

    @property
    def static_memory(self) -> bool:
        """Whether the memory manager pins memory (policy Static)."""
        return self.policy.memory.policy is MemoryManagerPolicy.STATIC

    def empty_ledger(self) -> Ledger:
        """Return the ledger of a host on which nothing was admitted."""
        return Ledger(memory=initial_memory(self.memory) if self.static_memory else {})


def restored(rules: EffectivePolicy, ledger: Ledger) -> Ledger:
    """Return a saved ledger under the current policy; every allocation is kept as it is.

    The memory charge by node is kept if nodes and memory types are the same, since its division
    over NUMA groups depends on the order of earlier releases. Otherwise (another memory policy,
    another machine) the charge is computed again from the allocations: in full, even where a node
    has less than is allocated, so that no memory is allocated twice. Nodes that the machine no
    longer has are left out.
    """
    fresh = rules.empty_ledger().memory
    if _same_shape(fresh, ledger.memory):
        return ledger
    charged: Mapping[int, NodeMemory] = fresh
    for allocation in ledger.allocations.values():
        charged = charge_allocation(rules.memory, charged, allocation) if fresh else charged
    return ledger if charged == ledger.memory else replace(ledger, memory=charged)


def _same_shape(fresh: Mapping[int, NodeMemory], saved: Mapping[int, NodeMemory]) -> bool:
    return fresh.keys() == saved.keys() and all(
        saved[node].reserved.keys() <= fresh[node].reserved.keys() for node in fresh
    )


def shared_pool(rules: EffectivePolicy, ledger: Ledger) -> Mask:
    """Return the node's shared pool (the kubelet's default CPU set).

    All online CPUs that are not allocated exclusively. Reserved CPUs are in the pool unless
    `strict-cpu-reservation` keeps them for the system (KEP-4540); then the pool can be empty.
    """
    pool = rules.machine.cpus.all - ledger.exclusive_cpus
    if rules.policy.cpu.options.strict_cpu_reservation:
        pool -= rules.policy.cpu.reserved
    return pool


def shared_cpus(rules: EffectivePolicy, ledger: Ledger) -> Mask:
    """Return the CPUs on which containers without exclusive CPUs run; never empty.

    The shared pool, or the reserved CPUs if `strict-cpu-reservation` has left the pool empty: the
    kernel reads an empty `cpuset.cpus` as "all of the parent's", which would let these containers
    run on exclusive CPUs. Reserved CPUs that were allocated before they were reserved come last;
    all CPUs only if nothing is reserved either: after a restart with policy none, while the last
    free CPU is offline.
    """
    pool, reserved = shared_pool(rules, ledger), rules.policy.cpu.reserved
    return pool or reserved - ledger.exclusive_cpus or reserved or rules.machine.cpus.all
