"""What an allocation remembers of the specification beside what the pod holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.managers.allocation import CpuLimits
from tests.agent.managers.drafts import allocated
from tests.agent.managers.hosts import make_rules
from tests.agent.pods.pods import amounts, app, guaranteed, pod, resources

if TYPE_CHECKING:
    from agent.pods.model import Container

_GIB = 1 << 30


def test_overhead_is_added_to_requests_and_to_limits_that_there_are() -> None:
    asked = pod(app("a", guaranteed("cpu=1500m memory=1Gi")))
    allocation = allocated(make_rules(), replace(asked, overhead=amounts("cpu=250m memory=128Mi")))
    assert allocation.cpu == CpuLimits(1750, 1750)
    assert allocation.requests == {"cpu": 1750, "memory": _GIB + (128 << 20)}
    assert allocation.limits == {"memory": _GIB + (128 << 20)}
    open_ended = replace(pod(app("a")), overhead=amounts("cpu=250m"))
    assert allocated(make_rules(), open_ended).cpu == CpuLimits(250, None)


@pytest.mark.parametrize(
    ("containers", "limits"),
    [
        ((app("a", resources("", "memory=1Gi")), app("b", resources("", "memory=1Gi"))), 2 * _GIB),
        ((app("a", resources("", "memory=1Gi")), app("b")), None),
        ((app("a", resources("memory=1Gi")),), None),
    ],
)
def test_the_memory_of_a_pod_is_limited_when_that_of_all_containers_is(
    containers: tuple[Container, ...], limits: int | None
) -> None:
    assert allocated(make_rules(), pod(*containers)).limits.get("memory") == limits
