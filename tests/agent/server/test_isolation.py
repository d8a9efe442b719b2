"""A whole agent isolates the CPUs of a pod at its admission, and gives all back with its end."""

from __future__ import annotations

import asyncio
import errno
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.config.isolation import (
    IsolationConfig,
    PartitionMode,
    ResctrlClass,
    ResctrlConfig,
)
from agent.config.model import CgroupDriver
from agent.isolation.places import RESCTRL_ROOT
from agent.managers.policy import IsolationMode
from agent.server import wiring
from agent.server.errors import RequestError
from cgroupfs.settings import PARTITION_FILES
from tests.agent.server.changes import NEW, NEW_POD
from tests.agent.server.sites import Site, make_site, site_config, with_agent
from tests.agent.server.support import UID, World, in_loop, make_world, manifest, running, until
from tests.agent.server.test_lifecycle import FullWatch
from tests.agent.server.test_monitoring import fetch
from tests.fakes.effects import Effects, die_before, fail
from tests.fakes.kernel import Died
from tests.fakes.resctrl import FakeResctrl, ResctrlPlaces

if TYPE_CHECKING:
    from pathlib import Path

    from agent.server.controller import Controller

IRQ = "proc/irq/5/smp_affinity_list"
ASKING = manifest().replace(
    b"  namespace: shop\n",
    b"  namespace: shop\n  annotations:\n    isolation.numawarden.dev/interrupts: 'off'\n",
)


def isolating(world: World) -> Path:
    """Switch items on; return the file of an interrupt that may come to every CPU."""
    asked = IsolationConfig(host_slices=True, interrupts=IsolationMode.ASKED)
    world.config = replace(world.config, agent=replace(world.config.agent, isolation=asked))
    world.kernel.mkdir("system.slice")
    world.kernel.spawn("system.slice", 4711)
    file = world.config.agent.sysfs_root / IRQ
    file.parent.mkdir(parents=True)
    file.write_text("0-15\n")
    (file.parents[1] / "default_smp_affinity").write_text("ffff\n")
    return file


@in_loop
async def test_interrupts_and_services_leave_with_the_admission_and_return_with_the_removal(
    tmp_path: Path,
) -> None:
    world = make_world(tmp_path)  # with a host of its own, which is written
    file = isolating(world)
    async with running(world) as agent:
        answer = await asyncio.to_thread(agent.client.admit, ASKING)
        assert answer.pod is not None
        assert answer.pod.isolation == {"interrupts": "off"}
        own = answer.pod.exclusive_cpus
        assert (own, file.read_text()) == ("1,9", "0,2-8,10-15")
        assert world.cpus_of("system.slice") == "0,2-8,10-15"
    async with running(world) as agent:
        assert (await asyncio.to_thread(agent.client.verify)).agrees
        text = (await asyncio.to_thread(agent.client.status)).conditions
        assert [each for each in text if each.type == "Isolated"] == []
        await agent.ask(agent.client.remove, UID)
        assert file.read_text() == "0-15\n"
        assert world.cpus_of("system.slice") == "0-15"
        await agent.ask(agent.client.admit, ASKING)
    # An item that is switched off is restored at the next start.
    agent_config = replace(world.config.agent, isolation=IsolationConfig())
    world.config = replace(world.config, agent=agent_config)
    async with running(world) as agent:
        assert file.read_text() == "0-15\n"
        assert world.cpus_of("system.slice") == "0-15"
        conditions = (await asyncio.to_thread(agent.client.status)).conditions
        (found,) = [each for each in conditions if each.type == "Isolated"]
        assert "agent.isolation.interrupts is never" in found.message


@in_loop
async def test_a_container_that_starts_is_put_into_its_class_whose_caches_are_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(tmp_path)
    classes = MappingProxyType({"fast": ResctrlClass(l3="50%")})
    asked = IsolationConfig(resctrl=ResctrlConfig(classes=classes, default_class="fast"))
    world.config = replace(world.config, agent=replace(world.config.agent, isolation=asked))
    fake = FakeResctrl(world.config.agent.sysfs_root, {4711})
    monkeypatch.setattr(wiring, "HostPlaces", partial(ResctrlPlaces, fake))
    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest())
        group = world.config.agent.sysfs_root / RESCTRL_ROOT / "numawarden-fast"
        assert (group / "tasks").read_text() == ""
        world.kernel.mkdir(f"kubepods/pod{UID}/c0")
        world.kernel.spawn(f"kubepods/pod{UID}/c0", 4711)
        await agent.ask(agent.client.reconcile)
        assert (group / "tasks").read_text() == "4711\n"
        _, text = await fetch(agent, "/metrics")
        assert 'numawarden_cache_occupancy_bytes{cache_id="1",class="fast"' in text
        await agent.ask(agent.client.remove, UID)
        assert not group.exists()


