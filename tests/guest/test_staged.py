from __future__ import annotations

import pytest

from agent.managers.policy import TopologyManagerPolicy
from tests.guest.inside.load import LOADED
from tests.guest.inside.pods import Exclusive, NodeShared, PodShared
from tests.guest.inside.policies import BUDGET, OUTCOMES, TORN_BUDGET
from tests.guest.inside.staged import ALL_STAGES, IN_CONTAINER_SCOPE, INIT_REUSED, Kind, Staged
from tests.guest.scenarios import shapes

IN_POD_SCOPE = (
    *(INIT_REUSED, ALL_STAGES, shapes.RUNNING, shapes.DIVIDED),
    *(BUDGET, TORN_BUDGET, *shapes.LARGE),
)
PODS = (
    *IN_POD_SCOPE,
    LOADED,
    IN_CONTAINER_SCOPE,
    shapes.UNDIVIDED,
    shapes.ALONE,
    shapes.HALF_A_CORE,
)


def test_uids_of_staged_pods_are_distinct() -> None:
    assert len({pod.uid for pod in PODS}) == len(PODS)


@pytest.mark.parametrize("pod", IN_POD_SCOPE, ids=lambda pod: pod.name)
def test_what_is_shared_is_the_budget_less_what_is_exclusive_then(pod: Staged) -> None:
    def exclusive(*kinds: Kind, before: int) -> int:
        return sum(
            part.placement.cpus
            for part in pod.parts[:before]
            if part.kind in kinds and isinstance(part.placement, Exclusive)
        )

    for index, part in enumerate(pod.parts):
        assert not isinstance(part.placement, NodeShared)
        if not isinstance(part.placement, PodShared):
            continue
        if part.kind is Kind.INIT:
            taken = exclusive(Kind.SIDECAR, before=index)
        else:
            taken = exclusive(Kind.SIDECAR, Kind.APP, before=len(pod.parts))
        assert part.placement.cpus == pod.budget - taken


def test_each_topology_policy_is_asked() -> None:
    assert set(OUTCOMES) == {str(policy) for policy in TopologyManagerPolicy}
