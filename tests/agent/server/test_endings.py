"""Pods that end by themselves: with their processes, or with their systemd unit."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.api.documents import BindRequest
from agent.config.model import CgroupDriver
from agent.managers.cpu.manager import exclusive_cpus
from agent.pods.model import END, UNIT
from agent.server.endings import START_SECONDS, STOPPED_SECONDS
from sysfs.mask import Mask
from tests.agent.server.sites import make_site, pod_of, site_config, with_agent
from tests.agent.server.support import FakeClock, make_world

if TYPE_CHECKING:
    from pathlib import Path

    from agent.pods.model import Pod
    from agent.server.controller import Controller
    from tests.agent.server.sites import Site

ONE, OTHER = (f"{digit}0000000-2222-3333-4444-555555555555" for digit in (1, 2))
SERVICE = "db.service"


def annotated(name: str, uid: str, **annotations: str) -> Pod:
    named = {"end": END, "unit": UNIT}
    given = {named[key]: text for key, text in annotations.items()}
    return replace(pod_of(name, uid, "main=2"), annotations=MappingProxyType(given))


@pytest.fixture(params=CgroupDriver)
def site(request: pytest.FixtureRequest, tmp_path: Path, host_root: Path) -> Site:
    return make_site(site_config(make_world(tmp_path, host_root).config, request.param))


@pytest.fixture
def units(tmp_path: Path, host_root: Path) -> Site:
    config = make_world(tmp_path, host_root).config
    return make_site(site_config(config, CgroupDriver.SYSTEMD))


def advance(controller: Controller, seconds: float) -> None:
    clock = controller.clock
    assert isinstance(clock, FakeClock)
    clock.advance(seconds)


def admitted(controller: Controller) -> set[str]:
    return set(controller.state.ledger.allocations)


def test_a_pod_ends_with_its_last_process_and_no_sooner(site: Site) -> None:
    async def live(controller: Controller) -> None:
        await controller.admit(annotated("one", ONE, end="processes"))
        await controller.admit(pod_of("other", OTHER, "main=2"))
        first, second = site.start(site.cgroup(ONE), "a"), site.start(site.cgroup(ONE), "b")
        await controller.end_pods()
        site.end(first)
        await controller.end_pods()
        assert admitted(controller) == {ONE, OTHER}
        site.end(second)
        await controller.end_pods()
        assert admitted(controller) == {OTHER}, "a pod without the annotation stays"
        assert not site.kernel.exists(site.cgroup(ONE))

    with_agent(site, live)


def test_a_bound_process_counts_wherever_its_cgroup_is(site: Site) -> None:
    async def live(controller: Controller) -> None:
        await controller.admit(annotated("one", ONE, end="processes"))
        bound = site.start_elsewhere("service")
        await controller.bind(ONE, "main", BindRequest(cgroup=f"/{bound}"))
        await controller.end_pods()
        assert admitted(controller) == {ONE}
        site.end(bound)
        await controller.end_pods()
        assert admitted(controller) == set()

    with_agent(site, live)


def test_a_process_that_was_bound_and_ended_between_two_observations_ends_its_pod(
    site: Site,
) -> None:
    async def live(controller: Controller) -> None:
        await controller.admit(annotated("one", ONE, end="processes"))
        cgroup = site.start(site.cgroup(ONE), "main")
        await controller.bind(ONE, "main", BindRequest(cgroup=f"/{cgroup}"))
        site.end(cgroup)
        await controller.end_pods()
        assert admitted(controller) == set()

    with_agent(site, live)


def test_a_pod_whose_first_process_does_not_come_is_freed_after_a_while(site: Site) -> None:
    async def live(controller: Controller) -> None:
        await controller.admit(annotated("one", ONE, end="processes"))
        await controller.end_pods()
        advance(controller, START_SECONDS - 1)
        await controller.end_pods()
        assert admitted(controller) == {ONE}
        advance(controller, 1)
        await controller.end_pods()
        assert admitted(controller) == set()

    with_agent(site, live)


def test_processes_that_end_while_no_agent_runs_end_their_pod_at_the_next_start(
    site: Site,
) -> None:
    async def start(controller: Controller) -> str:
        await controller.admit(annotated("one", ONE, end="processes"))
        cgroup = site.start(site.cgroup(ONE), "a")
        await controller.end_pods()
        return cgroup

    async def look(controller: Controller) -> set[str]:
        await controller.end_pods()
        return admitted(controller)

    cgroup = with_agent(site, start)
    assert with_agent(site, look) == {ONE}
    site.end(cgroup)
    assert with_agent(site, look) == set()


def start_service(site: Site) -> str:
    assert site.systemd is not None
    site.processes += 1
    return site.systemd.start_service(SERVICE, site.processes)


def stop_service(site: Site) -> None:
    assert site.systemd is not None
    site.systemd.stop_service(SERVICE)


def cpus_of(site: Site, cgroup: str) -> Mask:
    (pid,) = site.kernel.procs(cgroup)
    return site.kernel.allowed(pid)[0]


def test_a_pod_of_a_unit_is_bound_to_it_and_keeps_its_cpus_over_a_restart(units: Site) -> None:
    async def live(controller: Controller) -> None:
        cgroup = start_service(units)
        await controller.admit(annotated("db", ONE, unit=SERVICE))
        await controller.end_pods()
        own = exclusive_cpus(controller.state.ledger)
        assert cpus_of(units, cgroup) == own == Mask.of(1, 9)
        stop_service(units)
        await controller.reconcile()
        await controller.end_pods()
        advance(controller, STOPPED_SECONDS - 1)
        await controller.end_pods()
        cgroup = start_service(units)
        assert cpus_of(units, cgroup) == own, "from its first instruction"
        advance(controller, STOPPED_SECONDS)
        await controller.end_pods()
        assert admitted(controller) == {ONE}

    with_agent(units, live)


def test_a_unit_that_restarts_without_its_record_is_confined_as_soon_as_it_is_noticed(
    units: Site,
) -> None:
    async def live(controller: Controller) -> None:
        assert units.systemd is not None
        start_service(units)
        await controller.admit(annotated("db", ONE, unit=SERVICE))
        await controller.end_pods()
        own = controller.state.ledger.allocations[ONE].exclusive_cpus
        stop_service(units)
        del units.systemd.stopped[SERVICE]
        cgroup = start_service(units)
        assert cpus_of(units, cgroup) == Mask.parse("0-15")
        await controller.end_pods()
        assert cpus_of(units, cgroup) == own

    with_agent(units, live)


def test_a_pod_of_a_unit_that_stopped_for_good_ends_and_the_unit_starts_free(units: Site) -> None:
    async def live(controller: Controller) -> None:
        start_service(units)
        await controller.admit(annotated("db", ONE, unit=SERVICE))
        await controller.end_pods()
        stop_service(units)
        await controller.end_pods()
        advance(controller, STOPPED_SECONDS)
        await controller.end_pods()
        assert admitted(controller) == set()
        assert cpus_of(units, start_service(units)) == Mask.parse("0-15")
        stop_service(units)
        await controller.reconcile()
        assert len(controller.state.durable.bindings) == 0

    with_agent(units, live)


def test_a_removed_pod_leaves_no_set_on_record_for_the_next_start_of_its_unit(units: Site) -> None:
    async def live(controller: Controller) -> None:
        start_service(units)
        await controller.admit(annotated("db", ONE, unit=SERVICE))
        await controller.end_pods()
        await controller.remove(ONE)
        stop_service(units)
        await controller.reconcile()
        assert cpus_of(units, start_service(units)) == Mask.parse("0-15")

    with_agent(units, live)


def test_what_prevents_the_binding_to_a_unit_is_a_condition_until_it_is_bound_or_the_pod_gone(
    units: Site,
) -> None:
    async def live(controller: Controller) -> None:
        cgroup = start_service(units)
        await controller.admit(annotated("db", ONE, unit=SERVICE))
        units.kernel.mkdir(f"{cgroup}/inside")
        await controller.end_pods()
        assert any("has cgroups in it (inside)" in line for line in conditions(controller))
        units.kernel.rmdir(f"{cgroup}/inside")
        await controller.end_pods()
        assert conditions(controller) == ()
        await controller.unbind(ONE, "main")
        units.kernel.mkdir(f"{cgroup}/inside")
        await controller.end_pods()
        assert len(conditions(controller)) == 1
        await controller.remove(ONE)
        await controller.end_pods()
        assert conditions(controller) == ()

    with_agent(units, live)


def conditions(controller: Controller) -> tuple[str, ...]:
    return tuple(controller.state.observed.conditions.values())
