"""A digest of the parts of a pod that a decision depends on, to recognize repeated requests."""

from __future__ import annotations

import hashlib
from json.encoder import encode_basestring_ascii as quoted
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.pods.model import Container, Pod, Resources
    from agent.pods.quantity import Quantity

#: Changes when the digest covers something else, so that digests never compare across.
_FORMAT: Final = 1


def spec_digest(pod: Pod) -> str:
    """Return 64 hex digits that are equal for two pods exactly when they request the same.

    Covered are the containers in order with name, kind, requests and limits, the pod-level
    resources, a stated QoS class and the overhead. Not covered are uid, name, namespace,
    annotations and how an amount was written.
    """
    return hashlib.sha256(spec_text(pod).encode()).hexdigest()


def spec_text(pod: Pod) -> str:
    """Return what is digested, as JSON: `[format, [container, ...], amounts, class]`.

    The amounts of an overhead are a fifth member where a pod has one. A container is
    `[name, kind, amounts]`, amounts are `[requests, limits]`, each of them a list of
    `[resource, amount in units of 10^-9]` by name. It is put together here because a JSON encoder
    takes twice as long, a thirtieth of a decision.
    """
    containers = ",".join([_container(container) for container in pod.all_containers()])
    amounts = "null" if pod.resources is None else _amounts(pod.resources)
    status = "null" if pod.status_qos is None else quoted(pod.status_qos)
    overhead = f",[{_listed(pod.overhead)}]" if pod.overhead else ""
    return f"[{_FORMAT},[{containers}],{amounts},{status}{overhead}]"


def _container(container: Container) -> str:
    return f"[{quoted(container.name)},{quoted(container.kind)},{_amounts(container.resources)}]"


def _amounts(resources: Resources) -> str:
    return f"[[{_listed(resources.requests)}],[{_listed(resources.limits)}]]"


def _listed(amounts: Mapping[str, Quantity]) -> str:
    return ",".join([f"[{quoted(name)},{amount.nano}]" for name, amount in sorted(amounts.items())])
