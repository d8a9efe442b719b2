"""promtool on the page of a real agent: it can be parsed, and only the kubelet's names are odd."""

from __future__ import annotations

import asyncio
import subprocess
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from agent.config.agent import MetricsConfig
from tests.agent.server.support import in_loop, make_world, manifest, running
from tests.agent.server.test_monitoring import fetch
from tests.prometheus import program

if TYPE_CHECKING:
    from pathlib import Path

#: Counters without `_total`, gauges with `_count`, and `_ms`: the kubelet fixed these names.
KUBELETS: Final = ("kubelet_", "resource_manager_container_assignments ")
#: Status of promtool when a page can be parsed and names are against its rules.
LINT: Final = 3


@in_loop
async def test_promtool_minds_no_name_of_ours(tmp_path: Path) -> None:
    world, promtool = make_world(tmp_path), program("promtool")
    agent_config = replace(world.config.agent, metrics=MetricsConfig(port=0, containers=10))
    world.config = replace(world.config, agent=agent_config)
    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest())
        _, text = await fetch(agent, "/metrics")
    assert "numawarden_container_info{" in text
    checked = await asyncio.to_thread(
        subprocess.run,
        [promtool, "check", "metrics"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    remarks = checked.stderr.splitlines()
    assert checked.returncode == LINT, remarks
    assert [line for line in remarks if not line.startswith(KUBELETS)] == []
