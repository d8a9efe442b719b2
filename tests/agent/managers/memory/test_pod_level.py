from __future__ import annotations

from typing import TYPE_CHECKING

from agent.managers.allocation import MemoryBlock
from agent.managers.demand import ContainerDemand, PodDemand, ResourceDemand
from agent.managers.memory.pod_level import MemoryPart, divide_memory, empty_memory_pool
from agent.pods.model import MEMORY, Container, ContainerKind, Pod, QosClass
from sysfs.mask import Mask
from tests.agent.managers.memory.memory_machine import GI, MI

if TYPE_CHECKING:
    from collections.abc import Mapping

NODES = Mask.of(0, 1)
INIT, SIDECAR, APP = ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.APP


def one(name: str, kind: ContainerKind, **memory: int) -> tuple[Container, dict[str, int]]:
    return Container(name, kind), {n.replace("_", "-"): size for n, size in memory.items()}


def pod(budget: Mapping[str, int], *containers: tuple[Container, dict[str, int]]) -> PodDemand:
    amounts = tuple(memory for _, memory in containers)
    exclusive = tuple(map(bool, amounts))
    parts = {
        MEMORY: ResourceDemand(
            budget, amounts, active=True, exclusive=exclusive, why=("",) * len(amounts)
        )
    }
    asked = Pod("u", "p", "default", ())
    return PodDemand(
        pod=asked,
        defaulted=asked,
        qos=QosClass.GUARANTEED,
        pod_level=True,
        parts=parts,
        containers=tuple(
            ContainerDemand(container, parts, place)
            for place, (container, _) in enumerate(containers)
        ),
        requests={},
    )


def memory(size: int) -> tuple[MemoryBlock, ...]:
    return (MemoryBlock("memory", size, NODES),)


def exclusive(size: int) -> MemoryPart:
    return MemoryPart(memory(size), exclusive=True)


def shared(size: int) -> MemoryPart:
    return MemoryPart(memory(size), exclusive=False)


def test_apps_without_memory_of_their_own_share_the_whole_rest() -> None:
    demand = pod({"memory": 4 * GI}, one("a", APP, memory=GI), one("b", APP), one("c", APP))
    assert empty_memory_pool(demand) is None
    assert divide_memory(NODES, demand) == {
        "a": exclusive(GI),
        "b": shared(3 * GI),
        "c": shared(3 * GI),
    }


def test_sidecars_keep_what_they_have_and_init_containers_use_what_apps_get_later() -> None:
    demand = pod(
        {"memory": 8 * GI},
        one("before", INIT),
        one("guard", SIDECAR, memory=2 * GI),
        one("fixed", INIT, memory=5 * GI),
        one("after", INIT),
        one("log", SIDECAR),
        one("main", APP, memory=4 * GI),
    )
    assert empty_memory_pool(demand) is None
    assert divide_memory(NODES, demand) == {
        "before": shared(8 * GI),
        "guard": exclusive(2 * GI),
        "fixed": exclusive(5 * GI),
        "after": shared(6 * GI),
        "log": shared(2 * GI),
        "main": exclusive(4 * GI),
    }


def test_huge_pages_are_divided_beside_memory_and_nothing_means_no_block() -> None:
    demand = pod(
        {"memory": 4 * GI, "hugepages-2Mi": 8 * MI},
        one("a", APP, memory=GI, hugepages_2Mi=8 * MI),
        one("b", APP),
    )
    problem = empty_memory_pool(demand)
    assert problem is not None
    assert problem.resource == "hugepages-2Mi"
    assert f"exclusive containers take all {8 * MI} bytes of hugepages-2Mi" in problem.message
    assert divide_memory(NODES, demand)["b"] == shared(3 * GI)


def test_exclusive_containers_that_leave_nothing_to_a_sharing_one_are_found() -> None:
    demand = pod({"memory": 4 * GI}, one("a", APP, memory=4 * GI), one("b", APP))
    problem = empty_memory_pool(demand)
    assert problem is not None
    assert problem.resource == "memory"
    assert "none is left for its shared containers" in problem.message


def test_without_a_sharing_container_the_budget_may_be_used_up() -> None:
    demand = pod({"memory": 4 * GI}, one("a", APP, memory=4 * GI))
    assert empty_memory_pool(demand) is None


def test_a_sharing_sidecar_needs_a_rest_as_well() -> None:
    demand = pod({"memory": GI}, one("s", SIDECAR), one("a", APP, memory=GI))
    assert empty_memory_pool(demand) is not None


def test_sidecars_that_leave_nothing_to_a_later_sharing_init_container_are_found() -> None:
    budget = {"memory": GI}
    guard, setup = one("guard", SIDECAR, memory=GI), one("setup", INIT)
    problem = empty_memory_pool(pod(budget, guard, setup))
    assert problem is not None
    assert "none is left for the shared init container setup" in problem.message
    assert empty_memory_pool(pod(budget, setup, guard)) is None


def test_an_init_container_larger_than_what_sidecars_leave_is_found() -> None:
    demand = pod(
        {"memory": 4 * GI}, one("s", SIDECAR, memory=2 * GI), one("i", INIT, memory=3 * GI)
    )
    problem = empty_memory_pool(demand)
    assert problem is not None
    assert problem.resource == "memory"
    assert f"init container i asks for {3 * GI} bytes" in problem.message
    assert f"leaves {2 * GI} beside its sidecars" in problem.message


def test_memory_is_named_before_huge_pages_when_both_are_used_up() -> None:
    demand = pod(
        {"hugepages-1Gi": GI, "memory": GI},
        one("a", APP, hugepages_1Gi=GI, memory=GI),
        one("b", APP),
    )
    problem = empty_memory_pool(demand)
    assert problem is not None
    assert problem.resource == "memory"
