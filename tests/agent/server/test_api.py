from __future__ import annotations

import asyncio
import os
import pickle
import re
import socket
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest
from msgspec.structs import replace

from agent.api.documents.admissions import AdmissionDocument
from agent.api.documents.document import decode
from agent.api.documents.errors import ErrorDocument
from agent.api.documents.history import EventDocument
from agent.api.documents.pods import PodDocument
from agent.config.cluster import BesideKubeletConfig
from agent.server import handlers as api_module
from agent.server import metrics as names
from agent.server.peers import Peer
from agent.state.store import CHECKPOINT_NAME
from tests.agent.server.served import LAST, asking, posting
from tests.agent.server.support import OTHER_UID, UID, acting_as, in_loop, manifest, running, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.agent.server.support import Running, World

POD = f"kubepods/pod{UID}"
BIND = f"/v1/pods/{UID}/containers/c0/bind"
RESIZE = f"/v1/pods/{UID}/resize"
MOVE = f"/v1/pods/{UID}/move"


async def ask(
    agent: Running, method: str, path: str, body: bytes | str | None = None
) -> tuple[int, bytes]:
    """Send one request as any HTTP client would; return the status and the body."""
    connector = aiohttp.UnixConnector(str(agent.world.socket))
    async with aiohttp.ClientSession(connector=connector) as session:
        response = await session.request(method, f"http://agent{path}", data=body)
        return response.status, await response.read()


async def error_of(agent: Running, method: str, path: str, body: bytes | str | None = None) -> str:
    status, answer = await ask(agent, method, path, body)
    assert len(answer) < 1000
    return f"{status} {decode(answer, ErrorDocument).error.code}"


async def admitted(agent: Running, body: bytes, query: str = "") -> tuple[int, AdmissionDocument]:
    status, answer = await ask(agent, "POST", f"/v1/pods{query}", body)
    return status, decode(answer, AdmissionDocument)


def everything(agent: Running) -> tuple[object, ...]:
    """Return the state, and all that an agent could have written."""
    saved = agent.world.directory / "state" / CHECKPOINT_NAME
    content = saved.read_bytes() if saved.exists() else b""
    return agent.controller.state.durable, pickle.dumps(agent.world.kernel), content


@in_loop
async def test_a_pod_is_admitted_once_shown_and_removed_and_a_rejected_one_changes_nothing(
    world: World,
) -> None:
    async with running(world) as agent:
        status, first = await admitted(agent, manifest())
        assert (status, first.admitted) == (201, True)
        before = everything(agent)
        status, again = await admitted(agent, manifest())
        assert (status, again.already_admitted, again.pod) == (200, True, first.pod)
        status, other = await admitted(agent, manifest(cpu="4"))
        assert other.error is not None
        assert (status, other.error.code) == (409, "PodConflict")
        status, big = await admitted(agent, manifest("big", OTHER_UID, cpu="64"))
        assert status == 409
        assert big.rejection is not None
        assert big.explanation is not None
        assert big.error is not None
        assert big.error.code == big.rejection.reason
        assert everything(agent) == before
        status_now = await asyncio.to_thread(agent.client.status)
        assert [rejected.uid for rejected in status_now.rejected] == [OTHER_UID]
        text = agent.controller.metrics.render(agent.controller.state.reading()).decode()
        assert 'numawarden_admissions_total{result="repeated"} 1.0' in text
        shown = decode((await ask(agent, "GET", f"/v1/pods/{UID}"))[1], PodDocument)
        assert shown.explanation is not None
        assert [cgroup.cgroup for cgroup in shown.kernel] == [f"/{POD}"]
        assert (await ask(agent, "DELETE", f"/v1/pods/{UID}"))[0] == 200
        assert b'{"pods":[],' in (await ask(agent, "GET", "/v1/pods"))[1]
    assert not world.kernel.exists(POD)


@in_loop
async def test_beside_a_kubelet_pods_are_tried_and_not_admitted(world: World) -> None:
    kubelet = BesideKubeletConfig(enabled=True, nri_socket=None)
    world.config = replace(world.config, agent=replace(world.config.agent, kubelet=kubelet))
    async with running(world) as agent:
        assert await error_of(agent, "POST", "/v1/pods", manifest()) == "409 ManagedByKubelet"
        assert not agent.controller.state.ledger.allocations
        assert (await admitted(agent, manifest(), "?dryRun=true"))[0] == 200


