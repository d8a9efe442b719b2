from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from agent.service.http_log import http_logger
from tests.agent.service.support import in_loop, running

if TYPE_CHECKING:
    import pytest

    from tests.agent.service.support import World


async def _say(world: World, port: int | None, message: bytes) -> bytes:
    if port is None:
        reader, writer = await asyncio.open_unix_connection(str(world.socket))
    else:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(message)
    answer = await reader.read()
    writer.close()
    return answer


@in_loop
async def test_what_is_no_http_is_one_short_line_on_either_listener(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    noise = b"GET /" + b"\x01" * 2000 + b" HTTP/1.1\r\n\r\n"
    async with running(world) as agent:
        for port in (None, agent.port):
            assert (await _say(world, port, noise)).startswith(b"HTTP/1.0 400")
    said = [record for record in caplog.records if record.name == "agent.service.http_log"]
    assert [record.levelname for record in said] == ["WARNING", "WARNING"]
    for record in said:
        assert record.exc_info is None
        assert record.getMessage().startswith("a peer speaks no HTTP: ")
        assert len(record.getMessage()) < 200
        assert record.getMessage().isprintable()


def test_what_we_did_wrong_ourselves_is_still_told_in_full(
    caplog: pytest.LogCaptureFixture,
) -> None:
    try:
        int("x")
    except ValueError:
        http_logger().exception("failed")
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.ERROR, "failed")
    assert record.exc_info is not None
