from __future__ import annotations

from typing import TYPE_CHECKING

from agent.pods.manifest import apply_defaults
from tests.agent.pods.pods import amounts, app, init, pod, resources

if TYPE_CHECKING:
    from agent.pods.model import Pod


def _pod_level(asked: Pod) -> tuple[object, object]:
    found = apply_defaults(asked).resources
    assert found is not None
    return found.requests, found.limits


def test_requests_follow_from_limits() -> None:
    found = apply_defaults(
        pod(app("a", resources("cpu=1", "cpu=2 memory=1Gi")), init("i", resources("", "cpu=3")))
    )
    assert found.containers[0].resources == resources("cpu=1 memory=1Gi", "cpu=2 memory=1Gi")
    assert found.init_containers[0].resources == resources("cpu=3", "cpu=3")


def test_amounts_are_rounded_up_to_thousandths() -> None:
    found = apply_defaults(pod(app("a", resources("cpu=1100u memory=0.1m"))))
    assert found.containers[0].resources.requests == amounts("cpu=2m memory=1m")


def test_pod_level_requests_follow_from_containers_first_and_then_from_limits() -> None:
    asked = pod(app("a", resources("cpu=1")), of_pod=resources("", "cpu=4 memory=2Gi"))
    assert _pod_level(asked) == (amounts("cpu=1 memory=2Gi"), amounts("cpu=4 memory=2Gi"))


def test_stated_pod_level_requests_stay() -> None:
    asked = pod(app("a", resources("cpu=1")), of_pod=resources("cpu=2", "cpu=4"))
    assert _pod_level(asked) == (amounts("cpu=2"), amounts("cpu=4"))


def test_pod_level_huge_pages_follow_from_the_containers() -> None:
    asked = pod(
        app("a", resources("", "cpu=1 hugepages-2Mi=4Mi")),
        app("b", resources("", "cpu=1 hugepages-2Mi=2Mi")),
        of_pod=resources("", "cpu=4"),
    )
    assert _pod_level(asked) == (
        amounts("cpu=2 hugepages-2Mi=6Mi"),
        amounts("cpu=4 hugepages-2Mi=6Mi"),
    )


def test_pod_level_requests_without_limits_are_left_alone() -> None:
    asked = pod(app("a", resources("cpu=1 memory=1Gi")), of_pod=resources("cpu=2"))
    assert _pod_level(asked) == (amounts("cpu=2"), {})


def test_without_the_gate_pod_level_resources_are_left_alone() -> None:
    asked = pod(app("a", resources("cpu=1")), of_pod=resources("", "cpu=4"))
    assert apply_defaults(asked, pod_level_resources=False).resources == resources("", "cpu=4")


def test_defaulting_twice_changes_nothing() -> None:
    asked = pod(app("a", resources("", "cpu=1 memory=1")), of_pod=resources("", "cpu=2"))
    once = apply_defaults(asked)
    assert apply_defaults(once) == once
