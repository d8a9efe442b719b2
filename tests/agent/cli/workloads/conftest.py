from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.cli import workloads
from agent.config.model import CgroupDriver
from tests.agent.cli.shell import in_background
from tests.agent.cli.workloads.hosts import CommandHost, with_driver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.agent.server.support import World


@pytest.fixture(params=CgroupDriver)
def host(
    request: pytest.FixtureRequest,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[CommandHost]:
    """Run the agent of a shell, under either driver."""
    monkeypatch.setenv("NUMAWARDEN_SOCKET", str(world.socket))
    with in_background(with_driver(world, request.param)) as agent:
        host = CommandHost(world, agent, capsys)
        monkeypatch.setattr(workloads, "this_process", host.caller)
        monkeypatch.setattr(workloads, "connect", lambda: host.systemd)
        yield host
