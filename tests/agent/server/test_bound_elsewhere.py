"""Containers that run outside of their pods' cgroups, and what is bound and bound again."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from agent.api.documents import BindRequest
from agent.config.model import CgroupDriver
from agent.managers.cpu.manager import exclusive_cpus
from agent.server.errors import BindingNotFoundError
from sysfs.mask import Mask
from tests.agent.server.sites import make_site, pod_of, site_config, with_agent
from tests.agent.server.support import make_world, next_event
from tests.fakes.effects import Effects

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agent.server.controller import Controller
    from tests.agent.server.sites import Site
    from tests.fakes.effects import Step

ONE, OTHER = (f"{digit}0000000-2222-3333-4444-555555555555" for digit in (1, 2))


@pytest.fixture(params=CgroupDriver)
def site(request: pytest.FixtureRequest, tmp_path: Path, host_root: Path) -> Site:
    return make_site(site_config(make_world(tmp_path, host_root).config, request.param))


def cpus_of(site: Site, cgroup: str) -> Mask:
    """Return where the only process of a cgroup may run."""
    (pid,) = site.kernel.procs(cgroup)
    return site.kernel.allowed(pid)[0]


def test_it_gives_up_its_pods_cpus_and_stays_confined_until_it_ends(site: Site) -> None:

    async def bind_and_remove(controller: Controller) -> str:
        await controller.admit(pod_of("one", ONE, "main=2"))
        bound = site.start_elsewhere("service")
        await controller.bind(ONE, "main", BindRequest(cgroup=f"/{bound}"))
        assert cpus() == Mask.of(1, 9)
        answer = await controller.remove(ONE)
        (note,) = answer.enforcement.notes
        assert note == (
            f"/{bound} is no longer bound to a container; what runs there is confined "
            "to the node's shared pool until it ends"
        )
        return bound

    async def admit_another(controller: Controller) -> None:
        await controller.reconcile()
        await controller.admit(pod_of("other", OTHER, "main=2"))
        assert exclusive_cpus(controller.state.ledger) == Mask.of(1, 9)

    async def compare(controller: Controller) -> int:
        answer = await controller.reconcile()
        assert answer.differences == ()
        return len(controller.state.durable.bindings)

    def cpus() -> Mask:
        return site.kernel.allowed(site.processes)[0]

    bound = with_agent(site, bind_and_remove)
    assert cpus() == Mask.parse("0-15")
    with_agent(site, admit_another)
    assert cpus() == Mask.parse("0,2-8,10-15")
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
    cpus = partial(cpus_of, site)

    async def bind_twice(controller: Controller) -> None:
        await controller.admit(pod_of("one", ONE, "main=2"))
        await controller.bind(ONE, "main", BindRequest(cgroup=f"/{mistaken}"))
        assert cpus(mistaken) == Mask.of(1, 9)
        await controller.bind(ONE, "main", BindRequest(cgroup=f"/{right}"))
        assert cpus(right) == Mask.of(1, 9)
        assert cpus(mistaken) == Mask.parse("0,2-8,10-15")

    async def let_another_have_them(controller: Controller) -> None:
        assert controller.state.durable.bindings.released == (mistaken,)
        await controller.remove(ONE)
        await controller.admit(pod_of("other", OTHER, "main=2"))
        assert exclusive_cpus(controller.state.ledger) == Mask.of(1, 9)
        answer = await controller.reconcile()
        assert (answer.found, answer.differences) == ({}, ())
        for cgroup in (mistaken, right):
            assert cpus(cgroup) == Mask.parse("0,2-8,10-15")
            assert any(f"/{cgroup} is no longer bound" in note for note in answer.notes)

    with_agent(site, bind_twice)
    with_agent(site, let_another_have_them)


def test_what_is_unbound_is_confined_before_its_cpus_can_be_another_pods(site: Site) -> None:
    bound = site.start_elsewhere("service")
    cpus = partial(cpus_of, site, bound)

    async def unbind(controller: Controller) -> None:
        await controller.admit(pod_of("one", ONE, "main=2"))
        await controller.bind(ONE, "main", BindRequest(cgroup=f"/{bound}"))
        assert cpus() == Mask.of(1, 9)
        with controller.events.watch() as watcher:
            answer = await controller.unbind(ONE, "main")
            assert (await next_event(watcher, "ContainerUnbound")).uid == ONE
        assert (answer.cgroup, answer.enforcement.enforced) == (f"/{bound}", True)
        assert cpus() == Mask.parse("0,2-8,10-15")
        with pytest.raises(BindingNotFoundError):
            await controller.unbind(ONE, "main")

    async def let_another_have_them(controller: Controller) -> None:
        """Also after a restart the cgroup is confined, until it is bound again."""
        assert controller.state.durable.bindings.released == (bound,)
        await controller.remove(ONE)
        await controller.admit(pod_of("other", OTHER, "main=2"))
        assert cpus() == Mask.parse("0,2-8,10-15")
        await controller.bind(OTHER, "main", BindRequest(cgroup=f"/{bound}"))
        assert cpus() == Mask.of(1, 9)
        assert not controller.state.durable.bindings.released

    with_agent(site, unbind)
    with_agent(site, let_another_have_them)


def test_an_unbound_container_is_found_by_its_name_again(site: Site) -> None:

    async def play(controller: Controller) -> None:
        await controller.admit(pod_of("one", ONE, "first=2 second=4"))
        cgroup = site.start(site.cgroup(ONE), "x-second")
        await controller.bind(ONE, "first", BindRequest(cgroup=f"/{cgroup}"))
        (pid,) = site.kernel.procs(cgroup)
        assert len(site.kernel.allowed(pid)[0]) == 2
        await controller.unbind(ONE, "first")
        assert len(site.kernel.allowed(pid)[0]) == 4

    with_agent(site, play)


def test_what_starts_where_a_container_was_bound_is_not_on_its_cpus(site: Site) -> None:
    bound = site.start_elsewhere("service")

    async def play(controller: Controller) -> None:
        await controller.admit(pod_of("one", ONE, "main=2"))
        await controller.bind(ONE, "main", BindRequest(cgroup=f"/{bound}"))
        site.end(bound)
        await controller.remove(ONE)
        left = (site.kernel.read_many(bound, ("cpuset.cpus",))[0] or "").strip()
        assert left in ("", "0-15"), "before another pod has them"
        await controller.reconcile()
        assert len(controller.state.durable.bindings) == 0
        # systemd takes the controller back where no unit asks for it.
        assert not (site.kernel.read_many(bound, ("cpuset.cpus",))[0] or "").strip()
        if site.systemd is not None:
            allowed = site.systemd.unit_properties(bound.rpartition("/")[2], "AllowedCPUs")[0]
            assert not allowed

    with_agent(site, play)


def test_a_process_that_starts_while_its_cgroup_is_given_back_is_confined(site: Site) -> None:
    bound = site.start_elsewhere("service")

    def start_late(step: Step, act: Callable[[], object]) -> object:
        if step.subject.startswith(f"{bound}/cpuset.cpus") and not site.kernel.procs(bound):
            site.processes += 1
            site.kernel.spawn(bound, site.processes)
        return act()

    async def play(controller: Controller) -> None:
        await controller.admit(pod_of("one", ONE, "main=2"))
        await controller.bind(ONE, "main", BindRequest(cgroup=f"/{bound}"))
        site.end(bound)
        await controller.remove(ONE)
        await controller.reconcile()
        assert [each.cgroup for each in controller.state.durable.bindings] == [bound]
        await controller.admit(pod_of("other", OTHER, "main=2"))
        assert exclusive_cpus(controller.state.ledger) == Mask.of(1, 9)
        assert site.kernel.allowed(site.processes)[0] == Mask.parse("0,2-8,10-15")

    with_agent(site, play, Effects(start_late))


def test_what_enters_a_removed_pod_at_the_last_moment_is_not_ended(
    tmp_path: Path, host_root: Path
) -> None:
    """Between the last look at a slice and its stop systemd may start a unit in it."""
    site = make_site(site_config(make_world(tmp_path, host_root).config, CgroupDriver.SYSTEMD))
    entered: list[str] = []

    def enter_before_the_stop(step: Step, do: Callable[[], object]) -> object:
        if (step.where, step.name) == ("bus", "stop") and not entered:
            entered.append(site.start(site.cgroup(ONE), "late"))
        return do()

    async def play(controller: Controller) -> None:
        await controller.admit(pod_of("one", ONE, "main=2"))
        await controller.remove(ONE)
        (cgroup,) = entered
        (pid,) = site.kernel.procs(cgroup)
        await controller.reconcile()
        assert site.kernel.allowed(pid)[0] == Mask.parse("0-15"), "it runs on in the shared pool"
        site.end(cgroup)
        await controller.reconcile()
        assert not site.kernel.exists(site.cgroup(ONE))

    with_agent(site, play, Effects(enter_before_the_stop))
