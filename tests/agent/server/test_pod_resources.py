"""The podresources listener as its clients see it: dcgm-exporter, NFD, and hostile ones."""

from __future__ import annotations

import asyncio
import re
import socket
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from grpc import aio
from msgspec.structs import replace

from agent.config.agent import PodResourcesConfig
from agent.rpc.calls import LONGEST_MESSAGE, CallError
from agent.rpc.client import Client
from agent.rpc.pod_resources import POD_RESOURCES_LISTER, V1
from agent.server import metrics as names
from agent.server import pod_resources as module
from agent.server.errors import StartError
from agent.server.pod_resources import PodResourcesListener, RateLimit
from tests.agent.server.support import (
    PATIENCE,
    FakeClock,
    in_loop,
    manifest,
    running,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from agent.rpc.messages import Message
    from tests.agent.server.support import Running, World

LIST = V1["ListPodResourcesRequest"]()


@pytest.fixture
def world(world: World) -> World:
    """Return the world with podresources configured."""
    agent = replace(
        world.config.agent,
        pod_resources=PodResourcesConfig(
            world.directory / "kubelet" / "pod-resources" / "kubelet.sock"
        ),
    )
    world.config = replace(world.config, agent=agent)
    return world


def socket_of(world: World) -> Path:
    path = world.config.agent.pod_resources.socket
    assert path is not None
    return path


@asynccontextmanager
async def served(world: World) -> AsyncIterator[tuple[Running, Client]]:
    """Run an agent with one pod, and a client of podresources."""
    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest())
        client = Client(socket_of(world), POD_RESOURCES_LISTER)
        try:
            yield agent, client
        finally:
            await client.close()


async def listed(client: Client) -> Message:
    response = V1["ListPodResourcesResponse"]
    return await client.call("List", LIST, response, PATIENCE)


async def get(client: Client, name: str, namespace: str) -> Message:
    request = V1["GetPodResourcesRequest"](pod_name=name, pod_namespace=namespace)
    return await client.call("Get", request, V1["GetPodResourcesResponse"], PATIENCE)


@in_loop
async def test_dcgm_exporter_reads_the_pods(world: World) -> None:
    """It dials `unix://` and the path, with 16 MiB as the longest message, and calls List."""
    async with (
        served(world) as (_, _),
        aio.insecure_channel(
            f"unix://{socket_of(world)}",
            options=[
                ("grpc.default_authority", "localhost"),
                ("grpc.max_receive_message_length", LONGEST_MESSAGE),
            ],
        ) as channel,
    ):
        call = channel.unary_unary(
            "/v1.PodResourcesLister/List",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=V1["ListPodResourcesResponse"].FromString,
        )
        (pod,) = (await call(LIST, timeout=PATIENCE)).pod_resources
        assert (pod.namespace, pod.name) == ("shop", "web")
        assert [(c.name, list(c.cpu_ids)) for c in pod.containers] == [("c0", [1, 9])]


@in_loop
async def test_a_client_of_the_first_version_lists_devices(world: World) -> None:
    async with served(world) as (agent, _):
        client = Client(socket_of(world), "v1alpha1.PodResourcesLister")
        (pod,) = (await listed(client)).pod_resources
        assert [container.name for container in pod.containers] == ["c0"]
        with pytest.raises(CallError, match="UNIMPLEMENTED"):
            await get(client, "web", "shop")
        await client.close()
        counters = agent.controller.metrics.counters
        assert counters.value(names.POD_RESOURCES_REQUESTS, "v1alpha1") == 1


# Shows in differences.md: podresources-bounds
@in_loop
async def test_a_hundred_requests_of_one_connection_at_once_are_all_answered(world: World) -> None:
    """A client of Go opens so many streams before it knows how many a server takes."""
    async with served(world) as (_, client):
        await listed(client)
        calls = [asyncio.create_task(get(client, "web", "shop")) for _ in range(100)]
        found = await asyncio.gather(*calls, return_exceptions=True)
        failed = {each.code for each in found if isinstance(each, CallError)}
        assert failed <= {"RESOURCE_EXHAUSTED"}


