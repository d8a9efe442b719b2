"""Resize: a running pod gets more or fewer CPUs, or more or less memory (KEP-1287, KEP-5554).

In go the ledger and the specification of an admitted pod with other amounts of cpu, memory and huge
pages; out comes a decision. It is made as that of an admission, of the pod as it is now: what each
container keeps is put into the draft, and the managers give the rest (`ResourceManager.hold`).
A rejection is `Infeasible` if the pod could not have the amounts even alone on the host, or if no
resize may make such a change; else `Deferred`, since others have what is missing.
`advise` tries amounts nearer to the present ones. Always true of a pod that is resized:

1. Its QoS class, which containers have CPUs and memory of their own, and its devices stay. It keeps
   the NUMA nodes of its memory, and may get more.
2. A container that gets more CPUs keeps all that it has; one that gets fewer keeps those that it
   was admitted with, unless CPUs are named that stay. So it is with a budget (KEP-5526), whose
   slices stay in it. `PodAllocation.originals` are these CPUs, since applications run threads on
   those with which they started.
3. The current policy admits the new amounts. What gets nothing more is not aligned again.
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
from agent.managers.allocation import BUDGET, Isolation
from agent.managers.decision import Decision, Reason, Rejection
from agent.managers.resource_manager import Held
from agent.managers.rules import charged, released
from agent.managers.specification import specification_of
from agent.managers.trials import cpu_step
from agent.managers.violations import ADMIT_AGAIN
from agent.pods.changes import amount_of, quantity_of, with_resources, without_amounts
from agent.pods.model import CPU, MEMORY, QosClass, full_name
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agent.managers.allocation import PodAllocation
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
    return before is not None and _amounts_alone_differ(before, pod)


def _amounts_alone_differ(before: Pod, pod: Pod) -> bool:
    return without_amounts(before) == without_amounts(pod)


def resize(rules: EffectivePolicy, ledger: Ledger, pod: Pod, keep: Mask = EMPTY) -> Decision:
    """Decide on other amounts for an admitted pod; raises `KeyError` for one that is not admitted.

    `keep` are CPUs that stay with their containers. Pure; device plugins are not asked.
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
    # 1. No resize may change anything but amounts, or what follows from them.
    cause = _not_resizable(rules, existing, demand)
    # 2. Only growth needs room: a pod that asks for less gets that on a node that is overcommitted.
    without = released(rules, ledger, existing.uid)
    if cause is None:
        had = existing.requests
        more = {name: size for name, size in demand.requests.items() if size > had.get(name, 0)}
        cause = node_fit.rejection(rules, without, more)
    if cause is not None:
        return Decision(pod.uid, ledger, cause=cause, demand=demand, pod=pod)
    # 3. Align and allocate with what stays.
    draft = rules.draft(without, demand)
    draft.held = Held(existing, keep)
    decision = allocated(rules, draft, ledger)
    if decision.allocation is None:
        return decision
    originals = MappingProxyType(_originals(existing, decision.allocation))
    allocation = replace(carried(existing, decision.allocation), originals=originals)
    changed = decision.ledger.with_same_requests(allocation)
    return replace(decision, allocation=allocation, ledger=changed, resized=True)


_ADMIT_THE_NEW: Final = "remove the pod and admit the new one"


def _not_resizable(
    rules: EffectivePolicy, existing: PodAllocation, demand: PodDemand
) -> Rejection | None:
    """Return why a specification is no resize of a pod that this policy can make, None if it is."""
    before, pod = specification_of(existing), demand.pod
    if before is None:
        message = f"the specification of pod {full_name(existing)} is not known"
        return _infeasible(message, "admit the specification that it was started with first")
    if not _amounts_alone_differ(before, pod):
        message = (
            f"resize of pod {full_name(existing)} changes fields other than the amounts of cpu, "
            "memory and huge pages"
        )
        return _infeasible(message, _ADMIT_THE_NEW)
    qos = demand.request.qos
    if existing.qos != qos:
        message = f"QoS class would change from {existing.qos} to {qos}"
        return _infeasible(message, _remedy(existing.qos, qos))
    for place, former in enumerate(before.all_containers()):
        if demand.containers[place].is_standard_init and former != pod.all_containers()[place]:
            message = f"init container {former.name} is not restartable and cannot be resized"
            return _infeasible(message, container=former.name)
    return _other_isolation(rules, existing, before, demand)


