"""What would let a rejected pod be admitted: changes that were put to the decision function.

Nothing is advised that was not tried and admitted; a change that is not listed may help as well,
since only some are tried. Tried are the end of the cordon and of other pods, weaker policies, a
smaller request of one resource, whole cores in place of a part, siblings that do not stay idle, a
larger budget where containers that share it would have nothing, and limits equal to requests where
a pod requires CPUs of its own. Another request counts only if the same containers as before may
have exclusive resources: less isolation is not what was asked for.
"""

from __future__ import annotations

from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from agent.managers.admission import admit, remove
from agent.managers.advice import Advice, AdviceKind
from agent.managers.amounts import nodes_text
from agent.managers.decision import Reason
from agent.managers.memory.state import page_size
from agent.managers.node_fit import native_first, node_amount_text
from agent.managers.policy import (
    NO_CORDON,
    IsolationMode,
    MemoryManagerPolicy,
    TopologyManagerPolicy,
    TopologyManagerScope,
)
from agent.managers.rejection import empty_pool_rejection
from agent.managers.rules import restored, with_cordon
from agent.pods.model import (
    CPU,
    MEMORY,
    MEMORY_CLASSES,
    SMT,
    Quality,
    Resources,
    full_name,
    isolation_annotation,
    required,
)
from agent.pods.quantity import Quantity
from agent.pods.requests import is_memory_type
from agent.pods.validation import find_problems
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.managers.allocation import PodAllocation
    from agent.managers.decision import Decision
    from agent.managers.ledger import Ledger
    from agent.managers.policy import Policy
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Container, Pod


#: How many changes are tried for one rejection: 20 to 50 were, in 3 to 5 ms on 2 nodes, 18 on 8.
MOST_TRIALS: Final = 100
#: Of these, at most so many for other pods: half end one pod, half look for several.
_MOST_ENDS: Final = 40
#: How many requests are made smaller, the largest first.
_MOST_REQUESTS: Final = 6
_GIB: Final = 1 << 30
#: A budget grows by no less memory.
_LEAST_MEMORY: Final = 64 << 20
#: From here on memory is made smaller by whole GiB.
_LARGE: Final = 4 * _GIB


class PolicyChange(Struct, frozen=True):
    """A weaker policy: the configuration's key and value, and what is lost (None: see below).

    Without a fixed loss the nodes of what the pod would get are named.
    """

    key: str
    value: str
    policy: Policy
    loss: str | None = None


def advise(
    rules: EffectivePolicy, ledger: Ledger, pod: Pod, most: int = MOST_TRIALS
) -> Iterator[Advice | None]:
    """Yield once for each change that was tried: the advice if the pod was admitted, else None.

    Pure; the caller may stop at any time, or work on something else between two trials. The trials
    are ordered by what they cost others: the cordon and policies first, then the pod's own
    requests, then pods. A pod that would be admitted as it is (what it lacked is free by now) needs
    no change.
    """
    if decided(rules, ledger, pod).admitted:
        return iter((Advice(AdviceKind.AGAIN, "admit the pod again, as it is"),))
    trials = (
        _uncordon(rules, ledger, pod),
        _larger_budget(rules, ledger, pod),
        _guaranteed(rules, ledger, pod),
        _whole(rules, ledger, pod),
        _annotation(rules, ledger, pod),
        _policies(rules, ledger, pod),
        _requests(rules, ledger, pod),
        _ends(rules, ledger, pod),
    )
    return islice((each for some in trials for each in some), most)


def decided(rules: EffectivePolicy, ledger: Ledger, pod: Pod) -> Decision:
    """Return the decision where device plugins have no preference, which rejects no pod."""
    decision = admit(rules, ledger, pod)
    while decision.suspended is not None:
        decision = decision.suspended.resume(dict.fromkeys(decision.suspended.questions, ()))
    return decision


def _uncordon(rules: EffectivePolicy, ledger: Ledger, pod: Pod) -> Iterator[Advice | None]:
    cordon = rules.policy.cordon
    if not cordon:
        return
    if decided(with_cordon(rules, NO_CORDON), ledger, pod).admitted:
        yield Advice(AdviceKind.UNCORDON, f"uncordon {cordon}", value=str(cordon))
    else:
        yield None


