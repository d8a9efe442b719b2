"""How a budget of memory is divided, and which containers it leaves without any."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.managers.memory.pod_level import divide_memory, empty_memory_pool
from sysfs.mask import Mask
from tests.agent.managers.hosts import make_rules
from tests.agent.managers.memory.memory_machine import GI, MI
from tests.agent.pods.pods import app, guaranteed, init, pod, sidecar

if TYPE_CHECKING:
    from agent.managers.demand import PodDemand
    from agent.pods.model import Container, Resources

NODES = Mask.of(0, 1)


def own(amounts: str) -> Resources:
    return guaranteed(f"cpu=1 {amounts}")


def demand(budget: str, *containers: Container) -> PodDemand:
    return make_rules().demand(pod(*containers, of_pod=guaranteed(f"cpu=9 {budget}")))


def test_sidecars_keep_what_they_have_and_init_containers_use_what_apps_get_later() -> None:
    asked = demand(
        "memory=8Gi",
        init("before"),
        sidecar("guard", own("memory=2Gi")),
        init("fixed", own("memory=5Gi")),
        init("after"),
        sidecar("log"),
        app("main", own("memory=4Gi")),
        app("rest"),
    )
    assert empty_memory_pool(asked) is None
    parts = divide_memory(NODES, asked)
    assert {name: (part.blocks[0].size // GI, part.exclusive) for name, part in parts.items()} == {
        "before": (8, False),
        "guard": (2, True),
        "fixed": (5, True),
        "after": (6, False),
        "log": (2, False),
        "main": (4, True),
        "rest": (2, False),
    }
    assert {block.nodes for part in parts.values() for block in part.blocks} == {NODES}


LATER = "none is left for its shared containers"


# Shows in differences.md: first-pool
@pytest.mark.parametrize(
    ("budget", "containers", "resource", "problem"),
    [
        ("memory=4Gi", [app("a", own("memory=4Gi")), app("b")], "memory", LATER),
        ("memory=1Gi", [sidecar("s"), app("a", own("memory=1Gi"))], "memory", LATER),
        (
            "memory=1Gi",
            [sidecar("guard", own("memory=1Gi")), init("setup")],
            "memory",
            "none is left for the shared init container setup",
        ),
        (
            "memory=4Gi",
            [sidecar("s", own("memory=2Gi")), init("i", own("memory=3Gi"))],
            "memory",
            f"asks for {3 * GI} bytes of memory, the pod's budget of {4 * GI} leaves {2 * GI}",
        ),
        (
            "memory=4Gi hugepages-2Mi=8Mi",
            [app("a", own("memory=1Gi hugepages-2Mi=8Mi")), app("b")],
            "hugepages-2Mi",
            f"exclusive containers take all {8 * MI} bytes of hugepages-2Mi",
        ),
        (
            "hugepages-1Gi=1Gi memory=1Gi",
            [app("a", own("hugepages-1Gi=1Gi memory=1Gi")), app("b")],
            "memory",
            LATER,
        ),
    ],
)
def test_a_container_is_left_without(
    budget: str, containers: list[Container], resource: str, problem: str
) -> None:
    found = empty_memory_pool(demand(budget, *containers))
    assert found is not None
    assert found.resource == resource
    assert problem in found.message


@pytest.mark.parametrize(
    "containers",
    [[app("a", own("memory=1Gi"))], [init("setup"), sidecar("guard", own("memory=1Gi"))]],
)
def test_a_budget_may_be_used_up(containers: list[Container]) -> None:
    assert empty_memory_pool(demand("memory=1Gi", *containers)) is None