@in_loop
async def test_a_dry_run_decides_and_changes_nothing(world: World) -> None:
    async with running(world) as agent:
        before = everything(agent)
        status, answer = await admitted(agent, manifest(), "?dryRun=true")
        assert (status, answer.dry_run) == (200, True)
        assert answer.pod is not None
        assert answer.pod.exclusive_cpus == "1,9"
        assert (await admitted(agent, manifest(cpu="64"), "?dryRun=1"))[0] == 409
        assert everything(agent) == before
        text = agent.controller.metrics.render(agent.controller.state.reading()).decode()
        assert 'numawarden_admissions_total{result="admitted"} 0.0' in text
        assert "kubelet_topology_manager_admission_requests_total 0.0" in text


#: Bodies that are no manifest and no binding.
NOTHING = (b"", b"\xff\xfe", b"[]", b"{", b"a: &x 1\nb: *x\n", b"kind: Node\n", b"\0")
ENDLESS = (
    b"[" * 500_000,
    b'{"a":' * 100_000,
    b"- " * 400_000,
    b"a: &a [*a,*a]",
    b'{"pid":' + b"9" * 5000,
)


@in_loop
async def test_a_body_that_is_not_what_is_asked_for_or_never_ends_is_one_mistake(
    world: World,
) -> None:
    async with running(world) as agent:
        for body in (*NOTHING, b"--- 1\n--- 2\n", *ENDLESS):
            assert await error_of(agent, "POST", "/v1/pods", body) == "422 InvalidManifest"
        assert not agent.controller.state.ledger.allocations
        assert (await admitted(agent, manifest()))[0] == 201
        for body in (*NOTHING, *ENDLESS):
            assert await error_of(agent, "POST", BIND, body) == "422 InvalidBinding"


MESSAGE_BYTES = 300_000
#: Requests that one clear error answers, beside a pod that is there.
BAD = (
    ("GET", "/", None, "404 NotFound"),
    ("GET", "/v2/pods", None, "404 NotFound"),
    ("PUT", "/v1/pods", None, "405 MethodNotAllowed"),
    ("POST", "/v1/status", None, "405 MethodNotAllowed"),
    ("POST", "/v1/pods?dryrun=true", b"", "400 InvalidRequest"),
    ("POST", "/v1/pods?dryRun=maybe", b"", "400 InvalidRequest"),
    ("POST", "/v1/pods?advice=maybe", manifest("b", OTHER_UID), "400 InvalidRequest"),
    ("GET", "/v1/pods/absent", None, "404 PodNotFound"),
    ("GET", "/v1/pods/..%2F..%2Fetc", None, "404 PodNotFound"),
    ("DELETE", "/v1/pods/absent", None, "404 PodNotFound"),
    ("POST", "/v1/pods/absent/containers/c0/bind", b'{"pid": 1}', "404 PodNotFound"),
    ("POST", f"/v1/pods/{UID}/containers/zz/bind", b'{"pid": 1}', "404 ContainerNotFound"),
    ("DELETE", "/v1/pods/absent/containers/c0/bind", None, "404 PodNotFound"),
    ("DELETE", f"/v1/pods/{UID}/containers/zz/bind", None, "404 ContainerNotFound"),
    ("DELETE", BIND, None, "404 BindingNotFound"),
    ("POST", BIND, b"[1]", "422 InvalidBinding"),
    ("POST", BIND, b"{}", "422 InvalidBinding"),
    ("POST", BIND, b'{"pid": "x"}', "422 InvalidBinding"),
    ("POST", BIND, b'{"pid": 0}', "422 InvalidBinding"),
    ("POST", BIND, b'{"pdi": 1}', "422 InvalidBinding"),
    ("POST", BIND, b'{"\xffid": 1}', "422 InvalidBinding"),
    ("POST", BIND, b'{"pid": 1, "cgroup": "/a"}', "422 InvalidBinding"),
    ("POST", BIND, b'{"cgroup": "/../../etc"}', "422 InvalidBinding"),
    ("POST", BIND, b'{"cgroup": "/not/there"}', "422 InvalidBinding"),
    ("POST", BIND, b'{"cgroup": "' + b"/a" * 100_000 + b'"}', "422 InvalidBinding"),
    ("POST", "/v1/pods/absent/resize", b'{"cpus": "4"}', "404 PodNotFound"),
    ("POST", RESIZE, b"[1]", "422 InvalidResize"),
    ("POST", RESIZE, b"{}", "422 InvalidResize"),
    ("POST", RESIZE, b'{"cpu": "4"}', "422 InvalidResize"),
    ("POST", RESIZE, b'{"cpus": "4GB"}', "422 InvalidResize"),
    ("POST", RESIZE, b'{"cpus": "0"}', "422 InvalidResize"),
    ("POST", RESIZE, b'{"cpus": "-1"}', "422 InvalidResize"),
    ("POST", RESIZE, b'{"memory": "1' + b"0" * 1000 + b'"}', "422 InvalidResize"),
    ("POST", RESIZE, b'{"cpus": "1", "keep": "0-9999999999"}', "422 InvalidResize"),
    ("POST", RESIZE, b'{"cpus": "1", "container": "zz"}', "404 ContainerNotFound"),
    ("POST", "/v1/pods/absent/move", b'{"cpus": "1", "newCpus": "2"}', "404 PodNotFound"),
    ("POST", MOVE, b"[1]", "422 InvalidMove"),
    ("POST", MOVE, b'{"cpus": "1,9"}', "422 InvalidMove"),
    ("POST", MOVE, b'{"cpus": "1,9", "newCpus": "2", "cpu": ""}', "422 InvalidMove"),
    ("POST", MOVE, b'{"cpus": "1,9", "newCpus": "2-"}', "422 InvalidMove"),
    ("POST", MOVE, b'{"cpus": "1,9", "newCpus": "0-9999999999"}', "422 InvalidMove"),
    ("POST", MOVE, b'{"cpus": "1,9", "newCpus": "2,10", "pressure": 101}', "422 InvalidMove"),
    ("POST", MOVE, b'{"cpus": "1,9", "newCpus": "2,10"}', "409 Infeasible"),
    ("POST", "/v1/plan", b"[1]", "422 InvalidManifest"),
    ("POST", "/v1/pods", b"#" * (MESSAGE_BYTES + 1), "413 TooLarge"),
)