def _remedy(before: QosClass, after: QosClass) -> str:
    """Return how the QoS class of a pod would stay."""
    if before is QosClass.GUARANTEED:
        return "make requests and limits equal"
    if after is QosClass.GUARANTEED:
        return "leave a limit above its request"
    return _ADMIT_THE_NEW


def _other_isolation(
    rules: EffectivePolicy, existing: PodAllocation, before: Pod, demand: PodDemand
) -> Rejection | None:
    """Return why a container or the pod would get or lose resources of its own, None if not.

    The amounts decide that, or a policy that is another one than at the admission.
    """
    # Of a budget the allocation does not say whose memory is shared. The former specification does;
    # whether memory of the budget is divided at all is compared below.
    formerly = rules.demand(before).containers if existing.memory else ()
    for place, container in enumerate(demand.containers):
        allocation = existing.container(container.name)
        if allocation is None:
            continue
        has = {CPU: allocation.isolation is Isolation.CONTAINER}
        if not container.is_standard_init:  # whose memory is released once it has ended
            has[MEMORY] = formerly[place].may_have(MEMORY) if formerly else bool(allocation.memory)
        for manager, has_own in has.items():
            if has_own != container.may_have(manager):
                what = f"{'' if has_own else 'no '}exclusive {_EXCLUSIVE[manager]}"
                message = f"container {container.name} has {what}; a resize cannot change that"
                return _infeasible(f"{message}: {container.why(manager)}", container=container.name)
    divides = rules.policy.topology.is_pod_scope and demand.pod_level
    cpus = divides and demand.active(CPU)
    memory = divides and demand.active(MEMORY) and bool(demand.memory)
    if (existing.cpus is not None, bool(existing.memory)) != (cpus, memory):
        message = "the current policy allocates pod-level resources differently than at admission"
        return _infeasible(message, ADMIT_AGAIN)
    return None


#: What a manager gives to one container alone.
_EXCLUSIVE: Final = {CPU: "CPUs", MEMORY: "memory"}


def _infeasible(message: str, remedy: str = "", container: str | None = None) -> Rejection:
    return Rejection(Reason.INFEASIBLE, message, remedy, container=container)


def carried(existing: PodAllocation, decided: PodAllocation) -> PodAllocation:
    """Return a new allocation of a running pod with what no decision makes, as it was before."""
    containers = (
        replace(
            after, delivery=before.delivery, device_nodes=before.device_nodes, others=before.others
        )
        for before, after in zip(existing.containers, decided.containers, strict=True)
    )
    return replace(
        decided,
        containers=tuple(containers),
        source=existing.source,
        lifetime=existing.lifetime,
        isolation=existing.isolation,
        unprepared=existing.unprepared,
    )


def _originals(existing: PodAllocation, resized: PodAllocation) -> Mapping[str, Mask]:
    """Return the CPUs of the admission that containers and the budget still have.

    Of those alone that a resize has changed, now or earlier.
    """
    before, after = _own_cpus(existing), _own_cpus(resized)
    return {
        name: existing.originals.get(name, cpus) & after.get(name, EMPTY)
        for name, cpus in before.items()
        if name in existing.originals or cpus != after.get(name)
    }


def _own_cpus(allocation: PodAllocation) -> dict[str, Mask]:
    """Return the CPUs of the budget and of the containers with CPUs of their own."""
    parts = [(BUDGET, allocation.cpus)] + [
        (each.name, each.cpus)
        for each in allocation.containers
        if each.isolation is Isolation.CONTAINER
    ]
    return {name: cpus for name, cpus in parts if cpus is not None}


#: The most other amounts that are tried for a rejected resize: enough to find one of 64,000.
_MOST_TRIED: Final = 16
_MEBIBYTE: Final = 1 << 20


def advise(
    rules: EffectivePolicy, ledger: Ledger, change: OtherAmounts, keep: Mask = EMPTY
) -> Iterator[Advice | None]:
    """Yield None for each other amount that is tried, then an `Advice` if one was admitted.

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
