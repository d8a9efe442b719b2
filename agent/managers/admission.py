"""Admission: the pure functions that turn a pod and a ledger into a decision and a new ledger."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from agent.managers import node_fit
from agent.managers.decision import Decision, Eligibility, Rejected, Rejection, Unanswered
from agent.managers.demand import make_allocation, node_requests
from agent.managers.quality import unmet
from agent.managers.readmission import readmit
from agent.managers.rejection import beside_cordon
from agent.managers.rules import released
from agent.managers.topology.scope import align_and_allocate
from agent.pods.model import ContainerKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agent.managers.allocation import ContainerAllocation, PodAllocation
    from agent.managers.decision import Answers, HintTrace, Question
    from agent.managers.demand import PodDemand
    from agent.managers.ledger import Ledger
    from agent.managers.resource_manager import Draft
    from agent.managers.rules import EffectivePolicy
    from agent.managers.topology.hint import SearchBudget
    from agent.pods.model import Pod


class Undecided(Struct, frozen=True):
    """A pod that was rejected before any manager was asked: its demand is worked out when read."""

    rules: EffectivePolicy
    pod: Pod

    def eligibility(self) -> tuple[Eligibility, ...]:
        """Return which containers might have had exclusive resources, and why."""
        return self.rules.demand(self.pod).eligibility()

    @property
    def dropped(self) -> tuple[str, ...]:
        """Return a warning for each field that the feature gates leave out."""
        return self.rules.demand(self.pod).dropped


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
    traces: tuple[HintTrace, ...]
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
        return _allocated(self.rules, draft, self.before)


def admit(rules: EffectivePolicy, ledger: Ledger, pod: Pod) -> Decision:
    """Decide whether a pod fits and what each of its containers gets.

    Pure: the same arguments give the same decision. A pod that is already in the ledger keeps its
    allocation; the first specification that fits completes an imported or recovered allocation
    (`agent.managers.readmission`). A rejected pod changes nothing. Steps: node fit,
    eligibility, hints, merge, allocation. Where device plugins have a preference the decision is
    suspended until they have answered (`SuspendedDecision.resume`).
    """
    existing = ledger.allocations.get(pod.uid)
    if existing is None:
        return _decide(rules, ledger, pod)
    readmitted = readmit(rules, ledger, existing, pod)
    if readmitted is not None:
        return replace(readmitted, pod=pod)
    return _decide_running(rules, ledger, pod)


def _decide_running(rules: EffectivePolicy, ledger: Ledger, pod: Pod) -> Decision:
    """Decide on a pod that runs already, in place of an allocation of which nothing is kept."""
    requests = node_requests(rules.policy, pod)
    draft = rules.draft(remove(rules, ledger, pod.uid), rules.demand(pod, requests))
    return _allocated(rules, draft, ledger)


def _decide(rules: EffectivePolicy, ledger: Ledger, pod: Pod) -> Decision:
    requests = node_requests(rules.policy, pod)
    unfit = node_fit.rejection(rules, ledger, requests)
    if unfit is not None:
        return Decision(
            pod.uid, ledger, cause=beside_cordon(rules, unfit), asked=Undecided(rules, pod), pod=pod
        )
    return _allocated(rules, rules.draft(ledger, rules.demand(pod, requests)), ledger)


def _allocated(rules: EffectivePolicy, draft: Draft, before: Ledger) -> Decision:
    """Align and allocate the pod of a draft; `before` is the ledger that a rejection returns."""
    demand, pod = draft.demand, draft.demand.pod
    uid = pod.uid
    try:
        align_and_allocate(rules.managers, draft)
    except Unanswered as unanswered:
        return Decision(
            uid, before, suspended=_suspended(rules, draft, before, unanswered.questions)
        )
    except Rejected as rejected:
        return Decision(
            uid,
            before,
            cause=beside_cordon(rules, rejected.cause),
            hints=tuple(draft.traces),
            asked=demand,
            counters=MappingProxyType(draft.counters),
            pod=pod,
        )
    allocation = make_allocation(rules.policy, demand, draft.parts, draft.hints)
    parts = {each.name: each.settled(draft, allocation) for each in rules.managers}
    ledger = draft.ledger.with_allocation(allocation, parts)
    # A pod that runs already, in place of a former allocation, is judged and not rejected.
    lacking = _lacking(rules, draft, ledger, allocation) if draft.ledger is before else None
    if lacking is not None:
        cause = beside_cordon(rules, lacking)
        return Decision(uid, before, cause=cause, hints=tuple(draft.traces), asked=demand, pod=pod)
    return Decision(
        uid,
        ledger,
        allocation=allocation,
        hints=tuple(draft.traces),
        asked=demand,
        counters=MappingProxyType(draft.counters),
        pod=pod,
    )


def _lacking(
    rules: EffectivePolicy, draft: Draft, ledger: Ledger, allocation: PodAllocation
) -> Rejection | None:
    """Return why a pod may not have what was allocated to it, None if it may."""
    lacking = unmet(rules, draft.demand.pod, allocation)
    if lacking is not None:
        return lacking
    vetoes = (manager.veto(draft, ledger, allocation) for manager in rules.managers)
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


def remove(rules: EffectivePolicy, ledger: Ledger, uid: str) -> Ledger:
    """Return the ledger without a pod; the resources that only this pod had are free again.

    A CPU or device that a checkpoint or an import allocated twice (`validity` reports such
    violations) stays with the other pod. An unknown uid changes nothing.
    """
    return released(rules, ledger, uid)


def start_containers(
    rules: EffectivePolicy, ledger: Ledger, uid: str, names: Iterable[str]
) -> Ledger:
    """Return the ledger after these containers of a pod started; see `start_container`."""
    allocation = ledger.allocations.get(uid)
    if allocation is None or all(c.kind is not ContainerKind.INIT for c in allocation.containers):
        return ledger  # nearly every pod, and each comparison asks about all of them
    for name in names:
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
