"""What the load is worth: it sees what is wrong. `make load` keeps a full host changing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cgroupfs.names import Driver
from tests.agent.server.support import in_loop, running
from tests.load.churn import Churn, HostSystemd, Pace, busy_world

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.nightly


@in_loop
async def test_the_churn_sees_what_is_wrong(tmp_path: Path) -> None:
    async with running(busy_world(tmp_path)) as agent:
        churn = Churn(agent, Pace(pods=2, containers=1, seconds=1))
        await churn._admit()
        await churn._reconcile()
        churn._check()
        assert churn.course.broken == []
        pod = churn._running[0]
        container = f"{pod.cgroup}/c0"
        assert agent.world.cpus_of(container) == "1"
        agent.world.kernel.write(container, "cpuset.cpus", "129")
        churn._check()
        assert churn.course.broken == [f"{container}: 129 not 1"]
        await agent.controller.remove(pod.uid)
        churn._check_empty()
        assert churn.course.broken[1].startswith("cgroups are left")


@in_loop
async def test_a_bus_that_hangs_is_missed_by_all_that_goes_on_meanwhile(tmp_path: Path) -> None:
    world = busy_world(tmp_path, Driver.SYSTEMD)
    host = HostSystemd.of(world)
    pace = Pace(pods=8, containers=1, seconds=70, rate=0.5, silence=60)
    async with running(world) as agent:
        churn = Churn(agent, pace, host)
        course = await churn.run()
        assert course.broken == []
        assert (course.admitted, course.rejected) == (course.removed, 0)
        assert course.silent >= 10
        assert course.silent_reconciles >= 6
        assert course.deadlines > 0
        churn._note("a comparison", ("not recorded in systemd",))
        assert course.broken == ["a comparison: not recorded in systemd"]
