from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.pods.manifest import apply_defaults
from tests.agent.pods.pods import amounts, app, init, pod, resources

if TYPE_CHECKING:
    from agent.pods.model import Pod, Resources


def test_requests_follow_from_limits() -> None:
    found = apply_defaults(
        pod(app("a", resources("cpu=1", "cpu=2 memory=1Gi")), init("i", resources("", "cpu=3")))
    )
    assert found.containers[0].resources == resources("cpu=1 memory=1Gi", "cpu=2 memory=1Gi")
    assert found.init_containers[0].resources == resources("cpu=3", "cpu=3")


def test_amounts_are_rounded_up_to_thousandths() -> None:
    found = apply_defaults(pod(app("a", resources("cpu=1100u memory=0.1m"))))
    assert found.containers[0].resources.requests == amounts("cpu=2m memory=1m")


_ONE = app("a", resources("cpu=1"))
_TWO = (
    app("a", resources("", "cpu=1 hugepages-2Mi=4Mi")),
    app("b", resources("", "cpu=1 hugepages-2Mi=2Mi")),
)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (
            pod(_ONE, of_pod=resources("", "cpu=4 memory=2Gi")),
            resources("cpu=1 memory=2Gi", "cpu=4 memory=2Gi"),
        ),
        (pod(_ONE, of_pod=resources("cpu=2", "cpu=4")), resources("cpu=2", "cpu=4")),
        (
            pod(*_TWO, of_pod=resources("", "cpu=4")),
            resources("cpu=2 hugepages-2Mi=6Mi", "cpu=4 hugepages-2Mi=6Mi"),
        ),
        (
            pod(app("a", resources("cpu=1 memory=1Gi")), of_pod=resources("cpu=2")),
            resources("cpu=2"),
        ),
    ],
    ids=["containers, then limits", "stated", "huge pages of containers", "without limits"],
)
def test_pod_level_requests_have_defaults(asked: Pod, expected: Resources) -> None:
    once = apply_defaults(asked)
    assert once.resources == expected
    assert apply_defaults(once) == once
    assert apply_defaults(asked, pod_level_resources=False).resources == asked.resources
