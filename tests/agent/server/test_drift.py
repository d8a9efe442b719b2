"""What another process undid is named, whoever finds it; one that writes again is given way."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from agent.api.documents.pods import PodDocument
from agent.reconcile.backoff import AT_ONCE
from agent.server.outcomes import DRIFT_KEPT, DRIFT_NAMED
from cgroupfs.state import Writer
from sysfs.described import with_offline
from sysfs.mask import EMPTY, Mask
from tests.agent.server.support import (
    OTHER_UID,
    UID,
    in_loop,
    make_world,
    manifest,
    next_event,
    running,
    two_packages,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agent.api.client import AgentClient
    from tests.agent.server.support import Running, World

POD = f"kubepods/pod{UID}"

#: Who may find that something was undone.
FINDERS: dict[str, Callable[[AgentClient], object]] = {
    "an admission": lambda client: client.admit(manifest("other", OTHER_UID)),
    "a removal": lambda client: client.remove(OTHER_UID),
}


@pytest.mark.parametrize("finder", FINDERS)
@in_loop
async def test_drift_names_everything_in_event_log_status_and_counter(
    world: World, finder: str
) -> None:
    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest(containers=2))
        if finder == "a removal":
            await agent.ask(agent.client.admit, manifest("other", OTHER_UID))
        for name in ("c0", "c1"):
            world.kernel.mkdir(f"{POD}/{name}")
        await agent.ask(agent.client.reconcile)
        before = world.kernel.read(f"{POD}/c1", "cpuset.cpus").strip()
        world.kernel.write(f"{POD}/c1", "cpuset.cpus", "5-6")
        with agent.controller.events.watch() as watcher, capture_logs() as logs:
            await agent.ask(FINDERS[finder], agent.client)
            # A change that does not look there leaves it to the next comparison.
            if not agent.controller.state.observed.drift:
                await agent.ask(agent.client.reconcile)
            event = await next_event(watcher, "DriftFound")
        status = await asyncio.to_thread(agent.client.status)
        text = agent.controller.metrics.render(agent.controller.state.reading()).decode()
    line = (
        f"shop/web, container c1: cpuset.cpus of /{POD}/c1 shows 5-6 instead of {before} (unknown)"
    )
    assert (event.uid, event.pod, event.message) == (UID, "shop/web", line)
    assert [entry["settings"] for entry in logs if entry["event"] == "drift found"] == [[line]]
    (drift,) = status.drift
    assert (drift.uid, drift.line()) == (UID, line)
    assert 'numawarden_drift_found_total{cause="unknown"} 1.0' in text


@in_loop
async def test_drift_of_many_settings_at_once_is_bounded_and_counted_in_full(world: World) -> None:
    many = 3 * DRIFT_NAMED
    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest())
        cgroups = [f"{POD}/x{number}" for number in range(many)]
        for path in cgroups:
            world.kernel.mkdir(path)
        await agent.ask(agent.client.reconcile)
        with agent.controller.events.watch() as watcher:
            for _ in range(3):
                for path in cgroups:
                    world.kernel.write(path, "cpuset.cpus", "1")
                await agent.ask(agent.client.reconcile)
            first = await next_event(watcher, "DriftFound")
            rest = await next_event(watcher, "DriftFound")
        status = await asyncio.to_thread(agent.client.status)
        text = agent.controller.metrics.render(agent.controller.state.reading()).decode()
    assert first.message.count("shows 1 instead of 1,9") == DRIFT_NAMED
    assert f"{many - DRIFT_NAMED} more settings differ" in rest.message
    assert len(status.drift) == DRIFT_KEPT
    assert f'numawarden_drift_found_total{{cause="unknown"}} {3.0 * many}' in text


async def periods(agent: Running, count: int, *, every: float = 10.0, written: str = "0-15") -> int:
    """Let another process widen the pod before each comparison; return how many were repaired."""
    repairs = 0
    for _ in range(count):
        agent.world.kernel.write(POD, "cpuset.cpus", written)
        agent.world.clock.now += every
        await agent.controller.reconcile()
        repairs += agent.world.cpus_of(POD) == "1,9"
    return repairs


@pytest.mark.parametrize(
    ("writer", "said"),
    [
        (None, "identify the writer: auditctl -w {mount}/{pod}/cpuset.cpus -p w"),
        (Writer(4711, "sh", 0, "/user.slice"), "written by sh[4711], uid 0, in /user.slice"),
    ],
)
@in_loop
async def test_a_contest_names_the_writer_where_the_writer_is_known(
    world: World, writer: Writer | None, said: str
) -> None:
    world.writer_of = lambda _cgroup, _file: writer
    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest())
        with agent.controller.events.watch() as watcher:
            await periods(agent, 60)
            contest = await next_event(watcher, "DriftContested")
    assert contest.message.endswith(said.format(mount=world.directory / "cgroup", pod=POD))


@in_loop
async def test_repairs_become_rare_and_are_reported_once_for_each_pause(world: World) -> None:
    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest())
        with agent.controller.events.watch() as watcher:
            # Ten minutes of comparisons: at once five times, then after 20, 40, 80, ... seconds.
            assert await periods(agent, 60) == AT_ONCE + 4
            agent.controller.events.close()
            kinds = [event.type async for event in watcher]
        assert kinds.count("DriftContested") == 5
        assert kinds.count("DriftFound") == AT_ONCE + 4
        assert kinds.count("PodNotEnforced") <= 5
        text = agent.controller.metrics.render(agent.controller.state.reading()).decode()
        assert "numawarden_repairs_postponed_total 5.0" in text
        assert "numawarden_contested_cgroups 1.0" in text
        status = await asyncio.to_thread(agent.client.status)
        contested = f"/{POD} is being modified by another writer"
        assert any(contested in line for line in status.condition_lines())


@in_loop
async def test_a_pause_without_writes_of_others_is_not_reported(world: World) -> None:
    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest())
        with agent.controller.events.watch() as watcher:
            await periods(agent, AT_ONCE + 1)
            for _ in range(20):
                world.clock.now += 10
                await agent.controller.reconcile()
            agent.controller.events.close()
            kinds = [event.type async for event in watcher]
        assert world.cpus_of(POD) == "1,9"
        assert kinds.count("DriftContested") == 1


@in_loop
async def test_who_asks_and_an_admission_get_a_repair_at_once(world: World) -> None:
    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest())
        await periods(agent, AT_ONCE + 1)
        assert world.cpus_of(POD) == "0-15"
        answer = await asyncio.to_thread(agent.client.reconcile)
        assert answer.repaired == {"unknown": 1}
        assert world.cpus_of(POD) == "1,9"
        status = await asyncio.to_thread(agent.client.status)
        assert not any("another writer" in line for line in status.condition_lines())
        await periods(agent, AT_ONCE + 1)
        assert world.cpus_of(POD) == "0-15"
        other = await asyncio.to_thread(agent.client.admit, manifest("db", OTHER_UID))
        assert other.pod is not None
        assert other.pod.enforcement.enforced
        assert world.cpus_of(POD) == "1,9"


@in_loop
async def test_who_rewrites_before_it_is_read_back_is_given_way_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = world.kernel.write

    def rewritten(path: str, file: str, value: str) -> None:
        write(path, file, value)
        if (path, file) == (POD, "cpuset.cpus"):
            write(path, file, "0-15")

    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest())
        monkeypatch.setattr(world.kernel, "write", rewritten)
        world.kernel.write(POD, "cpuset.cpus", "1")
        for _ in range(AT_ONCE):
            world.clock.now += 10
            assert (await agent.controller.reconcile()).found == {"unknown": 1}
        assert (await agent.controller.reconcile()).found == {}
        text = agent.controller.metrics.render(agent.controller.state.reading()).decode()
        assert "numawarden_repairs_postponed_total 1.0" in text


@in_loop
async def test_a_pod_of_which_all_cpus_are_offline_is_not_enforced(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest())
        world.change_host(with_offline(two_packages(), Mask.parse("1,9")))
        with agent.controller.events.watch() as watcher:
            await agent.world.clock.passing(10, next_event(watcher, "HostChanged"))
        await agent.controller.reconcile()
        pod = await agent.controller.pod(UID)
        assert isinstance(pod, PodDocument)
        assert (pod.enforcement.enforced, pod.enforcement.differences) == (
            False, ("has CPUs 1,9, which are offline",)
        )  # fmt: skip


@in_loop
async def test_what_cannot_be_repaired_is_counted_when_it_comes_and_is_not_a_contest(
    tmp_path: Path,
) -> None:
    world = make_world(tmp_path)
    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest())
        with agent.controller.events.watch() as watcher:
            found = []
            for gone in (*[Mask.of(9)] * (AT_ONCE + 2), EMPTY, Mask.of(9)):
                world.change_host(with_offline(two_packages(), gone))
                world.clock.now += 10
                found.append((await agent.controller.reconcile()).found)
            agent.controller.events.close()
            kinds = [event.type async for event in watcher]
        again = [{"CPU offline": 1}]
        assert found == [*again, *[{}] * (AT_ONCE + 2), *again]
        assert kinds.count("DriftFound") == 2
        assert "DriftContested" not in kinds
        text = agent.controller.metrics.render(agent.controller.state.reading()).decode()
        assert "numawarden_contested_cgroups 0.0" in text
        assert "numawarden_unenforced_pods 1.0" in text
