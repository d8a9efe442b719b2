"""A short, small load; `make load` keeps a full host changing for ten minutes of virtual time."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import pytest

from cgroupfs.names import Driver
from tests.agent.server.support import in_loop, running
from tests.load.churn import Churn, HostSystemd, Pace, busy_world

if TYPE_CHECKING:
    from pathlib import Path

#: What some hundred operations may leave: caches that fill up, the last answers, the metrics.
pytestmark = pytest.mark.nightly

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
    assert (course.admitted, course.rejected) == (course.removed, 0)
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
async def test_a_bus_that_hangs_for_a_minute_breaks_nothing_and_all_that_it_missed_is_done(
    tmp_path: Path,
) -> None:
    world = busy_world(tmp_path, Driver.SYSTEMD)
    host = HostSystemd.of(world)
    pace = Pace(pods=8, containers=1, seconds=70, rate=0.5, silence=60)
    async with running(world) as agent:
        course = await Churn(agent, pace, host).run()
    assert course.broken == []
    assert (course.admitted, course.rejected) == (course.removed, 0)
    # Admissions and removals of every kind went on while the bus hung.
    assert course.silent >= 10
    assert course.silent_reconciles >= 6
    assert course.deadlines > 0


@in_loop
async def test_what_a_bus_missed_is_missed_by_the_churn_as_well(tmp_path: Path) -> None:
    world = busy_world(tmp_path, Driver.SYSTEMD)
    host = HostSystemd.of(world)
    async with running(world) as agent:
        churn = Churn(agent, Pace(pods=2, containers=1, seconds=1), host)
        host.bus.silent = True
        await churn._admit()
        await churn._reconcile()
        assert churn.course.broken == []
        assert not churn._running[0].containers
        host.bus.silent = False
        churn._note("a comparison", ("not recorded in systemd",))
        assert churn.course.broken == ["a comparison: not recorded in systemd"]
