"""A cancellation, an exception, a hang at any await of the daemon: it goes on, or says what stands.

`test_awaits_beside.py` has those that deal with device plugins, a kubelet, a runtime, and clients.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import pytest

from agent.api.documents import BindRequest, CordonRequest
from agent.pods.manifest import load_pod
from tests.agent.server.awaits import FAULTS, POINTS, chosen, instrumented, modules_of
from tests.agent.server.support import (
    OTHER_UID,
    RecordingManager,
    make_world,
    manifest,
    wired,
)

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from pathlib import Path

    from agent.server.controller import Controller
    from tests.agent.server.support import World

PROBE: Final = "90000000-2222-3333-4444-555555555555"
#: After so many rounds what stands still has to be named; after so many it does not go on.
EARLIEST: Final = 4
PATIENCE: Final = 300
#: How often a task is looked at before the clock goes on.
TURNS: Final = 100


@pytest.fixture(scope="module", autouse=True)
def _instrumented() -> Iterator[None]:
    with instrumented(modules_of("agent.server")):
        yield


async def stir(controller: Controller, world: World, directory: Path) -> None:
    """Ask for a change of every kind, and let every period pass."""
    (directory / "web.yaml").write_bytes(manifest())
    pod = load_pod(manifest("db", OTHER_UID), "test")
    asked: list[Coroutine[None, None, object]] = [
        controller.admit(pod),
        controller.bind(OTHER_UID, "c0", BindRequest(cgroup="/x")),
        controller.cordon(CordonRequest(target="5")),
        controller.uncordon(CordonRequest(target="5")),
        controller.verify(),
        controller.pod(OTHER_UID),
        controller.preview(pod),
        controller.admit(load_pod(manifest("db", PROBE), "test"), replace_pod=True),
        controller.remove(PROBE),
    ]
    for each in asked:
        task = asyncio.create_task(each)
        await _done(task)
        world.clock.advance(5)
    for _ in range(4):
        world.clock.advance(10)
        await _turns(20)


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def _done(task: asyncio.Task[Any]) -> bool:
    """Wait for a task as long as others do anything; return whether it ended."""
    for _ in range(TURNS):
        if task.done():
            break
        await asyncio.wait((task,), timeout=0.001)
    if task.done() and not task.cancelled():
        task.exception()
    return task.done()


async def goes_on(controller: Controller, world: World, directory: Path) -> str:
    """Return "" if changes are made and sources are read, or what stands still by its name."""
    probing = asyncio.create_task(controller.admit(load_pod(manifest("probe", PROBE), "test")))
    (directory / "late.yaml").write_bytes(manifest("late", LATE))
    for number in range(PATIENCE):
        world.clock.advance(20)
        await _done(probing)
        if probing.done() and LATE in controller.state.ledger.allocations:
            return ""
        if number == EARLIEST:
            world.clock.advance(400)
            if (failure := controller.state.progress.failure()) is not None:
                return failure
    return "nothing is said"


LATE: Final = "80000000-2222-3333-4444-555555555555"


async def trial(tmp_path: Path, host: Path, where: str, fault: str, *, early: bool) -> str:
    """Run an agent with one fault, in the course of its start or after it; return what is wrong."""
    world = make_world(tmp_path, host)
    directory, manager = world.manifest_directory(), RecordingManager(ping_seconds=5)
    POINTS.log.clear()
    POINTS.fault = fault
    POINTS.fails = where if early else ""
    assembly = wired(world, manager)
    controller = assembly.controller
    with assembly as service:
        life = asyncio.create_task(service.run())
        ready = asyncio.create_task(manager.is_ready.wait())
        await asyncio.wait((life, ready), timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        wrong = ""
        if not life.done() and manager.is_ready.is_set():
            POINTS.fails = where
            await stir(controller, world, directory)
            wrong = await goes_on(controller, world, directory)
            if wrong and wrong != "nothing is said":
                said = controller.state.unready() or ""
                wrong = "" if wrong.split(" has ")[0] in said else "not ready is not said"
        POINTS.fails = ""
        service.stop()
        # What hangs is not waited for: systemd would end it.
        await asyncio.wait((life,), timeout=0.2)
        life.cancel()
        await asyncio.wait((life,), timeout=0.2)
    return wrong


@pytest.mark.parametrize("early", [True, False], ids=["start", "running"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.timeout(900)
# What an await does not reach is never awaited, which nothing but this test brings about.
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_whatever_an_await_does_the_agent_goes_on_or_says_what_stands_still(
    tmp_path: Path, host_root: Path, fault: str, *, early: bool
) -> None:
    def once(name: str, where: str) -> str:
        (tmp_path / name).mkdir()
        return asyncio.run(trial(tmp_path / name, host_root, where, fault, early=early))

    assert once("whole", "") == ""
    reached = sorted(POINTS.log)
    assert len(reached) > 60
    some = chosen(reached, FAULTS.index(fault) * 2 + early, 2 * len(FAULTS))
    wrong = {where: once(f"{number}", where) for number, where in enumerate(some)}
    assert {where: why for where, why in wrong.items() if why} == {}
