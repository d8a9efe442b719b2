"""Admission: the pure functions that turn a pod and a ledger into a decision and a new ledger.

What one alignment is made for is the topology manager's scope (KEP-693, KEP-5526). The order is the
kubelet's: every provider is asked for its hints, the hints are merged, and every provider allocates
with the merged hint, before the next container's turn.
"""

from __future__ import annotations

from functools import cached_property
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from agent.managers import node_fit
from agent.managers.decision import (
    Decision,
    HintTrace,
    Reason,
    Rejected,
    Rejection,
    Unanswered,
    reject_if,
)
from agent.managers.demand import make_allocation
from agent.managers.metrics import (
    ALIGNED_COUNT,
    ALIGNED_FAILURE_COUNT,
    BOUNDED_CHOICES,
    TOPOLOGY_ADMISSION_ERRORS,
    TOPOLOGY_ADMISSION_REQUESTS,
)
from agent.managers.policy import TopologyManagerPolicy, TopologyManagerScope
from agent.managers.quality import unmet
from agent.managers.readmission import readmit
from agent.managers.rejection import affinity_rejection, beside_closed
from agent.managers.rules import released
from agent.managers.topology.hint import NO_AFFINITY, Hint
from agent.managers.topology.merge import Alignment, align, rules_out, unadmitted
from agent.pods.model import LINUX, ContainerKind, Placement
from sysfs.mask import Mask, iter_bits

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agent.managers.allocation import ContainerAllocation, PodAllocation
    from agent.managers.decision import Answers, Offers, Question, Trace
    from agent.managers.demand import ContainerDemand, PodDemand
    from agent.managers.ledger import Ledger
    from agent.managers.metrics import MetricSpec
    from agent.managers.resource_manager import Draft
    from agent.managers.rules import EffectivePolicy
    from agent.managers.topology.hint import SearchBudget, Tiebreak
    from agent.managers.topology.many_nodes import ProviderHints
    from agent.pods.model import Pod


class SuspendedDecision(Struct, frozen=True):
    """What was decided on a pod before device plugins have to be asked what they prefer.

    `ledger` is what is decided on, `before` the ledger that a rejection returns: it may have an
    allocation of the pod, in place of which another is decided. `traces` and `works` are of the
    alignments made so far, which the answers to `questions` do not change.
    """

    rules: EffectivePolicy
    ledger: Ledger
    before: Ledger
    demand: PodDemand
    questions: tuple[Question, ...]
    answers: Answers
    traces: tuple[Trace, ...]
    works: tuple[SearchBudget, ...]

    def resume(self, answers: Answers) -> Decision:
        """Go on with the decision; it may be suspended again, with further questions.

        Pure as `admit`. The alignments made before are those that would be made again: they depend
        on the ledger, on the pod, and on answers that were there already.
        """
        draft = self.rules.draft(self.ledger, self.demand)
        draft.answers = {**self.answers, **answers}
        draft.aligned = list(self.traces)
        draft.works = list(self.works)
        return allocated(self.rules, draft, self.before)


def admit(rules: EffectivePolicy, ledger: Ledger, pod: Pod) -> Decision:
    """Decide whether a pod fits and what each of its containers gets.

    Pure: the same arguments give the same decision. A pod that is already in the ledger keeps its
    allocation; the first specification that fits completes an imported or recovered allocation
    (`agent.managers.readmission`). A rejected pod changes nothing. Steps: node fit,
    eligibility, hints, merge, allocation. Where device plugins have a preference the decision is
    suspended until they have answered (`SuspendedDecision.resume`).
    """
    demand = rules.demand(pod)
    existing = ledger.allocations.get(pod.uid)
    if existing is not None:
        readmitted = readmit(rules, ledger, existing, demand)
        if readmitted is not None:
            return replace(readmitted, pod=pod)
        # The pod runs already: it is decided in place of an allocation of which nothing is kept.
        without = released(rules, ledger, pod.uid)
        return allocated(rules, rules.draft(without, demand), ledger)
    if pod.os not in ("", LINUX):
        # Before anything else, as in the kubelet (lifecycle/predicate.go).
        message = f"the pod is for {pod.os} (spec.os.name), and this host runs Linux"
        remedy = "run it on another host; where it is meant for Linux, leave out spec.os"
        cause = Rejection(Reason.OTHER_SYSTEM, message, remedy=remedy)
        return Decision(pod.uid, ledger, cause=cause, pod=pod)
    unfit = node_fit.rejection(rules, ledger, demand.requests)
    if unfit is not None:
        closed = beside_closed(rules, unfit)
        return Decision(pod.uid, ledger, cause=closed, demand=demand, pod=pod)
    return allocated(rules, rules.draft(ledger, demand), ledger)


