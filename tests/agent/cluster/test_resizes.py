"""What an update of a container asks for, of a pod whose CPUs were rounded up to whole cores."""

from __future__ import annotations

import pytest

from agent.cluster.nri.messages import ContainerResources, PodSandbox
from agent.cluster.resizes import pod_resize_rejected, resize_rejected, resized_to
from agent.pods.model import EXCLUSIVE, ROUND_UP
from tests.agent.managers.drafts import allocated
from tests.agent.managers.hosts import CONTAINER, GIB, SMT, make_rules
from tests.agent.pods.pods import app, guaranteed, pod, resources

_PERIOD = 100_000


@pytest.mark.parametrize(
    ("cpus", "memory", "expected"),
    [
        (3, None, None),
        (3, GIB, None),
        (5, None, (5000, None)),
        (3, 2 * GIB, (None, 2 * GIB)),
        (4, GIB, (4000, GIB)),
    ],
)
def test_an_update_is_compared_with_what_the_manifest_states(
    cpus: int, memory: int | None, expected: tuple[int | None, int | None] | None
) -> None:
    own = app("main", guaranteed("cpu=3 memory=1Gi"))
    rules = make_rules(SMT, scope=CONTAINER)
    found = allocated(rules, pod(own, annotations={ROUND_UP: "cores"}))
    assert len(found.exclusive_cpus) == 4
    asked = ContainerResources(quota_us=cpus * _PERIOD, period_us=_PERIOD, memory=memory)
    change = resized_to(found, "main", asked)
    assert (change and (change.cpu, change.memory)) == expected


@pytest.mark.parametrize(
    ("cpus", "why"), [(5, ""), (6, "the pod keeps its CPUs"), (4, "the pod keeps its CPUs")]
)
def test_an_update_of_the_sandbox_is_compared_with_the_pod_level_of_the_manifest(
    cpus: int, why: str
) -> None:
    own, budget = app("main", guaranteed("cpu=3 memory=1Gi")), guaranteed("cpu=5 memory=2Gi")
    asked = pod(own, app("rest"), of_pod=budget, annotations={ROUND_UP: "cores"})
    found = allocated(make_rules(SMT), asked)
    assert len(found.exclusive_cpus) == 6
    update = PodSandbox("s", found.uid, "", "", cpu_quota=cpus * _PERIOD, cpu_period=_PERIOD)
    rejected = pod_resize_rejected(found, 0, update)
    assert rejected.startswith(why)
    assert bool(rejected) == bool(why)


@pytest.mark.parametrize(("cpus", "why"), [(3, ""), (4, "container rest keeps its CPU limit")])
def test_a_container_that_shares_cpus_is_compared_with_the_limit_of_the_manifest(
    cpus: int, why: str
) -> None:
    named = app("main", resources("cpu=3", limits="cpu=3"))
    rest = app("rest", resources("cpu=3", limits="cpu=3"))
    found = allocated(
        make_rules(SMT, scope=CONTAINER),
        pod(named, rest, annotations={ROUND_UP: "cores", EXCLUSIVE: "main"}),
    )
    update = ContainerResources(quota_us=cpus * _PERIOD, period_us=_PERIOD)
    rejected = resize_rejected(found, "rest", update)
    assert rejected.startswith(why)
    assert bool(rejected) == bool(why)


@pytest.mark.parametrize(
    ("quota", "period"), [(2**63 - 1, 1), (2**63 - 1, _PERIOD), (1000, 1), (1000, 2**64 - 1)]
)
def test_a_quota_that_the_kernel_does_not_take_changes_nothing(quota: int, period: int) -> None:
    found = allocated(make_rules(), pod(app("main", guaranteed("cpu=3 memory=1Gi"))))
    asked = ContainerResources(quota_us=quota, period_us=period)
    assert resized_to(found, "main", asked) is None
    assert resize_rejected(found, "main", asked) == ""


@pytest.mark.parametrize(("cpus", "why"), [(3, ""), (5, "CPUs do not change while the pod runs")])
def test_a_slice_of_a_budget_keeps_the_cpus_that_it_states(cpus: int, why: str) -> None:
    own = app("main", guaranteed("cpu=3 memory=1Gi"))
    budget = guaranteed("cpu=6 memory=2Gi")
    asked = pod(own, app("rest"), of_pod=budget, annotations={ROUND_UP: "cores"})
    found = allocated(make_rules(SMT), asked)
    update = ContainerResources(quota_us=cpus * _PERIOD, period_us=_PERIOD)
    assert resized_to(found, "main", update) is None
    assert why in resize_rejected(found, "main", update)
    assert bool(resize_rejected(found, "main", update)) == bool(why)
