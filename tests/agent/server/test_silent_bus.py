"""A bus that hangs costs one deadline for each comparison, and what it missed is done later."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from agent.config.config import CgroupDriver
from agent.server.start.wiring import Assembly, Surrogates
from cgroupfs.names import Tier
from tests.agent.server.sites import Site, make_site, pod_of, site_config, wrongs
from tests.agent.server.support import FakeClock, RecordingManager, in_loop, make_world
from tests.fakes.silence import HangingSystemd

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from agent.server.controller import Keeper

PODS = 5


def uid(number: int) -> str:
    return f"{number:08d}-2222-3333-4444-555555555555"


class Host:
    """A host whose bus may hang, and the clock of what runs there."""

    def __init__(self, directory: Path) -> None:
        config = site_config(make_world(directory).config, CgroupDriver.SYSTEMD)
        self.site: Site = make_site(config)
        self.clock = FakeClock()
        assert self.site.systemd is not None
        self.bus = HangingSystemd(self.site.systemd, self._wait)

    def _wait(self, seconds: float) -> None:
        # Not `advance`: nobody's timers are to run in the thread that waits.
        self.clock.now += seconds

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[Keeper]:
        """Run the agent's owner of the ledger."""
        around = Surrogates(
            tree=self.site.kernel, systemd=self.bus, live=False, files=self.site.disk
        )
        assembly = Assembly(self.site.config, RecordingManager(), self.clock, around)
        with assembly:
            keeper = assembly.keeper
            serving = asyncio.create_task(keeper.queue.serve())
            try:
                yield keeper
            finally:
                keeper.queue.stop()
                await serving
                keeper.worker.close()

    async def fill(self, keeper: Keeper) -> None:
        """Admit pods that share CPUs, and start a container in each."""
        for number in range(PODS):
            await keeper.admit(pod_of(f"p{number}", uid(number), f"c{number}"))
            self.site.start(self.site.cgroup(uid(number), Tier.BEST_EFFORT), f"c{number}")
        await keeper.reconcile()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@in_loop
async def test_a_comparison_costs_one_deadline_and_writes_all_files(host: Host) -> None:
    async with host.agent() as keeper:
        await host.fill(keeper)
        containers = [path for path in host.site.cgroups() if path.endswith(".scope")]
        assert len(containers) == PODS
        for path in containers:
            host.site.kernel.write(path, "cpuset.cpus", "3")
        host.bus.silent = True
        document = await keeper.reconcile()
        assert host.bus.deadlines == 1
        shared = str(keeper.state.shared_cpus)
        assert {host.site.kernel.read(p, "cpuset.cpus").strip() for p in containers} == {shared}
        assert [line for line in document.problems if "systemd" not in line] == []


@in_loop
async def test_what_systemd_was_not_told_is_one_problem_however_many_cgroups(host: Host) -> None:
    async with host.agent() as keeper:
        await host.fill(keeper)
        host.bus.silent = True
        await keeper.admit(pod_of("new", uid(99), "main=2"))
        first = await keeper.reconcile()
        again = await keeper.reconcile()
        untold = [line for line in first.problems if "was not told" in line]
        assert len(untold) == 1
        assert f"the settings of {2 * PODS} cgroups" in untold[0]
        assert again.problems == first.problems


@in_loop
async def test_changes_in_a_row_cost_one_deadline_together(host: Host) -> None:
    async with host.agent() as keeper:
        await host.fill(keeper)
        host.bus.silent = True
        for number in (97, 98, 99):
            await keeper.admit(pod_of(f"new{number}", uid(number), "main=2"))
        for number in (97, 0, 1):
            await keeper.remove(uid(number))
        assert host.bus.deadlines == 1


@in_loop
async def test_what_was_missed_is_done_once_the_bus_answers(host: Host) -> None:
    async with host.agent() as keeper:
        await host.fill(keeper)
        host.bus.silent = True
        await keeper.admit(pod_of("new", uid(99), "main=2"))
        await keeper.remove(uid(0))
        await keeper.reconcile()
        assert keeper.state.problems()
        host.bus.silent = False
        await keeper.reconcile()
        assert wrongs(host.site, keeper) == []


@in_loop
async def test_an_agent_starts_beside_a_bus_that_hangs(host: Host) -> None:
    async with host.agent() as keeper:
        await host.fill(keeper)
    host.bus.silent = True
    async with host.agent() as keeper:
        assert host.bus.deadlines == 1
        await keeper.reconcile()
        assert host.bus.deadlines == 2
        assert len(keeper.state.ledger.grants) == PODS
        host.bus.silent = False
        await keeper.reconcile()
        assert wrongs(host.site, keeper) == []