def allocated(rules: EffectivePolicy, draft: Draft, before: Ledger) -> Decision:
    """Align and allocate the pod of a draft; `before` is the ledger that a rejection returns.

    It has the pod if the pod runs already.
    """
    # 1. CPUs of isolcpus, where exclusive CPUs come from them first.
    held = draft.held
    for narrow in rules.isolated_first(None if held is None else held.allocation):
        decision = _tried(narrow, rules, draft, before)
        if decision.cause is None:
            return decision
    # 2. All CPUs.
    decision = _allocated(rules, draft, before)
    # 3. All but one of each pool with pods: what was chosen may be the last of one.
    if decision.cause is None or not rules.policy.pools:
        return decision
    spared = Mask.union(each.spared(draft) for each in draft.managers)
    instead = _tried(rules.without(spared), rules, draft, before)
    return instead if instead.cause is None else decision


def _tried(
    narrow: EffectivePolicy, rules: EffectivePolicy, draft: Draft, before: Ledger
) -> Decision:
    """Return what a narrower policy decides; a suspended decision goes on under `rules`."""
    trial = narrow.draft(draft.ledger, draft.demand)
    trial.held, trial.only, trial.answers = draft.held, draft.only, draft.answers
    decision = _allocated(narrow, trial, before)
    if decision.suspended is None:
        return decision
    # All is tried again with the answers: what was aligned here may not be what is on all CPUs.
    again = _suspended(rules, trial, before, decision.suspended.questions)
    return replace(decision, suspended=replace(again, traces=(), works=()))


def _allocated(rules: EffectivePolicy, draft: Draft, before: Ledger) -> Decision:
    demand, pod = draft.demand, draft.demand.pod
    uid = pod.uid
    try:
        if draft.held is not None:
            for each in draft.managers:
                each.hold(draft, draft.held)
        if draft.only is not None:
            for each in draft.managers:
                each.confine(draft, draft.only)
        align_and_allocate(draft)
    except Unanswered as unanswered:
        return Decision(
            uid, before, suspended=_suspended(rules, draft, before, unanswered.questions)
        )
    except Rejected as rejected:
        return Decision(
            uid,
            before,
            cause=beside_closed(rules, rejected.cause),
            hints=tuple(draft.traces),
            demand=demand,
            counters=MappingProxyType(draft.counters),
            pod=pod,
        )
    allocation = make_allocation(demand, draft.parts, draft.hints)
    parts = {each.name: each.settled(draft, allocation) for each in draft.managers}
    ledger = before.with_allocation(allocation, parts)
    # A pod that runs already, in place of a former allocation, is judged and not rejected, unless
    # it asks for a resize or is to move.
    asks = draft.ledger is before or draft.held is not None or draft.only is not None
    lacking = _lacking(rules, draft, ledger, allocation) if asks else None
    if lacking is not None:
        cause = beside_closed(rules, lacking)
        return Decision(uid, before, cause=cause, hints=tuple(draft.traces), demand=demand, pod=pod)
    return Decision(
        uid,
        ledger,
        allocation=allocation,
        hints=tuple(draft.traces),
        demand=demand,
        counters=MappingProxyType(draft.counters),
        pod=pod,
    )


