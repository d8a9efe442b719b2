"""Trials: which change would let a rejected pod be admitted.

In go the rules, the ledger and the pod. Out comes advice, and each advice was tried: the change was
put to the decision function, and the pod was admitted. A change that is not advised may help as
well, since only these are tried, in this order:

1. The cordon ends.
2. The pod-level budget is larger: where containers that share it would have nothing.
3. Limits equal requests: where the pod requires CPUs of its own.
4. A container requests whole CPUs, or whole cores: where the pod requires that.
5. An annotation is left out that asks for idle siblings, for a class of memory, or for a pool; or
   one is added with which memory may be on as many nodes as the CPUs need.
6. One key of the policy demands less.
7. One request is smaller, or is rounded up to whole cores. The same containers as before must be
   eligible for exclusive resources: less isolation is not what was asked for.
8. Other pods end: one, or several together where no single one helps.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain, islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from agent.managers.admission import admit, remove
from agent.managers.advice import Advice, AdviceKind
from agent.managers.amounts import nodes_text, size_text
from agent.managers.decision import Reason
from agent.managers.memory.reservation import node_capacity, spread
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
from agent.pods.changes import (
    quantity_of,
    with_amount,
    with_annotation,
    with_limits_as_requests,
    without_annotation,
)
from agent.pods.model import (
    CPU,
    INTERLEAVE,
    MEMORY,
    MEMORY_CLASSES,
    NUMA_POLICY,
    POOL,
    ROUND_UP,
    SMT,
    Quality,
    Resources,
    full_name,
    isolation_annotation,
    required,
)
from agent.pods.requests import is_memory_type
from agent.pods.validation import find_problems
from agent.text import some_of
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agent.managers.allocation import PodAllocation
    from agent.managers.decision import Decision
    from agent.managers.ledger import Ledger
    from agent.managers.policy import Policy
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Pod


#: The most trials for one rejection. A rejection took 20 to 50: 3 to 5 ms on 2 nodes, 18 on 8.
MOST_TRIALS: Final = 100
#: The most trials in which other pods end: one half with one pod each, one half with several.
_MOST_ENDS: Final = 40
#: The most requests that are made smaller, the largest of each resource first.
_MOST_REQUESTS: Final = 6
_GIB: Final = 1 << 30
#: The least memory by which a budget grows, in bytes.
_LEAST_MEMORY: Final = 64 << 20
#: The most nodes that an advice names.
_NAMED: Final = 4
#: From this size on, memory changes by whole GiB.
_LARGE: Final = 4 * _GIB


class PolicyChange(Struct, frozen=True):
    """A policy that demands less, by one key of the configuration."""

    key: str
    value: str
    policy: Policy
    #: What the pod loses; None: the advice names the nodes where its resources would be.
    loss: str | None = None


def advise(
    rules: EffectivePolicy, ledger: Ledger, pod: Pod, most: int = MOST_TRIALS
) -> Iterator[Advice | None]:
    """Yield the advice of each trial after which the pod was admitted, None for the other trials.

    Pure; the caller may stop at any time, or do something else between two trials. A pod that would
    be admitted as it is, since what it lacked is free by now, needs no change.
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
    return islice(chain.from_iterable(trials), most)


def decided(rules: EffectivePolicy, ledger: Ledger, pod: Pod) -> Decision:
    """Return the decision as if device plugins preferred nothing; a preference rejects no pod."""
    decision = admit(rules, ledger, pod)
    while decision.suspended is not None:
        decision = decision.suspended.resume(dict.fromkeys(decision.suspended.questions, ()))
    return decision


def _tried(rules: EffectivePolicy, ledger: Ledger, pod: Pod, advice: Advice) -> Advice | None:
    return advice if not find_problems(pod) and decided(rules, ledger, pod).admitted else None


def _uncordon(rules: EffectivePolicy, ledger: Ledger, pod: Pod) -> Iterator[Advice | None]:
    cordon = rules.policy.cordon
    if cordon:
        advice = Advice(AdviceKind.UNCORDON, f"uncordon {cordon}", value=str(cordon))
        yield _tried(with_cordon(rules, NO_CORDON), ledger, pod, advice)


