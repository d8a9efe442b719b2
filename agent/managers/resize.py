"""Resize: a running pod gets more or fewer CPUs, or more or less memory (KEP-1287, KEP-5554).

In go the ledger and the specification of an admitted pod with other amounts of cpu, memory and huge
pages; out comes a decision. It is made as that of an admission, of the pod as it is now: what each
container keeps is put into the draft, and the managers give the rest (`ResourceManager.hold`).
Always true of a pod that is resized:

1. Its QoS class, which containers have CPUs and memory of their own, its devices and the NUMA
   nodes of its memory stay.
2. A container that gets more CPUs keeps all that it has; one that gets fewer keeps those that it
   was admitted with, unless CPUs are named that stay. So it is with a budget (KEP-5526), whose
   slices stay in it.
3. The policy that admitted the pod admits it so, too. What gets nothing more is not aligned again.
4. A rejected resize changes nothing.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from agent.managers import node_fit
from agent.managers.admission import allocated
from agent.managers.advice import Advice, AdviceKind
from agent.managers.allocation import Isolation
from agent.managers.cpu.resizing import BUDGET
from agent.managers.decision import Decision, Reason, Rejection
from agent.managers.resource_manager import Held
from agent.managers.rules import charged, released
from agent.managers.specification import specification_of
from agent.managers.trials import cpu_step
from agent.pods.changes import amount_of, quantity_of, with_resources, without_amounts
from agent.pods.model import CPU, MEMORY, full_name
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agent.managers.allocation import ContainerAllocation, PodAllocation
    from agent.managers.demand import PodDemand
    from agent.managers.ledger import Ledger
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Pod


class OtherAmounts(Struct, frozen=True):
    """Other amounts of one container of an admitted pod, or of its pod-level resources."""

    uid: str
    #: None: those of the pod level.
    container: str | None
    #: In millicores; None: as before.
    cpu: int | None = None
    #: In bytes; None: as before.
    memory: int | None = None

    def amounts(self) -> Iterator[tuple[str, int]]:
        """Yield the resources with another amount."""
        for name, amount in ((CPU, self.cpu), (MEMORY, self.memory)):
            if amount is not None:
                yield name, amount

    def of(self, pod: Pod) -> Pod:
        """Return the pod with these amounts (`agent.pods.changes.with_resources`)."""
        return with_resources(pod, self.container, dict(self.amounts()))


def is_resize(existing: PodAllocation, pod: Pod) -> bool:
    """Return whether a specification differs from that of an admitted pod in amounts alone."""
    before = specification_of(existing)
    return before is not None and without_amounts(before) == without_amounts(pod)


def resize(rules: EffectivePolicy, ledger: Ledger, pod: Pod, keep: Mask = EMPTY) -> Decision:
    """Decide on other amounts for an admitted pod; raises `KeyError` for one that is not admitted.

    `keep` are CPUs that stay with their containers. A rejection is `Infeasible` if the pod could
    not have that on a host of its own, else `Deferred`. Pure; device plugins are not asked.
    """
    decision = _resized_now(rules, ledger, pod, keep)
    rejection = decision.rejection
    if rejection is None or rejection.reason == Reason.INFEASIBLE:
        return decision
    alone = charged(rules, rules.empty_ledger(), ledger.allocations[pod.uid])
    fits = _resized_now(rules, alone, pod, keep).admitted
    reason = Reason.DEFERRED if fits else Reason.INFEASIBLE
    message = f"{rejection.reason}: {rejection.message}"
    return replace(decision, cause=replace(rejection, reason=reason, message=message))


def _resized_now(rules: EffectivePolicy, ledger: Ledger, pod: Pod, keep: Mask) -> Decision:
    """Decide as `resize`, with the reason of the admission where others have what is missing."""
    existing, demand = ledger.allocations[pod.uid], rules.demand(pod)
    if existing.spec == demand.spec and not keep:
        return Decision(pod.uid, ledger, allocation=existing, already_admitted=True)
    cause = next(_differences(rules, existing, demand), None)
    if cause is not None:
        return Decision(pod.uid, ledger, cause=cause, demand=demand, pod=pod)
    return _decide(rules, ledger, existing, demand, keep)


def _decide(
    rules: EffectivePolicy,
    ledger: Ledger,
    existing: PodAllocation,
    demand: PodDemand,
    keep: Mask,
) -> Decision:
    pod, without = demand.pod, released(rules, ledger, existing.uid)
    # Only growth needs room: a pod that asks for less gets that on a node that is overcommitted.
    more = {
        name: amount
        for name, amount in demand.requests.items()
        if amount > existing.requests.get(name, 0)
    }
    unfit = node_fit.rejection(rules, without, more)
    if unfit is not None:
        return Decision(pod.uid, ledger, cause=unfit, demand=demand, pod=pod)
    draft = rules.draft(without, demand)
    draft.held = Held(existing, keep)
    decision = allocated(rules, draft, ledger)
    if decision.allocation is None:
        return decision
    allocation = _carried(existing, decision.allocation)
    ledger = decision.ledger.with_allocation(allocation)
    return replace(decision, allocation=allocation, ledger=ledger, resized=True)


def _differences(
    rules: EffectivePolicy, existing: PodAllocation, demand: PodDemand
) -> Iterator[Rejection]:
    """Yield why a specification is no resize of a pod that this policy can make."""
    before, pod = specification_of(existing), demand.pod
    if before is None:
        message = "its specification is not known"
        remedy = "admit the specification that it was started with first"
        yield Rejection(Reason.INFEASIBLE, message, remedy)
        return
    if without_amounts(before) != without_amounts(pod):
        message = f"pod {full_name(existing)} would differ in more than amounts of cpu and memory"
        yield Rejection(Reason.INFEASIBLE, message, "remove the pod and admit the new one")
        return
    qos = demand.request.qos
    if existing.qos is not qos:
        message = f"its QoS class is {existing.qos} and would be {qos}, which no resize changes"
        remedy = "keep each request as it is to its limit"
        yield Rejection(Reason.INFEASIBLE, message, remedy)
        return
    yield from _of_containers(rules, existing, before, demand)
    of_pod = rules.policy.topology.is_pod_scope and demand.pod_level
    cpus = of_pod and demand.active(CPU)
    memory = of_pod and demand.active(MEMORY) and bool(demand.memory)
    if (existing.cpus is not None, bool(existing.memory)) != (cpus, memory):
        message = "the policy divides pod-level resources otherwise than when it was admitted"
        yield Rejection(Reason.INFEASIBLE, message, "remove the pod and admit it again")


def _of_containers(
    rules: EffectivePolicy, existing: PodAllocation, before: Pod, demand: PodDemand
) -> Iterator[Rejection]:
    """Yield why containers would no longer have resources of their own, or would have some."""
    # Of a budget the allocation does not say whose memory is shared.
    was = rules.demand(before).containers if existing.memory else ()
    for place, (former, after) in enumerate(
        zip(before.all_containers(), demand.containers, strict=True)
    ):
        name, has = after.name, existing.container(after.name)
        if after.is_standard_init and former != after.container:
            message = f"init container {name} ends before the pod runs, so it is not resized"
            yield Rejection(Reason.INFEASIBLE, message, container=name)
        if has is None:
            continue
        own = {CPU: has.isolation is Isolation.CONTAINER}
        if not after.is_standard_init:  # whose memory is released once it has ended
            own[MEMORY] = was[place].may_have(MEMORY) if was else bool(has.memory)
        would = {CPU: after.may_have(CPU), MEMORY: after.may_have(MEMORY) and bool(after.memory)}
        for manager, has_own in own.items():
            if has_own is not would[manager]:
                whose = "its own" if has_own else "no"
                message = f"container {name} has {whose} {manager}, which no resize changes"
                why = f"{message}: {after.why(manager)}"
                yield Rejection(Reason.INFEASIBLE, why, container=name)


def _carried(existing: PodAllocation, resized: PodAllocation) -> PodAllocation:
    """Return a resized allocation with what a resize does not decide."""
    return replace(
        resized,
        containers=tuple(
            _container(before, after)
            for before, after in zip(existing.containers, resized.containers, strict=True)
        ),
        originals=MappingProxyType(_originals(existing, resized)),
        source=existing.source,
        lifetime=existing.lifetime,
        isolation=existing.isolation,
        unprepared=existing.unprepared,
    )


def _container(before: ContainerAllocation, after: ContainerAllocation) -> ContainerAllocation:
    return replace(
        after, delivery=before.delivery, device_nodes=before.device_nodes, others=before.others
    )


def _originals(existing: PodAllocation, resized: PodAllocation) -> Mapping[str, Mask]:
    """Return the CPUs of the admission that containers and the budget still have."""
    has = {BUDGET: existing.cpus} | {
        each.name: each.cpus
        for each in existing.containers
        if each.isolation is Isolation.CONTAINER
    }
    now = {BUDGET: resized.cpus} | {each.name: each.cpus for each in resized.containers}
    return {
        name: existing.originals.get(name, cpus) & (now[name] or EMPTY)
        for name, cpus in has.items()
        if cpus is not None and (name in existing.originals or cpus != now[name])
    }


#: The most other amounts that are tried for a rejected resize: enough to find one of 64,000.
_MOST_TRIED: Final = 16
_MEBIBYTE: Final = 1 << 20


def advise(
    rules: EffectivePolicy, ledger: Ledger, change: OtherAmounts, keep: Mask = EMPTY
) -> Iterator[Advice | None]:
    """Yield None for each other amount that is tried in place of a rejected change, then an advice.

    The amounts lie between the present one and the one that was asked for, and halve what is left
    between the nearest to this that was admitted and the next that was not. Of cpu and memory one
    alone is changed. The advice was tried: the pod could be resized so now.
    """
    before = specification_of(ledger.allocations[change.uid])
    if before is None:
        return
    asked = dict(change.amounts())
    tried = 0
    for resource, amount in asked.items():
        best = None
        amounts = _amounts_between(rules, before, change.container, resource, amount)
        while amounts and tried < _MOST_TRIED:
            tried += 1
            middle = len(amounts) // 2
            other = replace(change, **{resource: amounts[middle]})
            if _resized_now(rules, ledger, other.of(before), keep).admitted:
                best, amounts = amounts[middle], amounts[middle + 1 :]
            else:
                amounts = amounts[:middle]
            yield None
        if best is not None:
            text = f"ask for {quantity_of(resource, best)} of {resource}"
            rest = "".join(f", with {other} as asked" for other in asked if other != resource)
            yield Advice(AdviceKind.REQUEST, text + rest, change.container, resource, best)
            return


def _amounts_between(
    rules: EffectivePolicy, pod: Pod, container: str | None, resource: str, asked: int
) -> Sequence[int]:
    """Return amounts between the present and the asked one, in the units of `quantity_of`.

    Those of cpu are whole CPUs or cores more or less, so that a container keeps sharing or keeps
    CPUs of its own.
    """
    present = amount_of(pod, container, resource)
    if present is None or present == asked:
        return ()
    least, most = sorted((present, asked))
    unit = 1000 if resource == CPU else _MEBIBYTE
    step = cpu_step(rules, pod) if resource == CPU else unit * -(-(most - least) // (unit << 16))
    first = least + step - (least - present % unit) % step
    amounts = range(first, most, step)
    return amounts if asked > present else amounts[::-1]