@in_loop
async def test_a_pod_is_found_by_its_name_and_requests_are_counted_as_the_kubelet_counts_them(
    world: World,
) -> None:
    async with served(world) as (agent, client):
        await listed(client)
        found = await get(client, "web", "shop")
        assert list(found.pod_resources.containers[0].cpu_ids) == [1, 9]
        with pytest.raises(CallError) as caught:
            await get(client, "nosuch", "default")
        assert (caught.value.code, caught.value.message) == (
            "UNKNOWN",
            "pod nosuch in namespace default not found",
        )
        counters = agent.controller.metrics.counters
        assert [
            counters.value(metric, "v1")
            for metric in (
                names.POD_RESOURCES_REQUESTS,
                names.POD_RESOURCES_LIST,
                names.POD_RESOURCES_GET,
                names.POD_RESOURCES_GET_ALLOCATABLE,
                names.POD_RESOURCES_GET_ERRORS,
            )
        ] == [3, 1, 2, 0, 1]


@in_loop
async def test_requests_beyond_the_limit_are_rejected_in_the_kubelets_words(world: World) -> None:
    """The clock of the test stands still, so that nothing is allowed again meanwhile."""
    async with served(world) as (agent, client):
        for _ in range(module.BURST):
            await listed(client)
        with pytest.raises(CallError) as caught:
            await listed(client)
        assert (caught.value.code, caught.value.message) == (
            "RESOURCE_EXHAUSTED",
            "rejected by rate limit",
        )
        assert agent.controller.metrics.counters.value(names.POD_RESOURCES_LIST, "v1") == 10
        world.clock.now += 1.5 / module.REQUESTS_PER_SECOND
        await listed(client)


def test_the_limit_is_a_burst_and_then_so_many_a_second() -> None:
    clock = FakeClock()
    limit = RateLimit(100, 10, clock)
    assert [limit.allows() for _ in range(12)] == [True] * 10 + [False] * 2
    clock.now += 0.035
    assert [limit.allows() for _ in range(5)] == [True] * 3 + [False] * 2
    clock.now += 3600
    assert sum(limit.allows() for _ in range(100)) == 10


@in_loop
async def test_the_socket_is_for_the_agents_user_and_group_and_gone_after_the_stop(
    world: World,
) -> None:
    path = socket_of(world)
    path.parent.parent.mkdir()
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as dead:  # one that died is replaced
        dead.bind(str(path))
    async with running(world):
        assert path.stat().st_mode & 0o777 == 0o660
        assert path.parent.stat().st_mode & 0o777 == 0o700
    assert not path.exists()
    path.parent.rmdir()
    async with running(world):  # nothing that was left keeps the next start from listening
        assert path.is_socket()
        assert path.parent.stat().st_mode & 0o777 == 0o750


@pytest.mark.parametrize("early", [True, False])
@in_loop
async def test_a_socket_that_another_process_serves_is_left_alone(
    world: World, *, early: bool
) -> None:
    path = socket_of(world)
    listener = await made(world)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(StartError, match=r"in use; .*name another path"):
            await (made(world) if early else listener.start())
        assert path.is_socket()
    await listener.stop()


@in_loop
async def test_a_directory_that_cannot_be_made_keeps_the_agent_from_starting(world: World) -> None:
    socket_of(world).parents[1].touch()
    with pytest.raises(StartError, match=r"directory .*: Not a directory; create the directory"):
        await made(world)


