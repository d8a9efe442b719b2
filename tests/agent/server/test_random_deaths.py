"""An agent that dies again and again, at a random step of whatever it is asked for.

`NUMAWARDEN_DEATHS` says how often (CONTRIBUTING.md, "Running them"); half of them with each driver.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Final, TypeAlias

import pytest

from agent.api.documents import BindRequest
from agent.config.model import CgroupDriver
from agent.server.controller import Controller
from agent.server.errors import PodNotFoundError
from cgroupfs.names import Tier
from tests.agent.server.sites import (
    allocated,
    allocated_twice,
    make_site,
    pod_of,
    site_config,
    with_agent,
    wrongs,
)
from tests.agent.server.support import make_world
from tests.fakes.effects import Effects, die_after, die_amid, die_before
from tests.fakes.kernel import Died

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from agent.managers.allocation import PodAllocation
    from tests.agent.server.sites import Allocated, Site
    from tests.fakes.effects import Step

DEATHS: Final = int(os.environ.get("NUMAWARDEN_DEATHS", "100"))
#: A host is left after so many of them, for another one with other pods.
ON_ONE_HOST: Final = 50
#: Containers and budget of pods: exclusive, mixed, shared, and such that only a binding identifies.
KINDS: Final = (
    ("a{n}=2", ""),
    ("a{n}=1 b{n}", "2"),
    ("a{n}=1 b{n} c{n}=1", "4"),
    ("a{n}~1 b{n}", ""),
    ("!i{n}=1 a{n}=1", ""),
    ("a{n}=1 b{n}=2", ""),
)
#: The kind whose containers are started under names that say nothing.
NAMELESS: Final = 5
CPUS: Final = ("0", "0-15", "3,11", "5-7")

Ask: TypeAlias = "Callable[[Controller], Awaitable[object]]"


@dataclass
class Life:
    """A host on which pods come and go, and agents that never get old."""

    site: Site
    random: Random
    deaths: int = 0
    asked: int = 0
    #: Pods whose containers were started, and containers that are to be bound: uid, name, cgroup.
    started: set[str] = field(default_factory=set)
    unbound: list[tuple[str, str, str]] = field(default_factory=list)

    def run(self, deaths: int) -> None:
        """Ask for something, die of it, look what the next agent finds, ask again."""
        while self.site.saved() is None:
            with_agent(self.site, self.admission())
        while self.deaths < deaths:
            for happen in (self.start_containers, self.end_a_pod, self.meddle):
                if self.random.random() < 0.4:
                    happen()
            ask, twin = compared_before(self.draw()), self.site.copy()
            course, steps = undisturbed(ask, twin)
            if steps:
                self.die(ask, self.random.randint(1, steps))
                self.recover(ask, course, twin)

    def die(self, ask: Ask, number: int) -> None:
        way = self.random.choice((die_before, die_after, die_amid))
        with pytest.raises(Died):
            with_agent(self.site, ask, Effects(way(number), looks=False))
        self.deaths += 1

    def recover(self, ask: Ask, course: list[Allocated], twin: Site) -> None:
        """Let the next agent compare once, then ask it the same again."""

        async def live(controller: Controller) -> None:
            assert allocated(controller.state.durable) in course
            await controller.reconcile()
            assert wrongs(self.site, controller) == []
            assert allocated_twice(self.site, controller.state.ledger.allocations) == []
            try:
                await ask(controller)
            except PodNotFoundError:
                assert allocated(controller.state.durable) == course[-1]
            await controller.reconcile()
            assert allocated(controller.state.durable) == course[-1]
            assert wrongs(self.site, controller) == []

        with_agent(self.site, live)
        assert self.site.shown() == twin.shown()

    # --- what is asked for ----------------------------------------------------------------------

    def draw(self) -> Ask:
        found_now = len(what(self.site).allocations)
        asks = [self.admission] * 4 + [self.removal] * found_now + [lambda: Controller.reconcile]
        return self.random.choice(asks + [self.binding] * 3 * bool(self.unbound))()

    def admission(self) -> Ask:
        self.asked += 1
        number, kind = self.asked, self.random.randrange(len(KINDS))
        containers, budget = KINDS[kind]
        uid = f"{kind}{number:07d}-2222-3333-4444-555555555555"
        pod = pod_of(f"p{number}", uid, containers.format(n=number), budget)
        return lambda controller: controller.admit(pod)

    def removal(self) -> Ask:
        uid = self.random.choice(sorted(what(self.site).allocations))
        return lambda controller: controller.remove(uid)

    def binding(self) -> Ask:
        known = [each for each in self.unbound if each[0] in what(self.site).allocations]
        if not known:
            return self.admission()
        uid, name, cgroup = self.random.choice(known)
        return lambda controller: controller.bind(uid, name, BindRequest(cgroup=f"/{cgroup}"))

    # --- what others do -------------------------------------------------------------------------

    def start_containers(self) -> None:
        """Start all containers of the pods that do not run yet."""
        for uid, allocation in what(self.site).allocations.items():
            if uid in self.started:
                continue
            self.started.add(uid)
            for container in allocation.containers:
                hidden = uid.startswith(str(NAMELESS))
                name = f"cri-containerd-{container.name}f.scope" if hidden else container.name
                cgroup = self.site.start(self.cgroup(allocation), name)
                if hidden:
                    self.unbound.append((uid, container.name, cgroup))

    def end_a_pod(self) -> None:
        """End what runs in a pod, admitted or not."""
        pods = [path for path in self.site.cgroups() if self.site.layout.parse_pod(path)]
        if pods:
            for path in list(self.site.cgroups(self.random.choice(pods))):
                self.site.end(path)

    def meddle(self) -> None:
        """Write into some cgroup that has sets."""
        paths = [path for path in self.site.cgroups() if "/pod" in path or "-pod" in path]
        path = self.random.choice(paths or [""])
        if path and self.site.kernel.read_many(path, ("cpuset.cpus",)) != (None,):
            self.site.kernel.write(path, "cpuset.cpus", self.random.choice(CPUS))

    def cgroup(self, allocation: PodAllocation) -> str:
        return self.site.cgroup(allocation.uid, Tier(str(allocation.qos)))


def compared_before(ask: Ask) -> Ask:
    """Return what settles what others did first: an agent asks for nothing before that."""

    async def both(controller: Controller) -> None:
        await controller.reconcile()
        await ask(controller)

    return both


def undisturbed(ask: Ask, site: Site) -> tuple[list[Allocated], int]:
    """Ask and compare undisturbed; return all that is saved, and how many steps it took."""
    effects = Effects(looks=False)
    course = [what(site)]

    def note(step: Step, act: Callable[[], object]) -> object:
        result = act()
        if step.name == "rename":
            course.append(what(site))
        return result

    async def play(controller: Controller) -> int:
        await ask(controller)
        steps = len(effects.log)
        await controller.reconcile()
        return steps

    effects.fault = note
    return course, with_agent(site, play, effects)


def what(site: Site) -> Allocated:
    """Return what is saved on a host."""
    saved = site.saved()
    assert saved is not None
    return allocated(saved)


@pytest.mark.parametrize("driver", CgroupDriver)
@pytest.mark.timeout(max(300, DEATHS * 2))
def test_whenever_agents_die_nothing_is_lost_leaked_or_allocated_twice(
    tmp_path: Path, host_root: Path, driver: CgroupDriver
) -> None:
    config = site_config(make_world(tmp_path, host_root).config, driver)
    for seed in range(-(-DEATHS // 2 // ON_ONE_HOST)):
        random = Random(f"{driver} {seed}")  # noqa: S311  # no secret
        Life(make_site(config), random).run(min(ON_ONE_HOST, DEATHS // 2))