def _lacking(
    rules: EffectivePolicy, draft: Draft, ledger: Ledger, allocation: PodAllocation
) -> Rejection | None:
    """Return why a pod may not have what was allocated to it, None if it may."""
    lacking = unmet(rules, draft.demand, allocation)
    if lacking is None and allocation.idle:  # which no container requested
        lacking = node_fit.rejection(rules, draft.ledger, allocation.node_requests)
    if lacking is not None:
        return lacking
    vetoes = (manager.veto(draft, ledger, allocation) for manager in draft.managers)
    return next(filter(None, vetoes), None)


def _suspended(
    rules: EffectivePolicy, draft: Draft, before: Ledger, questions: tuple[Question, ...]
) -> SuspendedDecision:
    return SuspendedDecision(
        rules=rules,
        ledger=draft.ledger,
        before=before,
        demand=draft.demand,
        questions=questions,
        answers=draft.answers,
        traces=tuple(draft.traces),
        works=tuple(draft.works),
    )


def align_and_allocate(draft: Draft) -> None:
    """Align and allocate the pod by the current policy and scope; raises `Rejected`."""
    draft.count(TOPOLOGY_ADMISSION_REQUESTS.name)
    try:
        if draft.rules.policy.topology.policy is TopologyManagerPolicy.NONE:
            # No hints, and no budgets (kubelet v1.36). Failures are not the topology manager's.
            _allocate_all(draft, draft.demand.containers, NO_AFFINITY)
            return
        try:
            _align(draft)
        except Rejected:
            draft.count(TOPOLOGY_ADMISSION_ERRORS.name)
            raise
    finally:
        bounded = sum([work.exceeded for work in draft.works])
        if bounded:
            draft.count(BOUNDED_CHOICES.name, by=bounded)


def _align(draft: Draft) -> None:
    """Align and allocate container by container, or the pod as a whole."""
    containers = draft.demand.containers
    if draft.rules.policy.topology.scope is TopologyManagerScope.CONTAINER:
        for container in containers:
            draft.hints[container.name] = _best(draft, container)
            _allocate_all(draft, [container], draft.hints[container.name])
            _count_guaranteed(draft, ALIGNED_COUNT)
        return
    best = _best(draft, None)
    draft.hints.update({container.name: best for container in containers})
    if draft.demand.pod_level:
        # One budget for the pod, which each provider divides (KEP-5526).
        for provider in draft.managers:
            provider.allocate_pod(draft, best)
    else:
        _allocate_all(draft, containers, best)
    _count_guaranteed(draft, ALIGNED_COUNT)


def _allocate_all(draft: Draft, containers: Sequence[ContainerDemand], hint: Hint) -> None:
    for container in containers:
        for provider in draft.managers:
            provider.allocate(draft, container, hint)


def _best(draft: Draft, container: ContainerDemand | None) -> Hint:
    """Return the alignment of a container (None: the pod); raises `Rejected`."""
    # 0. A running pod of which a resize gives nothing more stays as it is aligned.
    if draft.held is not None and not any(each.grows(draft, container) for each in draft.managers):
        return draft.held.hint(container)
    # 1. It was worked out already, before the decision was suspended.
    if draft.aligned:
        draft.traces.append(draft.aligned.pop(0))
        return draft.traces[-1].merged
    # 2. Ask all providers and merge.
    trace = _merge(draft, container)
    # 3. Hints have the nodes of all that ended init containers left, as the kubelet's. On uneven
    #    hosts, where more may be left than by the kubelet, that must not cost the alignment.
    may_untie = not draft.rules.host_is_even and draft.demand.has_standard_init
    if container is not None and may_untie and not _is_preferred(trace):
        draft.tied = False
        untied = _merge(draft, container)
        draft.tied = True
        trace = untied if _is_preferred(untied) else trace
    draft.traces.append(trace)
    # 4. The policy may reject what is not preferred.
    if not trace.admitted:
        _count_guaranteed(draft, ALIGNED_FAILURE_COUNT)
        raise Rejected(affinity_rejection(draft, trace))
    return trace.merged


