"""A short, small load; `make load` keeps a full host changing for ten minutes of virtual time."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

from tests.agent.service.support import in_loop, running
from tests.load.churn import Churn, Pace, busy_world

if TYPE_CHECKING:
    from pathlib import Path

#: What some hundred operations may leave: caches that fill up, the last answers, the metrics.
_SLACK = 512 << 10


@in_loop
async def test_coming_and_going_leaves_nothing_behind_and_breaks_nothing(tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        async with running(busy_world(tmp_path)) as agent:
            course = await Churn(agent, Pace(pods=12, containers=2, seconds=20)).run()
    finally:
        tracemalloc.stop()
    assert course.broken == []
    assert (course.admitted, course.refused) == (course.removed, 0)
    assert course.removed >= 12 + 20
    full, end = course.usage
    assert end.threads == full.threads
    assert end.descriptors == full.descriptors
    assert end.tasks == full.tasks
    assert end.traced < full.traced + _SLACK


@in_loop
async def test_the_churn_sees_what_is_wrong(tmp_path: Path) -> None:
    async with running(busy_world(tmp_path)) as agent:
        churn = Churn(agent, Pace(pods=2, containers=1, seconds=1))
        await churn._admit()
        await churn._reconcile()
        churn._check()
        assert churn.course.broken == []
        uid, _, cgroup = churn._held[0]
        assert agent.world.cpus_of(f"{cgroup}/c0") == "1"
        agent.world.kernel.write(f"{cgroup}/c0", "cpuset.cpus", "129")
        churn._check()
        assert churn.course.broken == [f"{cgroup}/c0: 129 not 1"]
        await agent.keeper.remove(uid)
        churn._check_empty()
        assert churn.course.broken[1].startswith("cgroups are left")