@in_loop
async def test_bad_requests_get_one_short_clear_error_and_change_nothing(world: World) -> None:
    limits = replace(world.config.agent.limits, message_bytes=MESSAGE_BYTES)
    world.config = replace(world.config, agent=replace(world.config.agent, limits=limits))
    async with running(world) as agent:
        await admitted(agent, manifest())
        before = everything(agent)
        for method, path, body, expected in BAD:
            found = await error_of(agent, method, path, body)
            assert (method, path, body, found) == (method, path, body, expected)
        assert everything(agent) == before


#: Every resource, and those that have a dry run.
ROUTES = re.findall(r'\("([A-Z]+)", "(/v1/[^"]+)", self', Path(api_module.__file__).read_text())
DRY = {
    ("POST", "/v1/pods"),
    ("POST", "/v1/drain"),
    *(("POST", f"/v1/pods/{{uid}}/{change}") for change in ("resize", "move")),
}


@in_loop
async def test_a_parameter_that_a_resource_does_not_know_changes_nothing(world: World) -> None:
    assert len(ROUTES) > 15
    async with running(world) as agent:
        await admitted(agent, manifest())
        before = everything(agent)
        for method, route in ROUTES:
            path = route.replace("{uid}", UID).replace("{name}", "c0")
            for query in ("dryRun=true", "dryrun=1", "namespace="):
                if query == "dryRun=true" and (method, route) in DRY:
                    continue
                status, body = await ask(agent, method, f"{path}?{query}", manifest("b", OTHER_UID))
                error = decode(body, ErrorDocument).error
                assert (status, error.code) == (400, "InvalidRequest")
                assert [detail.path for detail in error.details] == [query.partition("=")[0]]
        assert everything(agent) == before


@in_loop
async def test_watching_gives_every_event_as_a_line_until_the_agent_stops(world: World) -> None:
    async with running(world) as agent:
        connector = aiohttp.UnixConnector(str(world.socket))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get("http://agent/v1/watch") as response,
        ):
            counters = agent.controller.metrics.counters
            with agent.controller.events.watch() as unread:
                while unread.offer(EventDocument(type="Test", time=0.0, operation="")):
                    pass
                await admitted(agent, manifest())
            assert counters.value(names.EVENTS_DROPPED) == 1
            await admitted(agent, manifest("big", OTHER_UID, cpu="64"))
            await ask(agent, "DELETE", f"/v1/pods/{UID}")
            assert b'"totals"' in (await ask(agent, "GET", "/v1/topology"))[1]
            await agent.stop()
            lines = [line async for line in response.content]
    seen = [decode(line, EventDocument).type for line in lines]
    assert seen == ["PodAdmitted", "PodRejected", "PodRemoved", "AgentStopped"]


