"""The answer to each request has the id that the log lines of the request have."""

from __future__ import annotations

import aiohttp
import pytest
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from agent.api.client import AgentError
from agent.api.documents import ErrorDocument, decode
from agent.server.handlers import OPERATION
from tests.agent.server.support import OTHER_UID, UID, Running, World, in_loop, manifest, running


async def ask(
    agent: Running, method: str, path: str, body: bytes | None = None
) -> tuple[int, str, bytes]:
    """Send one request; return the status, the operation of the header, and the body."""
    connector = aiohttp.UnixConnector(str(agent.world.socket))
    async with aiohttp.ClientSession(connector=connector) as session:
        response = await session.request(method, f"http://agent{path}", data=body)
        return response.status, response.headers[OPERATION], await response.read()


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", f"/v1/pods/{OTHER_UID}", None, 404),
        ("DELETE", f"/v1/pods/{OTHER_UID}", None, 404),
        ("GET", "/v1/nothing", None, 404),
        ("PUT", "/v1/pods", None, 405),
        ("GET", "/v1/pods?colour=red", None, 400),
        ("POST", "/v1/pods", b"kind: Pod", 422),
        ("POST", "/v1/pods", manifest("big", OTHER_UID, cpu="64"), 409),
        ("POST", f"/v1/pods/{UID}/containers/c0/bind", b'{"cgroup": "/none"}', 422),
    ],
)
def test_an_error_carries_the_operation_of_its_log_lines(
    world: World, method: str, path: str, body: bytes | None, status: int
) -> None:
    @in_loop
    async def run() -> None:
        async with running(world) as agent:
            await agent.ask(agent.client.admit, manifest())
            with capture_logs(processors=[merge_contextvars]) as log:
                answered, identity, answer = await ask(agent, method, path, body)
        assert answered == status
        assert decode(answer, ErrorDocument).error.operation == identity
        lines = [line for line in log if "operation" in line]
        assert lines
        assert {line["operation"] for line in lines} == {identity}

    run()


@in_loop
async def test_every_success_carries_the_operation_of_its_log_lines(world: World) -> None:
    async with running(world) as agent:
        with capture_logs(processors=[merge_contextvars]) as log:
            _, admitted, _ = await ask(agent, "POST", "/v1/pods", manifest())
            _, listed, _ = await ask(agent, "GET", "/v1/pods")
            _, removed, _ = await ask(agent, "DELETE", f"/v1/pods/{UID}")
    ours = {line["event"]: line["operation"] for line in log if "operation" in line}
    assert (ours["pod admitted"], ours["pod removed"]) == (admitted, removed)
    assert len({admitted, listed, removed}) == 3


@in_loop
async def test_a_stream_carries_its_operation(world: World) -> None:
    async with running(world) as agent:
        connector = aiohttp.UnixConnector(str(world.socket))
        async with aiohttp.ClientSession(connector=connector) as session:
            response = await session.get("http://agent/v1/watch")
            assert response.headers[OPERATION]
            await agent.stop()


@in_loop
async def test_the_client_names_the_operation_of_an_error(world: World) -> None:
    async with running(world) as agent:
        with pytest.raises(AgentError) as caught:
            await agent.ask(agent.client.remove, OTHER_UID)
    assert caught.value.error.operation in str(caught.value).splitlines()[0]


@in_loop
async def test_an_internal_error_carries_the_operation_of_its_log_line(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(world) as agent:
        monkeypatch.setattr("agent.server.handlers.status_document", None)
        with capture_logs(processors=[merge_contextvars]) as log:
            status, identity, _ = await ask(agent, "GET", "/v1/status")
    assert status == 500
    assert [line["operation"] for line in log if line["event"] == "request failed"] == [identity]
