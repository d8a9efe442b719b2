"""A bus that hangs costs one deadline for each comparison, and what it missed is done later."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.cluster.plugs import PLUGS
from agent.config.model import CgroupDriver
from agent.server.plugs import Fakes
from agent.server.wiring import Wiring
from tests.agent.server.sites import Site, make_site, pod_of, site_config, wrongs
from tests.agent.server.support import FakeClock, RecordingManager, in_loop, make_world
from tests.fakes.silence import HangingSystemd

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from agent.server.controller import Controller

PODS = 5


def uid(number: int) -> str:
    return f"{number:08d}-2222-3333-4444-555555555555"


class Host:
    """A host whose bus may hang, and the clock of what runs there."""

    def __init__(self, directory: Path) -> None:
        config = site_config(make_world(directory).config, CgroupDriver.SYSTEMD)
        agent = replace(config.agent, shared_cgroup=False)
        self.site: Site = make_site(replace(config, agent=agent))
        self.clock = FakeClock()
        assert self.site.systemd is not None
        self.bus = HangingSystemd(self.site.systemd, self._wait)

    def _wait(self, seconds: float) -> None:
        # Not `advance`: no timer is to run in the thread that waits.
        self.clock.now += seconds

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[Controller]:
        """Run the agent's owner of the ledger."""
        around = Fakes(tree=self.site.kernel, systemd=self.bus, live=False, files=self.site.disk)
        assembly = Wiring(self.site.config, RecordingManager(), self.clock, PLUGS, around)
        with assembly:
            controller = assembly.controller
            serving = asyncio.create_task(controller.queue.serve())
            try:
                yield controller
            finally:
                controller.queue.stop()
                await serving
                controller.worker.close()

    async def fill(self, controller: Controller) -> None:
        """Admit Guaranteed pods that share CPUs, and start a container in each.

        They stand beside the exclusive pods, so each carries the shared pool in its own cgroup.
        """
        for number in range(PODS):
            await controller.admit(pod_of(f"p{number}", uid(number), f"c{number}=500m"))
            self.site.start(self.site.cgroup(uid(number)), f"c{number}")
        await controller.reconcile()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@in_loop
async def test_a_comparison_costs_one_deadline_and_writes_all_files(host: Host) -> None:
    async with host.agent() as controller:
        await host.fill(controller)
        pods = [path for path in host.site.cgroups() if host.site.layout.parse_pod(path)]
        assert len(pods) == PODS
        for path in pods:
            host.site.kernel.write(path, "cpuset.cpus", "3")
        host.bus.silent = True
        document = await controller.reconcile()
        assert host.bus.deadlines == 1
        shared = str(controller.state.shared_cpus)
        assert {host.site.kernel.read(p, "cpuset.cpus").strip() for p in pods} == {shared}
        assert [line for line in document.differences if "systemd" not in line] == []


@in_loop
async def test_changes_in_a_row_cost_one_deadline_and_are_done_once_the_bus_answers(
    host: Host,
) -> None:
    async with host.agent() as controller:
        await host.fill(controller)
        host.bus.silent = True
        for number in (97, 98, 99):
            await controller.admit(pod_of(f"new{number}", uid(number), "main=2"))
        for number in (97, 98):
            await controller.remove(uid(number))
        assert host.bus.deadlines == 1
        first = await controller.reconcile()
        # However many cgroups systemd did not record, that is one condition.
        unrecorded = [line for line in first.differences if "not recorded in systemd" in line]
        assert len(unrecorded) == 1
        assert "the settings of 10 cgroups" in unrecorded[0]
        assert (await controller.reconcile()).differences == first.differences
        await controller.remove(uid(0))
        host.bus.silent = False
        await controller.reconcile()
        assert wrongs(host.site, controller) == []


@in_loop
async def test_an_agent_starts_beside_a_bus_that_hangs(host: Host) -> None:
    async with host.agent() as controller:
        await host.fill(controller)
    host.bus.silent = True
    async with host.agent() as controller:
        assert host.bus.deadlines == 1
        await controller.reconcile()
        assert host.bus.deadlines == 2
        assert len(controller.state.ledger.allocations) == PODS
        host.bus.silent = False
        await controller.reconcile()
        assert wrongs(host.site, controller) == []
