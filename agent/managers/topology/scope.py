"""The topology manager's scopes: what one alignment decision is made for (KEP-693, KEP-5526).

The order is the kubelet's: every provider is asked for its hints, the hints are merged, and every
provider allocates with the merged hint, before the next container's turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.managers.decision import HintTrace, Rejected
from agent.managers.metrics import (
    ALIGNED_COUNT,
    ALIGNED_FAILURE_COUNT,
    BOUNDED_CHOICES,
    TOPOLOGY_ADMISSION_ERRORS,
    TOPOLOGY_ADMISSION_REQUESTS,
)
from agent.managers.policy import TopologyManagerPolicy, TopologyManagerScope
from agent.managers.rejection import affinity_rejection
from agent.managers.topology.hint import NO_AFFINITY, Hint
from agent.managers.topology.merge import DeferredMerge, merge_or_defer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.managers.demand import ContainerDemand
    from agent.managers.metrics import MetricSpec
    from agent.managers.resource_manager import Draft, Managers


def align_and_allocate(managers: Managers, draft: Draft) -> None:
    """Align and allocate the pod by the current policy and scope; raises `Rejected`."""
    draft.count(TOPOLOGY_ADMISSION_REQUESTS.name)
    try:
        if draft.rules.policy.topology.policy is TopologyManagerPolicy.NONE:
            # No hints, and no budgets (kubelet v1.36). Failures are not the topology manager's.
            _allocate(managers, draft, draft.demand.containers, NO_AFFINITY)
            return
        try:
            _align(managers, draft)
        except Rejected:
            draft.count(TOPOLOGY_ADMISSION_ERRORS.name)
            raise
    finally:
        bounded = sum([work.exceeded for work in draft.works])
        if bounded:
            draft.count(BOUNDED_CHOICES.name, by=bounded)


def _align(managers: Managers, draft: Draft) -> None:
    """Align and allocate container by container, or the pod as a whole."""
    containers = draft.demand.containers
    if draft.rules.policy.topology.scope is TopologyManagerScope.CONTAINER:
        for container in containers:
            draft.hints[container.name] = _best(managers, draft, container)
            _allocate(managers, draft, [container], draft.hints[container.name])
            _count_guaranteed(draft, ALIGNED_COUNT)
        return
    best = _best(managers, draft, None)
    draft.hints.update({container.name: best for container in containers})
    if draft.demand.pod_level:
        # One budget for the pod, which each provider divides (KEP-5526).
        for provider in managers:
            provider.allocate_pod(draft, best)
    else:
        _allocate(managers, draft, containers, best)
    _count_guaranteed(draft, ALIGNED_COUNT)


def _allocate(
    managers: Managers, draft: Draft, containers: Sequence[ContainerDemand], hint: Hint
) -> None:
    for container in containers:
        for provider in managers:
            provider.allocate(draft, container, hint)


def _best(managers: Managers, draft: Draft, container: ContainerDemand | None) -> Hint:
    """Return the alignment of a container (None: the pod); raises `Rejected`."""
    # 1. It was worked out already, before the decision was suspended.
    if draft.aligned:
        draft.traces.append(draft.aligned.pop(0))
        return draft.traces[-1].merged
    # 2. Ask all providers and merge.
    trace = _merge(managers, draft, container)
    # 3. Hints have the nodes of all that ended init containers left, as the kubelet's. On uneven
    #    hosts, where more may be left than by the kubelet, that must not cost the alignment.
    may_untie = draft.demand.has_standard_init and not draft.rules.host_is_even
    if container is not None and may_untie and not _is_preferred(trace):
        draft.tied = False
        untied = _merge(managers, draft, container)
        draft.tied = True
        trace = untied if _is_preferred(untied) else trace
    draft.traces.append(trace)
    # 4. The policy may reject what is not preferred.
    if not trace.admitted or isinstance(trace.alignment, DeferredMerge):
        _count_guaranteed(draft, ALIGNED_FAILURE_COUNT)
        raise Rejected(affinity_rejection(managers, draft, trace.container, trace.providers))
    return trace.merged


def _merge(managers: Managers, draft: Draft, container: ContainerDemand | None) -> HintTrace:
    if container is None:
        offered = tuple([(each.name, each.pod_hints(draft)) for each in managers])
    else:
        offered = tuple([(each.name, each.container_hints(draft, container)) for each in managers])
    orders = (each.node_order(draft, container) for each in managers)
    best, admitted = merge_or_defer(
        draft.rules.machine,
        draft.rules.policy.topology,
        [hints for _, hints in offered],
        draft.work(),
        next((order for order in orders if order is not None), None),
    )
    return HintTrace(None if container is None else container.name, offered, best, admitted)


def _is_preferred(trace: HintTrace) -> bool:
    return isinstance(trace.alignment, Hint) and trace.alignment.preferred


def _count_guaranteed(draft: Draft, metric: MetricSpec) -> None:
    """Count an alignment, kept or missed, where the policy guarantees one NUMA node."""
    topology = draft.rules.policy.topology
    if topology.policy is TopologyManagerPolicy.SINGLE_NUMA_NODE:
        draft.count(metric.name, topology.scope.value, "numa_node")
