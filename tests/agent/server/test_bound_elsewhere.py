"""Containers that run outside of their pods' cgroups, and what is bound and bound again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.api.documents import BindRequest
from agent.config.config import CgroupDriver
from agent.reconcile.errors import BindingError
from agent.server.errors import BindingNotFoundError
from sysfs.mask import Mask
from tests.agent.server.sites import make_site, pod_of, site_config, with_agent
from tests.agent.server.support import make_world, next_event
from tests.fakes.effects import Effects

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agent.server.controller import Keeper
    from tests.fakes.effects import Step

ONE, OTHER = (f"{digit}0000000-2222-3333-4444-555555555555" for digit in (1, 2))


@pytest.mark.parametrize("driver", CgroupDriver)
def test_it_gives_up_its_pods_cpus_and_stays_confined_until_it_ends(
    tmp_path: Path, host_root: Path, driver: CgroupDriver
) -> None:
    site = make_site(site_config(make_world(tmp_path, host_root).config, driver))

    async def bind_and_remove(keeper: Keeper) -> str:
        await keeper.admit(pod_of("one", ONE, "main=2"))
        bound = site.start_elsewhere("service")
        await keeper.bind(ONE, "main", BindRequest(cgroup=f"/{bound}"))
        assert cpus() == Mask.of(1, 9)
        answer = await keeper.remove(ONE)
        (note,) = answer.enforcement.notes
        assert note == (
            f"/{bound} was bound to a container and is not any more; what runs there is confined "
            "to the node's shared pool until it ends"
        )
        return bound

    async def admit_another(keeper: Keeper) -> None:
        await keeper.reconcile()
        await keeper.admit(pod_of("other", OTHER, "main=2"))
        assert keeper.state.ledger.exclusive_cpus == Mask.of(1, 9)

    async def compare(keeper: Keeper) -> int:
        answer = await keeper.reconcile()
        assert answer.problems == ()
        return len(keeper.state.held.bindings)

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


@pytest.mark.parametrize("driver", CgroupDriver)
def test_what_was_bound_by_mistake_gives_the_cpus_up_when_the_binding_is_corrected(
    tmp_path: Path, host_root: Path, driver: CgroupDriver
) -> None:
    site = make_site(site_config(make_world(tmp_path, host_root).config, driver))
    mistaken, right = site.start_elsewhere("sshd"), site.start_elsewhere("app")

    def cpus(cgroup: str) -> Mask:
        (pid,) = site.kernel.procs(cgroup)
        return site.kernel.allowed(pid)[0]

    async def bind_twice(keeper: Keeper) -> None:
        await keeper.admit(pod_of("one", ONE, "main=2"))
        await keeper.bind(ONE, "main", BindRequest(cgroup=f"/{mistaken}"))
        assert cpus(mistaken) == Mask.of(1, 9)
        await keeper.bind(ONE, "main", BindRequest(cgroup=f"/{right}"))
        assert cpus(right) == Mask.of(1, 9)
        assert cpus(mistaken) == Mask.parse("0,2-8,10-15")

    async def let_another_have_them(keeper: Keeper) -> None:
        assert keeper.state.held.bindings.released == (mistaken,)
        await keeper.remove(ONE)
        await keeper.admit(pod_of("other", OTHER, "main=2"))
        assert keeper.state.ledger.exclusive_cpus == Mask.of(1, 9)
        answer = await keeper.reconcile()
        assert (answer.found, answer.problems) == ({}, ())
        for cgroup in (mistaken, right):
            assert cpus(cgroup) == Mask.parse("0,2-8,10-15")
            assert any(f"/{cgroup} was bound" in note for note in answer.notes)

    with_agent(site, bind_twice)
    with_agent(site, let_another_have_them)


@pytest.mark.parametrize("driver", CgroupDriver)
def test_what_is_unbound_is_confined_before_its_cpus_can_be_anybody_elses(
    tmp_path: Path, host_root: Path, driver: CgroupDriver
) -> None:
    site = make_site(site_config(make_world(tmp_path, host_root).config, driver))
    bound = site.start_elsewhere("service")

    def cpus() -> Mask:
        (pid,) = site.kernel.procs(bound)
        return site.kernel.allowed(pid)[0]

    async def unbind(keeper: Keeper) -> None:
        await keeper.admit(pod_of("one", ONE, "main=2"))
        await keeper.bind(ONE, "main", BindRequest(cgroup=f"/{bound}"))
        assert cpus() == Mask.of(1, 9)
        with keeper.events.watch() as watcher:
            answer = await keeper.unbind(ONE, "main")
            assert (await next_event(watcher, "ContainerUnbound")).uid == ONE
        assert (answer.cgroup, answer.enforcement.enforced) == (f"/{bound}", True)
        assert cpus() == Mask.parse("0,2-8,10-15")
        with pytest.raises(BindingNotFoundError):
            await keeper.unbind(ONE, "main")

    async def let_another_have_them(keeper: Keeper) -> None:
        """Also after a restart the cgroup is confined, until it is bound again."""
        assert keeper.state.held.bindings.released == (bound,)
        await keeper.remove(ONE)
        await keeper.admit(pod_of("other", OTHER, "main=2"))
        assert cpus() == Mask.parse("0,2-8,10-15")
        await keeper.bind(OTHER, "main", BindRequest(cgroup=f"/{bound}"))
        assert cpus() == Mask.of(1, 9)
        assert not keeper.state.held.bindings.released

    with_agent(site, unbind)
    with_agent(site, let_another_have_them)


@pytest.mark.parametrize("driver", CgroupDriver)
def test_an_unbound_container_is_found_by_its_name_again(
    tmp_path: Path, host_root: Path, driver: CgroupDriver
) -> None:
    site = make_site(site_config(make_world(tmp_path, host_root).config, driver))

    async def play(keeper: Keeper) -> None:
        await keeper.admit(pod_of("one", ONE, "first=2 second=4"))
        cgroup = site.start(site.cgroup(ONE), "x-second")
        await keeper.bind(ONE, "first", BindRequest(cgroup=f"/{cgroup}"))
        (pid,) = site.kernel.procs(cgroup)
        assert len(site.kernel.allowed(pid)[0]) == 2
        await keeper.unbind(ONE, "first")
        assert len(site.kernel.allowed(pid)[0]) == 4

    with_agent(site, play)


@pytest.mark.parametrize("driver", CgroupDriver)
def test_what_starts_where_a_container_was_bound_is_not_on_its_cpus(
    tmp_path: Path, host_root: Path, driver: CgroupDriver
) -> None:
    site = make_site(site_config(make_world(tmp_path, host_root).config, driver))
    bound = site.start_elsewhere("service")

    async def play(keeper: Keeper) -> None:
        await keeper.admit(pod_of("one", ONE, "main=2"))
        await keeper.bind(ONE, "main", BindRequest(cgroup=f"/{bound}"))
        site.end(bound)
        await keeper.remove(ONE)
        assert site.kernel.read(bound, "cpuset.cpus").strip() == "0-15", "before anybody has them"
        await keeper.reconcile()
        assert len(keeper.state.held.bindings) == 0
        # systemd takes the controller back where no unit asks for it.
        assert not (site.kernel.read_many(bound, ("cpuset.cpus",))[0] or "").strip()
        if site.systemd is not None:
            told = site.systemd.unit_property(bound.rpartition("/")[2], "AllowedCPUs")
            assert not told

    with_agent(site, play)


@pytest.mark.parametrize("driver", CgroupDriver)
def test_a_process_that_starts_while_its_cgroup_is_given_back_is_confined(
    tmp_path: Path, host_root: Path, driver: CgroupDriver
) -> None:
    site = make_site(site_config(make_world(tmp_path, host_root).config, driver))
    bound = site.start_elsewhere("service")

    def start_late(step: Step, act: Callable[[], object]) -> object:
        if step.subject.startswith(f"{bound}/cpuset.cpus") and not site.kernel.procs(bound):
            site.processes += 1
            site.kernel.spawn(bound, site.processes)
        return act()

    async def play(keeper: Keeper) -> None:
        await keeper.admit(pod_of("one", ONE, "main=2"))
        await keeper.bind(ONE, "main", BindRequest(cgroup=f"/{bound}"))
        site.end(bound)
        await keeper.remove(ONE)
        await keeper.reconcile()
        assert [each.cgroup for each in keeper.state.held.bindings] == [bound]
        await keeper.admit(pod_of("other", OTHER, "main=2"))
        assert keeper.state.ledger.exclusive_cpus == Mask.of(1, 9)
        assert site.kernel.allowed(site.processes)[0] == Mask.parse("0,2-8,10-15")

    with_agent(site, play, Effects(start_late))


@pytest.mark.parametrize("driver", CgroupDriver)
def test_a_binding_never_takes_the_container_of_another_pod(
    tmp_path: Path, host_root: Path, driver: CgroupDriver
) -> None:
    site = make_site(site_config(make_world(tmp_path, host_root).config, driver))
    bound, other = site.start_elsewhere("service"), site.start_elsewhere("other")

    async def play(keeper: Keeper) -> None:
        await keeper.admit(pod_of("one", ONE, "main=2"))
        await keeper.admit(pod_of("other", OTHER, "main=2"))
        await keeper.bind(ONE, "main", BindRequest(cgroup=f"/{bound}"))
        with pytest.raises(BindingError, match=f"/{bound} is bound to container main of pod {ONE}"):
            await keeper.bind(OTHER, "main", BindRequest(cgroup=f"/{bound}"))
        (pid,) = site.kernel.procs(bound)
        assert site.kernel.allowed(pid)[0] == Mask.of(1, 9)
        await keeper.bind(ONE, "main", BindRequest(cgroup=f"/{other}"))
        await keeper.bind(OTHER, "main", BindRequest(cgroup=f"/{bound}"))
        assert site.kernel.allowed(pid)[0] == Mask.of(2, 10)
        assert keeper.state.held.bindings.released == ()

    with_agent(site, play)


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

    async def play(keeper: Keeper) -> None:
        await keeper.admit(pod_of("one", ONE, "main=2"))
        await keeper.remove(ONE)
        (cgroup,) = entered
        (pid,) = site.kernel.procs(cgroup)
        await keeper.reconcile()
        assert site.kernel.allowed(pid)[0] == Mask.parse("0-15"), "it runs on in the shared pool"
        site.end(cgroup)
        await keeper.reconcile()
        assert not site.kernel.exists(site.cgroup(ONE))

    with_agent(site, play, Effects(enter_before_the_stop))
