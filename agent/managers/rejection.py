"""Details of rejections: the request, what is free on each NUMA node, and which resource blocks.

They contain no advice: only a new decision could verify a remedy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.managers.cpu.pod_level import empty_pool_problem
from agent.managers.decision import Reason, Rejection
from agent.managers.errors import size_text
from agent.managers.memory.pod_level import empty_memory_pool
from agent.managers.memory.state import free_memory
from agent.managers.policy import TopologyManagerPolicy
from agent.managers.topology.implicit_hints import best_few
from agent.pods.model import CPU
from agent.pods.requests import is_memory_type
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.managers.allocations.demand import PodDemand
    from agent.managers.allocations.draft import Draft
    from agent.managers.allocations.ledger import NodeMemory
    from agent.managers.decision import RejectionCause
    from agent.managers.effective_policy import EffectivePolicy
    from agent.managers.topology.hints import Hint
    from agent.managers.topology.implicit_hints import ProviderHints

#: How many of a provider's hints a rejection names.
_NAMED_HINTS: Final = 3


class FreeRoom(Struct, frozen=True):
    """What is free for a pod under admission, including resources of its ended init containers.

    `cpus` are free, `memory` is the charge by node, and `devices` are allocated, by resource.
    """

    rules: EffectivePolicy
    cpus: Mask
    memory: Mapping[int, NodeMemory]
    devices: Mapping[str, frozenset[str]]

    @classmethod
    def of(cls, draft: Draft) -> FreeRoom:
        """Return what is free now; later changes of the draft have no effect on it."""
        allocated = draft.ledger.devices
        if draft.devices:
            allocated = {
                name: allocated_devices(draft, name) - draft.reusable_devices.get(name, frozenset())
                for name in draft.rules.policy.devices
            }
        return cls(draft.rules, draft.free_cpus | draft.reusable_cpus, draft.node_memory, allocated)

    def by_node(self, resource: str) -> dict[int, int]:
        """Return what is free of a resource on each NUMA node: CPUs, bytes or devices."""
        if resource == CPU:
            return free_cpus_by_node(self.rules, self.cpus)
        if is_memory_type(resource):
            return free_memory(self.rules.memory, self.memory, resource)
        taken = self.devices.get(resource, frozenset())
        free: dict[int, int] = {}
        for device in self.rules.policy.devices.get(resource, ()):
            if device.healthy and device.id not in taken:
                for node in device.nodes:
                    free[node] = free.get(node, 0) + 1
        return free


class Unaligned(Struct, frozen=True):
    """A container (None: the pod) whose merged hint the policy rejects, and what was free.

    Building the message takes as long as the decision, so `explain` builds it on demand.
    """

    demand: PodDemand
    container: str | None
    hints: tuple[tuple[str, ProviderHints], ...]
    room: FreeRoom

    def explain(self) -> Rejection:
        """Return for each resource the request, the nodes where it fits, and what is free."""
        policy = self.room.rules.policy.topology.policy
        offers = _best_by_resource(self.hints)
        blocked = next((name for name, best in offers if _blocks(policy, best)), None)
        subject = "the pod" if self.container is None else f"container {self.container}"
        details = "; ".join(self._describe(name, best) for name, best in offers)
        return Rejection(
            Reason.TOPOLOGY_AFFINITY,
            f"{subject} cannot be aligned as topology policy {policy} demands: {details}",
            resource=blocked,
            container=self.container,
            asked=None if blocked is None else asked(self.demand, self.container, blocked),
            free={} if blocked is None else self.room.by_node(blocked),
        )

    def _describe(self, resource: str, best: Sequence[Hint]) -> str:
        free = ", ".join(
            f"node {node}: {amount_text(resource, amount)}"
            for node, amount in self.room.by_node(resource).items()
        )
        preferred = [_nodes(hint) for hint in best if hint.preferred]
        if not best:
            fit = "fits nowhere"
        elif preferred:
            fit = f"fits best on {' or '.join(preferred)}"
        else:
            fit = f"fits only across {' or '.join(map(_nodes, best))}"
        desired = amount_text(resource, asked(self.demand, self.container, resource))
        return f"{desired} of {resource} {fit} (free: {free})"


def affinity_rejection(
    draft: Draft, container: str | None, hints: tuple[tuple[str, ProviderHints], ...]
) -> RejectionCause:
    """Return why the policy rejects the merged hint of a container (None: the pod)."""
    empty = empty_pool_rejection(draft, Reason.TOPOLOGY_AFFINITY) if container is None else None
    return empty or Unaligned(draft.demand, container, hints, FreeRoom.of(draft))


def empty_pool_rejection(draft: Draft, reason: Reason) -> Rejection | None:
    """Return why the pod shared pool would be empty of CPUs or memory, None if it would not be.

    Both managers check before they give hints and again when they allocate: with restricted and
    single-numa-node the reason is the topology manager's, else that of the empty pool (KEP-5526).
    """
    if not draft.demand.pod_level:
        return None
    return empty_cpu_pool_rejection(draft, reason) or empty_memory_pool_rejection(draft, reason)


def empty_cpu_pool_rejection(draft: Draft, reason: Reason) -> Rejection | None:
    """Return why the pod shared pool would have no CPUs, None if it would have some."""
    problem = empty_pool_problem(draft.demand) if draft.demand.cpus else None
    if problem is None or not draft.rules.static_cpus:
        return None
    return Rejection(reason, problem, resource=CPU)


def empty_memory_pool_rejection(draft: Draft, reason: Reason) -> Rejection | None:
    """Return why shared containers would have no memory of some type, None if they would.

    Only Guaranteed pods are checked: no memory is pinned for other pods.
    """
    problem = empty_memory_pool(draft.demand) if draft.demand.guaranteed else None
    if problem is None or not draft.rules.static_memory:
        return None
    return Rejection(reason, problem.message, resource=problem.resource)


def asked(demand: PodDemand, container: str | None, resource: str) -> int:
    """Return how much a container (None: the pod) demands: CPUs, bytes or devices."""
    if container is None:
        if resource == CPU:
            return demand.cpus
        return demand.memory.get(resource, 0) or demand.devices.get(resource, 0)
    one = next(c for c in demand.containers if c.name == container)
    if resource == CPU:
        return one.cpus
    return one.memory.get(resource, 0) or one.devices.get(resource, 0)


def allocated_devices(draft: Draft, resource: str) -> frozenset[str]:
    """Return the ids of a resource's devices allocated to other pods or to this pod so far."""
    earlier = draft.ledger.devices.get(resource, frozenset())
    return earlier.union(*(devices.get(resource, ()) for devices in draft.devices.values()))


