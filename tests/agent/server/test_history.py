"""The history of a running agent: what happened, who asked for it, who wrote what."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.api.client import AgentError
from agent.api.documents import BindRequest
from agent.config.model import HistoryConfig
from agent.managers.policy import TopologyManagerPolicy
from agent.server import metrics as names
from agent.state.history import HISTORY_NAME
from cgroupfs.state import Writer
from sysfs.mask import Mask
from tests.agent.server.support import (
    OTHER_UID,
    UID,
    in_loop,
    make_world,
    manifest,
    running,
    two_packages,
)

if TYPE_CHECKING:
    from agent.api.documents import HistoryEntry
    from tests.agent.server.support import Running, World

POD = f"kubepods/pod{UID}"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return make_world(tmp_path)


async def history(agent: Running, **query: object) -> tuple[HistoryEntry, ...]:
    """Return the latest entries, the latest first."""
    asked = {"limit": 1000, **query}
    return (await asyncio.to_thread(agent.client.history, **asked)).entries  # type: ignore[arg-type]  # a query


def of_type(entries: tuple[HistoryEntry, ...], kind: str) -> HistoryEntry:
    (found,) = (entry for entry in entries if entry.type == kind)
    return found


#: What the kernel calls a process of this interpreter (proc_pid_comm(5)).
PYTHON = Path(sys.executable).name[:15]
#: Admits the pod on its standard input over the socket that is named, as a process of its own.
ASKING = """
import http.client, socket, sys
connection = http.client.HTTPConnection("agent")
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.connect(sys.argv[1])
connection.request("POST", "/v1/pods", sys.stdin.buffer.read())
print(connection.getresponse().headers["Numawarden-Operation"])
"""


@in_loop
async def test_the_process_that_asked_is_named_with_the_operation_of_its_answer(
    world: World,
) -> None:
    async with running(world) as agent:

        def ask() -> tuple[int, str]:
            with subprocess.Popen(
                [sys.executable, "-c", ASKING, str(world.socket)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            ) as process:
                return process.pid, process.communicate(manifest())[0].decode().strip()

        pid, answered = await asyncio.to_thread(ask)
        entry = of_type(await history(agent), "PodAdmitted")
    assert (entry.uid, entry.pod, entry.operation) == (UID, "shop/web", answered)
    assert entry.requester is not None
    asked = entry.requester
    assert (asked.source, asked.uid, asked.pid) == ("api", os.getuid(), pid)
    assert asked.command == PYTHON


@in_loop
async def test_every_change_over_the_api_is_in_the_history_with_who_asked(world: World) -> None:
    world.kernel.mkdir("jobs")
    world.kernel.mkdir("jobs/batch.scope")
    async with running(world) as agent:
        client = agent.client
        await agent.ask(client.admit, manifest())
        await agent.ask(client.admit, manifest("big", OTHER_UID, cpu="64"))
        with pytest.raises(AgentError):
            await agent.ask(client.admit, b"kind: Pod")
        await agent.ask(client.bind, UID, "c0", BindRequest(cgroup="/jobs/batch.scope"))
        await agent.ask(client.unbind, UID, "c0")
        await agent.ask(client.remove, UID)
        entries = await history(agent)
    changes = [entry for entry in entries[::-1] if entry.requester is not None]
    assert [entry.type for entry in changes] == [
        "PodAdmitted",
        "PodRejected",
        "PodInvalid",
        "ContainerBound",
        "ContainerUnbound",
        "PodRemoved",
    ]
    assert {entry.requester.pid for entry in changes if entry.requester} == {os.getpid()}
    assert len({entry.operation for entry in changes}) == len(changes)


@in_loop
async def test_questions_leave_nothing_in_the_history(world: World) -> None:
    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest(), dry_run=True)
        for question in (agent.client.pods, agent.client.status, agent.client.verify):
            await agent.ask(question)
        assert [entry.type for entry in await history(agent)] == ["AgentStarted"]


@in_loop
async def test_the_file_that_asked_is_named(world: World) -> None:
    directory = world.manifest_directory()
    file = directory / "web.yaml"
    async with running(world) as agent:
        file.write_bytes(manifest())
        await agent.sync_manifests()
        file.unlink()
        await agent.sync_manifests()
        entries = await history(agent)
    for kind in ("PodAdmitted", "PodRemoved"):
        asked = of_type(entries, kind).requester
        assert asked is not None
        assert (asked.source, asked.pid, asked.command) == (str(file), None, "")


@in_loop
async def test_a_difference_is_kept_in_full_with_its_writer(world: World) -> None:
    asked: list[tuple[str, str]] = []

    def writer_of(cgroup: str, file: str) -> Writer:
        asked.append((cgroup, file))
        return Writer(4711, "sh", 1000, "/user.slice/s.scope")

    world.writer_of = writer_of
    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest())
        desired = world.kernel.read(POD, "cpuset.cpus").strip()
        world.kernel.write(POD, "cpuset.cpus", "5-6")
        await agent.ask(agent.client.reconcile)
        entry = of_type(await history(agent, pod="web"), "DriftFound")
        status = await asyncio.to_thread(agent.client.status)
    (found,) = entry.differences
    assert entry.pod == "shop/web"
    assert (found.cgroup, found.file) == (f"/{POD}", "cpuset.cpus")
    assert (found.observed, found.desired, found.cause) == ("5-6", desired, "unknown")
    assert found.repaired
    assert found.writer is not None
    assert (found.writer.pid, found.writer.command, found.writer.uid) == (4711, "sh", 1000)
    assert found.writer.cgroup == "/user.slice/s.scope"
    assert status.drift == entry.differences
    assert "written by sh[4711], uid 1000, in /user.slice/s.scope" in found.line()
    assert asked == [(POD, "cpuset.cpus")]


@in_loop
async def test_a_difference_without_a_known_writer_has_none(world: World) -> None:
    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest())
        world.kernel.write(POD, "cpuset.cpus", "5-6")
        await agent.ask(agent.client.reconcile)
        (found,) = of_type(await history(agent), "DriftFound").differences
    assert found.writer is None


@in_loop
async def test_the_writer_of_an_effective_set_is_not_asked_for(world: World) -> None:
    asked: list[str] = []

    def writer_of(_cgroup: str, file: str) -> None:
        asked.append(file)

    world.writer_of = writer_of
    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest())
        allocated = Mask.parse(world.kernel.read(POD, "cpuset.cpus"))
        world.kernel.set_online(two_packages().online - Mask.of(next(iter(allocated))))
        await agent.ask(agent.client.reconcile)
        entry = of_type(await history(agent), "DriftFound")
    assert [each.file for each in entry.differences] == ["cpuset.cpus.effective"]
    assert asked == []


@in_loop
async def test_starts_stops_and_what_changed_between_them_are_kept(world: World) -> None:
    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest())
    policy = TopologyManagerPolicy.RESTRICTED
    world.config = replace(world.config, topology_manager_policy=policy)
    async with running(world) as agent:
        entries = await history(agent)
    assert [entry.type for entry in entries] == [
        "ConfigurationChanged",
        "AgentStarted",
        "AgentStopped",
        "PodAdmitted",
        "AgentStarted",
    ]
    assert "restricted" in entries[0].message
    assert str(os.getpid()) in entries[1].message


@in_loop
async def test_a_disk_that_cannot_be_written_keeps_no_pod_waiting(world: World) -> None:
    state = world.config.agent.state_directory
    (state / HISTORY_NAME).mkdir()
    async with running(world) as agent:
        admitted = await asyncio.to_thread(agent.client.admit, manifest())
        assert admitted.admitted
        with pytest.raises(AgentError, match="history cannot be read"):
            await history(agent)
        status = await asyncio.to_thread(agent.client.status)
        assert [each.type for each in status.conditions] == ["HistoryRecorded"]
        assert status.ready
        (state / HISTORY_NAME).rmdir()
        await agent.ask(agent.client.remove, UID)
        assert [entry.type for entry in await history(agent)] == ["PodRemoved"]
        status = await asyncio.to_thread(agent.client.status)
        assert status.conditions == ()
        assert agent.controller.metrics.counters.value(names.HISTORY_LOST, "disk") == 2


@in_loop
async def test_no_history_is_kept_where_none_is_configured(world: World) -> None:
    config = replace(world.config.agent, history=HistoryConfig(max_bytes=0))
    world.config = replace(world.config, agent=config)
    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest())
        with pytest.raises(AgentError, match="maxBytes is 0") as caught:
            await history(agent)
    assert caught.value.status == 404
    assert not (world.config.agent.state_directory / HISTORY_NAME).exists()


@in_loop
async def test_a_query_finds_one_pod_by_each_of_its_names_and_since_a_time(world: World) -> None:
    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest())
        world.clock.now += 50
        await agent.ask(agent.client.admit, manifest("other", OTHER_UID))
        await agent.ask(agent.client.remove, UID)
        for named in (UID, "web", "shop/web"):
            found = [entry.type for entry in await history(agent, pod=named)]
            assert found == ["PodRemoved", "PodAdmitted"]
        since = await history(agent, since=world.clock.time() - 1)
        assert [entry.type for entry in since] == ["PodRemoved", "PodAdmitted"]
        first = await asyncio.to_thread(agent.client.history, limit=2)
        assert [entry.type for entry in first.entries] == ["PodRemoved", "PodAdmitted"]
        assert first.more


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=x", "since=-1", "since=1e3"])
@in_loop
async def test_a_malformed_query_is_rejected(world: World, query: str) -> None:
    async with running(world) as agent:
        with pytest.raises(AgentError) as caught:
            await agent.ask(agent.client._request, "GET", f"/v1/history?{query}", None)
    assert caught.value.status == 400
    assert caught.value.error.details[0].path == query.partition("=")[0]
