from __future__ import annotations

import asyncio
import errno
import os
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.api.client import AgentError
from agent.api.documents.admissions import BindRequest
from agent.cluster.plugs import PLUGS
from agent.config.model import MemoryReservationPolicy
from agent.pods.quantity import Quantity
from agent.server import lifecycle as service_module
from agent.server.decider import decide
from agent.server.limits import Caller
from agent.server.loops import ENDED_SECONDS
from agent.server.plugs import Fakes
from agent.server.queue import called_by
from agent.server.wiring import Wiring
from tests.agent.server.support import (
    OTHER_UID,
    UID,
    RecordingManager,
    in_loop,
    manifest,
    next_event,
    running,
    until,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterable

    from agent.api.documents.verification import ReconcileDocument
    from agent.managers.decision import Decision
    from agent.managers.ledger import Ledger
    from agent.pods.model import Pod
    from agent.server.configured import ConfiguredHost
    from agent.server.lifecycle import Service
    from sysfs.mask import Mask
    from tests.agent.server.support import Running, World

POD = f"kubepods/pod{UID}"


@asynccontextmanager
async def busy(agent: Running) -> AsyncIterator[asyncio.Event]:
    began, go_on = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        began.set()
        await go_on.wait()

    hanging = asyncio.create_task(agent.controller.queue.run(hang))
    await began.wait()
    yield go_on
    await hanging


@in_loop
async def test_stopping_finishes_what_has_begun_and_answers_all_else_with_503(
    world: World,
) -> None:
    async with running(world) as agent, busy(agent) as go_on:
        uids = [f"{number:08d}-2222-3333-4444-555555555555" for number in range(4)]
        asked = [
            asyncio.create_task(asyncio.to_thread(world.client().admit, manifest(uid=uid)))
            for uid in uids
        ]
        await until(lambda: agent.controller.queue.waiting == len(asked))
        agent.service.stop()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        # All were answered while the action was still under way.
        assert not agent.life.done()
        go_on.set()
        await agent.life
        assert agent.controller.state.ledger.allocations == {}
    rejected = [each for each in answers if isinstance(each, AgentError)]
    assert len(rejected) == len(asked)
    assert {(each.status, each.error.code) for each in rejected} == {(503, "Stopping")}


@in_loop
async def test_the_periodic_comparison_overtakes_the_changes_of_members(world: World) -> None:
    async with running(world) as agent:
        started = agent.controller.metrics.reconcile_duration.count
        compared: list[int] = []

        async def change() -> None:
            compared.append(agent.controller.metrics.reconcile_duration.count - started)

        async with busy(agent) as go_on:
            with called_by(Caller("a member")):
                asked = [asyncio.create_task(agent.controller.queue.run(change)) for _ in range(9)]
            await until(lambda: agent.controller.queue.waiting == len(asked))
            queue = agent.controller.queue
            await world.clock.passing(10, until(lambda: queue.waiting > len(asked)))
            go_on.set()
        await asyncio.gather(*asked)
    # One may have had its turn before.
    assert compared[1] == 1


@in_loop
async def test_a_socket_file_that_was_removed_is_made_again_once_nothing_is_in_its_place(
    world: World,
) -> None:
    async with running(world) as agent:
        events = agent.client.watch()
        first = asyncio.create_task(asyncio.to_thread(next, events))
        await until(lambda: bool(agent.controller.events._watchers))
        before = world.socket.lstat()
        world.socket.unlink()
        world.clock.advance(5)
        await until(world.socket.exists)
        assert world.socket.lstat().st_mode == before.st_mode
        answer = await asyncio.to_thread(agent.client.admit, manifest())
        assert answer.admitted
        assert (await first).uid == UID
        await asyncio.to_thread(events.close)  # type: ignore[attr-defined]  # it is a generator
        conditions = agent.controller.state.observed.conditions
        world.socket.unlink()
        world.socket.write_text("mine")
        world.clock.advance(5)
        await until(lambda: "listeners" in conditions)
        assert "a file of that name exists" in conditions["listeners"]
        world.socket.unlink()
        world.clock.advance(5)
        await until(lambda: "listeners" not in conditions)
        assert (await asyncio.to_thread(agent.client.admit, manifest("db", OTHER_UID))).admitted


@in_loop
async def test_the_watchdog_hears_nothing_while_an_action_hangs(world: World) -> None:
    manager = RecordingManager(ping_seconds=5)
    async with running(world, manager) as agent:
        await manager.pinged.wait()
        async with busy(agent) as go_on:
            manager.pinged.clear()
            world.clock.advance(61)
            failure = agent.controller.state.parts.progress.failure()
            for _ in range(10):
                await asyncio.sleep(0)
            pinged = manager.pinged.is_set()
            go_on.set()
    assert failure is not None
    assert failure.startswith("queue of changes has made no progress for 60 s")
    assert not pinged


@in_loop
async def test_a_file_with_any_name_leaves_the_others_and_every_answer_alone(world: World) -> None:
    directory = world.manifest_directory()
    for name, uid in ((b"caf\xe9.yaml", None), (b"caf\xe8.yaml", OTHER_UID)):
        (directory / os.fsdecode(name)).write_bytes(manifest(uid=uid))
    (directory / os.fsdecode(b"bad-\xff.yaml")).write_text("kind: Pod\n")
    (directory / "good.yaml").write_bytes(manifest())
    async with running(world) as agent:
        status = await asyncio.to_thread(agent.client.status)
        assert [pod.uid for pod in await asyncio.to_thread(agent.client.pods)] == [UID]
        text = agent.controller.metrics.render(agent.controller.state.reading()).decode()
        assert 'numawarden_manifests{state="invalid"} 3.0' in text
        assert any("bad-\\xff.yaml is invalid" in line for line in status.condition_lines())
        states = {Path(entry.file).name: entry.state for entry in status.manifests}
        assert states == {
            "bad-\\xff.yaml": "invalid",
            "caf\\xe8.yaml": "invalid",
            "caf\\xe9.yaml": "invalid",
            "good.yaml": "admitted",
        }
        with pytest.raises(AgentError, match="delete that file") as rejected:
            await asyncio.to_thread(agent.client.remove, UID)
        assert rejected.value.error.code == "ManagedByManifest"
        (directory / "good.yaml").unlink()
        with agent.controller.events.watch() as watcher:
            assert (await next_event(watcher, "PodRemoved")).uid == UID


@in_loop
async def test_an_unexpected_failure_of_one_pod_leaves_the_other_files_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = world.manifest_directory()
    (directory / "a.yaml").write_bytes(manifest(uid=OTHER_UID, name="bad"))
    (directory / "b.yaml").write_bytes(manifest())

    def failing(
        configured: ConfiguredHost, ledger: Ledger, pod: Pod, keep: Mask | None
    ) -> Decision:
        if pod.name == "bad":
            raise KeyError("a mistake in the managers")
        return decide(configured, ledger, pod, keep)

    monkeypatch.setattr("agent.server.decider.decide", failing)
    async with running(world) as agent:
        status = await asyncio.to_thread(agent.client.status)
        assert [entry.state for entry in status.manifests] == ["invalid", "admitted"]
        assert any("internal error (KeyError)" in line for line in status.condition_lines())


@in_loop
async def test_a_manifest_directory_that_comes_again_is_watched_again_soon(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "SOURCE_PERIOD", 1e6)
    directory = world.manifest_directory()
    shell = os.open(directory, os.O_RDONLY)  # as a shell has it that is in the directory
    async with running(world) as agent:
        with agent.controller.events.watch() as watcher:
            directory.rmdir()
            sources = agent.controller.state.observed.sources.by_name
            unread = until(lambda: sources["manifests"].unreadable is not None)
            await world.clock.passing(ENDED_SECONDS, unread)
            directory.mkdir(mode=0o755)
            for name, uid in (("web", UID), ("db", OTHER_UID)):
                (directory / f"{name}.yaml").write_bytes(manifest(name, uid))
                admitted = next_event(watcher, "PodAdmitted")
                event = await world.clock.passing(ENDED_SECONDS, admitted)
                assert event.uid == uid
    os.close(shell)


@in_loop
async def test_a_rejected_manifest_is_admitted_once_another_pod_ends(world: World) -> None:
    directory = world.manifest_directory()
    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest("big", OTHER_UID, cpu="14"))
        with agent.controller.events.watch() as watcher:
            (directory / "web.yaml").write_bytes(manifest())
            await next_event(watcher, "PodRejected")
            await agent.ask(agent.client.remove, OTHER_UID)
            admitted = next_event(watcher, "PodAdmitted")
            event = await world.clock.passing(service_module.SOURCE_PERIOD, admitted)
            assert event.uid == UID


