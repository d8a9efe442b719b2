"""Violations: existing allocations that the current policy would not make, and why.

Allocations are kept whatever changes (design, decision 4): the policy, an option, a reservation,
the CPUs, memory, nodes and devices of the host. Each resource manager says which of its resources
violate the current policy; what concerns the alignment of all resources is here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.managers.allocations.origin import Origin
from agent.managers.assessment.violation import ADMIT_AGAIN, Rule, Violation
from agent.managers.policy import TopologyManagerPolicy, TopologyManagerScope
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.managers.allocations.allocation import PodAllocation
    from agent.managers.allocations.ledger import Ledger
    from agent.managers.effective_policy import EffectivePolicy


def invalid_allocations(
    rules: EffectivePolicy, ledger: Ledger, offline: Mask = EMPTY
) -> tuple[Violation, ...]:
    """Return all violations of the current policy, in the order of admission.

    `offline` are CPUs that exist but are offline. A pod just admitted under the same policy has no
    violations, except for shared cores on hosts whose cores differ in size, where whole cores are
    not guaranteed.
    """
    checks = [manager.violations(rules, ledger, offline) for manager in rules.managers]
    found: list[Violation] = []
    for allocation in ledger.allocations.values():
        for check in checks:
            found += check(allocation)
        found += _of_alignment(rules, allocation)
    return tuple(found)


def _of_alignment(rules: EffectivePolicy, allocation: PodAllocation) -> Iterator[Violation]:
    topology = rules.policy.topology
    if (
        allocation.has_budget
        and allocation.origin is not Origin.RECOVERED
        and not (rules.policy.pod_level_managers and topology.is_pod_scope)
    ):
        message = "has a pod-level budget, which these gates and this scope do not allocate"
        remedy = f"set PodLevelResourceManagers and the pod scope again, or {ADMIT_AGAIN}"
        yield Violation.of(allocation, Rule.POD_BUDGET, message, remedy)
    if topology.policy is TopologyManagerPolicy.SINGLE_NUMA_NODE:
        yield from _several_nodes(rules, allocation)
    if topology.policy is TopologyManagerPolicy.RESTRICTED:
        yield from _not_preferred(allocation)


def _several_nodes(rules: EffectivePolicy, allocation: PodAllocation) -> Iterator[Violation]:
    of_pod = rules.policy.topology.scope is not TopologyManagerScope.CONTAINER
    for container in (None,) if of_pod else allocation.containers:
        nodes = EMPTY
        for manager in rules.managers:
            nodes |= manager.nodes(rules, allocation, container)
        if len(nodes) > 1:
            message = f"is spread over nodes {nodes}, single-numa-node allows one"
            name = None if container is None else container.name
            yield Violation.of(allocation, Rule.TOPOLOGY_POLICY, message, container=name)


def _not_preferred(allocation: PodAllocation) -> Iterator[Violation]:
    """Yield containers whose recorded alignment was not preferred (policy restricted).

    Allocations made under policy none have no recorded alignment, so they are not checked.
    """
    for container in allocation.containers:
        if container.hint.nodes is not None and not container.hint.preferred:
            nodes = Mask(container.hint.nodes)
            message = f"is on nodes {nodes}, not a preferred alignment, which restricted rejects"
            name = container.name
            yield Violation.of(allocation, Rule.TOPOLOGY_POLICY, message, container=name)