@in_loop
async def test_others_than_root_and_the_group_are_rejected(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_user = Peer(pid=1, uid=4242, groups=frozenset({4242, 100}))
    async with running(world) as agent:
        monkeypatch.setattr("agent.server.peers.peer_of", lambda _: other_user)
        for method, path in (("GET", "/v1/status"), ("POST", "/v1/pods"), ("GET", "/nowhere")):
            assert await error_of(agent, method, path, manifest()) == "403 Forbidden"
        assert not agent.controller.state.ledger.allocations


@pytest.fixture
def _open_directory(world: World) -> Iterator[None]:
    """Serve members of a group in a directory that every user may enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        path = Path(name) / "agent.sock"
        settings = replace(world.config.agent, socket_path=path, socket_group="wardens")
        world.config = replace(world.config, agent=settings)
        yield


@pytest.mark.usefixtures("_open_directory")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(
    ("user", "groups", "expected"), [(65534, [], b"403"), (65534, [54321], b"200"), (0, [], b"200")]
)
@in_loop
async def test_the_kernel_identifies_who_asks(
    world: World, monkeypatch: pytest.MonkeyPatch, user: int, groups: list[int], expected: bytes
) -> None:
    monkeypatch.setattr("agent.server.wiring.group_id", lambda _: 54321)
    former, path = os.getgroups(), world.socket
    with socket.socket(socket.AF_UNIX) as client:
        async with running(world):
            assert path.stat().st_mode & 0o777 == 0o660
            assert path.stat().st_gid == 54321
            path.chmod(0o666)  # so that the agent, not the file system, has to reject
            os.setgroups(groups)
            with acting_as(user):
                client.connect(str(path))
            os.setgroups(former)
            client.sendall(asking("/v1/status", LAST))
            answer = await asyncio.to_thread(client.recv, 100)
    assert answer.split()[1] == expected


@pytest.mark.parametrize("begun", [True, False])
@in_loop
async def test_an_admission_is_finished_if_it_began_before_its_client_went_away(
    world: World, *, begun: bool
) -> None:
    async with running(world) as agent:
        queue, free = agent.controller.queue, asyncio.Event()
        before = asyncio.create_task(queue.run(free.wait))
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(world.socket))
            client.sendall(posting("/v1/pods", body=manifest()))
            await until(lambda: queue.waiting)
            request = queue._lanes.first(urgent=True)
            assert request is not None
            if begun:
                free.set()
                await until(lambda: not queue.waiting)
        if not begun:
            await until(request.outcome.cancelled)
            free.set()
        await before
        await agent.controller.reconcile()
        assert (UID in agent.controller.state.ledger.allocations) is begun


async def say(world: World, said: bytes) -> bytes:
    """Send bytes as they are and return all that comes back."""
    reader, writer = await asyncio.open_unix_connection(str(world.socket))
    writer.write(said)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


@in_loop
async def test_a_body_that_does_not_arrive_is_given_up_and_a_compressed_one_not_unpacked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_module, "BODY_SECONDS", 0.01)
    monkeypatch.setattr("agent.server.connection.LINGER_SECONDS", 0.01)
    packed = zlib.compress(manifest())
    async with running(world) as agent:
        for path in ("/v1/pods", BIND):
            answer = await say(world, posting(path, LAST, "Content-Length: 10000") + manifest())
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert b'"code":"TooSlow"' in answer
        answer = await say(
            world, posting("/v1/pods", LAST, "Content-Encoding: deflate", body=packed)
        )
        assert answer.startswith(b"HTTP/1.1 422 ")
        assert not agent.controller.state.ledger.allocations


@in_loop
async def test_nothing_that_is_asked_for_becomes_a_header_or_a_line_of_its_own(
    world: World,
) -> None:
    evil = "x%0d%0aX-Evil:%201%0d%0a%0d%0a%1b[2J"
    async with running(world):
        for path in ("/v1/pods/{}", "/v1/{}", "/v1/pods/{}/containers/c/bind"):
            answer = await say(world, posting(path.format(evil), LAST, body=b"{}"))
            head, _, body = answer.partition(b"\r\n\r\n")
            assert b"X-Evil" not in head
            assert body.count(b"\n") == 1
            assert b"\x1b" not in body
            assert decode(body, ErrorDocument).error.code