def with_larger_budget(rules: EffectivePolicy, ledger: Ledger, pod: Pod) -> tuple[Pod, list[str]]:
    """Return the pod with what its budget lacks for the containers that share it (KEP-5526).

    And the names of the resources of which it has more: one step each, as often as that is lacking.
    """
    lacking: list[str] = []
    while pod.resources is not None and len(lacking) < _MOST_REQUESTS:
        draft = rules.draft(ledger, rules.demand(pod))
        empty = empty_pool_rejection(rules.managers, draft, Reason.EMPTY_POD_SHARED_POOL)
        if empty is None or empty.resource is None:
            break
        lacking.append(empty.resource)
        amount = budget_of(rules, pod, empty.resource)
        least = _LEAST_MEMORY if empty.resource == MEMORY else 0
        amount += max(_step(rules, pod, empty.resource, amount), least)
        stated = {empty.resource: quantity_of(empty.resource, amount)}
        more = Resources(*(MappingProxyType({**each, **stated}) for each in _both(pod.resources)))
        pod = replace(pod, resources=more)
    return pod, list(dict.fromkeys(lacking))


def budget_of(rules: EffectivePolicy, pod: Pod, resource: str) -> int:
    """Return how much of a resource the pod's budget has, CPUs in millicores."""
    demand = rules.demand(pod)
    return 1000 * demand.cpus if resource == CPU else demand.memory.get(resource, 0)


def _both(resources: Resources) -> tuple[Mapping[str, Quantity], Mapping[str, Quantity]]:
    return resources.requests, resources.limits


def _larger_budget(rules: EffectivePolicy, ledger: Ledger, pod: Pod) -> Iterator[Advice | None]:
    topology = rules.policy.topology
    if not topology.is_pod_scope or topology.policy is TopologyManagerPolicy.NONE:
        return
    larger, lacking = with_larger_budget(rules, ledger, pod)
    if not lacking:
        return
    if find_problems(larger) or not decided(rules, ledger, larger).admitted:
        yield None
        return
    changes = [
        f"{node_amount_text(each, budget_of(rules, larger, each))} of {each} instead of "
        f"{node_amount_text(each, budget_of(rules, pod, each))}"
        for each in lacking
    ]
    yield Advice(
        AdviceKind.BUDGET,
        f"request {' and '.join(changes)} in the pod's budget, for the containers that share it",
        resource=lacking[0],
        amount=budget_of(rules, larger, lacking[0]),
    )


def with_limits_as_requests(pod: Pod) -> Pod:
    """Return the pod with CPU and memory of each container limited to what it requests.

    Of what is only limited or only requested the amount that is there.
    """

    def even(each: Container) -> Container:
        requests, limits = _both(each.resources)
        stated = {name: requests.get(name, limits.get(name)) for name in (CPU, MEMORY)}
        amounts = {name: amount for name, amount in stated.items() if amount is not None}
        return replace(
            each,
            resources=Resources(
                MappingProxyType({**requests, **amounts}), MappingProxyType({**limits, **amounts})
            ),
        )

    return replace(
        pod,
        containers=tuple(map(even, pod.containers)),
        init_containers=tuple(map(even, pod.init_containers)),
    )


def _guaranteed(rules: EffectivePolicy, ledger: Ledger, pod: Pod) -> Iterator[Advice | None]:
    if Quality.EXCLUSIVE not in required(pod.annotations) or pod.resources is not None:
        return
    even = with_limits_as_requests(pod)
    if even == pod:
        return
    if find_problems(even) or not decided(rules, ledger, even).admitted:
        yield None
    else:
        text = "limit cpu and memory of each container to what it requests (QoS class Guaranteed)"
        yield Advice(AdviceKind.GUARANTEED, text)


