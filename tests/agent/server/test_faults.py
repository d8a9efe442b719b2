"""A step of a change that fails under a running agent: it goes on, says so, and puts it right.

Every step may fail, also those that only look: a file operation of the save, an access to a
cgroup, a call to systemd, which may have done what it failed to answer.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final

import pytest

from agent.reconcile.report import BindingError
from agent.server.errors import RequestError
from systemd.units import BusError, BusTimeoutError, BusUnavailableError, JobFailedError
from tests.agent.server.changes import CHANGES, rehearse
from tests.agent.server.sites import allocated, with_agent, wrongs
from tests.fakes.effects import Effects, fail, fail_all

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.server.controller import Controller
    from tests.agent.server.changes import Play
    from tests.agent.server.sites import Site
    from tests.fakes.effects import Fault, Step

#: With `NUMAWARDEN_FAULTS=all` every step fails in every way (some minutes); otherwise once each,
#: of those that only look every eighth.
ALL: Final = os.environ.get("NUMAWARDEN_FAULTS") == "all"
LOOKS: Final = 1 if ALL else 8
#: What the kernel may answer to each kind of step.
REJECTIONS: Final = {
    "file": (errno.ENOSPC, errno.EIO, errno.EROFS),
    "write": (errno.EBUSY, errno.EINVAL, errno.ENODEV, errno.EACCES, errno.ENOSPC),
    "mkdir": (errno.EAGAIN, errno.ENOMEM, errno.EROFS),
    "rmdir": (errno.EBUSY, errno.EPERM),
    "looks": (errno.ENODEV, errno.EIO, errno.EACCES, errno.EMFILE),
}


def faults(steps: tuple[Step, ...]) -> Iterator[tuple[str, Fault]]:
    """Yield the ways in which steps may fail, each in turn or all of them."""
    for step in steps:
        if step.is_effect or step.number % LOOKS == 0:
            ways = list(bus_faults(step) if step.where == "bus" else rejections(step))
            yield from ways if ALL else ways[step.number % len(ways) :][:1]


def rejections(step: Step) -> Iterator[tuple[str, Fault]]:
    kind = "file" if step.where == "file" else step.name if step.is_effect else "looks"
    for code in REJECTIONS[kind]:
        error = OSError(code, os.strerror(code), step.subject)
        yield f"{step}: {errno.errorcode[code]}", fail(step.number, error)


def bus_faults(step: Step) -> Iterator[tuple[str, Fault]]:
    gone = BusUnavailableError("unix:path=/bus", "connection reset")
    yield f"{step}: it is gone", fail(step.number, gone)
    if not step.is_effect:
        return
    silent = BusTimeoutError(step.name, 10.0)
    yield f"{step}: no answer, nothing done", fail(step.number, silent)
    yield f"{step}: no answer, but done", fail(step.number, silent, done=True)
    rejected = BusError(step.name, "org.freedesktop.DBus.Error.AccessDenied", "denied")
    yield f"{step}: rejected", fail(step.number, rejected)
    yield f"{step}: failed", fail(step.number, JobFailedError(step.subject, "start", "failed"))


def troubled(play: Play, fault: Fault) -> list[str]:
    """Play a change with a fault, then compare without it; return what is wrong."""
    site, effects = play.site.copy(), Effects(fault)

    async def live(controller: Controller) -> list[str]:
        answer = await ask(play, controller, site)
        effects.fault = None
        found_now, wrong = allocated(controller.state.durable), []
        if found_now not in (play.starts()[:1] if answer is None else play.starts()):
            wrong.append(f"answered {answer}, and holds {found_now}")
        well = answer == play.answer and not controller.state.condition_lines()
        if well and site.shown() != play.after.shown:
            wrong.append("says that all is well, and the kernel shows something else")
        await controller.reconcile()
        wrong.extend(wrongs(site, controller))
        end = play.end(allocated(controller.state.durable))
        if end is None or site.shown() != end.shown:
            wrong.append("the next comparison does not repair it")
        return wrong

    return with_agent(site, live, effects)


async def ask(play: Play, controller: Controller, site: Site) -> object:
    """Return what is answered, None for an error; an unexpected one is raised."""
    try:
        return await play.change.ask(controller, site)
    except (RequestError, BindingError):
        return None


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.timeout(1200 if ALL else 300)
def test_an_agent_survives_any_step_that_fails(host: Site, name: str) -> None:
    play = rehearse(CHANGES[name], host, looks=True)
    for what, fault in faults(play.steps):
        assert (what, troubled(play, fault)) == (what, [])


@pytest.mark.parametrize("name", CHANGES)
def test_an_agent_survives_what_fails_until_it_is_repaired(host: Site, name: str) -> None:
    play = rehearse(CHANGES[name], host)
    kinds = {(step.where, step.name): step for step in play.steps}
    for number, ((where, called), step) in enumerate(kinds.items()):
        if where == "bus":
            error: Exception = BusUnavailableError("unix:path=/bus", "there is none")
        else:
            codes = REJECTIONS["file" if where == "file" else called]
            error = OSError(codes[number % len(codes)], "rejected", step.subject)
        assert (called, troubled(play, fail_all(where, called, error))) == (called, [])