def _merge(draft: Draft, container: ContainerDemand | None) -> Trace:
    managers = draft.managers
    # 1. What the machine lacks is the reason, whatever else does not fit.
    for each in managers:
        reject_if(each.lacks(draft, container))
    # 2. Which of equally preferred sets of nodes come first.
    orders = (each.node_order(draft, container) for each in managers)
    sockets = next((order for order in orders if order is not None), None)
    # 3. Ask all providers. Where the hints of one leave nothing to admit, those of the others only
    #    explain the rejection.
    policy, listed = draft.rules.policy.topology.policy, draft.rules.machine.lists_hints
    known: dict[str, ProviderHints] = {}
    for each in sorted(managers, key=_COST):
        known[each.name] = hints = each.hints(draft, container)
        if listed and len(known) < len(managers) and rules_out(policy, hints):
            return UnadmittedTrace(draft, container, sockets)
    # 4. Merge.
    offers = tuple([(each.name, known[each.name]) for each in managers])
    alignment = align(
        draft.rules.machine,
        draft.rules.policy.topology,
        [hints for _, hints in offers],
        draft.work(),
        sockets,
        spread := _spread(draft, container),
    )
    if alignment is None:
        return UnadmittedTrace(draft, container, sockets, offers)
    # 5. Where devices keep CPUs and memory from the fewest nodes, these may come first.
    if draft.rules.policy.topology.prefer_one_node and not alignment.hint.preferred:
        alignment = _on_fewest_nodes(draft, offers, sockets, spread) or alignment
    name = None if container is None else container.name
    return HintTrace(name, offers, alignment.hint, alignment.admitted)


def _spread(draft: Draft, container: ContainerDemand | None) -> Tiebreak | None:
    """Return the order of sets of nodes by what is free on them, if the pod is to be spread.

    Sets that could give all of what a container (None: the pod) requests come first
    (`Pod.available`), then those with the most free CPUs, then memory, then devices. None: the
    lowest sets come first, as on a machine whose hints are not listed.
    """
    demand, rules = draft.demand, draft.rules
    placement = demand.asked.placement or rules.policy.topology.placement
    if placement != Placement.SPREAD or not rules.machine.lists_hints:
        return None
    free: list[Mapping[int, int]] = []
    asked: list[tuple[str, int]] = []
    for each in sorted(draft.managers, key=lambda each: (not each.of_nodes, each.cost)):
        if demand.active(each.name):
            part = demand.parts[each.name].pod if container is None else container.part(each.name)
            free += [each.free(draft, resource) for resource in each.resources(part)]
            asked += [(name, each.amount(part, name)) for name in each.resources(part)]

    def key(nodes: int) -> tuple[int, ...]:
        there = [demand.pod.available.get(node, {}) for node in iter_bits(nodes)]
        lacking = [
            name
            for name, amount in asked
            if all(name in types for types in there)
            and sum(types[name] for types in there) < amount
        ]
        most = [-sum([amounts.get(node, 0) for node in iter_bits(nodes)]) for amounts in free]
        return len(lacking), *most

    return key


def _on_fewest_nodes(
    draft: Draft, offers: Offers, sockets: Tiebreak | None, spread: Tiebreak | None
) -> Alignment | None:
    """Return the alignment of CPUs and memory alone, None where these do not prefer one."""
    topology = draft.rules.policy.topology
    of_nodes = {each.name for each in draft.managers if each.of_nodes}
    own = [hints for name, hints in offers if name in of_nodes and hints]
    if not own or topology.policy is not TopologyManagerPolicy.BEST_EFFORT:
        return None
    found = align(draft.rules.machine, topology, own, draft.work(), sockets, spread)
    if found is None or not found.hint.preferred:
        return None
    return Alignment(Hint(found.hint.nodes, preferred=False), admitted=True)


