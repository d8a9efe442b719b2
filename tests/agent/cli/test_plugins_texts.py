"""Texts of a device plugin, from each of its messages to what the agent prints."""

from __future__ import annotations

import asyncio
import io
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pytest

from agent.cli.main import run_command
from agent.rpc.calls import CallError
from agent.server import log_output as logs
from tests.agent.cli.test_others_texts import EVIL, LONGEST, demand_lines
from tests.agent.server.support import in_loop, manifest, running
from tests.agent.server.test_device_plugins import directory, registered
from tests.agent.server.test_log import configuring
from tests.fakes.device_plugin import always, device, encoded, failing

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.server.support import World
    from tests.fakes.device_plugin import Answer

__all__ = ["directory"]


def allocated(**fields: Any) -> Answer:  # noqa: ANN401  # fields of any message
    return always(encoded("AllocateResponse", container_responses=[fields]))


#: What a plugin answers to a method; the text is in each of them.
ANSWERS: Final[dict[str, tuple[str, Answer]]] = {
    "error": ("Allocate", failing("INTERNAL", EVIL)),
    "environment": ("Allocate", allocated(envs={"A": EVIL})),
    "variable": ("Allocate", allocated(envs={EVIL: "a"})),
    "annotation": ("Allocate", allocated(annotations={EVIL: EVIL})),
    "CDI": ("Allocate", allocated(cdi_devices=[{"name": EVIL}])),
    "mount": ("Allocate", allocated(mounts=[{"container_path": f"/{EVIL}", "host_path": "/x"}])),
    "node": ("Allocate", allocated(devices=[{"container_path": "/x", "host_path": f"/{EVIL}"}])),
    "preferred": (
        "GetPreferredAllocation",
        always(encoded("PreferredAllocationResponse", container_responses=[{"deviceIDs": [EVIL]}])),
    ),
    "not preferred": ("GetPreferredAllocation", failing("INTERNAL", EVIL)),
    "not prepared": ("PreStartContainer", failing("INTERNAL", EVIL)),
}


@pytest.mark.parametrize("answer", ANSWERS)
@in_loop
async def test_they_are_bounded_and_send_nothing_to_a_terminal(
    world: World, directory: Path, capsys: pytest.CaptureFixture[str], answer: str
) -> None:
    stream = io.StringIO()
    file = world.directory / "pod.yaml"
    file.write_bytes(manifest(gpu=1))

    async def printed(*command: str) -> str:
        await asyncio.to_thread(run_command, [*command, "--socket", str(world.socket)])
        out, err = capsys.readouterr()
        return f"{out}{err}"

    with configuring():
        logs.configure("json", "info", stream)
        async with running(world) as agent, registered(agent, directory, "a", "b") as plugin:
            method, plugin.answers[method] = ANSWERS[answer]
            demand_lines(await printed("admit", str(file)))
            plugin.send(device("a"), device(EVIL), device("b", health=EVIL))
            for fields in ({"resource_name": EVIL}, {"endpoint": EVIL}, {"version": EVIL}):
                with suppress(CallError):
                    await plugin.register(**fields)
            for asked in ("status", "list", "history", "map", "check"):
                demand_lines(await printed(asked))
                found = await printed(asked, "-o", "json")
                assert json.loads(found)
                demand_lines(found, 3 * LONGEST)
            demand_lines(await printed("show", "web"))
            reading = agent.controller.state.reading()
            demand_lines(agent.controller.metrics.render(reading).decode())
    assert "pwned" in stream.getvalue()
    demand_lines(stream.getvalue(), 48 << 10)
