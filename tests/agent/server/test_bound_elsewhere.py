"""Containers that run outside of their pods' cgroups, and what is bound and bound again."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from agent.api.documents.admissions import BindRequest
from agent.managers.cpu.manager import exclusive_cpus
from agent.server.errors import BindingNotFoundError
from sysfs.mask import Mask
from tests.agent.server.sites import alive, hotplug, pod_of, with_agent
from tests.agent.server.support import next_event
from tests.fakes.effects import Effects

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.server.controller import Controller
    from tests.agent.server.sites import Site
    from tests.fakes.effects import Step

ONE, OTHER = (f"{digit}0000000-2222-3333-4444-555555555555" for digit in (1, 2))
OWN, ALL, REST = Mask.of(1, 9), Mask.parse("0-15"), Mask.parse("0,2-8,10-15")


async def admitted(controller: Controller, *bound: str) -> None:
    """Admit a pod with CPUs of its own whose container is bound to cgroups, one after another."""
    await controller.admit(pod_of("one", ONE, "main=2"))
    for cgroup in bound:
        await controller.bind(ONE, "main", BindRequest(cgroup=f"/{cgroup}"))


async def another(controller: Controller) -> None:
    """Let another pod have these CPUs."""
    await controller.admit(pod_of("other", OTHER, "main=2"))
    assert exclusive_cpus(controller.state.ledger) == OWN


def test_it_gives_up_its_pods_cpus_and_stays_confined_until_it_ends(site: Site) -> None:
    bound = site.start_elsewhere("service")
    cpus = partial(site.cpus_of, bound)

    async def bind_and_remove(controller: Controller) -> None:
        await admitted(controller, bound)
        assert cpus() == OWN
        (note,) = (await controller.remove(ONE)).enforcement.notes
        assert note == (
            f"/{bound} is no longer bound to a container; what runs there is confined "
            "to the node's shared pool until it ends"
        )

    async def admit_another(controller: Controller) -> None:
        await controller.reconcile()
        await another(controller)

    async def compare(controller: Controller) -> int:
        assert (await controller.reconcile()).differences == ()
        return len(controller.state.durable.bindings)

    with_agent(site, bind_and_remove)
    assert cpus() == ALL
    with_agent(site, admit_another)
    assert cpus() == REST
    assert with_agent(site, compare) == 1
    site.end(bound)
    assert with_agent(site, compare) == 0
    saved = site.saved()
    assert saved is not None
    assert len(saved.bindings) == 0
    assert site.kernel.exists(bound), "it is not the agent's to remove"


def test_what_was_bound_by_mistake_gives_the_cpus_up_when_the_binding_is_corrected(
    site: Site,
) -> None:
    mistaken, right = site.start_elsewhere("sshd"), site.start_elsewhere("app")

    async def bind_twice(controller: Controller) -> None:
        await admitted(controller, mistaken)
        assert site.cpus_of(mistaken) == OWN
        await controller.bind(ONE, "main", BindRequest(cgroup=f"/{right}"))
        assert (site.cpus_of(right), site.cpus_of(mistaken)) == (OWN, REST)

    async def let_another_have_them(controller: Controller) -> None:
        assert controller.state.durable.bindings.released == (mistaken,)
        await controller.remove(ONE)
        await another(controller)
        answer = await controller.reconcile()
        assert (answer.found, answer.differences) == ({}, ())
        for cgroup in (mistaken, right):
            assert site.cpus_of(cgroup) == REST
            assert any(f"/{cgroup} is no longer bound" in note for note in answer.notes)

    with_agent(site, bind_twice)
    with_agent(site, let_another_have_them)


def test_what_is_unbound_is_confined_before_its_cpus_can_be_another_pods(site: Site) -> None:
    bound = site.start_elsewhere("service")
    cpus = partial(site.cpus_of, bound)

    async def unbind(controller: Controller) -> None:
        await admitted(controller, bound)
        assert cpus() == OWN
        with controller.events.watch() as watcher:
            answer = await controller.unbind(ONE, "main")
            assert (await next_event(watcher, "ContainerUnbound")).uid == ONE
        assert (answer.cgroup, answer.enforcement.enforced) == (f"/{bound}", True)
        assert cpus() == REST
        with pytest.raises(BindingNotFoundError):
            await controller.unbind(ONE, "main")

    async def let_another_have_them(controller: Controller) -> None:
        """Also after a restart the cgroup is confined, until it is bound again."""
        assert controller.state.durable.bindings.released == (bound,)
        await controller.remove(ONE)
        await another(controller)
        assert cpus() == REST
        await controller.bind(OTHER, "main", BindRequest(cgroup=f"/{bound}"))
        assert cpus() == OWN
        assert not controller.state.durable.bindings.released

    with_agent(site, unbind)
    with_agent(site, let_another_have_them)


@alive
async def test_an_unbound_container_is_found_by_its_name_again(
    controller: Controller, site: Site
) -> None:
    await controller.admit(pod_of("one", ONE, "first=2 second=4"))
    cgroup = site.start(site.cgroup(ONE), "x-second")
    await controller.bind(ONE, "first", BindRequest(cgroup=f"/{cgroup}"))
    assert len(site.cpus_of(cgroup)) == 2
    await controller.unbind(ONE, "first")
    assert len(site.cpus_of(cgroup)) == 4


@alive
async def test_what_starts_where_a_container_was_bound_is_not_on_its_cpus(
    controller: Controller, site: Site
) -> None:
    bound = site.start_elsewhere("service")
    await admitted(controller, bound)
    site.end(bound)
    await controller.remove(ONE)
    left = (site.kernel.read_many(bound, ("cpuset.cpus",))[0] or "").strip()
    assert left in ("", "0-15"), "before another pod has them"
    await controller.reconcile()
    assert len(controller.state.durable.bindings) == 0
    # systemd takes the controller back where no unit asks for it.
    assert not (site.kernel.read_many(bound, ("cpuset.cpus",))[0] or "").strip()
    if site.systemd is not None:
        assert not site.systemd.unit_properties(bound.rpartition("/")[2], "AllowedCPUs")[0]


def test_a_process_that_starts_while_its_cgroup_is_given_back_is_confined(site: Site) -> None:
    bound = site.start_elsewhere("service")

    def start_late(step: Step, act: Callable[[], object]) -> object:
        if step.subject.startswith(f"{bound}/cpuset.cpus") and not site.kernel.procs(bound):
            site.processes += 1
            site.kernel.spawn(bound, site.processes)
        return act()

    async def play(controller: Controller) -> None:
        await admitted(controller, bound)
        site.end(bound)
        await controller.remove(ONE)
        await controller.reconcile()
        assert [each.cgroup for each in controller.state.durable.bindings] == [bound]
        await another(controller)
        assert site.cpus_of(bound) == REST

    with_agent(site, play, Effects(start_late))


def test_what_enters_a_removed_pod_at_the_last_moment_is_not_ended(units: Site) -> None:
    """Between the last look at a slice and its stop systemd may start a unit in it."""
    entered: list[str] = []

    def enter_before_the_stop(step: Step, do: Callable[[], object]) -> object:
        if (step.where, step.name) == ("bus", "stop") and not entered:
            entered.append(units.start(units.cgroup(ONE), "late"))
        return do()

    async def play(controller: Controller) -> None:
        await admitted(controller)
        await controller.remove(ONE)
        await controller.reconcile()
        assert units.cpus_of(entered[0]) == ALL, "it runs on in the shared pool"
        units.end(entered[0])
        await controller.reconcile()
        assert not units.kernel.exists(units.cgroup(ONE))

    with_agent(units, play, Effects(enter_before_the_stop))


def test_a_bound_unit_that_starts_while_its_cpus_are_offline_is_kept_off_those_of_others(
    units: Site,
) -> None:
    systemd, unit = units.systemd, "db.service"
    assert systemd is not None
    bound = systemd.start_service(unit, 900)

    async def restart_offline(controller: Controller) -> None:
        await admitted(controller, bound)
        await controller.admit(pod_of("other", OTHER, "main=2"))
        systemd.stop_service(unit)
        await hotplug(units, controller, "0,2-8,10-15")
        await controller.reconcile()
        systemd.start_service(unit, 901)
        assert units.cpus_of(bound) == REST, "on record are CPUs of which none is online"
        await controller.meet({bound})
        assert units.cpus_of(bound) == REST - Mask.of(2, 10)

    with_agent(units, restart_offline)
