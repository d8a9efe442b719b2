"""How many modules one admission enters: what a reader of its path has to know."""

from __future__ import annotations

import asyncio
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.agent.server.support import World, in_loop, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

ROOT: Final = Path(__file__).resolve().parents[3]
PACKAGES: Final = ("agent/", "cgroupfs/", "sysfs/", "systemd/")
#: The kernel of the test, and the side of the command.
OTHERS: Final = ("cgroupfs/emulated/", "agent/api/client.py")
#: A module more has to be worth it to who reads the path; a change that enters fewer lowers this.
MOST: Final = 98


@contextmanager
def entered(modules: set[str]) -> Iterator[None]:
    """Note the product's modules whose functions are called in this thread and in new ones."""

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and (file := Path(frame.f_code.co_filename)).is_relative_to(ROOT):
            name = file.relative_to(ROOT).as_posix()
            if name.startswith(PACKAGES) and not name.startswith(OTHERS):
                modules.add(name)

    sys.setprofile(note)
    threading.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


@in_loop
async def test_an_admission_enters_few_modules(world: World) -> None:
    manifest = (ROOT / "deploy/examples/mixed.yaml").read_bytes()
    modules: set[str] = set()
    async with running(world) as agent:
        worker, profile = agent.controller.worker, threading.getprofile
        await asyncio.to_thread(agent.client.status)  # what is imported late is there
        with entered(modules):
            # The thread that enforces has run before: it is profiled from now on, too.
            await worker.run(lambda: sys.setprofile(profile()))
            answer = await asyncio.to_thread(agent.client.admit, manifest)
            await worker.run(lambda: sys.setprofile(None))
    assert answer.admitted
    assert {"agent/managers/admission.py", "agent/reconcile/enforcer.py"} <= modules
    assert len(modules) <= MOST, sorted(modules)