@asynccontextmanager
async def restoring(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[RecordingManager, Service, asyncio.Event]]:
    """Run an agent whose first comparison lasts until the event is set."""
    manager = RecordingManager()
    assembly = Wiring(world.config, manager, world.clock, PLUGS, Fakes(world.kernel, live=False))
    began, go_on = asyncio.Event(), asyncio.Event()
    compare = assembly.controller.reconcile

    async def wait_and_compare(**_: bool) -> ReconcileDocument:
        began.set()
        await go_on.wait()
        return await compare()

    with assembly as service:
        monkeypatch.setattr(assembly.controller, "reconcile", wait_and_compare)
        life = asyncio.create_task(service.run())
        try:
            await began.wait()
            yield manager, service, go_on
        finally:
            service.stop()
            await life


@in_loop
async def test_while_it_restores_all_may_look_and_none_change_anything(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = world.client()
    async with restoring(world, monkeypatch) as (manager, _, go_on):
        assert not (await asyncio.to_thread(client.status)).ready
        with pytest.raises(AgentError, match="retry later") as rejected:
            await asyncio.to_thread(client.admit, manifest())
        assert (rejected.value.status, rejected.value.error.code) == (503, "NotReady")
        go_on.set()
        await manager.is_ready.wait()
        assert manager.sent[-1].startswith("ready: 0 pods")
        assert (await asyncio.to_thread(client.admit, manifest())).admitted
    async with restoring(world, monkeypatch) as (manager, service, _):
        service.stop()
    assert manager.sent == ["stopping"]


class FullWatch:
    """Watches until the kernel allows no more."""

    def __init__(self) -> None:
        self.full = False
        self.watched: set[str] = set()
        self.appearing = asyncio.Queue[tuple[str, ...]]()

    def follow(self, cgroups: Iterable[str], renewed: Collection[str] = ()) -> None:
        self.watched.clear()
        self.also({*cgroups, *renewed})

    def also(self, cgroups: Iterable[str]) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.watched.update(cgroups)

    async def changes(self) -> AsyncIterator[tuple[str, ...]]:
        while True:
            yield await self.appearing.get()


@in_loop
async def test_a_container_that_starts_gets_its_cpus_without_a_comparison_of_all_pods(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = FullWatch()
    async with running(world, cgroups=watch) as agent:
        await agent.ask(agent.client.admit, manifest())
        monkeypatch.setattr(agent.controller, "reconcile", lambda **_: asyncio.Event().wait())
        world.kernel.mkdir(f"{POD}/c0")
        watch.appearing.put_nowait((f"{POD}/c0", "kubepods/podof-no-ledger/c0"))
        await until(lambda: world.kernel.read(f"{POD}/c0", "cpuset.cpus") == "1,9\n")


@in_loop
async def test_a_bound_unit_that_starts_again_gets_its_cpus_without_a_comparison_of_all_pods(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, bound = FullWatch(), "system/db"
    for path in ("system", bound):
        world.kernel.write(path.rpartition("/")[0], "cgroup.subtree_control", "+cpuset +cpu")
        world.kernel.mkdir(path)
    async with running(world, cgroups=watch) as agent:
        await agent.ask(agent.client.admit, manifest())
        await agent.ask(agent.client.bind, UID, "c0", BindRequest(cgroup=f"/{bound}"))
        await agent.service._reconcile()
        assert "system" in watch.watched
        monkeypatch.setattr(agent.controller, "reconcile", lambda **_: asyncio.Event().wait())
        world.kernel.rmdir(bound)
        world.kernel.mkdir(bound)
        watch.appearing.put_nowait((bound,))
        await until(lambda: world.kernel.read(bound, "cpuset.cpus") == "1,9\n")


@in_loop
async def test_what_the_kubelets_keys_say_is_written_into_the_cgroups(world: World) -> None:
    world.config = replace(
        world.config,
        memory_reservation_policy=MemoryReservationPolicy.TIERED,
        system_reserved={"memory": Quantity.parse("1Gi"), "cpu": Quantity.parse("1")},
        cpu_cfs_quota_period=0.05,
    )
    async with running(world) as agent:
        capacity = agent.controller.state.configured.rules.capacity
        await agent.ask(agent.client.admit, manifest(cpu="500m"))
        path = f"kubepods/shared/pod{UID}"
        shown = [world.kernel.read(path, file).strip() for file in ("memory.min", "cpu.max")]
        assert shown == [str(1 << 30), "25000 50000"]
        pages = sum(size for name, size in capacity.items() if name.startswith("hugepages-"))
        most = capacity["memory"] - pages - (1 << 30)
        assert world.kernel.read("kubepods", "memory.max") == f"{most}\n"
        assert world.kernel.read("kubepods", "memory.min") == f"{1 << 30}\n"


@in_loop
async def test_a_new_pod_is_watched_at_once_and_a_lack_of_watches_is_reported_until_it_is_over(
    world: World,
) -> None:
    watch = FullWatch()
    async with running(world) as agent:
        agent.service._inputs = replace(agent.service._inputs, cgroups=watch)
        await agent.ask(agent.client.admit, manifest())
        assert watch.watched == {POD}
        watch.full = True
        await agent.ask(agent.client.admit, manifest("other", OTHER_UID))
        status = await asyncio.to_thread(agent.client.status)
        assert any("raise fs.inotify.max_user_watches" in line for line in status.condition_lines())
        watch.full = False
        await agent.service._reconcile()
        assert agent.controller.state.observed.conditions == {}
        assert watch.watched == {"", "kubepods", POD, f"kubepods/pod{OTHER_UID}"}
