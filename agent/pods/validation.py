"""Validation of a pod as by the API server, before any decision.

Sources: k8s.io/kubernetes `pkg/apis/core/validation/validation.go`
(ValidateContainerResourceRequirements, validatePodResources, validatePodResourceConsistency) and
KEP-2837. The pod is expected to be defaulted.
"""

from __future__ import annotations

import re
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from agent.pods.model import (
    CORES,
    CPU,
    EXCLUSIVE,
    HUGEPAGES_PREFIX,
    INTERLEAVE,
    MEMORY,
    MOVE,
    NEAR_NODES,
    NUMA_POLICY,
    PLACEMENT,
    POOL,
    ROUND_UP,
    Movable,
    Placement,
    Resources,
    is_native_resource,
    isolation_faults,
    label_fault,
    lifetime_faults,
    named_containers,
    near_nodes_fault,
    prefixed_resource_fault,
    subdomain_fault,
    uid_fault,
)
from agent.pods.quantity import ZERO, Quantity, QuantityError
from agent.pods.requests import (
    aggregate,
    has_pod_level_resources,
    is_memory_type,
    is_pod_level_resource,
    named_container_fault,
)
from agent.yaml import Mistake, join, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agent.pods.model import Container, Pod

_OVERCOMMITTABLE: Final = (CPU, MEMORY, "ephemeral-storage")
_POD_RESOURCES: Final = "spec.resources"
_TINY: Final = Quantity.parse("1Mi")
#: A size of a page whose unit is none of Kubernetes' binary ones.
_SIZE: Final = re.compile(r"([1-9][0-9]{0,8})([kKmMgG])(?:[bB]|iB|ib)?")


def find_problems(pod: Pod) -> list[Mistake]:
    """Return everything that the API server would reject, with the field's path."""
    return list(
        chain(
            _metadata(pod),
            _annotations(pod),
            _container_names(pod),
            *(_resources(container.resources, path) for path, container in _containers(pod)),
            _pod_level(pod),
            *(_amount(name, amount, "spec.overhead") for name, amount in pod.overhead.items()),
        )
    )


def _containers(pod: Pod) -> Iterator[tuple[str, Container]]:
    for field, containers in (
        ("containers", pod.containers),
        ("initContainers", pod.init_containers),
    ):
        for index, container in enumerate(containers):
            yield f"spec.{field}[{index}].resources", container


def assumed_requests(pod: Pod) -> Iterator[str]:
    """Yield the paths of the requests that a pod does not state, and its containers' limits give.

    What is wrong with one of them is wrong with the limit, which is what the author can mend.
    """
    for path, container in _containers(pod):
        requests, limits = container.resources.requests, container.resources.limits
        yield from (join(f"{path}.requests", name) for name in limits if name not in requests)


def find_warnings(pod: Pod) -> tuple[str, ...]:
    """Return warnings of sizes that are not a whole number of bytes (the API server's), or tiny.

    Each with the field's path. They are counted as the next whole number of bytes (`128m` of memory
    is one byte), and are nearly always a typing error for `M` or `Mi`.
    """
    parts = [(path, container.resources) for path, container in _containers(pod)]
    if pod.resources is not None:
        parts.append((_POD_RESOURCES, pod.resources))
    return tuple(
        f"{join(f'{path}.{field}', name)}: {said}"
        for path, resources in parts
        for field, amounts in (("requests", resources.requests), ("limits", resources.limits))
        for name, amount in amounts.items()
        if _is_size(name) and (said := _said_of_size(amount))
        # Of two that are equal the limit is named.
        if field == "limits" or resources.limits.get(name) != amount
    )


def _said_of_size(amount: Quantity) -> str:
    if not amount.is_whole:
        hint = "; m is a thousandth, is Mi meant?" if amount < _TINY else ""
        return f"{amount} is not a whole number of bytes, it counts as {amount.value}{hint}"
    if ZERO < amount < _TINY:
        return f"{amount} is less than 1Mi, which no process runs in; is a suffix missing?"
    return ""


