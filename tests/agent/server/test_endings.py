"""Pods that end by themselves: with their processes, or with their systemd unit."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.api.documents.admissions import BindRequest
from agent.managers.cpu.manager import exclusive_cpus
from agent.pods.model import END, UNIT
from agent.server.endings import START_SECONDS, STOPPED_SECONDS
from sysfs.mask import Mask
from tests.agent.server.sites import alive, pod_of, with_agent
from tests.agent.server.support import FakeClock

if TYPE_CHECKING:
    from agent.server.controller import Controller
    from tests.agent.server.sites import Site
    from tests.fakes.systemd import FakeSystemd

ONE, OTHER = (f"{digit}0000000-2222-3333-4444-555555555555" for digit in (1, 2))
SERVICE = "db.service"
ALL = Mask.parse("0-15")


async def admit(controller: Controller, annotation: str = END, value: str = "processes") -> None:
    given = MappingProxyType({annotation: value})
    await controller.admit(replace(pod_of("one", ONE, "main=2"), annotations=given))


async def admitted(controller: Controller, seconds: float = 0) -> set[str]:
    """Return which pods are left when it was looked for ends so many seconds later."""
    assert isinstance(controller.clock, FakeClock)
    controller.clock.advance(seconds)
    await controller.end_pods()
    return set(controller.state.ledger.allocations)


@alive
async def test_a_pod_ends_with_its_last_process_and_no_sooner(
    controller: Controller, site: Site
) -> None:
    await admit(controller)
    await controller.admit(pod_of("other", OTHER, "main=2"))
    first, second = site.start(site.cgroup(ONE), "a"), site.start(site.cgroup(ONE), "b")
    await controller.end_pods()
    site.end(first)
    assert await admitted(controller) == {ONE, OTHER}
    site.end(second)
    assert await admitted(controller) == {OTHER}, "a pod without the annotation stays"
    assert not site.kernel.exists(site.cgroup(ONE))


@pytest.mark.parametrize("looks", [True, False])
def test_a_bound_process_counts_wherever_its_cgroup_is_and_if_it_ended_unseen(
    site: Site, *, looks: bool
) -> None:
    async def live(controller: Controller) -> None:
        await admit(controller)
        bound = site.start_elsewhere("service") if looks else site.start(site.cgroup(ONE), "main")
        await controller.bind(ONE, "main", BindRequest(cgroup=f"/{bound}"))
        assert not looks or await admitted(controller) == {ONE}
        site.end(bound)
        assert await admitted(controller) == set()

    with_agent(site, live)


@alive
async def test_a_pod_whose_first_process_does_not_come_is_freed_after_a_while(
    controller: Controller, site: Site
) -> None:
    del site
    await admit(controller)
    await controller.end_pods()
    assert await admitted(controller, START_SECONDS - 1) == {ONE}
    assert await admitted(controller, 1) == set()


def test_processes_that_end_while_no_agent_runs_end_their_pod_at_the_next_start(site: Site) -> None:
    async def start(controller: Controller) -> str:
        await admit(controller)
        cgroup = site.start(site.cgroup(ONE), "a")
        await controller.end_pods()
        return cgroup

    cgroup = with_agent(site, start)
    assert with_agent(site, admitted) == {ONE}
    site.end(cgroup)
    assert with_agent(site, admitted) == set()


def systemd(site: Site) -> FakeSystemd:
    assert site.systemd is not None
    return site.systemd


def start_service(site: Site) -> str:
    site.processes += 1
    return systemd(site).start_service(SERVICE, site.processes)


async def serve(controller: Controller, units: Site) -> str:
    """Start a service and admit its pod; return the cgroup."""
    cgroup = start_service(units)
    await admit(controller, UNIT, SERVICE)
    await controller.end_pods()
    assert units.cpus_of(cgroup) == exclusive_cpus(controller.state.ledger) == Mask.of(1, 9)
    return cgroup


def test_a_pod_of_a_unit_is_bound_to_it_and_keeps_its_cpus_over_a_restart(units: Site) -> None:
    async def live(controller: Controller) -> None:
        await serve(controller, units)
        systemd(units).stop_service(SERVICE)
        await controller.reconcile()
        await controller.end_pods()
        await admitted(controller, STOPPED_SECONDS - 1)
        assert units.cpus_of(start_service(units)) == Mask.of(1, 9), "from its first instruction"
        assert await admitted(controller, STOPPED_SECONDS) == {ONE}

    with_agent(units, live)


def test_a_unit_that_restarts_without_its_record_is_confined_as_soon_as_it_is_noticed(
    units: Site,
) -> None:
    async def live(controller: Controller) -> None:
        await serve(controller, units)
        systemd(units).stop_service(SERVICE)
        del systemd(units).stopped[SERVICE]
        cgroup = start_service(units)
        assert units.cpus_of(cgroup) == ALL
        await controller.end_pods()
        assert units.cpus_of(cgroup) == Mask.of(1, 9)

    with_agent(units, live)


@pytest.mark.parametrize("removed", [True, False])
def test_a_unit_whose_pod_ended_or_was_removed_starts_free(units: Site, *, removed: bool) -> None:
    async def live(controller: Controller) -> None:
        await serve(controller, units)
        if removed:
            await controller.remove(ONE)
        systemd(units).stop_service(SERVICE)
        await controller.end_pods()
        assert await admitted(controller, STOPPED_SECONDS) == set()
        if removed:
            await controller.reconcile()
        assert units.cpus_of(start_service(units)) == ALL
        systemd(units).stop_service(SERVICE)
        await controller.reconcile()
        assert len(controller.state.durable.bindings) == 0

    with_agent(units, live)


def test_what_prevents_the_binding_to_a_unit_is_a_condition_until_it_is_bound_or_the_pod_gone(
    units: Site,
) -> None:
    async def conditions(controller: Controller) -> tuple[str, ...]:
        await controller.end_pods()
        return tuple(controller.state.observed.conditions.values())

    async def live(controller: Controller) -> None:
        cgroup = start_service(units)
        await admit(controller, UNIT, SERVICE)
        units.kernel.mkdir(f"{cgroup}/inside")
        (line,) = await conditions(controller)
        assert "has cgroups in it (inside)" in line
        units.kernel.rmdir(f"{cgroup}/inside")
        assert await conditions(controller) == ()
        await controller.unbind(ONE, "main")
        units.kernel.mkdir(f"{cgroup}/inside")
        assert len(await conditions(controller)) == 1
        await controller.remove(ONE)
        assert await conditions(controller) == ()

    with_agent(units, live)
