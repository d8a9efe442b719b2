"""A plan makes room for a pod, and requests move the pods of the plan."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.api.client import AgentError
from agent.api.documents.admissions import ResizeRequest
from agent.api.documents.moves import MoveRequest
from agent.managers.policy import MemoryManagerPolicy, TopologyManagerPolicy
from agent.pods.model import MOVE
from agent.server import metrics as names
from sysfs.mask import Mask
from tests.agent.server.support import OTHER_UID, UID, in_loop, manifest, next_event, running

if TYPE_CHECKING:
    from agent.api.documents.admissions import AdmissionDocument
    from agent.api.documents.moves import MoveDocument, MovesDocument
    from tests.agent.server.support import Running, World

NEW_UID = "55555555-2222-3333-4444-555555555555"
NEW = manifest("new", NEW_UID, cpu="4")


def allowing(body: bytes, allow: str) -> bytes:
    annotation = f"  annotations: {{{MOVE}: {allow}}}\n".encode()
    return body.replace(b"spec:\n", annotation + b"spec:\n")


def tight(world: World, *, memory: bool = False) -> None:
    """Have pods of one NUMA node each."""
    policy = MemoryManagerPolicy.STATIC if memory else MemoryManagerPolicy.NONE
    world.config = replace(
        world.config,
        topology_manager_policy=TopologyManagerPolicy.SINGLE_NUMA_NODE,
        memory_manager_policy=policy,
    )


async def fill(agent: Running, allow: str = "cpus") -> None:
    """Leave three CPUs on node 0 and two on node 1."""
    await agent.ask(agent.client.admit, allowing(manifest(), allow) if allow else manifest())
    await agent.ask(agent.client.admit, manifest("two", OTHER_UID))
    await agent.ask(agent.client.admit, manifest("six", NEW_UID.replace("5", "6"), cpu="6"))


async def plan(agent: Running, body: bytes = NEW) -> MovesDocument:
    found: list[MovesDocument] = []
    await agent.ask(lambda: found.append(agent.client.plan(body)))
    return found[0]


async def move(agent: Running, asked: MoveDocument, *, dry_run: bool = False) -> AdmissionDocument:
    request = MoveRequest(
        cpus=asked.cpus, new_cpus=asked.new_cpus, nodes=asked.nodes, new_nodes=asked.new_nodes
    )
    found: list[AdmissionDocument] = []
    await agent.ask(lambda: found.append(agent.client.move(asked.uid, request, dry_run=dry_run)))
    return found[0]


def cpus(agent: Running, uid: str = UID) -> str:
    return str(agent.controller.state.ledger.allocations[uid].exclusive_cpus)


@in_loop
async def test_a_plan_is_made_saved_enforced_and_reported(world: World) -> None:
    tight(world)
    cgroup = f"kubepods/pod{UID}"
    async with running(world) as agent:
        await fill(agent)
        before = agent.controller.state.durable
        found = await plan(agent)
        assert (found.fits, found.limited, found.would_help) == (False, False, ())
        [asked] = found.moves
        assert (asked.uid, asked.cpus, asked.bytes) == (UID, cpus(agent), 0)
        planned = await move(agent, asked, dry_run=True)
        assert planned.plan is not None
        assert f"/{cgroup}" in {write.cgroup for write in planned.plan.writes}
        assert agent.controller.state.durable is before, "nothing has changed"
        with agent.controller.events.watch() as watcher:
            assert (await move(agent, asked)).admitted
            event = await next_event(watcher, "PodMoved")
        assert event.message.startswith(f"exclusive CPUs {asked.new_cpus}; enforced after ")
        assert event.message.endswith(f"before CPUs {asked.cpus}")
        assert world.kernel.read(cgroup, "cpuset.cpus").strip() == asked.new_cpus
        assert (await move(agent, asked)).already_admitted
        assert agent.controller.metrics.counters.value(names.MOVES, "moved") == 1
        assert (await plan(agent)).fits
    async with running(world) as agent:
        assert cpus(agent) == asked.new_cpus
        await agent.ask(agent.client.admit, NEW)
        assert cpus(agent, NEW_UID) == found.cpus
        assert (await plan(agent)).fits, "it is admitted"


@in_loop
async def test_cpus_that_a_pod_could_not_leave_are_given_to_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tight(world)
    cgroup = f"kubepods/pod{UID}"
    write, busy = world.kernel.write, True

    def failing(path: str, file: str, value: str) -> None:
        if busy and path.startswith(cgroup) and file == "cpuset.cpus":
            raise OSError(errno.EBUSY, "busy", path)
        write(path, file, value)

    async with running(world) as agent:
        await fill(agent)
        world.kernel.mkdir(f"{cgroup}/c0")
        world.kernel.spawn(f"{cgroup}/c0", 7)
        await agent.controller.reconcile()
        had = Mask.parse(cpus(agent))
        monkeypatch.setattr(world.kernel, "write", failing)
        [asked] = (await plan(agent)).moves
        answer = await move(agent, asked)
        assert answer.pod is not None
        assert not answer.pod.enforcement.enforced
        assert world.kernel.allowed(7)[0] == had
        # A running pod does not get them.
        grown = ResizeRequest(container="c0", cpus="6")
        found = await asyncio.to_thread(agent.client.resize, OTHER_UID, grown)
        assert found.pod is not None
        assert not Mask.parse(found.pod.exclusive_cpus).isdisjoint(had), "the ledger gives them"
        lines = found.pod.enforcement.differences
        assert any(f"/{cgroup}/c0 could not be set to " in line for line in lines), lines
        shown = world.kernel.read(f"kubepods/pod{OTHER_UID}", "cpuset.cpus.effective")
        assert Mask.parse(shown.strip()).isdisjoint(had)
        busy = False
        await agent.controller.reconcile()
        pods = await asyncio.to_thread(agent.client.pods)
        assert [pod.enforcement.differences for pod in pods] == [()] * 3
        assert world.kernel.allowed(7)[0] == Mask.parse(asked.new_cpus)


@in_loop
async def test_a_plan_that_no_longer_fits_is_rejected_and_changes_nothing(world: World) -> None:
    tight(world)
    async with running(world) as agent:
        await fill(agent)
        [asked] = (await plan(agent)).moves
        await agent.ask(agent.client.admit, manifest("late", NEW_UID, cpu="3"))
        await agent.ask(agent.client.admit, manifest("later", NEW_UID.replace("5", "7")))
        before = agent.controller.state.durable
        with agent.controller.events.watch() as watcher:
            answer = await move(agent, asked)
            event = await next_event(watcher, "PodMoveRejected")
        assert answer.rejection is not None
        assert event.message == f"{answer.rejection.reason}: {answer.rejection.message}"
        assert agent.controller.state.durable is before
        assert agent.controller.state.observed.records.failed(UID) is None
        assert agent.controller.metrics.counters.value(names.MOVES, "rejected") == 1


@in_loop
async def test_who_would_have_to_allow_it_is_named_and_not_moved(world: World) -> None:
    tight(world)
    async with running(world) as agent:
        await fill(agent, allow="")
        found = await plan(agent)
        assert (found.moves, found.cpus) == ((), None)
        assert found.rejection is not None
        assert (UID, MOVE, "cpus") in {(x.uid, x.annotation, x.value) for x in found.would_help}
        conflict = await plan(agent, manifest("web", NEW_UID))
        assert conflict.rejection is not None
        assert (conflict.rejection.reason, conflict.moves) == ("PodConflict", ())


@in_loop
async def test_pinned_memory_moves_with_its_pod(world: World) -> None:
    tight(world, memory=True)
    cgroup = f"kubepods/pod{UID}/c0"
    async with running(world) as agent:
        await fill(agent, allow="memory")
        world.kernel.mkdir(cgroup)
        world.kernel.spawn(cgroup, 7)
        await agent.controller.reconcile()
        assert world.kernel.read(cgroup, "cpuset.mems").strip() == "0"
        [asked] = (await plan(agent)).moves
        assert (asked.nodes, asked.new_nodes) == ("0", "1")
        answer = await move(agent, asked)
        assert answer.pod is not None
        assert answer.pod.enforcement.enforced, answer.pod.enforcement
        assert world.kernel.read(cgroup, "cpuset.mems").strip() == "1"
        assert world.kernel.read(cgroup, "cpuset.cpus").strip() == asked.new_cpus


@in_loop
async def test_what_would_move_is_read_and_a_pod_under_pressure_stays(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tight(world, memory=True)
    files = {
        "memory.numa_stat": "anon N0=4096 N1=1\nfile N0=8192 N1=1\nslab N0=99 N1=1\n",
        "memory.pressure": "some avg10=30.00 avg60=1.00 avg300=0.00 total=1\nfull avg10=99\n",
    }
    read = world.kernel.read

    def reading(path: str, file: str) -> str:
        return files[file] if file in files else read(path, file)

    async with running(world) as agent:
        await fill(agent, allow="memory")
        monkeypatch.setattr(world.kernel, "read", reading)
        [asked] = (await plan(agent)).moves
        assert asked.bytes == 12288
        with pytest.raises(AgentError, match=r"memory.pressure: .* 30.0 %") as error:
            await move(agent, asked)
        assert (error.value.status, error.value.error.code) == (409, "UnderPressure")
        assert cpus(agent) == asked.cpus
        files["memory.pressure"] = "some avg10=20.00 avg60=1.00 avg300=0.00 total=1\n"
        assert (await move(agent, asked)).admitted