def _metadata(pod: Pod) -> Iterator[Mistake]:
    for field, text, fault in (
        ("name", pod.name, subdomain_fault(pod.name)),
        ("namespace", pod.namespace, label_fault(pod.namespace)),
        ("uid", pod.uid, uid_fault(pod.uid)),
    ):
        if fault is not None:
            yield Mistake(f"metadata.{field}", f"{shown(text)} is not a valid {field}: {fault}")


#: The values of annotations that have a choice.
_CHOICES: Final[Mapping[str, Sequence[str]]] = MappingProxyType(
    {
        MOVE: tuple(Movable),
        NUMA_POLICY: (INTERLEAVE,),
        PLACEMENT: tuple(Placement),
        ROUND_UP: (CORES,),
    }
)


def _annotations(pod: Pod) -> Iterator[Mistake]:
    containers = sum(1 for _ in pod.all_containers())
    for annotation, fault in lifetime_faults(pod.annotations, containers).items():
        yield Mistake(join("metadata.annotations", annotation), fault)
    for annotation, fault in isolation_faults(pod.annotations):
        yield Mistake(join("metadata.annotations", annotation), fault)
    for annotation, choices in _CHOICES.items():
        text = pod.annotations.get(annotation)
        if text is not None and text not in choices:
            fault = f"{text[:40]!r} is not one of {', '.join(choices)}"
            yield Mistake(join("metadata.annotations", annotation), fault)
    pool = pod.annotations.get(POOL)
    if pool is not None and (rule := label_fault(pool)) is not None:
        fault = f"{shown(pool)} is not the name of a pool: {rule}"
        yield Mistake(join("metadata.annotations", POOL), fault)
    if fault := near_nodes_fault(pod.annotations):
        yield Mistake(join("metadata.annotations", NEAR_NODES), fault)
    for fault in _named_containers(pod) if EXCLUSIVE in pod.annotations else ():
        yield Mistake(join("metadata.annotations", EXCLUSIVE), fault)


def _named_containers(pod: Pod) -> Iterator[str]:
    """Yield what is wrong with the containers that are to have exclusive CPUs."""
    if has_pod_level_resources(pod):
        yield "the pod's spec.resources says which containers have exclusive CPUs; leave one out"
        return
    containers = {container.name: container for container in pod.all_containers()}
    names = sorted(named_containers(pod.annotations))
    if not names:
        yield "it names no container; leave it out or name some of the pod"
    for name in names:
        if name not in containers:
            yield f"the pod has no container {shown(name)}"
        elif fault := named_container_fault(containers[name]):
            yield f"container {name}: {fault}; request a whole number of CPUs and limit it to that"


def _container_names(pod: Pod) -> Iterator[Mistake]:
    first: dict[str, str] = {}
    for resources_path, container in _containers(pod):
        path = resources_path.removesuffix(".resources") + ".name"
        fault = label_fault(container.name)
        if fault is not None:
            yield Mistake(path, f"{shown(container.name)} is not a valid name: {fault}")
        elif container.name in first:
            other = first[container.name]
            yield Mistake(
                path, f"{shown(container.name)} is also {other}; give each container its own name"
            )
        first.setdefault(container.name, path)


def _resources(resources: Resources, path: str) -> Iterator[Mistake]:
    for field, amounts in (("requests", resources.requests), ("limits", resources.limits)):
        for name, amount in amounts.items():
            yield from _amount(name, amount, f"{path}.{field}")
    yield from _requests_within_limits(resources, path)
    names = {*resources.requests, *resources.limits}
    if any(name.startswith(HUGEPAGES_PREFIX) for name in names) and not names & {CPU, MEMORY}:
        yield Mistake(path, "huge pages need a request or limit of cpu or memory beside them")


def _amount(name: str, amount: Quantity, path: str) -> Iterator[Mistake]:
    where = join(path, name)
    fault = resource_name_fault(name)
    if fault is not None:
        yield Mistake(where, f"{shown(name)} is not a resource: {fault}")
        return
    if amount < ZERO:
        yield Mistake(where, f"{amount} is negative; an amount is zero or more")
    elif name.startswith(HUGEPAGES_PREFIX):
        yield from _whole_pages(name, amount, where)
    elif not amount.is_whole and not _may_be_shared(name) and not _is_size(name):
        yield Mistake(where, f"{amount} is not a whole number; {name} is counted in whole units")