def with_larger_budget(rules: EffectivePolicy, ledger: Ledger, pod: Pod) -> tuple[Pod, list[str]]:
    """Return the pod with a larger budget, and the resources of which the budget has more.

    They are the resources of which the containers that share the budget would have nothing
    (KEP-5526). The budget grows by one step of a resource at a time.
    """
    lacking: list[str] = []
    while pod.resources is not None and len(lacking) < _MOST_REQUESTS:
        draft = rules.draft(ledger, rules.demand(pod))
        empty = empty_pool_rejection(draft, Reason.EMPTY_POD_SHARED_POOL)
        if empty is None or empty.resource is None:
            break
        lacking.append(empty.resource)
        amount = budget_of(rules, pod, empty.resource)
        least = _LEAST_MEMORY if empty.resource == MEMORY else 0
        amount += max(_step(rules, pod, empty.resource, amount), least)
        larger = {empty.resource: quantity_of(empty.resource, amount)}
        resources = Resources(
            MappingProxyType({**pod.resources.requests, **larger}),
            MappingProxyType({**pod.resources.limits, **larger}),
        )
        pod = replace(pod, resources=resources)
    return pod, list(dict.fromkeys(lacking))


def budget_of(rules: EffectivePolicy, pod: Pod, resource: str) -> int:
    """Return how much of a resource the pod's budget has, CPUs in millicores."""
    demand = rules.demand(pod)
    return 1000 * demand.cpus if resource == CPU else demand.memory.get(resource, 0)


def _larger_budget(rules: EffectivePolicy, ledger: Ledger, pod: Pod) -> Iterator[Advice | None]:
    topology = rules.policy.topology
    if not topology.is_pod_scope or topology.policy is TopologyManagerPolicy.NONE:
        return
    larger, lacking = with_larger_budget(rules, ledger, pod)
    if not lacking:
        return
    changes = [
        f"{node_amount_text(name, budget_of(rules, larger, name))} of {name} instead of "
        f"{node_amount_text(name, budget_of(rules, pod, name))}"
        for name in lacking
    ]
    advice = Advice(
        AdviceKind.BUDGET,
        f"request {' and '.join(changes)} in the pod's budget, for the containers that share it",
        resource=lacking[0],
        amount=budget_of(rules, larger, lacking[0]),
    )
    yield _tried(rules, ledger, larger, advice)


def _guaranteed(rules: EffectivePolicy, ledger: Ledger, pod: Pod) -> Iterator[Advice | None]:
    if Quality.EXCLUSIVE not in required(pod.annotations) or pod.resources is not None:
        return
    even = with_limits_as_requests(pod)
    if even != pod:
        text = "limit cpu and memory of each container to what it requests (QoS class Guaranteed)"
        yield _tried(rules, ledger, even, Advice(AdviceKind.GUARANTEED, text))


