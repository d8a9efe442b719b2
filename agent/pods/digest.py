"""A stable name for what a decision depends on, so that the same pod is recognised."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.pods.model import Container, Pod, Resources
    from agent.pods.quantity import Quantity


def spec_digest(pod: Pod) -> str:
    """Return 32 hex digits that are equal for pods that ask for the same.

    Names, kinds and order of containers, requests and limits, pod-level resources and a stated QoS
    class take part; annotations and how an amount is written (`1` or `1000m`) do not.
    """
    document = {
        "name": pod.name,
        "namespace": pod.namespace,
        "containers": [_container(container) for container in pod.all_containers()],
        "resources": None if pod.resources is None else _resources(pod.resources),
        "qos": pod.status_qos,
    }
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _container(container: Container) -> list[object]:
    return [container.name, container.kind, _resources(container.resources)]


def _resources(resources: Resources) -> list[dict[str, int]]:
    return [_amounts(resources.requests), _amounts(resources.limits)]


def _amounts(amounts: Mapping[str, Quantity]) -> dict[str, int]:
    return {name: amount.nano for name, amount in amounts.items()}
