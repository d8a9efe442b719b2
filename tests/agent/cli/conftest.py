from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.agent.cli.shell import Command, Shell, in_background

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.agent.server.support import Running, World


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.fixture
def shell(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(world, tmp_path, capsys)


@pytest.fixture
def agent(world: World) -> Iterator[Running]:
    with in_background(world) as started:
        yield started