def _whole(rules: EffectivePolicy, ledger: Ledger, pod: Pod) -> Iterator[Advice | None]:
    """Round the CPUs of one container up, to whole CPUs or to whole cores as the pod requires."""
    if not _requires_own_cpus(pod) or pod.resources is not None:
        return
    for container in pod.all_containers():
        limit = container.resources.limits.get(CPU)
        if limit is None:
            continue
        before = limit.milli_value
        step = _step(rules, pod, CPU, before)
        amount = -(-before // step) * step
        if amount == before:
            continue
        larger = with_amount(pod, container.name, CPU, amount)
        yield _tried(rules, ledger, larger, _other_request(container.name, CPU, before, amount))


def _requires_own_cpus(pod: Pod) -> bool:
    return not required(pod.annotations).isdisjoint((Quality.EXCLUSIVE, Quality.WHOLE_CORES))


def _other_request(container: str | None, resource: str, before: int, amount: int) -> Advice:
    old, new = node_amount_text(resource, before), node_amount_text(resource, amount)
    where = "" if container is None else f" in container {container}"
    return Advice(
        AdviceKind.REQUEST,
        f"request {new} of {resource}{where} instead of {old}",
        container=container,
        resource=resource,
        amount=amount,
    )


def _annotation(rules: EffectivePolicy, ledger: Ledger, pod: Pod) -> Iterator[Advice | None]:
    policy = rules.policy
    of_memory, asked = isolation_annotation(MEMORY_CLASSES), IsolationMode.ASKED
    for name, counts, loss in (
        (isolation_annotation(SMT), policy.cpu.idle_siblings == asked, _SIBLINGS),
        (of_memory, policy.memory.usual_classes == asked, "its memory may be of any class"),
        (POOL, True, "it runs in another pool, or in all of the shared one"),
        (ROUND_UP, True, "it gets the CPUs that it asks for, which may not be whole cores"),
    ):
        if not counts or name not in pod.annotations:
            continue
        text = f"leave out the annotation {name} ({loss})"
        advice = Advice(AdviceKind.ANNOTATION, text, key=name, loss=loss)
        yield _tried(rules, ledger, without_annotation(pod, name), advice)
    # Others take several nodes anyway, or never.
    restricted = policy.topology.policy is TopologyManagerPolicy.RESTRICTED
    if restricted and rules.static_memory and NUMA_POLICY not in pod.annotations:
        loss = "its memory is on as many NUMA nodes as its CPUs need"
        text = f"add the annotation {NUMA_POLICY}: {INTERLEAVE} ({loss})"
        advice = Advice(AdviceKind.ANNOTATION, text, key=NUMA_POLICY, value=INTERLEAVE, loss=loss)
        yield _tried(rules, ledger, with_annotation(pod, NUMA_POLICY, INTERLEAVE), advice)


def weaker_policies(rules: EffectivePolicy) -> Iterator[PolicyChange]:
    """Yield policies that demand less, each changed by one key; of one key the mildest first."""
    policy = rules.policy
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
        yield from _derived_reservation(rules)
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


def _derived_reservation(rules: EffectivePolicy) -> Iterator[PolicyChange]:
    """Yield the policy with the reservation as it is divided where `reservedMemory` is empty.

    Only where what is reserved now leaves pods nothing of a memory type on a node with CPUs.
    """
    machine, policy = rules.machine, rules.policy
    reserved = policy.memory.reserved
    totals = Counter[str]()
    for types in reserved.values():
        totals.update(types)
    derived = spread(machine, totals)
    freed = []
    for node in machine.nodes:
        kept = reserved.get(node.id, {}) if node.id in machine.cpus.cpus_of_node else {}
        for name, size in kept.items():
            capacity = node_capacity(node, name)
            left = capacity - derived.get(node.id, {}).get(name, 0)
            if size >= capacity and left > 0:
                freed.append(f"{size_text(left)} of {name} on node {node.id}")
    if freed:
        yield PolicyChange(
            "reservedMemory",
            "[]",
            replace(policy, memory=replace(policy.memory, reserved=derived)),
            f"the agent divides the reservation, and leaves pods {some_of(freed, _NAMED)}",
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
    helpful: set[str] = set()
    for change in weaker_policies(rules):
        if change.key in helpful:  # a milder value of this key is enough
            continue
        weaker = replace(rules, policy=change.policy)
        allocation = decided(weaker, restored(weaker, ledger), pod).allocation
        if allocation is None:
            yield None
            continue
        helpful.add(change.key)
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
        f"{resource} on {nodes_text(nodes)}"
        for resource, nodes in (("CPUs", cpus), ("memory", memory))
        if nodes
    ]
    text = ", ".join(places) or "nothing exclusive"
    if len(cpus | memory) == 1:
        return text
    return f"{text}: {'spread' if cpus == memory else 'not aligned'}"


class _Request(Struct, frozen=True):
    """One request that could have another amount."""

    #: None: of the pod-level resources.
    container: str | None
    resource: str
    #: In millicores for `cpu`, else in whole units; so is `step`.
    amount: int
    #: Other amounts are multiples of this.
    step: int


def _requests(rules: EffectivePolicy, ledger: Ledger, pod: Pod) -> Iterator[Advice | None]:
    for request in islice(_shrinkable(rules, pod), _MOST_REQUESTS):
        yield from _shrunk(rules, ledger, pod, request)
        is_partial = request.resource == CPU and request.amount % request.step
        if is_partial and not _requires_own_cpus(pod):  # else `_whole` has tried that
            yield _rounded_up(rules, ledger, pod, request)


def _shrinkable(rules: EffectivePolicy, pod: Pod) -> Iterator[_Request]:
    """Yield the requests that could be smaller: of each resource the largest, CPUs first."""
    largest: dict[str, _Request] = {}
    of_pod = [] if pod.resources is None else [(None, pod.resources)]
    for name, resources in (
        *of_pod,
        *((container.name, container.resources) for container in pod.all_containers()),
    ):
        for resource, limit in {**resources.requests, **resources.limits}.items():
            amount = limit.milli_value if resource == CPU else limit.value
            other = largest.get(resource)
            if other is None or (other.container is not None and amount > other.amount):
                step = _step(rules, pod, resource, amount)
                largest[resource] = _Request(name, resource, amount, step)
    for resource in sorted(largest, key=native_first):
        yield largest[resource]


def _step(rules: EffectivePolicy, pod: Pod, resource: str, amount: int) -> int:
    """Return the unit in which a request changes: a core or CPU, a GiB or page, or one."""
    if resource == CPU:
        return cpu_step(rules, pod)
    if resource == MEMORY and amount >= _LARGE:
        return _GIB
    if is_memory_type(resource):
        return page_size(rules.machine, resource) or amount
    return 1


def cpu_step(rules: EffectivePolicy, pod: Pod) -> int:
    """Return the millicores by which CPUs change: those of a CPU, or of a core that is whole."""
    whole_cores = Quality.WHOLE_CORES in required(pod.annotations)
    whole = whole_cores or rules.policy.cpu.options.full_pcpus_only
    threads = max((len(Mask(core.cpus)) for core in rules.machine.cpus.cores), default=1)
    return 1000 * threads if whole else 1000


def _shrunk(
    rules: EffectivePolicy, ledger: Ledger, pod: Pod, request: _Request
) -> Iterator[Advice | None]:
    """Look for the largest smaller amount that is admitted, by halving."""
    eligible = _eligible(rules, pod)
    best, low, high = 0, 1, (request.amount - 1) // request.step
    while low <= high:
        # The smallest amount first: if that is rejected, larger ones are not tried.
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
        amount = best * request.step
        yield _other_request(request.container, request.resource, request.amount, amount)


def _rounded_up(
    rules: EffectivePolicy, ledger: Ledger, pod: Pod, request: _Request
) -> Advice | None:
    """Return the advice to request whole cores (or whole CPUs), None if that does not help."""
    amount = -(-request.amount // request.step) * request.step
    larger = with_amount(pod, request.container, request.resource, amount)
    if not _is_admitted(rules, ledger, larger, _eligible(rules, pod)):
        return None
    return _other_request(request.container, request.resource, request.amount, amount)


def _is_admitted(
    rules: EffectivePolicy, ledger: Ledger, pod: Pod, eligible: tuple[frozenset[str], ...]
) -> bool:
    if find_problems(pod) or _eligible(rules, pod) != eligible:
        return False
    return decided(rules, ledger, pod).admitted


def _eligible(rules: EffectivePolicy, pod: Pod) -> tuple[frozenset[str], ...]:
    """Return for each container of which managers it may have exclusive resources."""
    return tuple(frozenset(item.exclusive) for item in rules.demand(pod).eligibility())


def _ends(rules: EffectivePolicy, ledger: Ledger, pod: Pod) -> Iterator[Advice | None]:
    """Let single pods end, the latest first; where none of these helps, several together."""
    latest = list(ledger.allocations)[: -_MOST_ENDS // 2 - 1 : -1]
    helped = False
    for uid in latest:
        advice = _tried(rules, remove(rules, ledger, uid), pod, _end(ledger, (uid,)))
        helped |= advice is not None
        yield advice
    if not helped:
        yield from _several(rules, ledger, pod, latest)


def _several(
    rules: EffectivePolicy, ledger: Ledger, pod: Pod, latest: Iterable[str]
) -> Iterator[Advice | None]:
    """Let one pod more end at a time until the pod is admitted, then keep each that may stay."""
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
        fewer = [other for other in gone if other != uid]
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
