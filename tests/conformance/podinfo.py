"""What a recorded pod amounts to (QoS class, defaults, requests, totals) against our own answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from agent.managers.cpu.pod_level import empty_pool_problem
from agent.managers.demand import PodDemand
from agent.managers.memory.pod_level import empty_memory_pool
from agent.managers.policy import Policy
from agent.managers.registry import MANAGERS
from agent.pods.manifest import apply_defaults, read_pod
from agent.pods.requests import (
    exclusive_cpu_requests,
    has_pod_level_resources,
    is_container_guaranteed,
    memory_requests,
    pod_exclusive_cpu_requests,
    pod_limits,
    pod_memory_requests,
    pod_requests,
    qos_class,
)
from agent.pods.validation import find_problems
from agent.yaml import from_plain
from tests.conformance.effective import asks_in_init_only, effective_memory, with_defaults
from tests.conformance.outcome import Outcome
from tests.conformance.recorded import RECORDED, gates_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.pods.model import Pod, Resources
    from agent.pods.quantity import Quantity
    from tests.conformance.outcome import Case

#: The kubelet reads a negative amount of memory, which the API server rejects, as unsigned.
_UNSIGNED: Final = 2**64


def run_case(case: Case) -> Outcome:
    """Compare one recorded pod."""
    gates = gates_of(case["gates"])
    pod = read_pod(from_plain(case["pod"]), case["name"])
    if case["apply_defaults"]:
        pod = apply_defaults(pod, pod_level_resources=gates.pod_level_resources)
    policy = Policy(gates=gates, version=RECORDED)
    found = _answer(pod, policy)
    if case["apply_defaults"]:
        found["defaulted"] = _defaulted(pod)
    expected = {key: case["expected"].get(key) for key in found}
    rules = _with_init_memory(case, pod, expected)
    differences = [
        f"{key}: expected {expected[key]}, found {found[key]}"
        for key in found
        if expected[key] != found[key]
    ]
    if not rules:  # the recording asked for pools of pods that have none, by their own totals
        differences += _pool_differences(case["expected"], pod, policy)
    if rules and not differences:
        return Outcome.right_instead(*rules)
    return Outcome.of(differences)


def _with_init_memory(case: Case, pod: Pod, expected: dict[str, Any]) -> list[str]:
    """Put the right totals in place where the kubelet leaves out what only init containers ask for.

    They are worked out moment by moment; of types that the kubelet counts it has to agree.
    """
    document = with_defaults(case["pod"]) if case["apply_defaults"] else case["pod"]
    budget = (
        has_pod_level_resources(pod) and Policy(gates=gates_of(case["gates"])).pod_level_managers
    )
    extra = set() if budget else asks_in_init_only(document)
    if not extra:
        return []
    right = effective_memory(document)
    expected["pod_memory"] = {**expected["pod_memory"], **{name: right[name] for name in extra}}
    return ["memory of init containers"]


def _pool_differences(expected: Mapping[str, Any], pod: Pod, policy: Policy) -> list[str]:
    """Compare who is rejected for an empty pool; the words, and which of two types, are ours.

    The recording asked of every pod. Pods that never come that far, because the API server rejects
    them or no budget is divided, are left out.
    """
    demand = PodDemand(policy, MANAGERS, pod)
    if find_problems(pod) or not demand.cpus:
        return []
    found = {
        "cpu_pod_scope_error": empty_pool_problem(demand) is not None,
        "memory_pod_scope_error": empty_memory_pool(demand) is not None,
    }
    return [
        f"{key}: expected {expected.get(key)!r}, found {rejected}"
        for key, rejected in found.items()
        if (expected.get(key) is not None) != rejected
    ]


def _answer(pod: Pod, policy: Policy) -> dict[str, Any]:
    pod_level = policy.gates.pod_level_resources
    managed = policy.pod_level_managers and has_pod_level_resources(pod)
    qos = qos_class(pod, pod_level_resources=pod_level)
    containers = pod.all_containers()
    counts = [exclusive_cpu_requests(c, qos, pod_level=managed) for c in containers]
    return {
        "qos": qos,
        "container_guaranteed": {c.name: is_container_guaranteed(c) for c in containers},
        "exclusive_cpus": {c.name: count for c, count in zip(containers, counts, strict=True)},
        "memory": {c.name: _unsigned(memory_requests(c, pod_level=managed)) for c in containers},
        "pod_cpus": pod_exclusive_cpu_requests(pod, qos, counts, pod_level=managed),
        "pod_memory": _unsigned(pod_memory_requests(pod, pod_level=managed)),
        "pod_level_set": has_pod_level_resources(pod),
        "pod_requests": _texts(pod_requests(pod, pod_level_resources=pod_level)),
        "pod_limits": _texts(pod_limits(pod, pod_level_resources=pod_level)),
    }


def _unsigned(amounts: Mapping[str, int]) -> dict[str, int]:
    return {name: size % _UNSIGNED for name, size in amounts.items()}


def _texts(amounts: Mapping[str, Quantity]) -> dict[str, str]:
    return {name: str(amount) for name, amount in amounts.items()}


def _defaulted(pod: Pod) -> dict[str, Any]:
    return {
        "containers": {c.name: _resources(c.resources) for c in pod.all_containers()},
        "resources": _resources(pod.resources) if pod.resources is not None else None,
    }


def _resources(resources: Resources) -> dict[str, dict[str, str]]:
    parts = {"limits": resources.limits, "requests": resources.requests}
    return {key: _texts(amounts) for key, amounts in parts.items() if amounts}
