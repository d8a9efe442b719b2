"""Commands with what they print, and an agent for them in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.cli.main import run_command
from tests.agent.server.support import PATIENCE, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

    from tests.agent.server.support import Running, World


@contextmanager
def in_background(world: World) -> Iterator[Running]:
    """Run an agent in a loop of its own thread."""
    started = threading.Event()
    found: list[Running] = []
    ended: list[asyncio.Event] = []
    loops: list[asyncio.AbstractEventLoop] = []

    async def live() -> None:
        async with running(world) as agent:
            found.append(agent)
            ended.append(asyncio.Event())
            loops.append(asyncio.get_running_loop())
            started.set()
            await ended[0].wait()

    thread = threading.Thread(target=asyncio.run, args=(live(),))
    thread.start()
    try:
        assert started.wait(PATIENCE)
        yield found[0]
    finally:
        if loops:
            loops[0].call_soon_threadsafe(ended[0].set)
        thread.join(PATIENCE)


class Command:
    """Runs commands and gives back the exit code and what was printed."""

    def __init__(self, captured: pytest.CaptureFixture[str]) -> None:
        self._captured = captured

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        code = run_command([str(each) for each in arguments])
        out, err = self._captured.readouterr()
        return code, out, err


@dataclass
class Shell:
    """Runs commands that ask the agent of a world."""

    world: World
    directory: Path
    captured: pytest.CaptureFixture[str]

    def run(self, *arguments: str) -> tuple[int, str, str]:
        return Command(self.captured)(*arguments, "--socket", self.world.socket)

    def file(self, content: bytes, name: str = "pod.yaml") -> str:
        path = self.directory / name
        path.write_bytes(content)
        return str(path)
