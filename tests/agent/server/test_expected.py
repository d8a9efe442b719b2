"""What happens to a sound agent is a line in its log, never a traceback.

A traceback means a defect of the agent, and operators are asked to report it (docs/operations.md).
What keeps pods from being admitted is in `test_agreement.py`.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, Final

from structlog.testing import capture_logs

from agent.server.errors import EXPECTED
from sysfs.files import SysfsError
from tests.agent.server.support import OTHER_UID, in_loop, manifest, running
from tests.agent.server.test_agreement import FullDisk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.agent.server.support import World

ROOT: Final = Path(__file__).parents[3]


@in_loop
async def test_files_on_a_full_disk_and_a_host_that_cannot_be_read_are_no_tracebacks(
    world: World,
) -> None:
    def unreadable() -> object:
        raise SysfsError("/sys/devices", "cannot be read", "mount sysfs")

    async def take_over() -> None:
        await agent.controller.take_over(unreadable)  # type: ignore[arg-type]  # it only raises

    directory = world.manifest_directory()
    with capture_logs() as log:
        async with running(world) as agent:
            agent.controller.steps.store._files = FullDisk()
            (directory / "db.yaml").write_bytes(manifest("db", OTHER_UID))
            for _ in range(3):
                await agent.sync_manifests()
                await agent.service._loops.attempt(take_over, "take over")
                await agent.ask(agent.client.reconcile)
            conditions = agent.controller.state.condition_lines()
    assert not [line for line in log if line.get("exc_info") or "exception" in line]
    worst = [line for line in log if line["log_level"] == "error"]
    for said in ("No space left", "/sys/devices: cannot be read"):
        assert any(said in line for line in conditions), conditions
        # Further rounds say nothing new, but that a file's pod could not be admitted again.
        assert 1 <= sum(said in str(line) for line in worst) <= 6


@in_loop
async def test_a_defect_is_a_traceback(world: World) -> None:
    async def broken() -> None:
        raise KeyError("a mistake")

    async with running(world) as agent:
        with capture_logs() as log:
            await agent.service._loops.attempt(broken, "reconcile")
        assert [line["event"] for line in log if line.get("exc_info")] == [
            "periodic action failed unexpectedly"
        ]
        assert any(
            "internal error (KeyError" in x
            for x in agent.controller.state.observed.conditions.values()
        )


def tracebacks() -> Iterator[tuple[str, int, ast.expr | None]]:
    """Yield every `log.exception` with the exceptions that its handler catches."""
    for folder in ("agent", "cgroupfs", "sysfs", "systemd"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            text = file.read_text()
            for handler in ast.walk(ast.parse(text)) if ".exception(" in text else ():
                if not isinstance(handler, ast.ExceptHandler):
                    continue
                for call in ast.walk(handler):
                    if (
                        isinstance(call, ast.Call)
                        and isinstance(call.func, ast.Attribute)
                        and call.func.attr == "exception"
                        and isinstance(call.func.value, ast.Name)
                    ):
                        yield str(file.relative_to(ROOT)), call.lineno, handler.type


def test_only_what_nothing_expects_is_logged_with_a_traceback() -> None:
    found = list(tracebacks())
    assert len(found) > 3
    narrow = [
        (file, line)
        for file, line, caught in found
        if not (isinstance(caught, ast.Name) and caught.id == "Exception")
    ]
    assert narrow == []


def test_the_expected_errors_are_no_defects() -> None:
    """A mistake in the code raises one of these, so none of them may be expected."""
    assert not [
        kind
        for kind in (KeyError, TypeError, ValueError, AttributeError, AssertionError, RuntimeError)
        if issubclass(kind, EXPECTED)
    ]
