"""The topology manager's scopes: what one alignment decision is made for (KEP-693, KEP-5526).

The order is the kubelet's: every provider is asked for its hints, the hints are merged, and every
provider allocates with the merged hint, before the next container's turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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
    from agent.managers.demand import ContainerDemand
    from agent.managers.resource_manager import Draft, Managers
    from agent.managers.topology.hint import Tiebreak

_NUMA_NODE: Final = "numa_node"


def align_and_allocate(managers: Managers, draft: Draft) -> None:
    """Align and allocate the pod by the current policy and scope; raises `Rejected`."""
    draft.count(TOPOLOGY_ADMISSION_REQUESTS.name)
    try:
        if draft.rules.policy.topology.policy is TopologyManagerPolicy.NONE:
            _without_alignment(managers, draft)
        else:
            _aligned(managers, draft)
    finally:
        _count_bounded_choices(draft)


def _aligned(managers: Managers, draft: Draft) -> None:
    topology = draft.rules.policy.topology
    try:
        if topology.scope is TopologyManagerScope.CONTAINER:
            _by_container(managers, draft)
        elif draft.demand.pod_level:
            _by_pod_budget(managers, draft)
        else:
            _by_pod(managers, draft)
    except Rejected:
        draft.count(TOPOLOGY_ADMISSION_ERRORS.name)
        raise


def _count_bounded_choices(draft: Draft) -> None:
    bounded = sum([work.exceeded for work in draft.works])
    if bounded:
        draft.count(BOUNDED_CHOICES.name, by=bounded)


def _without_alignment(managers: Managers, draft: Draft) -> None:
    """Allocate each container by itself: policy none requests no hints and manages no budgets.

    Its failures are not counted as the topology manager's (kubelet v1.36).
    """
    for container in draft.demand.containers:
        for provider in managers:
            provider.allocate(draft, container, NO_AFFINITY)


def _by_container(managers: Managers, draft: Draft) -> None:
    for container in draft.demand.containers:
        best = _known(draft) or _merged(managers, draft, container)
        draft.hints[container.name] = best
        for provider in managers:
            provider.allocate(draft, container, best)
        _count_alignment(draft)


def _by_pod(managers: Managers, draft: Draft) -> None:
    best = _best_for_pod(managers, draft)
    for container in draft.demand.containers:
        for provider in managers:
            provider.allocate(draft, container, best)
    _count_alignment(draft)


def _by_pod_budget(managers: Managers, draft: Draft) -> None:
    """Pod scope with pod-level resources: one budget for the pod, then divided (KEP-5526)."""
    best = _best_for_pod(managers, draft)
    for provider in managers:
        provider.allocate_pod(draft, best)
    _count_alignment(draft)


def _best_for_pod(managers: Managers, draft: Draft) -> Hint:
    best = _known(draft) or _merged(managers, draft, None)
    for container in draft.demand.containers:
        draft.hints[container.name] = best
    return best


def _known(draft: Draft) -> Hint | None:
    """Return the next alignment that was worked out before the decision was suspended."""
    if not draft.aligned:
        return None
    trace = draft.aligned.pop(0)
    draft.traces.append(trace)
    return trace.merged


def _merged(managers: Managers, draft: Draft, container: ContainerDemand | None) -> Hint:
    """Return the alignment of a container (None: the pod).

    Hints have the nodes of all that ended init containers left, as the kubelet's. On uneven hosts,
    where more may be left than by the kubelet, that must not cost the alignment.
    """
    trace = _aligned_trace(managers, draft, container)
    if not _is_preferred(trace) and container is not None and _may_untie(draft):
        draft.tied = False
        untied = _aligned_trace(managers, draft, container)
        draft.tied = True
        trace = untied if _is_preferred(untied) else trace
    draft.traces.append(trace)
    if not trace.admitted or isinstance(trace.alignment, DeferredMerge):
        policy = draft.rules.policy.topology
        if _alignment_is_guaranteed(draft):
            draft.count(ALIGNED_FAILURE_COUNT.name, policy.scope.value, _NUMA_NODE)
        raise Rejected(affinity_rejection(managers, draft, trace.container, trace.providers))
    return trace.merged


def _aligned_trace(
    managers: Managers, draft: Draft, container: ContainerDemand | None
) -> HintTrace:
    if container is None:
        offered = tuple([(p.name, p.pod_hints(draft)) for p in managers])
    else:
        offered = tuple([(p.name, p.container_hints(draft, container)) for p in managers])
    best, admitted = merge_or_defer(
        draft.rules.machine,
        draft.rules.policy.topology,
        [hints for _, hints in offered],
        draft.work(),
        _order(managers, draft, container),
    )
    return HintTrace(None if container is None else container.name, offered, best, admitted)


def _may_untie(draft: Draft) -> bool:
    return draft.demand.has_standard_init and not draft.rules.host_is_even


def _is_preferred(trace: HintTrace) -> bool:
    return isinstance(trace.alignment, Hint) and trace.alignment.preferred


def _order(managers: Managers, draft: Draft, container: ContainerDemand | None) -> Tiebreak | None:
    for manager in managers:
        order = manager.node_order(draft, container)
        if order is not None:
            return order
    return None


def _count_alignment(draft: Draft) -> None:
    if _alignment_is_guaranteed(draft):
        draft.count(ALIGNED_COUNT.name, draft.rules.policy.topology.scope.value, _NUMA_NODE)


def _alignment_is_guaranteed(draft: Draft) -> bool:
    return draft.rules.policy.topology.policy is TopologyManagerPolicy.SINGLE_NUMA_NODE
