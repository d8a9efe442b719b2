"""Pools of shared CPUs (`agent.pools`): which pod is in which, and on which CPUs it runs.

A pool is a part of the node's shared pool: containers of a pod in it that have no CPUs of their own
run on the CPUs that are in both. A pool restricts its pods and reserves nothing. In go the policy,
allocations and the node's shared pool; out come a pod's pool, and why a change would leave a pool
without CPUs. Nothing of this is stored: it follows from the pod's annotation, namespace and QoS
class, so pools shrink and grow with the shared pool.

Always true: such a container has no CPU outside of its pool while the shared pool has one inside.
"""

from __future__ import annotations

from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.managers.decision import Reason, Rejection
from agent.managers.policy import PoolMemory
from agent.managers.violations import ADMIT_AGAIN, Rule, Violation
from agent.pods.model import CPU, POOL, full_name
from agent.text import some_of
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.managers.allocation import PodAllocation
    from agent.managers.demand import PodDemand
    from agent.managers.host import HostPolicy
    from agent.managers.policy import Policy, Pool
    from agent.pods.model import Pod, QosClass


#: The most pools that a message names.
_NAMED: Final = 8
_NONE: Final[Mapping[str, PodPool]] = MappingProxyType({})


class PodPool(Struct, frozen=True):
    """What containers without CPUs of their own may use in a pool."""

    name: str
    #: Never empty.
    cpus: Mask
    #: Memory nodes, empty for any.
    mems: Mask = EMPTY


def pool_of(policy: Policy, pod: PodAllocation) -> Pool | None:
    """Return the pool of a pod, None for the whole shared pool of the node.

    1. Only a pod with a container without CPUs of its own is in a pool.
    2. The pool that its annotation names; none if there is no such pool.
    3. The pool of its namespace.
    4. The pool of its QoS class.
    """
    if not policy.pools or all(each.cpus is not None for each in pod.containers):
        return None
    return _chosen(policy, pod, pod.qos)


def _chosen(policy: Policy, pod: PodAllocation | Pod, qos: QosClass) -> Pool | None:
    name = pod.annotations.get(POOL)
    if name is not None:
        return next((pool for pool in policy.pools if pool.name == name), None)
    of_namespace = (pool for pool in policy.pools if pod.namespace in pool.namespaces)
    of_class = (pool for pool in policy.pools if qos in pool.qos_classes)
    return next(chain(of_namespace, of_class), None)


def pod_pools(
    rules: HostPolicy, allocations: Iterable[PodAllocation], shared: Mask
) -> Mapping[str, PodPool]:
    """Return the pools of pods, by uid; `shared` are the CPUs of the node's shared pool.

    Pods of a pool without CPUs in `shared` are left out: they run on all of `shared`.
    """
    if not rules.policy.pools:
        return _NONE
    of_pool = {pool.name: _narrowed(rules, pool, shared) for pool in rules.policy.pools}
    found = {pod.uid: pool_of(rules.policy, pod) for pod in allocations}
    return {uid: of_pool[pool.name] for uid, pool in found.items() if pool and pool.cpus & shared}


def _narrowed(rules: HostPolicy, pool: Pool, shared: Mask) -> PodPool:
    bound = pool.memory is PoolMemory.BOUND
    return PodPool(pool.name, pool.cpus & shared, memory_nodes(rules, pool) if bound else EMPTY)


def memory_nodes(rules: HostPolicy, pool: Pool) -> Mask:
    """Return the nodes with memory among those of the CPUs of a pool."""
    # Not of the CPUs that are left: memory would move with each exclusive pod.
    nodes = rules.machine.cpus.nodes_of(pool.cpus & rules.machine.cpus.all)
    return nodes & Mask.from_ids(node.id for node in rules.machine.nodes if node.memory_bytes != 0)


