"""A digest of all that a decision depends on, so that asking twice is recognized."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from agent.pods.model import Container, Pod, Resources

#: Changes when the digest covers something else, so that digests never compare across.
_FORMAT: Final = 1
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"))


def spec_digest(pod: Pod) -> str:
    """Return 64 hex digits that are equal for two pods exactly when they ask for the same.

    Covered are the containers in order with name, kind, requests and limits, the pod-level
    resources and a stated QoS class. Not covered are uid, name, namespace, annotations and how an
    amount was written.
    """
    asked = [
        _FORMAT,
        [_container(container) for container in pod.all_containers()],
        None if pod.resources is None else _amounts(pod.resources),
        pod.status_qos,
    ]
    return hashlib.sha256(_ENCODER.encode(asked).encode()).hexdigest()


def _container(container: Container) -> list[object]:
    return [container.name, container.kind, _amounts(container.resources)]


def _amounts(resources: Resources) -> list[list[tuple[str, int]]]:
    return [
        sorted([(name, amount.nano) for name, amount in amounts.items()])
        for amounts in (resources.requests, resources.limits)
    ]
