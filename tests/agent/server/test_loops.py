from __future__ import annotations

import asyncio

from structlog.testing import capture_logs

from agent.progress import Progress
from agent.server.loops import Loops
from tests.agent.server.support import FakeClock


async def test_a_part_that_returns_is_a_condition_and_logged() -> None:
    async def serve() -> None:
        return

    clock, conditions, ended = FakeClock(), dict[str, str](), asyncio.Event()
    loops = Loops(conditions, Progress(clock), clock)
    with capture_logs() as logged:
        kept = asyncio.create_task(loops.keep("devices", "are not updated", serve, ended.set))
        await ended.wait()
        kept.cancel()
    assert conditions == {"devices": "devices are not updated: it ended by itself"}
    assert [(line["event"], line["what"]) for line in logged] == [
        ("part of the agent ended", "devices")
    ]