def _whole(rules: EffectivePolicy, ledger: Ledger, pod: Pod) -> Iterator[Advice | None]:
    """Round the CPUs of one container up, to whole ones or to whole cores as the pod requires."""
    rounded = _requires_own_cpus(pod) and pod.resources is None
    for container in pod.all_containers() if rounded else ():
        limit = container.resources.limits.get(CPU)
        if limit is None:
            continue
        asked, step = limit.milli_value, _step(rules, pod, CPU, limit.milli_value)
        amount = -(-asked // step) * step
        if amount == asked:
            continue
        larger = with_amount(pod, container.name, CPU, amount)
        if find_problems(larger) or not decided(rules, ledger, larger).admitted:
            yield None
        else:
            yield _request(container.name, CPU, asked, amount)


def _requires_own_cpus(pod: Pod) -> bool:
    return not required(pod.annotations).isdisjoint((Quality.EXCLUSIVE, Quality.WHOLE_CORES))


def _request(container: str | None, resource: str, asked: int, amount: int) -> Advice:
    before, after = (node_amount_text(resource, each) for each in (asked, amount))
    of = "" if container is None else f" in container {container}"
    return Advice(
        AdviceKind.REQUEST,
        f"request {after} of {resource}{of} instead of {before}",
        container=container,
        resource=resource,
        amount=amount,
    )


def without_annotation(pod: Pod, annotation: str) -> Pod:
    """Return the pod without what it asks for with an annotation."""
    left = {name: text for name, text in pod.annotations.items() if name != annotation}
    return replace(pod, annotations=MappingProxyType(left))


def _annotation(rules: EffectivePolicy, ledger: Ledger, pod: Pod) -> Iterator[Advice | None]:
    policy = rules.policy
    for item, mode, loss in (
        (SMT, policy.cpu.idle_siblings, _SIBLINGS),
        (MEMORY_CLASSES, policy.memory.usual_classes, "its memory may be of any class"),
    ):
        name = isolation_annotation(item)
        if mode != IsolationMode.ASKED or name not in pod.annotations:
            continue
        if not decided(rules, ledger, without_annotation(pod, name)).admitted:
            yield None
            continue
        text = f"leave out the annotation {name} ({loss})"
        yield Advice(AdviceKind.ANNOTATION, text, key=name, loss=loss)


def weaker_policies(policy: Policy) -> Iterator[PolicyChange]:
    """Yield the policies that demand less than this one, each changed by one key."""
    topology, cpu = policy.topology, policy.cpu
    order = list(TopologyManagerPolicy)
    for value in reversed(order[: order.index(topology.policy)]):
        yield PolicyChange(
            "topologyManagerPolicy",
            str(value),
            replace(policy, topology=replace(topology, policy=value)),
        )
    if topology.is_pod_scope:
        scope = TopologyManagerScope.CONTAINER
        yield PolicyChange(
            "topologyManagerScope",
            str(scope),
            replace(policy, topology=replace(topology, scope=scope)),
            "each container is aligned by itself, not the pod as a whole",
        )
    for option, key, loss in _OPTIONS:
        if getattr(cpu.options, option):
            yield PolicyChange(
                f'cpuManagerPolicyOptions["{key}"]',
                "false",
                replace(policy, cpu=replace(cpu, options=replace(cpu.options, **{option: False}))),
                loss,
            )
    if cpu.idle_siblings is IsolationMode.ALWAYS:
        for mode in (IsolationMode.ASKED, IsolationMode.NEVER):
            yield PolicyChange(
                "agent.isolation.smt",
                str(mode),
                replace(policy, cpu=replace(cpu, idle_siblings=mode)),
                _SIBLINGS,
            )
    if policy.memory.policy is MemoryManagerPolicy.STATIC:
        yield PolicyChange(
            "memoryManagerPolicy",
            str(MemoryManagerPolicy.NONE),
            replace(
                policy,
                memory=replace(
                    policy.memory, policy=MemoryManagerPolicy.NONE, reserved=MappingProxyType({})
                ),
            ),
            "memory is not pinned to NUMA nodes",
        )


#: What a pod loses whose siblings are not kept idle.
_SIBLINGS: Final = "the siblings of its CPUs do not stay idle"
_OPTIONS: Final = (
    ("full_pcpus_only", "full-pcpus-only", "containers may share a physical core"),
    (
        "distribute_cpus_across_numa",
        "distribute-cpus-across-numa",
        "CPUs fill one node after another",
    ),
    ("align_by_socket", "align-by-socket", "nodes may be of several sockets"),
)


def _policies(rules: EffectivePolicy, ledger: Ledger, pod: Pod) -> Iterator[Advice | None]:
    found: set[str] = set()
    for change in weaker_policies(rules.policy):
        if change.key in found:
            continue
        weaker = replace(rules, policy=change.policy)
        allocation = decided(weaker, restored(weaker, ledger), pod).allocation
        if allocation is None:
            yield None
            continue
        found.add(change.key)
        loss = change.loss or _places(rules, allocation)
        if change.value == TopologyManagerPolicy.NONE:
            loss = f"{loss}, by chance: nothing is aligned"
        yield Advice(
            AdviceKind.POLICY,
            f"{change.key}: {change.value} ({loss})",
            key=change.key,
            value=change.value,
            loss=loss,
        )


def _places(rules: EffectivePolicy, allocation: PodAllocation) -> str:
    """Return on which nodes the CPUs and the memory of a pod would be."""
    cpus = rules.machine.cpus.nodes_of(allocation.exclusive_cpus)
    memory = EMPTY
    for block in (*allocation.memory, *(b for c in allocation.containers for b in c.memory)):
        memory |= block.nodes
    places = [
        f"{what} on {nodes_text(nodes)}"
        for what, nodes in (("CPUs", cpus), ("memory", memory))
        if nodes
    ]
    said = ", ".join(places) or "nothing exclusive"
    if len(cpus | memory) == 1:
        return said
    return f"{said}: {'spread' if cpus == memory else 'not aligned'}"


class _Request(Struct, frozen=True):
    """One amount that could be another: of a container, or of the pod-level resources (None)."""

    container: str | None
    resource: str
    #: The amount asked for, and of what it could be a multiple, in the resource's unit.
    asked: int
    step: int


def with_amount(pod: Pod, container: str | None, resource: str, amount: int) -> Pod:
    """Return the pod with another amount of one resource, requested and limited alike.

    `amount` is in millicores for `cpu`, else in whole units. A request that is smaller stays where
    the amount is below the limit.
    """
    if container is None:
        if pod.resources is None:
            return pod
        return replace(pod, resources=_with_amount(pod.resources, resource, amount))

    def changed(each: Container) -> Container:
        if each.name != container:
            return each
        return replace(each, resources=_with_amount(each.resources, resource, amount))

    return replace(
        pod,
        containers=tuple(map(changed, pod.containers)),
        init_containers=tuple(map(changed, pod.init_containers)),
    )


def _with_amount(resources: Resources, resource: str, amount: int) -> Resources:
    new = quantity_of(resource, amount)
    limit = resources.limits.get(resource)
    larger = limit is not None and limit < new

    def changed(amounts: Mapping[str, Quantity]) -> Mapping[str, Quantity]:
        known = amounts.get(resource)
        if known is None or (known <= new and not larger):
            return amounts
        return MappingProxyType({**amounts, resource: new})

    return Resources(changed(resources.requests), changed(resources.limits))


def quantity_of(resource: str, amount: int) -> Quantity:
    """Return an amount of a resource, in millicores for `cpu`, else in whole units."""
    if resource == CPU:
        return Quantity.parse(f"{amount}m")
    return Quantity.of_bytes(amount) if is_memory_type(resource) else Quantity.of(amount)


def _requests(rules: EffectivePolicy, ledger: Ledger, pod: Pod) -> Iterator[Advice | None]:
    for request in islice(_shrinkable(rules, pod), _MOST_REQUESTS):
        yield from _shrunk(rules, ledger, pod, request)
        is_odd = request.resource == CPU and request.asked % request.step
        if is_odd and not _requires_own_cpus(pod):
            yield _rounded_up(rules, ledger, pod, request)


def _shrinkable(rules: EffectivePolicy, pod: Pod) -> Iterator[_Request]:
    """Yield what could be smaller: of each resource the largest amount, CPUs first."""
    largest: dict[str, _Request] = {}
    of_pod = [] if pod.resources is None else [(None, pod.resources)]
    for name, resources in (
        *of_pod,
        *((each.name, each.resources) for each in pod.all_containers()),
    ):
        for resource, limit in {**resources.requests, **resources.limits}.items():
            asked = limit.milli_value if resource == CPU else limit.value
            known = largest.get(resource)
            if known is None or (known.container is not None and asked > known.asked):
                step = _step(rules, pod, resource, asked)
                largest[resource] = _Request(name, resource, asked, step)
    for resource in sorted(largest, key=native_first):
        yield largest[resource]


def _step(rules: EffectivePolicy, pod: Pod, resource: str, asked: int) -> int:
    if resource == CPU:
        whole_cores = Quality.WHOLE_CORES in required(pod.annotations)
        whole = whole_cores or rules.policy.cpu.options.full_pcpus_only
        threads = max((len(Mask(core.cpus)) for core in rules.machine.cpus.cores), default=1)
        return 1000 * threads if whole else 1000
    if resource == MEMORY and asked >= _LARGE:
        return _GIB
    if is_memory_type(resource):
        return page_size(rules.machine, resource) or asked
    return 1


def _shrunk(
    rules: EffectivePolicy, ledger: Ledger, pod: Pod, request: _Request
) -> Iterator[Advice | None]:
    """Look for the largest smaller amount that is admitted, by halves: each one is tried."""
    eligible = _eligible(rules, pod)
    best, low, high = 0, 1, (request.asked - 1) // request.step
    while low <= high:
        # The smallest first: where not even that helps, nothing smaller does.
        middle = low if not best else (low + high + 1) // 2
        amount = middle * request.step
        smaller = with_amount(pod, request.container, request.resource, amount)
        if _is_admitted(rules, ledger, smaller, eligible):
            best, low = middle, middle + 1
        elif not best:
            break
        else:
            high = middle - 1
        yield None
    if best:
        yield _request(request.container, request.resource, request.asked, best * request.step)


def _rounded_up(
    rules: EffectivePolicy, ledger: Ledger, pod: Pod, request: _Request
) -> Advice | None:
    """Return the advice to request whole cores (or whole CPUs), None if that does not help."""
    amount = -(-request.asked // request.step) * request.step
    larger = with_amount(pod, request.container, request.resource, amount)
    admitted = _is_admitted(rules, ledger, larger, _eligible(rules, pod))
    return (
        _request(request.container, request.resource, request.asked, amount) if admitted else None
    )


def _is_admitted(
    rules: EffectivePolicy, ledger: Ledger, pod: Pod, eligible: tuple[frozenset[str], ...]
) -> bool:
    if find_problems(pod) or _eligible(rules, pod) != eligible:
        return False
    return decided(rules, ledger, pod).admitted


def _eligible(rules: EffectivePolicy, pod: Pod) -> tuple[frozenset[str], ...]:
    """Return by container what it may have exclusively."""
    return tuple(frozenset(each.exclusive) for each in rules.demand(pod).eligibility())


def _ends(rules: EffectivePolicy, ledger: Ledger, pod: Pod) -> Iterator[Advice | None]:
    """Try the end of single pods, the latest first; where none helps, of several together."""
    latest = list(ledger.allocations)[: -_MOST_ENDS // 2 - 1 : -1]
    helped = False
    for uid in latest:
        if decided(rules, remove(rules, ledger, uid), pod).admitted:
            helped = True
            yield _end(ledger, (uid,))
        else:
            yield None
    if not helped:
        yield from _several(rules, ledger, pod, latest)


def _several(
    rules: EffectivePolicy, ledger: Ledger, pod: Pod, latest: Iterable[str]
) -> Iterator[Advice | None]:
    """End one pod after the other until the pod is admitted, then keep those that need not end."""
    gone: list[str] = []
    admitted = False
    for uid in latest:
        gone.append(uid)
        admitted = len(gone) > 1 and decided(rules, _without(rules, ledger, gone), pod).admitted
        if admitted:
            break
        yield None
    if not admitted:
        return
    for uid in tuple(gone[:-1]):
        fewer = [each for each in gone if each != uid]
        if decided(rules, _without(rules, ledger, fewer), pod).admitted:
            gone = fewer
        yield None
    yield _end(ledger, tuple(gone))


def _without(rules: EffectivePolicy, ledger: Ledger, uids: Iterable[str]) -> Ledger:
    for uid in uids:
        ledger = remove(rules, ledger, uid)
    return ledger


def _end(ledger: Ledger, uids: tuple[str, ...]) -> Advice:
    names = ", ".join(full_name(ledger.allocations[uid]) for uid in uids)
    pods = "pod" if len(uids) == 1 else "pods"
    return Advice(AdviceKind.END, f"end {pods} {names}", uids=uids)
