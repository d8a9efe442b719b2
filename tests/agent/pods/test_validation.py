from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.pods.manifest import apply_defaults
from agent.pods.model import ContainerKind
from agent.pods.quantity import Quantity
from agent.pods.requests import pod_limits, pod_requests
from agent.pods.validation import find_problems, find_warnings, resource_name_fault
from tests.agent.pods.pods import app, guaranteed, init, pod, resources, sidecar

if TYPE_CHECKING:
    from agent.pods.model import Pod


@pytest.mark.parametrize(
    "sound",
    [
        pod(
            init("i", guaranteed("cpu=2 memory=1Gi")),
            sidecar("s", guaranteed("cpu=1 memory=1Gi")),
            app("a", resources("cpu=1 ephemeral-storage=1Gi", "cpu=2 example.com/gpu=1")),
            of_pod=guaranteed("cpu=4 memory=4Gi hugepages-2Mi=4Mi"),
        ),
        pod(app("a", resources("cpu=2")), app("b", resources("cpu=1")), of_pod=resources("cpu=3")),
        pod(app("a", guaranteed("memory=9Gi")), of_pod=guaranteed("cpu=1")),
        *(
            pod(app("a"), build("i", resources("cpu=1", "cpu=8")), of_pod=guaranteed("cpu=2"))
            for build in (init, sidecar)
        ),
        pod(app("a", resources("kubernetes.io/x=2"))),
        pod(app("a", resources("kubernetes.io/x=2", "kubernetes.io/x=3"))),
    ],
    ids=[
        *("an ordinary pod", "a budget equal to the sum", "a resource that it does not name"),
        *("a limit of an init container", "and of a sidecar"),
        *("a resource of kubernetes without limit", "and overcommitted"),
    ],
)
def test_a_sound_pod_has_no_problems(sound: Pod) -> None:
    assert find_problems(apply_defaults(sound)) == []


def test_an_init_container_after_a_sidecar_needs_room_beside_it() -> None:
    asked = pod(
        sidecar("s", resources("cpu=2")),
        init("i", resources("cpu=2")),
        app("a"),
        of_pod=resources("cpu=3"),
    )
    (problem,) = find_problems(asked)
    assert problem.path == "spec.resources.requests.cpu"
    assert "request 4" in problem.message
    # In the other order the init container ends before the sidecar starts.
    swapped = replace(asked, init_containers=asked.init_containers[::-1])
    assert find_problems(swapped) == []


@pytest.mark.parametrize(
    "size", ["2M", "2MB", "2m", "2MiB", "2048k", "2048kB", "1G", "1GB", "1024Mi", "2097152"]
)
def test_a_suggested_name_of_huge_pages_is_one(size: str) -> None:
    fault = resource_name_fault(f"hugepages-{size}")
    assert fault is not None
    suggested = fault.removeprefix("write it as ")
    assert suggested in {"hugepages-2Mi", "hugepages-1Gi"}
    assert resource_name_fault(suggested) is None


def test_a_size_of_a_few_bytes_is_a_warning() -> None:
    (said,) = find_warnings(pod(app("a", guaranteed("cpu=1 memory=512"))))
    assert said == (
        "spec.containers[0].resources.limits.memory: 512 is less than 1Mi, which no process runs "
        "in; is a suffix missing?"
    )
    assert find_warnings(pod(app("a", guaranteed("cpu=1 memory=512Mi")))) == ()


@given(
    st.sampled_from(["cpu", "memory", "ephemeral-storage", "kubernetes.io/x", "example.com/gpu"]),
    st.integers(1, 10**9),
    st.sampled_from(["", "E", "Ei", "e18", "e30", "e99"]),
)
def test_no_amount_is_too_large(resource: str, number: int, suffix: str) -> None:
    asked = pod(app("a", guaranteed(f"{resource}={number}{suffix}")))
    assert find_problems(asked) == []


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("cpu=1 hugepages-2Mi=2097151500m", 0),
        ("cpu=1 hugepages-2Mi=2097152500m", 2),
        ("memory=1500m ephemeral-storage=1500m kubernetes.io/x=1500m", 0),
        ("example.com/gpu=1500m", 2),
    ],
)
def test_sizes_are_rounded_up_and_devices_are_whole(text: str, problems: int) -> None:
    assert len(find_problems(pod(app("a", guaranteed(text))))) == problems


def test_sizes_that_are_no_whole_number_of_bytes_are_warned_of() -> None:
    small = resources("cpu=100m memory=128m", "memory=1Gi ephemeral-storage=1.5")
    asked = pod(app("a", small), init("i", resources("memory=2500m")))
    says, meant = (
        "is not a whole number of bytes, it counts as",
        "; m is a thousandth, is Mi meant?",
    )
    assert find_warnings(asked) == (
        f"spec.containers[0].resources.requests.memory: 128m {says} 1{meant}",
        f"spec.containers[0].resources.limits.ephemeral-storage: 1500m {says} 2{meant}",
        f"spec.initContainers[0].resources.requests.memory: 2500m {says} 3{meant}",
    )
    assert find_warnings(pod(app("a", guaranteed("cpu=1500m memory=128M")))) == ()


_AMOUNT = st.integers(0, 4)


# Shows in differences.md: invalid-pods
@given(
    st.lists(st.tuples(st.sampled_from(list(ContainerKind)), _AMOUNT, _AMOUNT), max_size=5),
    _AMOUNT,
    _AMOUNT,
)
def test_whatever_passes_fits_its_budget(
    containers: list[tuple[ContainerKind, int, int]], request: int, limit: int
) -> None:
    built = pod(
        app("main"),
        *(
            replace(app(f"c{i}", resources(f"cpu={low}", f"cpu={high}")), kind=kind)
            for i, (kind, low, high) in enumerate(containers)
        ),
        of_pod=resources(f"cpu={request}", f"cpu={limit}"),
    )
    fits = (
        request <= limit
        and all(low <= high for _, low, high in containers)
        # The API server looks at spec.containers alone here (ValidatePodCreate).
        and all(high <= limit for kind, _, high in containers if kind is ContainerKind.APP)
        and pod_requests(built, pod_level_resources=False).get("cpu", Quantity(0))
        <= Quantity.of(request)
    )
    assert (find_problems(built) == []) == fits
    if fits:
        assert pod_limits(built, pod_level_resources=True)["cpu"] == Quantity.of(limit)
