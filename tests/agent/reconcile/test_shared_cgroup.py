"""`agent.sharedCgroup`: one cgroup carries the pool for Guaranteed pods without own CPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.config.model import CgroupDriver
from agent.reconcile.running_pods import seen_pods
from cgroupfs.names import Driver, Layout, Tier
from tests.agent.reconcile.pods import (
    ONLINE,
    directories,
    exclusive,
    kernel,
    on_host,
    path_of,
    pod,
    run,
    target,
)
from tests.agent.server.sites import make_site, pod_of, site_config, with_agent, wrongs
from tests.agent.server.support import make_world
from tests.fakes.kernel import effective_cpus

if TYPE_CHECKING:
    from pathlib import Path

    from agent.server.controller import Controller
    from tests.agent.server.sites import Site

ONE, TWO, OWN = (f"{digit * 8}-2222-3333-4444-555555555555" for digit in "123")


@pytest.fixture(params=list(CgroupDriver))
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    return make_site(site_config(make_world(tmp_path).config, request.param))


def own_set(site: Site, path: str) -> str:
    """Return the set of a cgroup, "" where it has none or no controller."""
    return (site.kernel.read_many(path, ("cpuset.cpus",))[0] or "").strip()


async def share(site: Site, controller: Controller, uid: str) -> str:
    """Run a Guaranteed pod without CPUs of its own; return its container's cgroup."""
    assert (await controller.admit(pod_of(f"exact-{uid[0]}", uid, f"exact-{uid[0]}=500m"))).admitted
    path = site.start(site.cgroup(uid, Tier.SHARED), f"exact-{uid[0]}")
    await controller.reconcile()
    return path


# Shows in differences.md: shared-cgroup
def test_the_shared_cgroup_carries_the_pool_and_its_pods_inherit(site: Site) -> None:
    async def live(controller: Controller) -> None:
        inside = [await share(site, controller, uid) for uid in (ONE, TWO)]
        assert (await controller.admit(pod_of("own", OWN, "own=2"))).admitted
        own = site.start(site.cgroup(OWN), "own")
        await controller.reconcile()
        pool = str(controller.state.shared_cpus)
        assert own_set(site, site.layout.tier(Tier.SHARED)) == pool
        assert [own_set(site, site.cgroup(uid, Tier.SHARED)) for uid in (ONE, TWO)] == ["", ""]
        assert {effective_cpus(site.kernel, path) for path in inside} == {pool}
        taken = controller.state.ledger.allocations[OWN].exclusive_cpus
        assert effective_cpus(site.kernel, own) == str(taken)
        assert (await controller.verify()).agrees
        site.end(inside[0])
        await controller.remove(ONE)
        assert wrongs(site, controller) == []

    with_agent(site, live)


@pytest.mark.parametrize("still", [True, False])
def test_a_pod_stays_there_after_a_restart(site: Site, still: bool) -> None:  # noqa: FBT001
    """Also where the key is false meanwhile: what exists is used."""

    async def before(controller: Controller) -> None:
        await share(site, controller, ONE)
        assert (await controller.admit(pod_of("own", OWN, "own=2"))).admitted

    async def after(controller: Controller) -> None:
        assert (await controller.reconcile()).found == {}
        assert (await controller.verify()).agrees
        assert not site.kernel.exists(site.cgroup(ONE))
        (seen,) = seen_pods(site.kernel, site.layout)
        assert (seen.uid, seen.own.cpus) == (ONE, controller.state.shared_cpus)

    with_agent(site, before)
    agent = replace(site.config.agent, shared_cgroup=still)
    site.config = replace(site.config, agent=agent)
    with_agent(site, after)


def test_a_pod_that_stands_in_the_kubelets_place_stays_there() -> None:
    tree, shares = kernel(), on_host("c")
    layout = Layout(Driver.CGROUPFS, shares=True)
    first = target(pod(shares, uid=ONE))
    assert directories(tree).enforce(first).ok
    both = target(pod(shares, uid=ONE), pod(shares, uid=TWO))
    assert directories(tree, of=layout).enforce(both).ok
    assert tree.exists(path_of(pod(shares, uid=ONE)))
    assert tree.exists(layout.pod(TWO, Tier.SHARED))
    assert not tree.exists(layout.pod(ONE, Tier.SHARED))


def test_where_a_pod_in_it_gets_cpus_of_its_own_each_carries_its_set() -> None:
    tree, layout = kernel(), Layout(Driver.CGROUPFS, shares=True)
    enforcer = directories(tree, of=layout)
    shared = pod(on_host("c"), uid=ONE), pod(on_host("c"), uid=TWO)
    assert enforcer.enforce(target(*shared)).ok
    paths = [layout.pod(uid, Tier.SHARED) for uid in (ONE, TWO)]
    for number, path in enumerate(paths):
        run(tree, f"{path}/c", 100 + number)
    assert enforcer.enforce(target(*shared)).ok
    # Such as one that ran shared for a reason that is gone.
    after = target(pod(exclusive("c", "2-3"), uid=ONE), shared[1])
    assert enforcer.enforce_change(after, ONE).ok
    assert [effective_cpus(tree, f"{path}/c") for path in paths] == ["2-3", "0-1,4-15"]
    more = target(*after.ledger.allocations.values(), pod(exclusive("c", "4-5"), uid=OWN))
    assert enforcer.enforce_change(more, OWN).ok
    assert [effective_cpus(tree, f"{path}/c") for path in paths] == ["2-3", "0-1,6-15"]
    assert enforcer.enforce_change(target(*shared)).ok
    assert {effective_cpus(tree, f"{path}/c") for path in paths} == {str(ONLINE)}
    assert enforcer.verify(target(*shared)).ok
