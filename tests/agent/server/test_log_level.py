"""The level of the log at run time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from agent.api.client import AgentError
from agent.api.documents import LogLevelRequest
from agent.config.model import LogLevel
from agent.server.errors import RequestError
from agent.server.log import LONGEST, LogLevelSwitch
from tests.agent.server.support import FakeClock, in_loop, running, until

if TYPE_CHECKING:
    from agent.api.documents import LogLevelDocument
    from tests.agent.server.support import World


def asking(level: str, seconds: float | None = None) -> LogLevelRequest:
    return LogLevelRequest(level=level, seconds=seconds)


@in_loop
async def test_the_configured_level_returns_when_the_time_is_over() -> None:
    applied: list[str] = []
    clock, switch = FakeClock(), LogLevelSwitch(LogLevel.WARNING, applied.append)
    serving = asyncio.create_task(switch.serve(clock))
    answer = switch.switch(asking("debug", 600), clock)
    assert (answer.level, answer.configured, answer.until) == (
        "debug",
        "warning",
        clock.time() + 600,
    )
    await until(lambda: bool(clock._sleepers))
    clock.advance(599)
    await asyncio.sleep(0)
    assert applied == ["debug"]
    clock.advance(1)
    await until(lambda: len(applied) == 2)
    assert applied == ["debug", "warning"]
    assert switch.document().until is None
    serving.cancel()


@in_loop
async def test_a_later_request_counts_and_an_earlier_time_no_longer() -> None:
    applied: list[str] = []
    clock, switch = FakeClock(), LogLevelSwitch(LogLevel.INFO, applied.append)
    serving = asyncio.create_task(switch.serve(clock))
    switch.switch(asking("debug", 60), clock)
    await until(lambda: bool(clock._sleepers))
    switch.switch(asking("error"), clock)
    clock.advance(3600)
    for _ in range(10):
        await asyncio.sleep(0)
    assert applied == ["debug", "error"]
    serving.cancel()


@pytest.mark.parametrize(
    ("level", "seconds"), [("loud", None), ("debug", 0.0), ("debug", -1.0), ("debug", LONGEST + 1)]
)
def test_an_unknown_level_or_time_changes_nothing(level: str, seconds: float | None) -> None:
    applied: list[str] = []
    switch = LogLevelSwitch(LogLevel.INFO, applied.append)
    with pytest.raises(RequestError):
        switch.switch(asking(level, seconds), FakeClock())
    assert not applied


@pytest.mark.usefixtures("log_levels")
@in_loop
async def test_the_level_is_asked_for_over_the_api_and_shown_in_the_status(world: World) -> None:
    async with running(world) as agent:

        async def ask(request: LogLevelRequest | None = None) -> LogLevelDocument:
            return await asyncio.to_thread(agent.client.log_level, request)

        assert await ask() == (await asyncio.to_thread(agent.client.status)).log_level
        assert (await ask(asking("debug", 60.0))).level == "debug"
        status = await asyncio.to_thread(agent.client.status)
        assert status.log_level is not None
        assert (status.log_level.level, status.log_level.configured) == ("debug", "info")
        with pytest.raises(AgentError, match="level is one of debug, info, warning, error"):
            await ask(asking("loud"))
        world.clock.advance(61)
        await until(lambda: agent.controller.state.log_level.document().level == "info")
