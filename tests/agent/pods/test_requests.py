from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.pods.model import Container, ContainerKind, QosClass
from agent.pods.quantity import Quantity
from agent.pods.requests import (
    aggregate,
    exclusive_cpu_requests,
    has_pod_level_resources,
    memory_requests,
    pod_exclusive_cpu_requests,
    pod_limits,
    pod_memory_requests,
    pod_requests,
)
from tests.agent.pods.pods import amounts, app, guaranteed, init, pod, resources, sidecar

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.pods.model import Pod, Resources

_G = QosClass.GUARANTEED


def pod_cpus(of: Pod, qos: QosClass, *, managed: bool) -> int:
    counts = [exclusive_cpu_requests(each, qos, pod_level=managed) for each in of.all_containers()]
    return pod_exclusive_cpu_requests(of, qos, counts, pod_level=managed)


@pytest.mark.parametrize(
    ("cpu", "cpus"),
    [
        *(("3", 3), ("3000m", 3), ("3500m", 0), ("500m", 0), ("0", 0), ("1e1", 10)),
        *(("1e30", 2**63 - 1), ("9223372036854775807500m", 0)),
    ],
)
def test_only_a_whole_number_of_cpus_of_a_guaranteed_pod_is_exclusive(cpu: str, cpus: int) -> None:
    container = app("a", guaranteed(f"cpu={cpu} memory=1Gi"))
    assert exclusive_cpu_requests(container, _G, pod_level=False) == cpus
    for qos in (QosClass.BURSTABLE, QosClass.BEST_EFFORT):
        assert exclusive_cpu_requests(container, qos, pod_level=False) == 0


def test_a_container_of_a_pod_with_a_budget_has_to_be_guaranteed_itself() -> None:
    loose = app("a", resources("cpu=2 memory=1Gi", "cpu=4 memory=1Gi"))
    assert exclusive_cpu_requests(loose, _G, pod_level=True) == 0
    assert exclusive_cpu_requests(loose, _G, pod_level=False) == 2
    assert memory_requests(loose, pod_level=True) == {}
    assert memory_requests(loose, pod_level=False) == {"memory": 2**30}


def test_the_budget_is_the_total_of_a_pod_that_has_one() -> None:
    mixed = pod(app("a", guaranteed("cpu=2 memory=1Gi")), of_pod=guaranteed("cpu=6 memory=4Gi"))
    assert pod_cpus(mixed, _G, managed=True) == 6
    assert pod_cpus(mixed, _G, managed=False) == 2
    assert pod_memory_requests(mixed, pod_level=True) == {"memory": 4 * 2**30}
    assert pod_memory_requests(mixed, pod_level=False) == {"memory": 2**30}


def test_a_fractional_budget_or_one_that_is_not_guaranteed_means_no_cpus() -> None:
    fractional = pod(app("a"), of_pod=guaranteed("cpu=2500m memory=1Gi"))
    assert pod_cpus(fractional, _G, managed=True) == 0
    burstable = pod(app("a"), of_pod=resources("cpu=2"))
    assert pod_cpus(burstable, QosClass.BURSTABLE, managed=True) == 0


def test_pod_level_resources_that_state_nothing_supported_are_none() -> None:
    assert not has_pod_level_resources(pod(app("a")))
    assert not has_pod_level_resources(pod(app("a"), of_pod=resources()))
    assert not has_pod_level_resources(pod(app("a"), of_pod=resources("example.com/gpu=1")))
    assert has_pod_level_resources(pod(app("a"), of_pod=resources("", "hugepages-2Mi=2Mi")))


@pytest.mark.parametrize("first", [init, sidecar])
def test_huge_pages_of_all_containers_count(first: Callable[[str, Resources], Container]) -> None:
    asked = pod(
        first("i", guaranteed("cpu=1 memory=1Gi hugepages-2Mi=4Mi")),
        app("a", guaranteed("cpu=1 memory=1Mi")),
    )
    memory = 2**30 + 2**20 if first is sidecar else 2**30
    assert pod_memory_requests(asked, pod_level=False) == {
        "memory": memory,
        "hugepages-2Mi": 2**22,
    }


# Shows in differences.md: init-memory-types
def test_of_a_type_that_only_init_containers_ask_for_the_peak_counts() -> None:
    asked = pod(
        init("i", guaranteed("hugepages-2Mi=6Mi")),
        sidecar("s", guaranteed("hugepages-2Mi=2Mi")),
        init("j", guaranteed("hugepages-2Mi=8Mi")),
        app("a", guaranteed("cpu=1 memory=1Mi")),
    )
    assert pod_memory_requests(asked, pod_level=False)["hugepages-2Mi"] == 10 * 2**20


@pytest.mark.parametrize(
    ("amount", "size"), [("1500m", 2), ("128m", 1), ("10E", 2**63 - 1), ("1e30", 2**63 - 1)]
)
def test_memory_is_counted_in_whole_bytes_of_63_bits(amount: str, size: int) -> None:
    container = app("a", guaranteed(f"cpu=1 memory={amount}"))
    asked = memory_requests(container, pod_level=False)
    assert asked == {"memory": size}


def test_pod_totals_take_the_budget_where_it_is_stated() -> None:
    mixed = pod(
        app("a", resources("cpu=1 memory=1Gi", "cpu=2")),
        sidecar("s", resources("cpu=1")),
        of_pod=resources("cpu=4", "memory=8Gi"),
    )
    assert pod_requests(mixed, pod_level_resources=True) == amounts("cpu=4 memory=1Gi")
    assert pod_requests(mixed, pod_level_resources=False) == amounts("cpu=2 memory=1Gi")
    assert pod_limits(mixed, pod_level_resources=True) == amounts("cpu=2 memory=8Gi")


_CONTAINERS = st.lists(
    st.tuples(st.sampled_from(list(ContainerKind)), st.integers(0, 9)), min_size=1, max_size=8
)


def _slow_peak(containers: list[tuple[ContainerKind, int]]) -> int:
    """Return the most CPUs at any moment of the pod's life, moment by moment."""
    peak = running = 0
    for kind, cpus in containers:
        if kind is ContainerKind.SIDECAR:
            running += cpus
            peak = max(peak, running)
        elif kind is ContainerKind.INIT:
            peak = max(peak, running + cpus)
    apps = sum(cpus for kind, cpus in containers if kind is ContainerKind.APP)
    return max(peak, running + apps)


@given(_CONTAINERS)
def test_totals_are_the_peak_of_the_pods_life(containers: list[tuple[ContainerKind, int]]) -> None:
    built = pod(
        *(
            Container(f"c{i}", kind, guaranteed(f"cpu={cpus} memory={cpus}Mi"))
            for i, (kind, cpus) in enumerate(containers)
        )
    )
    peak = _slow_peak(containers)
    assert pod_cpus(built, _G, managed=False) == peak
    requests = [container.resources.requests for container in built.all_containers()]
    assert aggregate(built, requests)["cpu"] == Quantity.of(peak)
