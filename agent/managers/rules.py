"""What decides: the policy of a host with its resource managers."""

from __future__ import annotations

from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from agent.managers.demand import PodDemand
from agent.managers.host import Allocatable, HostPolicy, machine_capacity, pod_limit
from agent.managers.ledger import Ledger
from agent.managers.resource_manager import Draft
from agent.pods.model import MEMORY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.managers.allocation import PodAllocation
    from agent.managers.policy import Cordon
    from agent.managers.resource_manager import ResourceManager
    from agent.pods.model import Pod
    from sysfs.mask import Mask


class EffectivePolicy(HostPolicy, frozen=True, dict=True):
    """The input of every decision: the policy of a host, and the managers that decide by it.

    `managers` are in the order in which they give hints and allocate. Raises `ValueError` for two
    of one name, which would share their parts.
    """

    managers: tuple[ResourceManager, ...]

    def __post_init__(self) -> None:
        """Check that each name is that of one manager."""
        names = [manager.name for manager in self.managers]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"two resource managers called {twice!r}; give one another name")

    @cached_property
    def allocatable(self) -> Allocatable | None:
        """What pods together may request; None when node fit is not checked."""
        fit = self.policy.fit
        if fit is None:
            return None
        amounts: dict[str, int] = {}
        for manager in self.managers:
            amounts |= manager.allocatable(self)
        limit = pod_limit(fit, self.machine)
        return Allocatable(amounts, *limit, fit.ignored, fit.beside_kubelet)

    @cached_property
    def capacity(self) -> Mapping[str, int]:
        """What the machine has (`machine_capacity`), without memory of which not all is known."""
        capacity = machine_capacity(self.machine)
        if self.machine.unknown_memory:
            del capacity[MEMORY]
        return MappingProxyType(capacity)

    def on(self, cpus: Mask) -> EffectivePolicy:
        """Return the policy that gives out exclusive CPUs of these alone, in all else the same."""
        cpu = replace(self.policy.cpu, only=cpus)
        return replace(self, policy=replace(self.policy, cpu=cpu))

    def without(self, spared: Mask) -> EffectivePolicy:
        """Return the policy that gives out no exclusive CPUs of these, in all else the same."""
        return self.on(self.machine.cpus.all - spared)

    def isolated_first(self, held: PodAllocation | None) -> Iterator[EffectivePolicy]:
        """Yield the policies that come before that on all CPUs; none where all CPUs are alike.

        On CPUs of isolcpus, where exclusive CPUs come from these first. A pod that grows stays on
        the NUMA nodes of the CPUs that it has (`held`) before it gets some of isolcpus on others.
        """
        unshared = self.policy.cpu.unshared
        if unshared and held is not None and held.exclusive_cpus:
            nodes = self.machine.cpus.nodes_of(held.exclusive_cpus)
            near = self.machine.cpus.cpus_in_nodes(nodes)
            yield self.on(unshared & near)
            yield self.on(near)
        if unshared:
            yield self._on_isolated

    @cached_property
    def _on_isolated(self) -> EffectivePolicy:
        return self.on(self.policy.cpu.unshared)

    def empty_ledger(self) -> Ledger:
        """Return the ledger of a host on which nothing was admitted."""
        return Ledger({manager.name: manager.empty(self) for manager in self.managers})

    def demand(self, pod: Pod) -> PodDemand:
        """Return what a pod demands of the managers, and what each of them may allocate to it."""
        return PodDemand(self.policy, self.managers, pod, self.machine.cpus.cpus_per_core)

    def draft(self, ledger: Ledger, demand: PodDemand) -> Draft:
        """Return the draft of a pod without any allocation yet."""
        parts = {
            each.name: each.start(self, ledger.parts[each.name], demand) for each in self.managers
        }
        return Draft(self, self.managers, ledger, demand, parts)


def with_cordon(rules: EffectivePolicy, cordon: Cordon) -> EffectivePolicy:
    """Return the policy with another cordon."""
    if cordon == rules.policy.cordon:
        return rules
    return replace(rules, policy=replace(rules.policy, cordon=cordon))


def charged(rules: EffectivePolicy, ledger: Ledger, allocation: PodAllocation) -> Ledger:
    """Return the ledger with an allocation added, or replaced if the pod has one, as a fact."""
    former = ledger.allocations.get(allocation.uid)
    rest = ledger.parts if former is None else _without(rules, ledger, former)
    parts = {each.name: each.charged(rules, rest[each.name], allocation) for each in rules.managers}
    return ledger.with_allocation(allocation, parts)


def released(rules: EffectivePolicy, ledger: Ledger, uid: str) -> Ledger:
    """Return the ledger without a pod; an unknown uid changes nothing."""
    allocation = ledger.allocations.get(uid)
    if allocation is None:
        return ledger
    return ledger.without_allocation(uid, _without(rules, ledger, allocation))


def _without(rules: EffectivePolicy, ledger: Ledger, allocation: PodAllocation) -> dict[str, Any]:
    """Return the parts of a ledger without what only this allocation has."""
    return {
        each.name: each.released(rules, ledger.parts[each.name], allocation)
        for each in rules.managers
    }


def restored(rules: EffectivePolicy, ledger: Ledger) -> Ledger:
    """Return a saved ledger under the current policy; every allocation is kept as it is.

    What managers keep of them may change with the policy and the machine.
    """
    parts = {
        manager.name: manager.restored(rules, ledger.parts.get(manager.name), ledger.allocations)
        for manager in rules.managers
    }
    return ledger if parts == ledger.parts else replace(ledger, parts=MappingProxyType(parts))
