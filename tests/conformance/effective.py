"""What a recorded pod asks for, read off its document moment by moment: slow and obvious.

KEP-693 ("Effective resource request") and KEP-753: the most that any moment of the pod's life needs
of a resource. Quantities are parsed as everywhere; nothing else of our own code is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from agent.pods.quantity import ZERO, Quantity

if TYPE_CHECKING:
    from collections.abc import Mapping

    Document = Mapping[str, Any]


_COMPUTE: Final = ("cpu", "memory")


def with_defaults(pod: Document) -> dict[str, Any]:
    """Return a pod as the API server completes it: a limit without a request is one, too."""
    spec = dict(pod["spec"])
    for part in "initContainers", "containers":
        spec[part] = [_defaulted(one) for one in spec.get(part) or ()]
    return {**pod, "spec": spec}


def containers_of(pod: Document) -> list[Document]:
    """Return the containers of a pod in the order of admission."""
    return [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]]


def is_guaranteed(container: Document) -> bool:
    """Return whether a container asks for as much as it is limited to, of cpu and of memory."""
    asked, limits = _requests(container), _amounts(container, "limits")
    return all(asked.get(name, ZERO) and asked[name] == limits.get(name) for name in _COMPUTE)


def asked_memory(container: Document, *, of_budget: bool = False) -> dict[str, int]:
    """Return the bytes by memory type that a container asks for; zeros are left out.

    In a pod with a pod-level budget only a Guaranteed container asks for memory of its own.
    """
    if of_budget and not is_guaranteed(container):
        return {}
    return {
        name: amount.value
        for name, amount in _requests(container).items()
        if amount and _is_memory(name)
    }


def effective_memory(pod: Document) -> dict[str, int]:
    """Return the most bytes by memory type that the containers ask for at one time."""
    most: dict[str, int] = {}
    for running in _moments(pod):
        total: dict[str, int] = {}
        for container in running:
            for name, size in asked_memory(container).items():
                total[name] = total.get(name, 0) + size
        most = {name: max(most.get(name, 0), total.get(name, 0)) for name in {*most, *total}}
    return most


def asks_in_init_only(pod: Document) -> set[str]:
    """Return the memory types that init containers and sidecars ask for and no app does."""
    apps = {name for app in pod["spec"]["containers"] for name in _requests(app)}
    inits = {name for one in containers_of(pod) for name in asked_memory(one)}
    return inits - apps


def _moments(pod: Document) -> list[list[Document]]:
    """Return who runs at the same time: each init container with sidecars so far, then apps."""
    moments = []
    sidecars: list[Document] = []
    for container in pod["spec"].get("initContainers") or ():
        moments.append([*sidecars, container])
        if container.get("restartPolicy") == "Always":
            sidecars.append(container)
    return [*moments, [*sidecars, *pod["spec"]["containers"]]]


def _is_memory(name: str) -> bool:
    return name == "memory" or name.startswith("hugepages-")


def _defaulted(container: Document) -> dict[str, Any]:
    resources = container.get("resources") or {}
    requests = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {**container, "resources": {**resources, "requests": requests}}


def _requests(container: Document) -> dict[str, Quantity]:
    return _amounts(container, "requests")


def _amounts(container: Document, side: str) -> dict[str, Quantity]:
    stated = (container.get("resources") or {}).get(side) or {}
    return {name: Quantity.parse(str(amount)) for name, amount in stated.items()}