def _whole_pages(name: str, amount: Quantity, where: str) -> Iterator[Mistake]:
    page = Quantity.parse(name.removeprefix(HUGEPAGES_PREFIX))
    if amount.rounded_to_units().nano % page.nano:
        yield Mistake(where, f"{amount} is not a whole number of pages of {page}")


def resource_name_fault(name: str) -> str | None:
    """Return why a text is not the name of a container's resource, None when it is."""
    if name in _OVERCOMMITTABLE:
        return None
    if not name.startswith(HUGEPAGES_PREFIX):
        return prefixed_resource_fault(name)
    size = name.removeprefix(HUGEPAGES_PREFIX)
    # 2M, 2MB and 2m are the kernel's and other programs' names of a page of 2Mi.
    if decimal := _SIZE.fullmatch(size):
        page = Quantity.parse(f"{decimal[1]}{decimal[2].upper()}i")
        return f"write it as {HUGEPAGES_PREFIX}{Quantity.of_bytes(page.value)}"
    try:
        page = Quantity.parse(size)
    except QuantityError as error:
        return str(error)
    if page <= ZERO or page.as_int64() is None:
        return "a page has a positive whole number of bytes"
    canonical = f"{HUGEPAGES_PREFIX}{Quantity.of_bytes(page.value)}"
    return None if name == canonical else f"write it as {canonical}"


def _is_size(name: str) -> bool:
    return is_memory_type(name) or name == "ephemeral-storage"


def _may_be_shared(name: str) -> bool:
    """Return whether requests may be below limits (IsOvercommitAllowed)."""
    return name in _OVERCOMMITTABLE or is_native_resource(name)


def _requests_within_limits(resources: Resources, path: str) -> Iterator[Mistake]:
    for name, request in resources.requests.items():
        limit = resources.limits.get(name)
        where = join(f"{path}.requests", name)
        if _may_be_shared(name):
            if limit is not None and limit < request:
                yield Mistake(where, f"the request of {request} is above the limit of {limit}")
        elif limit is None:
            yield Mistake(where, f"{name} cannot be overcommitted: set a limit of {request} too")
        elif limit != request:
            yield Mistake(
                where, f"{name} cannot be overcommitted: request {request} and limit {limit} differ"
            )


def _pod_level(pod: Pod) -> Iterator[Mistake]:
    if pod.resources is None:
        return
    unsupported = list(_unsupported(pod.resources))
    yield from unsupported or _resources(pod.resources, _POD_RESOURCES)
    yield from _containers_within_requests(pod, pod.resources.requests)
    yield from _containers_within_limits(pod, pod.resources.limits)


def _unsupported(resources: Resources) -> Iterator[Mistake]:
    for field, amounts in (("requests", resources.requests), ("limits", resources.limits)):
        for name in amounts:
            if not is_pod_level_resource(name):
                yield Mistake(
                    join(f"{_POD_RESOURCES}.{field}", name),
                    f"{shown(name)} cannot be a pod-level resource; only cpu, memory and hugepages-"
                    "* can",
                )


def _containers_within_requests(pod: Pod, requests: Mapping[str, Quantity]) -> Iterator[Mistake]:
    together = aggregate(pod, [each.resources.requests for each in pod.all_containers()])
    for name, budget in requests.items():
        asked = together.get(name, ZERO)
        if budget < asked:
            yield Mistake(
                join(f"{_POD_RESOURCES}.requests", name),
                f"the containers together request {asked}, more than the pod-level request of "
                f"{budget}",
            )


def _containers_within_limits(pod: Pod, limits: Mapping[str, Quantity]) -> Iterator[Mistake]:
    """Check the app containers alone, as the API server does (ValidatePodCreate)."""
    for index, container in enumerate(pod.containers):
        path = f"spec.containers[{index}].resources"
        for name, limit in container.resources.limits.items():
            budget = limits.get(name)
            if budget is not None and budget < limit:
                yield Mistake(
                    join(f"{path}.limits", name),
                    f"the container's limit of {limit} is above the pod-level limit of {budget}",
                )
