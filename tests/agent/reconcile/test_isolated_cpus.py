"""`agent.isolatedCPUs: exclusive` on a host with isolcpus: who runs there, and what says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.config.model import CgroupDriver
from agent.managers.policy import IsolcpusUse
from agent.server.state_documents import map_now, status_document
from cgroupfs.names import Tier
from sysfs.described import write_tree
from sysfs.mask import Mask
from tests.agent.server.sites import make_site, pod_of, site_config, with_agent, wrongs
from tests.agent.server.support import make_world, two_packages
from tests.fakes.kernel import effective_cpus
from tests.sysfs.hosts import with_isolated

if TYPE_CHECKING:
    from pathlib import Path

    from agent.server.controller import Controller

WEB, OWN, MORE = (f"{digit * 8}-2222-3333-4444-555555555555" for digit in "123")


def test_exclusive_pods_run_on_them_and_shared_ones_never(tmp_path: Path) -> None:
    root = tmp_path / "isolated"
    write_tree(with_isolated(two_packages(), Mask.parse("2-3,10-11")), root)
    config = site_config(make_world(tmp_path, root).config, CgroupDriver.CGROUPFS)
    agent = replace(config.agent, isolated_cpus=IsolcpusUse.EXCLUSIVE)
    site = make_site(replace(config, agent=agent))

    async def live(controller: Controller) -> None:
        await controller.admit(pod_of("web", WEB, "web~1"))
        web = site.start(site.cgroup(WEB, Tier.BURSTABLE), "web")
        answer = await controller.admit(pod_of("own", OWN, "own=2"))
        own = site.start(site.cgroup(OWN), "own")
        assert answer.explanation is not None
        assert ["of isolcpus" in line for line in answer.explanation.warnings] == [True]
        uses = {cpu.id: cpu.use for cpu in map_now(controller.state, 0.0)().cpus}
        assert [uses[cpu] for cpu in (0, 2, 3, 4)] == ["reserved", "exclusive", "free", "shared"]
        await controller.admit(pod_of("more", MORE, "more=4"))
        more = site.start(site.cgroup(MORE), "more")
        await controller.reconcile()
        found = [effective_cpus(site.kernel, path) for path in (web, own, more)]
        assert found == ["0,4-8,12-15", "2,10", "1,3,9,11"]
        assert wrongs(site, controller) == []
        policy = status_document(controller.state, 0.0).policy
        assert (policy.isolated_cpus, policy.isolated_for) == ("2-3,10-11", "exclusive")

    with_agent(site, live)
