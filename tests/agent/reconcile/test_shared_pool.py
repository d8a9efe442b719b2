"""The shared pool is written once: who carries it, who inherits it, and what others write."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.config.isolation import PartitionMode
from agent.config.model import CgroupDriver
from agent.managers.policy import IsolationMode
from sysfs.mask import Mask
from tests.agent.server.sites import make_site, pod_of, site_config, with_agent, wrongs
from tests.agent.server.support import UID, make_world
from tests.fakes.kernel import effective_cpus

if TYPE_CHECKING:
    from pathlib import Path

    from agent.server.controller import Controller
    from tests.agent.server.sites import Site

OTHER = "88888888-2222-3333-4444-555555555555"
POOL_UID = "77777777-2222-3333-4444-555555555555"
CACHE = "66666666-2222-3333-4444-555555555555"
LATE = "99999999-2222-3333-4444-555555555555"


@pytest.fixture(params=list(CgroupDriver))
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    """Return a host without the shared cgroup, such as one beside a kubelet."""
    config = site_config(make_world(tmp_path).config, request.param)
    return make_site(replace(config, agent=replace(config.agent, shared_cgroup=False)))


async def fill(site: Site, controller: Controller) -> tuple[str, str, str]:
    """Run a burstable pod, a Guaranteed one in the pool and an exclusive one; return cgroups."""
    await controller.admit(pod_of("web", UID, "web~1"))
    await controller.admit(pod_of("exact", POOL_UID, "exact=500m"))
    await controller.admit(pod_of("own", OTHER, "own=2"))
    allocations = controller.state.ledger.allocations
    web, exact, own = (site.home(allocations[uid]) for uid in (UID, POOL_UID, OTHER))
    for path, name in ((web, "web"), (exact, "exact"), (own, "own")):
        site.start(path, name)
    await controller.reconcile()
    return web, exact, own


def own_sets(site: Site, *paths: str) -> list[str]:
    """Return the sets of cgroups, "" where one has no set or no controller."""
    return [(site.kernel.read_many(path, ("cpuset.cpus",))[0] or "").strip() for path in paths]


def test_the_class_and_guaranteed_pods_carry_the_pool_and_nothing_below_does(site: Site) -> None:
    async def live(controller: Controller) -> None:
        web, exact, _ = await fill(site, controller)
        pool = str(controller.state.shared_cpus)
        inside = [site.container(web, "web"), site.container(exact, "exact")]
        assert own_sets(site, web.rpartition("/")[0], exact) == [pool, pool]
        assert own_sets(site, web, *inside) == ["", "", ""]
        assert {effective_cpus(site.kernel, path) for path in (web, exact, *inside)} == {pool}
        assert wrongs(site, controller) == []

    with_agent(site, live)


def test_siblings_that_stay_idle_are_in_no_set_of_a_cgroup_until_the_pod_ends(
    tmp_path: Path,
) -> None:
    config = site_config(make_world(tmp_path).config, CgroupDriver.CGROUPFS)
    isolation = replace(config.agent.isolation, smt=IsolationMode.ALWAYS)
    site = make_site(replace(config, agent=replace(config.agent, isolation=isolation)))

    async def live(controller: Controller) -> None:
        paths = await fill(site, controller)
        pod = controller.state.ledger.allocations[OTHER]
        assert len(pod.idle) == 2
        sets = [Mask.parse(effective_cpus(site.kernel, path)) for path in paths]
        assert sets[2] == pod.exclusive_cpus - pod.idle
        assert not pod.idle & (sets[0] | sets[1] | controller.state.shared_cpus)
        assert wrongs(site, controller) == []

    async def go_on(controller: Controller) -> None:
        pod = controller.state.ledger.allocations[OTHER]
        assert len(pod.idle) == 2
        assert not pod.idle & controller.state.shared_cpus
        assert wrongs(site, controller) == []
        await controller.remove(OTHER)
        assert pod.exclusive_cpus <= controller.state.shared_cpus

    with_agent(site, live)
    with_agent(site, go_on)


@pytest.mark.parametrize("of_container", [False, True])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_set_that_another_process_wrote_is_reported_and_neutralized(
    site: Site,
    of_container: bool,  # noqa: FBT001 - a case
    elsewhere: bool,  # noqa: FBT001 - a case
) -> None:
    async def live(controller: Controller) -> None:
        web, _, _ = await fill(site, controller)
        cgroup = site.container(web, "web") if of_container else web
        above = cgroup.rpartition("/")[0]
        while site.kernel.read_many(cgroup, ("cpuset.cpus",)) == (None,):
            above = next(
                path
                for path in (web.rpartition("/")[0], web)
                if "cpuset" not in site.kernel.read(path, "cgroup.subtree_control")
            )
            site.kernel.write(above, "cgroup.subtree_control", "+cpuset")
        own = controller.state.ledger.allocations[OTHER].exclusive_cpus
        stray = own if elsewhere else Mask.of(controller.state.shared_cpus.highest)
        site.kernel.write(cgroup, "cpuset.cpus", str(stray))
        assert effective_cpus(site.kernel, cgroup) == str(
            controller.state.shared_cpus if elsewhere else stray
        )
        assert (await controller.reconcile()).found == {"unknown": 1}
        drift = controller.state.observed.drift[-1]
        name = "web" if of_container else None
        assert (drift.cgroup, drift.file, drift.uid) == (f"/{cgroup}", "cpuset.cpus", UID)
        assert (drift.container, drift.observed, drift.desired) == (name, str(stray), "0-15")
        assert own_sets(site, cgroup) == ["0-15"]
        assert effective_cpus(site.kernel, cgroup) == str(controller.state.shared_cpus)
        assert (await controller.reconcile()).found == {}
        # The set of all CPUs is as good as none, whatever becomes of the pool.
        await controller.remove(OTHER)
        assert effective_cpus(site.kernel, cgroup) == str(controller.state.shared_cpus)

    with_agent(site, live)


def test_a_burstable_pod_with_cpus_of_its_own_takes_the_pool_from_its_class(site: Site) -> None:
    async def live(controller: Controller) -> None:
        web, exact, _ = await fill(site, controller)
        cache = pod_of("cache", CACHE, "main=2 log~1", named="main")
        assert (await controller.admit(cache)).admitted
        pod = controller.state.ledger.allocations[CACHE]
        home = site.home(pod)
        assert home.rpartition("/")[0] == web.rpartition("/")[0]
        for name in ("main", "log"):
            site.start(home, name)
        await controller.reconcile()
        assert wrongs(site, controller) == []
        pool = str(controller.state.shared_cpus)
        insides = [site.container(*each) for each in ((web, "web"), (home, "main"), (home, "log"))]
        found = [effective_cpus(site.kernel, path) for path in (web, exact, *insides)]
        assert found == [pool, pool, pool, str(pod.exclusive_cpus), pool]
        both = str(controller.state.shared_cpus | pod.exclusive_cpus)
        assert own_sets(site, web.rpartition("/")[0], web, insides[0]) == [both, pool, ""]
        # One more pod of the class is confined before it starts.
        late = pod_of("late", LATE, "late~1")
        await controller.admit(late)
        path = site.home(controller.state.ledger.allocations[LATE])
        assert effective_cpus(site.kernel, path) == pool
        await controller.remove(CACHE)
        for name in insides[1:]:
            site.end(name)
        await controller.reconcile()
        pool = str(controller.state.shared_cpus)
        assert own_sets(site, web.rpartition("/")[0]) == [pool]
        assert effective_cpus(site.kernel, insides[0]) == pool
        assert wrongs(site, controller) == []

    with_agent(site, live)


def test_partitions_stay_valid_beside_a_class_with_cpus_of_its_pods(site: Site) -> None:
    config = site.config
    isolation = replace(config.agent.isolation, partitions=PartitionMode.ROOT)
    site = make_site(replace(config, agent=replace(config.agent, isolation=isolation)))

    async def live(controller: Controller) -> None:
        *_, own = await fill(site, controller)
        await controller.admit(pod_of("cache", CACHE, "main=2 log~1", named="main"))
        await controller.admit(pod_of("late", LATE, "main=2"))
        late = site.home(controller.state.ledger.allocations[LATE])
        assert (await controller.reconcile()).found == {}
        found = [site.kernel.read(path, "cpuset.cpus.partition") for path in (own, late)]
        assert found == ["root\n", "root\n"]

    with_agent(site, live)
