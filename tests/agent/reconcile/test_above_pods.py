"""The agent's own cgroups above pods are repaired like any other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.config.model import CgroupDriver
from cgroupfs.names import Tier
from cgroupfs.tree import parent
from sysfs.mask import Mask
from systemd.units import allowed_cpus
from tests.agent.server.sites import hotplug, make_site, pod_of, site_config, with_agent, wrongs
from tests.agent.server.support import UID, make_world

if TYPE_CHECKING:
    from pathlib import Path

    from agent.server.controller import Controller
    from tests.agent.server.sites import Site

OTHER = "22222222-2222-3333-4444-555555555555"
LAST = "33333333-2222-3333-4444-555555555555"
ALL = {"cpuset.cpus": "0-15", "cpuset.mems": "0-1"}
#: What another process may have written; the sets of the pods are wider, or elsewhere.
SCRIBBLES = [("cpuset.cpus", "5-9"), ("cpuset.cpus", "15"), ("cpuset.mems", "1")]
TIERS = {"main": Tier.BEST_EFFORT, "main~1": Tier.BURSTABLE, "main=2": Tier.GUARANTEED}


@pytest.fixture(params=list(CgroupDriver))
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    return make_site(site_config(make_world(tmp_path).config, request.param))


async def settle(site: Site, controller: Controller, containers: str) -> list[str]:
    """Have a pod running; return the cgroups above it, the outermost first."""
    await controller.admit(pod_of("web", UID, containers))
    pod = site.cgroup(UID, TIERS[containers])
    site.start(pod, "main")
    await controller.reconcile()
    above, path = list[str](), parent(pod)
    while path:
        above.insert(0, path)
        path = parent(path)
    return above


@pytest.mark.parametrize(("file", "value"), SCRIBBLES)
@pytest.mark.parametrize("containers", TIERS)
def test_a_set_that_another_process_wrote_above_pods_is_widened_and_reported(
    site: Site, containers: str, file: str, value: str
) -> None:
    async def live(controller: Controller) -> None:
        for path in await settle(site, controller, containers):
            before = site.kernel.read(path, file).strip()
            site.kernel.write(path, file, value)
            found = await controller.reconcile()
            assert found.found
            # The cgroup of a class carries the shared pool, that of all pods has no set.
            assert site.kernel.read(path, file).strip() == (before or ALL[file])
            named = [each for each in controller.state.observed.drift if each.cgroup == f"/{path}"]
            assert [(each.file, each.observed) for each in named] == [(file, value)]
            assert wrongs(site, controller) == []
            assert (await controller.reconcile()).found == {}
            # Nothing runs there twice: the next one is looked at from the start.
            controller.state.observed.drift = ()

    with_agent(site, live)


@pytest.mark.parametrize("value", ["5-7", "0,2-15"])
def test_a_set_above_pods_is_widened_while_a_cpu_of_a_pod_is_offline(
    site: Site, value: str
) -> None:
    async def live(controller: Controller) -> None:
        above = await settle(site, controller, "main~1")
        own = (await controller.admit(pod_of("other", OTHER, "main=2"))).pod
        assert own is not None
        taken = Mask.parse(own.exclusive_cpus)
        await hotplug(site, controller, str(Mask.parse("0-15") - Mask.of(taken.lowest)))
        await controller.reconcile()
        for path in above:
            site.kernel.write(path, "cpuset.cpus", value)
        await controller.reconcile()
        assert all(str(taken.lowest) in line for line in controller.state.condition_lines())
        allowed = site.kernel.allowed(site.processes)[0]
        assert allowed
        assert allowed.isdisjoint(taken)
        assert (await controller.admit(pod_of("last", LAST, "main=1"))).admitted
        await controller.remove(OTHER)
        await hotplug(site, controller, "0-15")
        await controller.reconcile()
        assert wrongs(site, controller) == []

    with_agent(site, live)


def test_a_set_that_systemd_has_on_record_is_reset_there_as_well(tmp_path: Path) -> None:
    site = make_site(site_config(make_world(tmp_path).config, CgroupDriver.SYSTEMD))
    systemd = site.systemd
    assert systemd is not None

    async def live(controller: Controller) -> None:
        for path in await settle(site, controller, "main~1"):
            unit, before = path.rpartition("/")[2], site.kernel.read(path, "cpuset.cpus").strip()
            systemd.set_properties(unit, (allowed_cpus(Mask.parse("5-9")),))
            assert (await controller.reconcile()).found
            systemd.daemon_reload()
            systemd.start_scope("other.scope", "system.slice", 4711 + len(path))
            assert site.kernel.read(path, "cpuset.cpus").strip() == (before or ALL["cpuset.cpus"])
            systemd.stop("other.scope")
            assert (await controller.reconcile()).found == {}

    with_agent(site, live)