def shared_cpus_of(rules: HostPolicy, pod: PodAllocation, shared: Mask) -> Mask:
    """Return the CPUs of a pod's containers that share them; `shared` as in `pod_pools`."""
    pool = pool_of(rules.policy, pod)
    return shared if pool is None else (pool.cpus & shared) or shared


def pool_rejection(rules: HostPolicy, pod: PodAllocation, left: Mask) -> Rejection | None:
    """Return why a new pod cannot be in its pool, None if it can or is in none.

    `left` are the CPUs that the pod leaves of the node's shared pool.
    """
    pool = pool_of(rules.policy, pod)
    if fault := _unknown_pool(rules.policy, pod):
        return Rejection(Reason.UNEXPECTED, fault, resource=CPU)
    if pool is None or pool.cpus & left:
        return None
    return Rejection(Reason.UNEXPECTED, f"the pool {_without_cpus(pool)}", resource=CPU)


def _without_cpus(pool: Pool) -> str:
    every = f"all of {pool.cpus} are exclusive, cordoned, kept for the system or offline"
    return f"{pool.name} has no CPU left: {every if pool.cpus else 'all of its CPUs are offline'}"


def _unknown_pool(policy: Policy, pod: PodAllocation) -> str:
    """Return what is wrong with an annotation that names no known pool, "" for nothing."""
    name, own = pod.annotations.get(POOL), all(each.cpus is not None for each in pod.containers)
    if name is None or own or any(pool.name == name for pool in policy.pools):
        return ""
    known = some_of([pool.name for pool in policy.pools], _NAMED) or "none"
    return f"{POOL} names the pool {name}, which agent.pools does not have; it has {known}"


def emptied(policy: Policy, pods: Iterable[PodAllocation], taken: Mask, left: Mask) -> str:
    """Return the pool with pods in it that a change would leave without CPUs, "" for none.

    `taken` are the CPUs that the change takes from the node's shared pool, `left` is the rest.
    """
    empty = [pool for pool in policy.pools if pool.cpus & taken and not pool.cpus & left]
    for pod in pods if empty else ():
        pool = pool_of(policy, pod)
        if pool in empty:
            return f"the pool {pool.name} ({pool.cpus}), in which pod {full_name(pod)} runs"
    return ""


def last_of_pools(
    policy: Policy, pods: Iterable[PodAllocation], demand: PodDemand, left: Mask, given: Mask
) -> Mask:
    """Return CPUs of which each pool has one that exclusive pods might leave without any.

    Only of pools with pods in them, that of `demand` among these. `left` are the CPUs of the node's
    shared pool, `given` those that exclusive pods may have. A CPU of two such pools is enough for
    both.
    """
    found = [pool_of(policy, pod) for pod in pods]
    if not demand.request.from_budget and any(not each.cpus for each in demand.containers):
        found.append(_chosen(policy, demand.pod, demand.request.qos))
    rests = {pool.cpus & left for pool in found if pool is not None}
    waiting = sorted(
        (rest for rest in rests if rest and rest <= given), key=lambda rest: (len(rest), rest.bits)
    )
    spared = EMPTY
    while waiting:
        cpu = max(waiting[0], key=lambda each: (sum(each in rest for rest in waiting), each))
        spared |= Mask.of(cpu)
        waiting = [rest for rest in waiting if cpu not in rest]
    return spared


def pool_violations(rules: HostPolicy, pod: PodAllocation, shared: Mask) -> Iterator[Violation]:
    """Yield why a pod runs outside of its pool."""
    everywhere = "so it runs in the whole shared pool of the node"
    if fault := _unknown_pool(rules.policy, pod):
        yield Violation.of(pod, Rule.POOLS, f"{fault}, {everywhere}")
    pool = pool_of(rules.policy, pod)
    if pool is not None and not pool.cpus & shared:
        message = f"its pool {_without_cpus(pool)}, {everywhere}"
        remedy = f"free or set online some of {pool.cpus or 'its CPUs'}, or {ADMIT_AGAIN}"
        yield Violation.of(pod, Rule.POOLS, message, remedy)
