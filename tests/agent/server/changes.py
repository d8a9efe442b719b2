"""A settled host with pods of every kind, and what can change there: for tests of crashes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from agent.api.documents.admissions import BindRequest, ResizeRequest
from agent.api.documents.maintenance import CordonRequest
from agent.api.documents.moves import MoveRequest
from agent.pods.model import MOVE, Movable
from agent.server.errors import NotCordonedError, PodNotFoundError
from agent.server.moves import move_of
from agent.server.resizes import resize_of
from cgroupfs.names import Tier
from sysfs.mask import Mask
from systemd.units import allowed_cpus
from tests.agent.server.sites import allocated, make_site, pod_of, with_agent, wrongs
from tests.fakes.devices import FakeProvider
from tests.fakes.effects import Effects

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agent.config.model import Config
    from agent.pods.model import Pod
    from agent.server.controller import Controller
    from tests.agent.server.sites import Allocated, Shown, Site
    from tests.fakes.effects import Step


def _uid(digit: int) -> str:
    return f"{digit}0000000-2222-3333-4444-555555555555"


def _movable(pod: Pod) -> Pod:
    return replace(pod, annotations=MappingProxyType({MOVE: Movable.MEMORY}))


SHARED, EXCLUSIVE, MIXED, IDS, INIT, NEW, GONE = map(_uid, range(1, 8))
#: The pods of the settled host.
PODS: Final = (
    pod_of("shared", SHARED, "c0~1 c1"),
    _movable(pod_of("exclusive", EXCLUSIVE, "main=2")),
    _movable(pod_of("mixed", MIXED, "own=1 rest", budget="3")),
    pod_of("ids", IDS, "one=1 two=2"),
    _movable(pod_of("init", INIT, "!first=1 then=1")),
)
WITH_DEVICE: Final = pod_of("device", NEW, "own=2+")
NEW_POD: Final = pod_of("new", NEW, "own=2 rest more", budget="4")
#: Its class, in which another pod runs, can no longer have the shared pool.
BURSTABLE: Final = pod_of("burstable", NEW, "own=2 rest~1", named="own")
#: Take the place of a pod with CPUs of its own, whose processes run on.
IN_PLACE: Final = pod_of("mixed", NEW, "own=2 rest", budget="3")
IN_PLACE_OF_BOUND: Final = pod_of("exclusive", NEW, "main=3")
#: Containers that only a binding can distinguish.
NAMELESS: Final = ("cri-containerd-aaa.scope", "cri-containerd-bbb.scope")


def settled(config: Config) -> Site:
    """Return a host on which all pods run and an agent has nothing left to do."""
    site = make_site(config)

    async def settle(controller: Controller) -> None:
        for pod in PODS:
            answer = await controller.admit(pod)
            assert answer.admitted, answer.rejection
        for name in ("c0", "c1"):
            site.start(site.cgroup(SHARED, Tier.BURSTABLE), name)
        for name in ("own", "rest"):
            site.start(site.cgroup(MIXED), name)
        for name in NAMELESS:
            site.start(site.cgroup(IDS), name)
        site.start(site.cgroup(EXCLUSIVE), "main")
        site.start(site.cgroup(INIT), "first")
        await controller.reconcile()
        assert wrongs(site, controller) == []

    with_agent(site, settle)
    return site


@dataclass(frozen=True, slots=True)
class Change:
    """Something that is asked of an agent, after what `provoke` did to the host."""

    ask: Callable[[Controller, Site], Awaitable[object]]
    provoke: Callable[[Site], None] = lambda _: None

    async def again(self, controller: Controller, site: Site) -> None:
        """Ask again, not knowing what became of it the first time."""
        try:
            await self.ask(controller, site)
        except (PodNotFoundError, NotCordonedError):
            return


def _end(*names: str) -> Callable[[Site], None]:
    def provoke(site: Site) -> None:
        for name in names:
            site.end(site.container(site.cgroup(MIXED), name))

    return provoke


def _drift(site: Site) -> None:
    """Let others undo settings of every kind while no agent looks; one more container starts."""
    exclusive, mixed, gone = (site.cgroup(uid) for uid in (EXCLUSIVE, MIXED, GONE))
    inside = site.container(exclusive, "main")
    for path, file, value in (
        (exclusive, "cpuset.cpus", "0-15"),
        (exclusive, "cpu.max", "50000 100000"),
        (inside, "cpuset.cpus", "0-7"),
        (inside, "cpuset.mems", "0-1"),
        (mixed, "cgroup.subtree_control", "-cpuset"),
    ):
        site.kernel.write(path, file, value)
    if site.systemd is None:
        site.kernel.mkdir(gone)
    else:
        shared = site.cgroup(SHARED, Tier.BURSTABLE).rpartition("/")[2]
        site.systemd.daemon_reload()
        site.systemd.set_properties(shared, [allowed_cpus(Mask.parse("0-15"))])
        site.systemd.start_transient(gone.rpartition("/")[2], ())
    site.end(site.start(gone, "left"))
    site.start(site.cgroup(INIT), "then")


async def _bind(controller: Controller, site: Site) -> object:
    path = site.container(site.cgroup(IDS), NAMELESS[0])
    return await controller.bind(IDS, "one", BindRequest(cgroup=f"/{path}"))


def _bind_elsewhere(site: Site) -> None:
    """Bind a container to a cgroup that is not in its pod's."""
    bound = site.start_elsewhere("service")
    request = BindRequest(cgroup=f"/{bound}")
    with_agent(site, lambda controller: controller.bind(EXCLUSIVE, "main", request))