@in_loop
async def test_grpc_is_imported_where_a_socket_is_configured_alone_and_may_be_missing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = [name for name in sys.modules if re.match(r"agent\.(rpc|.*pod_resources)", name)]
    for name in ours:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "grpc", None)
    expected = (
        r"agent\.podResources\.socket: grpc is not installed; "
        r"install the extra: pip install 'numawarden\[grpc\]'"
    )
    with pytest.raises(StartError, match=expected):
        async with running(world):
            pass
    assert not socket_of(world).parents[1].exists()
    unserved = replace(world.config.agent, pod_resources=PodResourcesConfig())
    world.config = replace(world.config, agent=unserved)
    async with running(world) as agent:
        assert agent.service._listening._listeners.pod_resources is None
    assert "agent.rpc" not in sys.modules


def connect(path: Path) -> socket.socket:
    """Connect; a listener whose backlog is full is asked until it has room."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(PATIENCE)
    connection.connect(str(path))
    return connection


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return an HTTP/2 frame (RFC 9113 section 4.1)."""
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


#: What a client says first: the preface and empty settings.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0)


def half_request(stream: int, announced: int) -> bytes:
    """Return a call of Get whose message has `announced` bytes, of which half are there."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/v1.PodResourcesLister/Get",
        ":authority": "localhost",
        "content-type": "application/grpc",
        "te": "trailers",  # codespell:ignore te
    }
    # Literals that are not indexed, RFC 7541 section 6.2.2.
    block = b"".join(
        bytes((0, len(name))) + name.encode() + bytes((len(value),)) + value.encode()
        for name, value in fields.items()
    )
    message = b"\0" + announced.to_bytes(4) + b"x" * (announced // 2)
    return frame(1, 4, stream, block) + frame(0, 0, stream, message)


@in_loop
async def test_a_hundred_silent_connections_keep_no_client_from_its_answer(world: World) -> None:
    """Half of them have begun to speak HTTP/2, and go no further."""
    async with served(world) as (agent, client):
        connections = []
        for number in range(100):
            connections.append(await asyncio.to_thread(connect, socket_of(world)))
            connections[-1].send(PREFACE[: 12 if number % 2 else None])
        assert len((await listed(client)).pod_resources) == 1
        status = await asyncio.to_thread(agent.client.status)
        assert status.ready
        for connection in connections:
            connection.close()


@in_loop
async def test_halves_of_requests_keep_no_connected_client_from_its_answer(world: World) -> None:
    """A hundred connections have as many requests under way as each may have, and one more."""
    streams = module.OPTIONS["grpc.max_concurrent_streams"]
    async with served(world) as (agent, client):
        # A client that connects beside them was seen to wait for gRPC's 20 s of a first connection:
        # what is promised is to clients that are connected.
        await listed(client)
        connections = []
        for _ in range(100):
            connections.append(await asyncio.to_thread(connect, socket_of(world)))
            numbers = range(1, 2 * streams + 3, 2)
            halves = (half_request(number, module.LONGEST_REQUEST) for number in numbers)
            connections[-1].send(PREFACE + b"".join(halves))
        assert len((await listed(client)).pod_resources) == 1
        # The listener has read what was sent, and counts no request that is not complete.
        assert agent.controller.metrics.counters.value(names.POD_RESOURCES_GET, "v1") == 0
        for connection in connections:
            connection.close()


@in_loop
async def test_a_request_longer_than_any_is_rejected_before_it_is_read(world: World) -> None:
    async with served(world) as (_, client):
        with pytest.raises(CallError) as caught:
            await get(client, "x" * module.LONGEST_REQUEST, "default")
        assert caught.value.code == "RESOURCE_EXHAUSTED"
        assert "larger than" in caught.value.message


@in_loop
async def test_what_grpc_says_of_a_socket_that_it_cannot_bind_is_reported(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise RuntimeError("Failed to bind to address")

    listener = await made(world)
    monkeypatch.setattr(module, "server", failing)
    with pytest.raises(StartError, match=r"socket .*: Failed to bind to address; see the agent"):
        await listener.start()


async def made(world: World) -> PodResourcesListener:
    """Return a listener of the world that was not started."""
    async with running(world) as agent:
        state, counters = agent.controller.state, agent.controller.metrics.counters
    return PodResourcesListener(socket_of(world), state, counters, world.clock)
