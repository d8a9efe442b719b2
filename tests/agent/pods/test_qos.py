from __future__ import annotations

import pytest

from agent.pods.model import Container, Pod, QosClass, Resources
from agent.pods.requests import is_container_guaranteed, qos_class
from tests.agent.pods.pods import app, guaranteed, init, pod, resources, sidecar

_FULL = guaranteed("cpu=1 memory=1Gi")


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        ([app("a")], QosClass.BEST_EFFORT),
        ([app("a", guaranteed("cpu=0 memory=0"))], QosClass.BEST_EFFORT),
        ([app("a", guaranteed("example.com/gpu=1"))], QosClass.BEST_EFFORT),
        ([app("a", _FULL)], QosClass.GUARANTEED),
        ([app("a", _FULL), app("b")], QosClass.BURSTABLE),
        ([app("a", _FULL), init("i")], QosClass.BURSTABLE),
        ([app("a", _FULL), init("i", _FULL), sidecar("s", _FULL)], QosClass.GUARANTEED),
        ([app("a", guaranteed("cpu=1"))], QosClass.BURSTABLE),
        ([app("a", resources("cpu=1 memory=1Gi", "cpu=2 memory=1Gi"))], QosClass.BURSTABLE),
        ([app("a", resources("", "cpu=1 memory=1Gi"))], QosClass.BURSTABLE),
        ([app("a", resources("cpu=1000m memory=1Gi", "cpu=1 memory=1024Mi"))], QosClass.GUARANTEED),
    ],
)
def test_class_follows_from_the_containers(containers: list[Container], expected: QosClass) -> None:
    assert qos_class(pod(*containers), pod_level_resources=True) is expected


@pytest.mark.parametrize(
    ("of_pod", "expected"),
    [
        (_FULL, QosClass.GUARANTEED),
        (resources("cpu=1 memory=1Gi"), QosClass.BURSTABLE),
        (guaranteed("cpu=1"), QosClass.BURSTABLE),
        (guaranteed("cpu=0"), QosClass.BEST_EFFORT),
        (Resources(), QosClass.BURSTABLE),
    ],
)
def test_pod_level_resources_decide_where_stated(of_pod: Resources, expected: QosClass) -> None:
    mixed: Pod = pod(app("a", resources("cpu=500m")), app("b"), of_pod=of_pod)
    assert qos_class(mixed, pod_level_resources=True) is expected
    assert qos_class(mixed, pod_level_resources=False) is QosClass.BURSTABLE


def test_a_stated_class_wins() -> None:
    stated = pod(app("a"), status_qos=QosClass.GUARANTEED)
    assert qos_class(stated, pod_level_resources=True) is QosClass.GUARANTEED


@pytest.mark.parametrize(
    ("of_container", "expected"),
    [
        (_FULL, True),
        (guaranteed("cpu=500m memory=1Gi"), True),
        (guaranteed("cpu=1"), False),
        (guaranteed("cpu=0 memory=1Gi"), False),
        (resources("cpu=1 memory=1Gi", "cpu=2 memory=1Gi"), False),
        (resources("cpu=1 memory=1Gi", "cpu=1"), False),
        (Resources(), False),
    ],
)
def test_a_container_is_guaranteed_by_cpu_and_memory_both(
    of_container: Resources,
    expected: bool,  # noqa: FBT001 (data)
) -> None:
    assert is_container_guaranteed(app("a", of_container)) is expected
