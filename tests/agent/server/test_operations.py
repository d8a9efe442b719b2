"""The answer to each request has the id that the log lines of the request have."""

from __future__ import annotations

from typing import Final

import aiohttp
import pytest
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from agent.api.client import AgentError
from agent.api.documents.document import decode
from agent.api.documents.errors import ErrorDocument
from agent.server.handlers import OPERATION
from tests.agent.server.support import OTHER_UID, Running, World, in_loop, manifest, running


async def ask(
    agent: Running, method: str, path: str, body: bytes | None = None
) -> tuple[int, str, bytes]:
    """Send one request; return the status, the operation of the header, and the body."""
    connector = aiohttp.UnixConnector(str(agent.world.socket))
    async with aiohttp.ClientSession(connector=connector) as session:
        response = await session.request(method, f"http://agent{path}", data=body)
        return response.status, response.headers[OPERATION], await response.read()


#: What is asked for beside the admitted pod, and the status of the answer.
ASKED: Final = (
    ("GET", f"/v1/pods/{OTHER_UID}", None, 404),
    ("POST", "/v1/pods", b"kind: Pod", 422),
    ("POST", "/v1/pods", manifest("big", OTHER_UID, cpu="64"), 409),
    ("GET", "/v1/status", None, 500),
)


@in_loop
async def test_every_answer_carries_the_operation_of_its_log_lines(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(world) as agent:
        with capture_logs(processors=[merge_contextvars]) as log:
            _, admitted, _ = await ask(agent, "POST", "/v1/pods", manifest())
        assert {line["operation"] for line in log if "operation" in line} == {admitted}
        monkeypatch.setattr("agent.server.handlers.status_document", None)
        found = {admitted}
        for method, path, body, status in ASKED:
            with capture_logs(processors=[merge_contextvars]) as log:
                answered, identity, answer = await ask(agent, method, path, body)
            error = decode(answer, ErrorDocument).error
            assert (path, answered, error.operation) == (path, status, identity)
            assert {line["operation"] for line in log if "operation" in line} == {identity}
            found.add(identity)
        assert len(found) == 1 + len(ASKED)
        with pytest.raises(AgentError) as caught:
            await agent.ask(agent.client.remove, OTHER_UID)
        assert caught.value.error.operation in str(caught.value).splitlines()[0]
