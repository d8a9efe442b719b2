"""An agent that dies at any step of a change: the next one finds the state before or after.

A step is a file operation of the save, a write to a cgroup, its making or removal, a call to
systemd. Dying after one is dying before the next, and after the last one; of a write to a file
a part may be done.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.agent.server.changes import CHANGES, NEW_POD, rehearse
from tests.agent.server.sites import allocated, allocated_twice, make_site, with_agent, wrongs
from tests.fakes.effects import Effects, die_after, die_amid, die_before
from tests.fakes.kernel import Died

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agent.server.controller import Controller
    from tests.agent.server.changes import Play
    from tests.agent.server.sites import Allocated, Shown, Site
    from tests.fakes.effects import Fault, Step


def deaths(steps: tuple[Step, ...]) -> Iterator[tuple[str, Fault]]:
    """Yield every way to die in the course of some steps."""
    for step in steps:
        yield f"before {step}", die_before(step.number)
        if step.half is not None:
            yield f"amid {step}", die_amid(step.number)
    yield f"after {steps[-1]}", die_after(steps[-1].number)


def die(play: Play, fault: Fault) -> Site:
    """Let an agent die in a change; return what it leaves behind."""
    site = play.site.copy()
    with pytest.raises(Died):
        with_agent(
            site, lambda controller: play.change.ask(controller, site), Effects(fault, looks=False)
        )
    return site


def recovered(play: Play, site: Site) -> list[str]:
    """Start another agent, let it compare once, and return what is wrong then."""

    async def recover(controller: Controller) -> list[str]:
        if allocated(controller.state.durable) not in play.starts():
            return [f"neither before nor after: {controller.state.durable}"]
        await controller.reconcile()
        wrong = wrongs(site, controller)
        end = play.end(allocated(controller.state.durable))
        if end is None or site.shown() != end.shown:
            wrong.append("the kernel does not show what is allocated")
        await play.change.again(controller, site)
        wrong.extend(wrongs(site, controller))
        if (
            allocated(controller.state.durable) != play.after.allocated
            or site.shown() != play.after.shown
        ):
            wrong.append("asking again does not lead to the state after")
        return wrong

    return with_agent(site, recover)


@pytest.mark.parametrize("name", CHANGES)
def test_dying_at_any_step_leaves_the_state_before_or_after(host: Site, name: str) -> None:
    play = rehearse(CHANGES[name], host)
    for what, fault in deaths(play.steps):
        assert (what, recovered(play, die(play, fault))) == (what, [])


def test_dying_at_any_step_of_the_first_start_and_admission_leaves_nothing_behind(
    host: Site,
) -> None:
    effects, first = Effects(looks=False), make_site(host.config)
    with_agent(first, lambda controller: controller.admit(NEW_POD), effects, from_start=True)
    for what, fault in deaths(tuple(effects.log)):
        site, dying = make_site(host.config), Effects(fault, looks=False)
        with pytest.raises(Died):
            with_agent(site, lambda controller: controller.admit(NEW_POD), dying, from_start=True)
        assert (what, with_agent(site, partial(admitted_again, site))) == (what, [])
        assert site.shown() == first.shown()


async def admitted_again(site: Site, controller: Controller) -> list[str]:
    await controller.reconcile()
    await controller.admit(NEW_POD)
    return wrongs(site, controller)


@pytest.mark.parametrize("name", CHANGES)
def test_a_power_failure_at_any_step_leaves_the_state_before_or_after(
    host: Site, name: str
) -> None:
    """What was not flushed may be lost; after the reboot no cgroup and no process is there."""
    play = rehearse(CHANGES[name], host)
    ends: dict[str, Shown] = {}
    seen: list[dict[str, bytes]] = []
    for what, fault in deaths(play.steps):
        left = die(play, fault).disk.after_power_failure() if "file" in what else ()
        for disk in left:
            if disk.contents() in seen:
                continue
            seen.append(disk.contents())
            site = play.site.rebooted(disk)
            found = with_agent(site, partial(rebooted, play, site))
            assert (what, found.wrong) == (what, [])
            assert ends.setdefault(found.end, site.shown()) == site.shown()


@dataclass(frozen=True, slots=True)
class Found:
    """What the first agent after a reboot finds: which end of the change, and what is wrong."""

    end: str
    wrong: list[str]


async def rebooted(play: Play, site: Site, controller: Controller) -> Found:
    """Compare once; return what is found."""
    now = allocated(controller.state.durable)
    if now not in play.starts():
        return Found("", [f"neither before nor after: {now}"])
    await controller.reconcile()
    wrong = wrongs(site, controller)
    wrong += [f"/{path} is missing" for path in pods_of(site, now) if not site.kernel.exists(path)]
    return Found("after" if now == play.after.allocated else "before", wrong)


def pods_of(site: Site, what: Allocated) -> Iterator[str]:
    for allocation in what.allocations.values():
        yield site.home(allocation)


@pytest.mark.parametrize("name", CHANGES)
def test_at_no_moment_may_a_process_run_on_what_is_anothers(host: Site, name: str) -> None:
    """Wherever the agent dies, this is what stays until the next one looks."""
    play = rehearse(CHANGES[name], host)
    site = play.site.copy()
    moments = 0

    def look(step: Step, act: Callable[[], object]) -> object:
        nonlocal moments
        result = act()
        moments += step.is_effect
        state = site.saved()
        allocations = {} if state is None else state.ledger.allocations
        assert (str(step), new_overlaps(allocated_twice(site, allocations))) == (str(step), [])
        return result

    known = frozenset(allocated_twice(site, play.before.allocated.allocations))

    def new_overlaps(found: list[str]) -> list[str]:
        return [text for text in found if text not in known]

    effects = Effects(look, looks=False)
    with_agent(site, lambda controller: play.change.ask(controller, site), effects)
    assert moments == len(play.steps)