async def _deliver(controller: Controller, _: Site) -> object:
    """Admit a pod whose device is delivered while another change waits."""
    [provider] = controller.state.parts.providers.all
    assert isinstance(provider, FakeProvider)
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        asked.set()
        await go_on.wait()

    provider.waits = wait
    admission = asyncio.create_task(controller.admit(WITH_DEVICE))
    first, _pending = await asyncio.wait(
        (admission, asyncio.create_task(asked.wait())), return_when=asyncio.FIRST_COMPLETED
    )
    if admission in first:  # it has the device already
        return await admission
    comparison = asyncio.create_task(controller.reconcile())
    go_on.set()
    answer, _compared = await asyncio.gather(admission, comparison)
    return answer


#: CPUs of the pod `ids`, of the shared pool, and a node that is cordoned as a whole.
TARGETS: Final = ("2-5", "node:1")


async def _cordon(controller: Controller, _: Site) -> object:
    return [await controller.cordon(CordonRequest(target=each)) for each in TARGETS]


async def _uncordon(controller: Controller, _: Site) -> object:
    return await controller.uncordon(CordonRequest(target=TARGETS[1]))


def _cordoned(site: Site) -> None:
    with_agent(site, lambda controller: _cordon(controller, site))


def _resize(uid: str, container: str = "", cpus: str = "") -> Change:
    asked = resize_of(uid, ResizeRequest(container=container, cpus=cpus))
    return Change(lambda controller, _: controller.resize(asked))


def _move(uid: str, cpus: str, new_cpus: str, new_nodes: str = "0") -> Change:
    request = MoveRequest(cpus=cpus, new_cpus=new_cpus, nodes="0", new_nodes=new_nodes)
    asked = move_of(uid, request)
    return Change(lambda controller, _: controller.move(asked))


def _after(first: Change, then: Change) -> Change:
    """Return a change of what another one left."""

    def provoke(site: Site) -> None:
        with_agent(site, lambda controller: first.ask(controller, site))

    return Change(then.ask, provoke)


CHANGES: Final = {
    "admit": Change(lambda controller, _: controller.admit(NEW_POD)),
    "admit-burstable": Change(lambda controller, _: controller.admit(BURSTABLE)),
    "remove-burstable": _after(
        Change(lambda controller, _: controller.admit(BURSTABLE)),
        Change(lambda controller, _: controller.remove(NEW)),
    ),
    "deliver": Change(_deliver),
    "replace": Change(lambda controller, _: controller.admit(IN_PLACE, replace_pod=True)),
    "replace-bound": Change(
        lambda controller, _: controller.admit(IN_PLACE_OF_BOUND, replace_pod=True), _bind_elsewhere
    ),
    "remove": Change(lambda controller, _: controller.remove(MIXED), _end("own", "rest")),
    "remove-running": Change(lambda controller, _: controller.remove(MIXED)),
    "remove-bound": Change(lambda controller, _: controller.remove(EXCLUSIVE), _bind_elsewhere),
    "bind": Change(_bind),
    "cordon": Change(lambda controller, _: controller.cordon(CordonRequest(target="1-3"))),
    "cordon-node": Change(lambda controller, _: controller.cordon(CordonRequest(target="node:1"))),
    "uncordon": Change(_uncordon, _cordoned),
    "repair": Change(lambda controller, _: controller.reconcile(), _drift),
    "grow": _resize(EXCLUSIVE, "main", "4"),
    "grow-slice": _resize(MIXED, "own", "2"),
    "grow-budget": _resize(MIXED, cpus="5"),
    "move": _move(EXCLUSIVE, "1,9", "6,14", "1"),
    "move-near": _move(INIT, "3", "11"),
    "move-budget": _move(MIXED, "2,8,10", "7,12,15", "1"),
    "shrink": _after(_resize(EXCLUSIVE, "main", "4"), _resize(EXCLUSIVE, "main", "2")),
    "shrink-budget": _after(_resize(MIXED, cpus="5"), _resize(MIXED, cpus="3")),
}


@dataclass(frozen=True, slots=True)
class End:
    """What is allocated, and what the kernel and systemd show when that is in force."""

    allocated: Allocated
    shown: Shown


@dataclass(frozen=True, slots=True)
class Play:
    """A change on a host that is ready for it: its steps, its answer, and both ends it may have."""

    change: Change
    site: Site
    steps: tuple[Step, ...]
    answer: object
    before: End
    after: End

    def starts(self) -> tuple[Allocated, Allocated]:
        """Return what may be allocated before the kernel is compared with it."""
        saved = self.site.saved()
        assert saved is not None
        return allocated(saved), self.after.allocated

    def end(self, what: Allocated) -> End | None:
        """Return the end at which this is allocated."""
        return next((end for end in (self.after, self.before) if end.allocated == what), None)


def rehearse(change: Change, host: Site, *, looks: bool = False) -> Play:
    """Play a change to its end, undisturbed; the host stays as it is."""
    site = host.copy()
    change.provoke(site)
    quiet, done, effects = site.copy(), site.copy(), Effects(looks=looks)

    async def compare(controller: Controller) -> End:
        await controller.reconcile()
        assert wrongs(quiet, controller) == []
        return End(allocated(controller.state.durable), quiet.shown())

    async def play(controller: Controller) -> tuple[object, End]:
        answer = await change.ask(controller, done)
        shown, steps = done.shown(), tuple(effects.log)
        await controller.reconcile()
        assert wrongs(done, controller) == []
        assert done.shown() == shown, "the change leaves nothing for later"
        effects.log[:] = steps
        return answer, End(allocated(controller.state.durable), shown)

    before = with_agent(quiet, compare)
    answer, after = with_agent(done, play, effects)
    return Play(change, site, tuple(effects.log), answer, before, after)
