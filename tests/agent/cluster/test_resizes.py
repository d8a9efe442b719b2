"""What an update of a container asks for, of a pod whose CPUs were rounded up to whole cores."""

from __future__ import annotations

import pytest

from agent.cluster.nri.messages import ContainerResources
from agent.cluster.resizes import resize_rejected, resized_to
from agent.pods.model import ROUND_UP
from tests.agent.managers.drafts import allocated
from tests.agent.managers.hosts import CONTAINER, GIB, SMT, make_rules
from tests.agent.pods.pods import app, guaranteed, pod

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