def partitions(site: Site) -> dict[str, list[str]]:
    """Return what the cgroups are that are partitions or have exclusive CPUs, by name."""
    found = {}
    for path in site.cgroups():
        texts = [(text or "").strip() for text in site.kernel.read_many(path, PARTITION_FILES)]
        if texts not in (["", ""], ["", "member"]):
            found[path.rpartition("/")[2].removesuffix(".scope")] = texts
    return found


async def live_apart(site: Site, controller: Controller) -> None:
    """Admit a pod, start a container with CPUs of its own, end and remove both."""
    await controller.admit(NEW_POD)
    path = site.start(site.cgroup(NEW), "own")
    await controller.reconcile()
    site.end(path)
    await controller.remove(NEW)
    await controller.reconcile()


async def ended_apart(site: Site, controller: Controller) -> None:
    """Check that partitions are as the ledger has them, then remove the pod, and that none is."""
    await controller.reconcile()
    admitted = NEW in controller.state.ledger.allocations
    path = site.container(site.cgroup(NEW), "own")
    shown = partitions(site)
    assert len(shown) == (2 + bool(path) if admitted else 0), shown
    assert ("own" in shown) == (admitted and bool(path))
    assert [each for _, each in shown.values() if "invalid" in each] == []
    assert not controller.state.condition_lines()
    if path:
        site.end(path)
    if admitted:
        await controller.remove(NEW)
    await controller.reconcile()
    assert partitions(site) == {}
    assert site.kernel.read("", "cpuset.cpus.effective") == "0-15\n"


@pytest.mark.parametrize("driver", CgroupDriver)
def test_dying_or_failing_at_any_step_of_partitions_leaves_what_the_next_pass_completes_or_undoes(
    tmp_path: Path, driver: CgroupDriver
) -> None:
    world = make_world(tmp_path)
    (world.config.agent.sysfs_root / "proc").mkdir(exist_ok=True)
    asked = IsolationConfig(partitions=PartitionMode.ROOT)
    agent = replace(world.config.agent, isolation=asked)
    config = site_config(replace(world.config, agent=agent), driver)
    site, rehearsed = make_site(config), Effects(looks=False)
    with_agent(site, partial(live_apart, site), rehearsed)
    files = PARTITION_FILES
    written = [step for step in rehearsed.log if any(file in step.subject for file in files)]
    assert len(written) > len(files)
    for step in rehearsed.log:
        site = make_site(config)
        with suppress(Died):
            with_agent(
                site, partial(live_apart, site), Effects(die_before(step.number), looks=False)
            )
        with_agent(site, partial(ended_apart, site))
    for step in written:
        site = make_site(config)
        rejected = fail(step.number, OSError(errno.EINVAL, "rejected", step.subject))

        async def live(controller: Controller, site: Site = site) -> None:
            with suppress(RequestError):
                await live_apart(site, controller)
            await ended_apart(site, controller)

        with_agent(site, live, Effects(rejected, looks=False))


@in_loop
async def test_what_appears_at_the_top_follows_without_a_comparison(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = IsolationConfig(host_slices=True)
    world.config = replace(world.config, agent=replace(world.config.agent, isolation=asked))
    watch = FullWatch()
    async with running(world, cgroups=watch) as agent:
        await agent.ask(agent.client.admit, ASKING)
        monkeypatch.setattr(agent.controller, "reconcile", lambda **_: asyncio.Event().wait())
        assert "" in watch.watched
        for name in ("docker", "machine.slice"):
            world.kernel.mkdir(name)
            watch.appearing.put_nowait((name,))
            await until(lambda at=name: world.cpus_of(at) == "0,2-8,10-15")  # type: ignore[misc]
