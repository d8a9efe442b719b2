"""The cgroup of a pod in a pool carries the pool, which shrinks and grows around exclusive CPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from agent.api.documents.maintenance import CordonRequest
from agent.cli.pod_text import container_lines
from agent.config.model import CgroupDriver
from agent.config.pools import PoolConfig
from agent.managers.policy import PoolMemory
from agent.pods.model import POOL
from agent.server.errors import CordonRejectedError
from agent.server.state_documents import map_now
from agent.tools.map.spans import plain
from agent.tools.map.text import MapLayout, map_lines
from sysfs.mask import Mask
from tests.agent.server.sites import (
    hotplug,
    make_site,
    pod_of,
    site_config,
    with_agent,
    wrongs,
)
from tests.agent.server.support import make_world
from tests.fakes.effects import Effects
from tests.fakes.kernel import effective_cpus

if TYPE_CHECKING:
    from pathlib import Path

    from agent.pods.model import Pod
    from agent.server.controller import Controller
    from tests.agent.server.sites import Site

WEB, EXACT, PLAIN, MIXED, OWN = (f"{digit * 8}-2222-3333-4444-555555555555" for digit in "12345")
#: Node 0 has CPUs 0-3 and 8-11, siblings are n and n + 8; 0 is reserved.
NEAR: Final = PoolConfig(
    "near", Mask.parse("1-3,9-11"), namespaces=("team",), memory=PoolMemory.BOUND
)


@pytest.fixture(params=[(driver, shared) for driver in CgroupDriver for shared in (True, False)])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    driver, shared = request.param
    config = site_config(make_world(tmp_path).config, driver)
    agent = replace(config.agent, shared_cgroup=shared, pools=(NEAR,))
    return make_site(replace(config, agent=agent))


def near(pod: Pod) -> Pod:
    return replace(pod, annotations={POOL: "near"})


async def start(site: Site, controller: Controller, pod: Pod, *names: str) -> str:
    """Run a pod; return its cgroup."""
    answer = await controller.admit(pod)
    assert answer.admitted, answer.rejection
    home = site.home(controller.state.ledger.allocations[pod.uid])
    for name in names:
        site.start(home, name)
    await controller.reconcile()
    return home


async def fill(site: Site, controller: Controller) -> tuple[str, str, str]:
    """Run a Burstable and a Guaranteed pod in the pool, and one in none; return their cgroups."""
    web = await start(site, controller, near(pod_of("web", WEB, "web~1")), "web")
    exact = await start(site, controller, near(pod_of("exact", EXACT, "exact=500m")), "exact")
    plain = await start(site, controller, pod_of("plain", PLAIN, "plain"), "plain")
    return web, exact, plain


def sets(site: Site, *paths: str) -> set[str]:
    """Return on which CPUs the processes of pods may run."""
    inside = [path for path in site.cgroups() if path.startswith(tuple(f"{p}/" for p in paths))]
    return {effective_cpus(site.kernel, path) for path in inside}


def written(site: Site, path: str, file: str = "cpuset.cpus") -> str:
    return (site.kernel.read_many(path, (file,))[0] or "").strip()


# Shows in differences.md: pools
def test_pods_of_a_pool_follow_it_and_others_run_in_the_whole_shared_pool(site: Site) -> None:
    async def live(controller: Controller) -> None:
        web, exact, rest = await fill(site, controller)
        assert (sets(site, web, exact), sets(site, rest)) == ({"1-3,9-11"}, {"0-15"})
        assert {written(site, path) for path in (web, exact)} == {"1-3,9-11"}
        assert written(site, web, "cpuset.mems") == "0"
        assert written(site, site.container(web, "web")) in ("", "0-15")
        await start(site, controller, pod_of("own", OWN, "own=2"), "own")
        assert str(controller.state.ledger.allocations[OWN].exclusive_cpus) == "1,9"
        assert (sets(site, web, exact), sets(site, rest)) == ({"2-3,10-11"}, {"0,2-8,10-15"})
        assert (await controller.verify()).agrees
        [document] = [each for each in controller.pods() if each.uid == WEB]
        assert next(container_lines(document)) == "  web  CPUs 2-3,10-11 (the pool near)"
        drawn = map_lines(map_now(controller.state, 0.0)(), MapLayout(focus=WEB))
        assert any("default/web  in the pool near" in plain(line) for line in drawn)
        await controller.remove(OWN)
        assert (sets(site, web, exact), sets(site, rest)) == ({"1-3,9-11"}, {"0-15"})
        assert wrongs(site, controller) == []

    async def go_on(controller: Controller) -> None:
        await controller.reconcile()
        assert wrongs(site, controller) == []

    with_agent(site, live)
    with_agent(site, go_on, from_start=True)


def test_a_change_of_a_pool_writes_each_of_its_pods_once(site: Site) -> None:
    async def live(controller: Controller) -> None:
        web, exact, _ = await fill(site, controller)
        effects.log.clear()
        await controller.admit(pod_of("own", OWN, "own=2"))
        found = [str(each) for each in effects.log]
        for path in (web, exact):
            assert len([each for each in found if f"{path}/cpuset.cpus" in each]) == 1, found

    effects = Effects()
    with_agent(site, live, effects)


def test_a_container_beside_exclusive_ones_runs_in_the_pool(site: Site) -> None:
    async def live(controller: Controller) -> None:
        mixed = near(pod_of("mixed", MIXED, "alone=2 rest=500m"))
        home = await start(site, controller, mixed, "alone", "rest")
        assert effective_cpus(site.kernel, site.container(home, "rest")) == "2-3,10-11"
        assert effective_cpus(site.kernel, site.container(home, "alone")) == "1,9"
        await start(site, controller, pod_of("own", OWN, "own=2"), "own")
        assert effective_cpus(site.kernel, site.container(home, "rest")) == "3,11"
        assert (await controller.verify()).agrees

    with_agent(site, live)


def test_a_cordon_that_empties_a_pool_is_rejected_and_offline_cpus_are_a_condition(
    site: Site,
) -> None:
    async def live(controller: Controller) -> None:
        web, exact, _ = await fill(site, controller)
        with pytest.raises(CordonRejectedError, match=r"left for the pool near \(1-3,9-11\)"):
            await controller.cordon(CordonRequest(target="1-3,9-11"))
        await controller.cordon(CordonRequest(target="1-2,9-10"))
        assert sets(site, web, exact) == {"3,11"}
        assert (await controller.admit(pod_of("own", OWN, "own=2"))).admitted
        assert sets(site, web, exact) == {"11"}
        await controller.remove(OWN)
        await controller.uncordon(CordonRequest(target="1-2,9-10"))
        await hotplug(site, controller, "0,4-8,12-15")
        assert sets(site, web, exact) == {"0,4-8,12-15"}
        lines = controller.state.condition_lines()
        assert [
            ("its pool near has no CPU left" in line, "agent.pools" in line) for line in lines
        ] == [(True, True)] * 2
        await hotplug(site, controller, "0-15")
        assert sets(site, web, exact) == {"1-3,9-11"}
        assert wrongs(site, controller) == []

    with_agent(site, live)
