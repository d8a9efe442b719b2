"""What a recorded pod amounts to (QoS class, defaults, requests, totals) against our own answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from agent.document.nodes import from_plain
from agent.managers.cpu_pod_level import empty_pool_problem
from agent.managers.demand import demand_of
from agent.managers.policy import FeatureGates, Policy
from agent.pods.defaults import apply_defaults
from agent.pods.manifest import read_pod
from agent.pods.qos import is_container_guaranteed, qos_class
from agent.pods.requests import (
    exclusive_cpus,
    has_pod_level_resources,
    memory_requests,
    pod_exclusive_cpus,
    pod_limits,
    pod_memory_requests,
    pod_requests,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.pods.model import Pod, Resources
    from agent.pods.quantity import Quantity

#: The kubelet reads a negative amount of memory, which the API server refuses, as unsigned.
_UNSIGNED: Final = 2**64


def run_case(case: Mapping[str, Any]) -> list[str]:
    """Return every difference between the recorded answer and ours; none when they are equal."""
    gates = case["gates"]
    pod_level = gates.get("PodLevelResources", True)
    managed = pod_level and gates.get("PodLevelResourceManagers", False)
    pod = read_pod(from_plain(case["pod"]), case["name"])
    if case["apply_defaults"]:
        pod = apply_defaults(pod, pod_level_resources=pod_level)
    found = _answer(pod, pod_level=pod_level, managed=managed)
    if case["apply_defaults"]:
        found["defaulted"] = _defaulted(pod)
    expected = case["expected"]
    found |= {key: expected.get(key) for key in ("memory_pod_scope_error",) if key in expected}
    return [
        f"{key}: expected {expected.get(key)}, found {found.get(key)}"
        for key in sorted({*expected, *found})
        if expected.get(key) != found.get(key)
    ]


def _answer(pod: Pod, *, pod_level: bool, managed: bool) -> dict[str, Any]:
    qos = qos_class(pod, pod_level_resources=pod_level)
    containers = tuple(pod.all_containers())
    return {
        "qos": qos,
        "container_guaranteed": {c.name: is_container_guaranteed(c) for c in containers},
        "exclusive_cpus": {
            c.name: exclusive_cpus(pod, c, qos, pod_level_managers=managed) for c in containers
        },
        "memory": {
            c.name: _unsigned(memory_requests(pod, c, pod_level_managers=managed))
            for c in containers
        },
        "pod_cpus": pod_exclusive_cpus(pod, qos, pod_level_managers=managed),
        "pod_memory": _unsigned(pod_memory_requests(pod, pod_level_managers=managed)),
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


_ = (empty_pool_problem, demand_of, FeatureGates, Policy)
