"""Details of rejections: the request, what is free on each NUMA node, and which resource blocks.

They contain no advice: only a new decision could verify a remedy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from agent.managers.amounts import cpus_text, nodes_text
from agent.managers.decision import Reason, Rejection
from agent.managers.policy import TopologyManagerPolicy
from agent.managers.topology.merge import best_few
from agent.pods.model import CPU
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agent.managers.decision import RejectionCause, Trace
    from agent.managers.host import HostPolicy
    from agent.managers.resource_manager import Draft, ResourceManager
    from agent.managers.topology.hint import Hint

#: How many of a provider's hints a rejection names.
_NAMED_HINTS: Final = 3


class Unaligned(Struct, frozen=True):
    """A container (None: the pod) whose merged hint the policy rejects, and the pod's draft.

    Building the message takes as long as the decision, so `explain` builds it on demand. With the
    rejection the draft has ended: what is free in it no longer changes.
    """

    draft: Draft
    trace: Trace

    def explain(self) -> Rejection:
        """Return for each resource the request, the nodes where it fits, and what is free."""
        policy = self.draft.rules.policy.topology.policy
        offers = list(self._offers())
        blocked = next((name for _, name, best in offers if _blocks(policy, best)), None)
        manager = next((by for by, name, _ in offers if name == blocked), None)
        name = self.trace.container
        subject = "the pod" if name is None else f"container {name}"
        details = "; ".join(self._describe(*offer) for offer in offers)
        return Rejection(
            Reason.TOPOLOGY_AFFINITY,
            f"{subject} cannot be aligned as topology policy {policy} demands: {details}",
            resource=blocked,
            container=name,
            asked=None if manager is None else self._asked(manager, blocked or ""),
            free={} if manager is None else manager.free(self.draft, blocked or ""),
        )

    def _offers(self) -> Iterator[tuple[ResourceManager, str, Sequence[Hint]]]:
        """Yield manager, resource and its best hints; all memory types have the same hints."""
        managers = {manager.name: manager for manager in self.draft.managers}
        best: dict[int, Sequence[Hint]] = {}
        for provider, by_name in self.trace.providers:
            for name, where in by_name.items():
                if where is None:
                    continue
                if id(where) not in best:
                    best[id(where)] = best_few(where, _NAMED_HINTS)
                yield managers[provider], name, best[id(where)]

    def _asked(self, manager: ResourceManager, resource: str) -> int:
        """Return how much the container or the pod demands of a resource."""
        name, container = manager.name, self.trace.container
        if container is None:
            return manager.amount(self.draft.demand.parts[name].pod, resource)
        one = next(each for each in self.draft.demand.containers if each.name == container)
        return manager.amount(one.part(name), resource)

    def _describe(self, manager: ResourceManager, resource: str, best: Sequence[Hint]) -> str:
        preferred = [_nodes(hint) for hint in best if hint.preferred]
        if not best:
            fit = "fits nowhere"
        elif preferred:
            fit = f"fits best on {' or '.join(preferred)}"
        else:
            fit = f"fits only across {' or '.join(map(_nodes, best))}"
        return manager.offer_text(self.draft, resource, self._asked(manager, resource), fit)


class BesideClosed(Struct, frozen=True):
    """A rejection while pods cannot have all of the host: what they cannot may be why."""

    cause: RejectionCause
    rules: HostPolicy

    def explain(self) -> Rejection:
        """Return the rejection with what is cordoned, and with the CPUs that are withheld."""
        rejection = self.cause.explain()
        facts = [cordon_text(self.rules)] if self.rules.policy.cordon else []
        if rejection.resource in (None, CPU):
            facts += map(str, self.rules.machine.withheld)
        return replace(rejection, message="; ".join((rejection.message, *facts)))


def cordon_text(rules: HostPolicy) -> str:
    """Return how much is cordoned, as a sentence: `4 CPUs (4-7) are cordoned`."""
    cpus, nodes = rules.cordoned_cpus, rules.policy.cordon.nodes & rules.machine.node_mask
    parts = [f"{cpus_text(len(cpus))} ({cpus})"] if cpus else []
    parts += [f"the memory of {nodes_text(nodes)}"] if nodes else []
    several = len(parts) != 1 or len(cpus) > 1
    what = " and ".join(parts) or "CPUs that are offline or withheld"
    return f"{what} {'are' if several else 'is'} cordoned"


def beside_closed(rules: HostPolicy, cause: RejectionCause) -> RejectionCause:
    """Return why a pod was rejected, with what is cordoned or withheld if anything is."""
    closed = rules.policy.cordon or rules.machine.withheld
    return BesideClosed(cause, rules) if closed else cause


def affinity_rejection(draft: Draft, trace: Trace) -> RejectionCause:
    """Return why the policy rejects the merged hint of a container, or of the pod."""
    empty = (
        empty_pool_rejection(draft, Reason.TOPOLOGY_AFFINITY) if trace.container is None else None
    )
    return empty or Unaligned(draft, trace)


def empty_pool_rejection(draft: Draft, reason: Reason) -> Rejection | None:
    """Return why the pod shared pool would lack a resource, None if it would not.

    Managers check before they give hints and again when they allocate: with restricted and
    single-numa-node the reason is the topology manager's, else that of the empty pool (KEP-5526).
    """
    if not draft.demand.pod_level:
        return None
    problems = (manager.empty_pool(draft, reason) for manager in draft.managers)
    return next(filter(None, problems), None)


def _blocks(policy: TopologyManagerPolicy, best: Sequence[Hint]) -> bool:
    if not best or not best[0].preferred:
        return True
    nodes = best[0].nodes
    single = nodes is None or nodes.bit_count() == 1
    return policy is TopologyManagerPolicy.SINGLE_NUMA_NODE and not single


def _nodes(hint: Hint) -> str:
    return "any node" if hint.nodes is None else f"{{{Mask(hint.nodes)}}}"