_COST: Final = attrgetter("cost")


class UnadmittedTrace(Struct, frozen=True, eq=False, dict=True):
    """The trace of a rejection: the policy admits no alignment, whatever the hints merge to.

    What they merge to is worked out when an explanation reads it; so are the hints, where those of
    one manager settled the rejection (`offers` None). The rejection has ended the draft, so the
    managers answer as they would have before.
    """

    draft: Draft
    demand: ContainerDemand | None
    sockets: Tiebreak | None
    offers: Offers | None = None

    @property
    def container(self) -> str | None:
        """The name of the container, None for the pod as a whole."""
        return None if self.demand is None else self.demand.name

    @cached_property
    def providers(self) -> Offers:
        """The hints of all managers, in the order in which the managers allocate."""
        return self.offers or tuple(
            [(each.name, each.hints(self.draft, self.demand)) for each in self.draft.managers]
        )

    @property
    def merged(self) -> Hint:
        """What the hints merge to."""
        return unadmitted(
            self.draft.rules.machine,
            self.draft.rules.policy.topology,
            [hints for _, hints in self.providers],
            self.sockets,
        )

    @property
    def admitted(self) -> bool:
        """Never."""
        return False

    def __eq__(self, other: object) -> bool:
        """Compare the hints, not the drafts: the traces of a draft have the draft."""
        return isinstance(other, UnadmittedTrace) and self.providers == other.providers

    def __hash__(self) -> int:
        """Return a number that equal hints share."""
        return hash(tuple(each.name for each in self.draft.managers))


def _is_preferred(trace: Trace) -> bool:
    return trace.admitted and trace.merged.preferred


def _count_guaranteed(draft: Draft, metric: MetricSpec) -> None:
    """Count an alignment, kept or missed, where the policy guarantees one NUMA node."""
    topology = draft.rules.policy.topology
    if topology.policy is TopologyManagerPolicy.SINGLE_NUMA_NODE:
        draft.count(metric.name, topology.scope.value, "numa_node")


def remove(rules: EffectivePolicy, ledger: Ledger, uid: str) -> Ledger:
    """Return the ledger without a pod; the resources that only this pod had are free again.

    A CPU or device that a checkpoint or an import allocated twice (`validity` reports such
    violations) stays with the other pod. An unknown uid changes nothing.
    """
    return released(rules, ledger, uid)


def start_containers(
    rules: EffectivePolicy, ledger: Ledger, running: Mapping[str, Iterable[str]]
) -> Ledger:
    """Return the ledger after these containers, by uid, started; see `start_container`."""
    for uid, allocation in ledger.allocations.items():
        if len(allocation.lasting) < len(allocation.containers):  # few have init containers
            for name in running.get(uid, ()):
                ledger = start_container(rules, ledger, uid, name)
    return ledger


def start_container(rules: EffectivePolicy, ledger: Ledger, uid: str, name: str) -> Ledger:
    """Return the ledger after a container started: the init containers before it have ended.

    What they had is free again as far as the managers say (pinned memory, not CPUs); a pod-level
    budget stays whole until the pod ends (KEP-5526). An unknown pod or container changes nothing.
    """
    allocation = ledger.allocations.get(uid)
    if allocation is None or allocation.has_budget:
        return ledger
    names = [container.name for container in allocation.containers]
    before = allocation.containers[: names.index(name)] if name in names else ()
    ended = [container for container in before if container.kind is ContainerKind.INIT]
    if not ended:
        return ledger
    left: Sequence[ContainerAllocation] = ended
    parts = dict(ledger.parts)
    for manager in rules.managers:
        parts[manager.name], left = manager.finished(rules, parts[manager.name], left)
    if all(old is new for old, new in zip(ended, left, strict=True)):
        return ledger
    now = {container.name: container for container in left}
    containers = tuple(now.get(each.name, each) for each in allocation.containers)
    return ledger.with_allocation(replace(allocation, containers=containers), parts)