def free_cpus_by_node(rules: EffectivePolicy, free: Mask) -> dict[int, int]:
    """Return how many of the given CPUs each NUMA node has."""
    nodes = rules.machine.cpus.nodes
    return {node.id: (node.cpus & free.bits).bit_count() for node in nodes}


def _best_by_resource(
    hints: Sequence[tuple[str, ProviderHints]],
) -> list[tuple[str, Sequence[Hint]]]:
    """Return the best hints of each resource; all memory types have the same hints."""
    offers = [(name, where) for _, by_name in hints for name, where in by_name.items()]
    wheres = {id(where): where for _, where in offers if where is not None}
    best = {key: best_few(where, _NAMED_HINTS) for key, where in wheres.items()}
    return [(name, best[id(where)]) for name, where in offers if where is not None]


def _blocks(policy: TopologyManagerPolicy, best: Sequence[Hint]) -> bool:
    if not best or not best[0].preferred:
        return True
    nodes = best[0].nodes
    single = nodes is None or nodes.bit_count() == 1
    return policy is TopologyManagerPolicy.SINGLE_NUMA_NODE and not single


def amount_text(resource: str, amount: int) -> str:
    """Return an amount for people: CPUs and devices as numbers, memory in binary units."""
    return size_text(amount) if is_memory_type(resource) else str(amount)


def _nodes(hint: Hint) -> str:
    return "any node" if hint.nodes is None else f"{{{Mask(hint.nodes)}}}"
