"""A host, its agent, and those who ask it for something, of which a test decides who goes on.

Real are the controller, the line, the steps, the intake, the enforcement and the rules of cgroups;
emulated are the kernel, the disk, a device plugin, a source of pods, time and the worker thread.
`World.choices` names what may come next from outside: a request, a client that leaves, a call of
the worker that is done, the answer of a plugin, the end of its time, a pause that ends, and one
disturbance. `World.do` lets one of them happen and everything run that follows from it. After each,
what must always be true is checked: `BrokenError`.
"""

from __future__ import annotations

import asyncio
import errno
import os
import pickle
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from agent.api.documents.admissions import ResizeRequest
from agent.api.documents.maintenance import CordonRequest
from agent.devices.providers import Providers
from agent.managers.allocation import API, PodSets
from agent.managers.cpu.manager import exclusive_cpus
from agent.managers.moves import Move, sets_of
from agent.managers.rules import restored
from agent.reconcile.start_checks import make_enforcer
from agent.server.controller import Controller
from agent.server.errors import (
    CheckpointFailedError,
    CordonRejectedError,
    PodNotFoundError,
    PodRemovedError,
    SourcePodError,
    SourceResizeError,
)
from agent.server.exposition import Metrics
from agent.server.intake import PodIntake
from agent.server.kernel import KernelEnforcement
from agent.server.limits import Caller
from agent.server.moves import AskedMove
from agent.server.queue import OWN, QueueStopped, Worker, called_by
from agent.server.resizes import resize_of
from agent.server.source_admissions import SourceAdmissions
from agent.server.state import AgentState
from agent.server.steps import Steps
from agent.sources.source import ADMITTED, SourceEntry
from cgroupfs.apply import enable
from cgroupfs.emulated.kernel import EmulatedKernel
from cgroupfs.names import Tier
from sysfs.mask import EMPTY, Mask
from tests.exploration.answers import Answer
from tests.exploration.loop import SteppedClock, SteppedLoop
from tests.exploration.marks import mark_of
from tests.exploration.stage import (
    AFTER,
    BEFORE,
    HOST,
    LAST_POD,
    LAYOUT,
    LOST,
    MEMBERS,
    NODE,
    OFF,
    OLD,
    OLD_POD,
    PODS,
    PROCESS,
    SHARED,
    SHARED_POD,
    URGENT,
    URGENT_POD,
    Disk,
    Plugin,
    Source,
    uid_of,
)
from tests.fakes.kernel import FaultyTree, Operation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator

    from agent.managers.allocation import PodAllocation
    from agent.managers.ledger import Ledger
    from agent.pods.model import Pod
    from agent.state.checkpoint import Checkpoint

#: What is answered to a client that left, and the errors that there are when all goes well.
_LEFT: Final = "left"
_EXPECTED: Final = {
    _LEFT,
    CheckpointFailedError.__name__,
    PodRemovedError.__name__,
    QueueStopped.__name__,
}
#: How rejections begin that say nothing about room.
UNDELIVERED: Final = "Allocate failed due to"
#: The most choices of a story: each request has a dozen steps.
LONGEST: Final = 400


#: Another size of the first pod.
GROWN: Final = resize_of(uid_of(0), ResizeRequest(container="c0", cpus="8"))


class BrokenError(AssertionError):
    """Something that must always be true is not."""


class World:
    """A few requests and one disturbance on one host; begins with nothing asked."""

    def __init__(self, kinds: tuple[str, ...], disturbance: str) -> None:
        self.kinds, self.disturbance = kinds, disturbance
        self.loop = SteppedLoop()
        asyncio.set_event_loop(self.loop)
        self.disk, self.source, self.configured = Disk(), Source(), BEFORE
        #: The callers that have not left, by the number of their request.
        self.asked: dict[int, asyncio.Task[Answer]] = {}
        self.answers: dict[int, Answer | str] = {}
        self.prepared: set[str] = set()
        self.disturbed = self.moved = False
        self.effect: asyncio.Task[object] | None = None
        #: The uids that were admitted when the disturbance had its effect, None before.
        self.before: frozenset[str] | None = None
        self._checked: tuple[Ledger | None, Ledger | None] = (None, None)
        self._writes_fail = False
        self.kernel = EmulatedKernel(HOST.online, Mask.of(0, 1))
        self.kernel.write("", "cgroup.subtree_control", "+cpuset +cpu +memory")
        if kinds:
            kernel, self.disk.saved = _site(replaces="replaces" in kinds)
            self.kernel = pickle.loads(kernel)  # noqa: S301  # our own bytes
            asyncio.set_event_loop(self.loop)
        self._start()

    def _start(self) -> None:
        """Start an agent with what is saved."""
        self.plugin = Plugin(self.configured.rules.policy.devices, self.prepared)
        self.clock = SteppedClock()
        saved = self.disk.saved
        ledger = restored(self.configured.rules, saved.ledger)
        state = AgentState(self.configured, replace(saved, ledger=ledger))
        state.parts.providers = Providers((self.plugin,))
        state.observed.sources.register(self.source)
        tree = FaultyTree(self.kernel, self._fault)
        enforcer = make_enforcer(tree, LAYOUT, None)
        enforcer.prepare()
        kernel = KernelEnforcement(enforcer, tree, LAYOUT, Path("/cgroup"), Path("/proc"))
        worker, metrics = Worker(state.parts.progress), Metrics(self.configured.rules.managers)
        steps = Steps(state, metrics, kernel, self.disk, worker, self.clock)
        self.state, self.controller = state, Controller(steps)
        self.intake = PodIntake(self.source, SourceAdmissions(self.controller))
        self.serving = self.loop.create_task(self.controller.queue.serve())

    def _fault(self, operation: Operation) -> None:
        if self._writes_fail and operation.name in {"write", "mkdir"}:
            raise OSError(errno.EIO, os.strerror(errno.EIO), operation.path)

    def close(self) -> None:
        """End all tasks; none of them does anything that another world sees."""
        self._cancel_all()
        self.loop.close()

    def _cancel_all(self) -> None:
        """End the agent at once: what its worker was to do is not done."""
        while tasks := asyncio.all_tasks(self.loop):
            for task in tasks:
                task.cancel()
            for call in self.loop.calls:
                call.outcome.cancel()
            self.loop.calls.clear()
            self.loop.settle()

    def complete(self, work: Awaitable[object]) -> None:
        """Do some work to its end, with the first choice whenever it waits."""
        task = asyncio.ensure_future(work, loop=self.loop)
        for _ in range(LONGEST):
            self.loop.settle()
            names = self._inner_choices()
            if task.done() or not names:
                break
            self._do(names[0])
        if not task.done():
            raise BrokenError("the line stands still")
        task.result()

    def choices(self) -> list[str]:
        """Return what may come next, a disturbance among it; nothing at the end of the story."""
        names = self._inner_choices()
        for number, kind in enumerate(self.kinds):
            if number not in self.asked:
                names.append(f"ask {number}")
                break  # requests come in the order of their numbers: the kinds are permuted
            if kind == "left" and not self.asked[number].done():
                names.append(f"leave {number}")
        if self.disturbance and not self.disturbed:
            names.append(self.disturbance)
        if self.plugin.waiting:
            names.append("time")
        return names

    def _inner_choices(self) -> list[str]:
        names = ["worker"] if self.loop.calls else []
        if self.clock.pauses:
            names.append("go on")
        answering = [kind for kind in self.plugin.waiting if kind != "hangs"]
        return names + [f"plugin {kind}" for kind in answering[:1]]

    def do(self, choice: str, *, check: bool = True) -> None:
        """Let one thing happen, and all that follows from it; raises `BrokenError`."""
        self._do(choice)
        arrived = [number for number, task in self.asked.items() if task.done()]
        arrived = [number for number in arrived if number not in self.answers]
        self.answers |= {number: _answer_of(self.asked[number]) for number in arrived}
        if check:
            self.check()
            for number in arrived:
                self._check_answer(number, self.answers[number])

    def _do(self, choice: str) -> None:
        what, _, rest = choice.partition(" ")
        if what == "worker":
            self.loop.calls.popleft().make()
        elif what == "go":
            self.clock.pauses.popleft().set_result(None)
        elif what == "plugin":
            self.plugin.answer(rest)
        elif what == "time":
            self.loop.advance()
        elif what == "ask":
            self.asked[int(rest)] = self.loop.create_task(self._ask(int(rest)))
        elif what == "leave":
            self.asked[int(rest)].cancel()
        else:
            self.disturbed = True
            self._disturb()
        self.loop.settle()

    async def _ask(self, number: int) -> Answer:
        """Ask as root or as a member of the socket group."""
        kind = self.kinds[number]
        pod = self._pod(number)
        with called_by(Caller("member") if kind in MEMBERS else OWN):
            if kind != "listed":
                return await self._admit(pod, replace_pod=kind == "replaces")
        self.source.entries[pod.name] = SourceEntry(pod.name, pod)
        document = await self.intake.settle(pod.name)
        if document is None:
            raise BrokenError(f"{pod.name} has no entry")
        return Answer(pod.uid, document.state == ADMITTED)

    def _pod(self, number: int) -> Pod:
        if number == URGENT:
            return URGENT_POD
        kind = self.kinds[number]
        return PODS[0, self.kinds[0]] if kind == "again" else PODS[number, kind]

    async def _admit(self, pod: Pod, *, replace_pod: bool = False) -> Answer:
        document = await self.controller.admit(pod, replace_pod=replace_pod)
        if document.pod is None:
            rejection = document.rejection
            failed = rejection is None or rejection.message.startswith(UNDELIVERED)
            return Answer(pod.uid, admitted=False, no_room=not failed and not replace_pod)
        enforced = document.pod.enforcement.enforced
        return Answer(pod.uid, admitted=True, cpus=document.pod.exclusive_cpus, enforced=enforced)

    def _disturb(self) -> None:
        what = self.disturbance
        if what == "stop":
            self.controller.queue.stop()
        elif what == "kill":
            self._kill()
        elif what == "disk":
            self.disk.full = True
        elif what == "write":
            self._writes_fail = True
        elif what == "urgent":
            self.asked[URGENT] = self.loop.create_task(self._admit(URGENT_POD))
        else:
            self.effect = self.loop.create_task(self._effect(what))

    async def _effect(self, what: str) -> None:
        if what == "cordon":
            try:
                await self._cordon()
            except CordonRejectedError:  # no CPU would be left to the pod on shared ones
                return
        elif what == "remove":
            with suppress(PodNotFoundError, SourcePodError):
                await self.controller.remove(uid_of(0))
        elif what == "resize":
            with suppress(PodNotFoundError, SourceResizeError):
                await self.controller.resize(GROWN)
        elif what == "move":
            await self._move()
        else:
            self.configured = AFTER[what]
            if what == "offline":
                self.kernel.set_online(HOST.online - OFF)
            if what == "gone":
                self.plugin.devices = {}
            await self.controller.take_over(lambda: self.configured)
        self.before = frozenset(self.state.ledger.allocations)

    async def _move(self) -> None:
        """Move the first pod to the last free cores, as far as they are what it has of these."""
        rules, ledger = self.configured.rules, self.state.ledger
        allocation = ledger.allocations.get(uid_of(0))
        if allocation is None or not allocation.exclusive_cpus:
            return
        has, topology, cpus = sets_of(allocation), rules.machine.cpus, EMPTY
        free = rules.open_cpus - exclusive_cpus(ledger)
        for cpu in reversed(list(topology.whole_cores_in(free))):
            if len(cpus) < len(has.cpus):
                cpus |= topology.cores_of(Mask.of(cpu))
        asked = AskedMove(Move(allocation.uid, has, PodSets(cpus, has.nodes)), pressure=100)
        with suppress(PodNotFoundError):
            answer = await self.controller.move(asked)
            self.moved = answer.admitted

    async def _cordon(self) -> None:
        answer = await self.controller.cordon(CordonRequest(target="node:0"))
        lacking = {
            allocation.uid
            for allocation in self.state.ledger.allocations.values()
            if allocation.exclusive_cpus & NODE
        } - {pod.uid for pod in answer.pods}
        if lacking:
            raise BrokenError(f"the cordon does not list {lacking}, which are on its node")

    def _kill(self) -> None:
        """End the agent and start another; who had no answer asks again."""
        self.asked = {number: task for number, task in self.asked.items() if task.done()}
        self._cancel_all()
        self._start()
        self.effect = self.loop.create_task(self._begin_again())

    async def _begin_again(self) -> None:
        await self.controller.reconcile()
        await self.intake.sync()

    def check(self) -> None:
        """Raise `BrokenError` unless what must always be true is."""
        ledgers = self.state.ledger, self.disk.saved.ledger
        for ledger, checked in zip(ledgers, self._checked, strict=True):
            if ledger is not checked:
                _check_unique(ledger)
                self._check_prepared(ledger)
        self._checked = ledgers
        self._check_kernel()

    def _check_prepared(self, ledger: Ledger) -> None:
        """Raise `BrokenError` if devices pass for prepared that are not."""
        for allocation in ledger.allocations.values():
            for container in allocation.containers:
                if not allocation.unprepared and container.devices.keys() - self.prepared:
                    raise BrokenError(f"devices of {allocation.uid} are said to be prepared")

    def _check_kernel(self) -> None:
        """Raise `BrokenError` if the set of a pod reaches into what another has in the kernel."""
        sets = {uid: self._set(uid) for uid in self._known()}
        for uid, allocation in self.disk.saved.ledger.allocations.items():
            cpus = allocation.exclusive_cpus
            if not cpus or not sets[uid] or cpus - sets[uid]:
                continue
            for other, others in sets.items():
                if other != uid and others & cpus and uid not in self.state.intrusions:
                    raise BrokenError(
                        f"the kernel lets {other} use {others & cpus}, which are {uid}'s"
                    )

    def _known(self) -> Iterator[str]:
        yield from self.disk.saved.ledger.allocations
        for uid in (uid_of(OLD), uid_of(SHARED)):
            if uid not in self.disk.saved.ledger.allocations:
                yield uid

    def _set(self, uid: str) -> Mask:
        """Return what a pod's cgroup has of the set of its own, empty without one."""
        for tier in (Tier.GUARANTEED, Tier.BURSTABLE):
            group = self.kernel.find(LAYOUT.pod(uid, tier))
            if group is not None and group.cpus:
                return group.cpus & group.cpus_now
        return EMPTY

    def _check_answer(self, number: int, answer: Answer | str) -> None:
        """Raise `BrokenError` unless an answer that was just given is true."""
        uid = self._pod(number).uid
        allocation = self.state.ledger.allocations.get(uid)
        shared = "again" in self.kinds  # another request may be about the same pod
        if isinstance(answer, str) or not answer.admitted:
            if allocation is not None and not shared and answer != _LEFT:
                raise BrokenError(f"request {number} is admitted, and was answered {answer}")
            if isinstance(answer, str):
                if answer not in _EXPECTED:
                    raise BrokenError(f"request {number} got {answer}")
            elif answer.no_room and self._would_fit(number):
                raise BrokenError(f"request {number} is rejected although it fits")
            return
        if allocation is None:
            raise BrokenError(f"request {number} is answered as admitted and is not")
        changed = bool(allocation.originals) or self.moved
        if not changed and answer.cpus not in {None, str(allocation.exclusive_cpus)}:
            raise BrokenError(f"request {number} has {allocation.exclusive_cpus}, not {answer}")
        if answer.enforced and not self.state.observed.records.of(uid).unenforced:
            self._check_enforced(allocation)

    def _would_fit(self, number: int) -> bool:
        return self.controller.decider.preview(self._pod(number), API).allocation is not None

    def check_end(self) -> None:
        """Raise `BrokenError` unless all is as it must be when nothing is left to happen."""
        for number, task in self.asked.items():
            if not task.done():
                raise BrokenError(f"request {number} has no answer")
        self._check_effect()
        stopped = self.disturbance == "stop"
        if not stopped:
            self._recover()
        self._check_saved()
        if stopped:
            return
        for allocation in self.state.ledger.allocations.values():
            self._check_enforced(allocation)
        self.complete(self.controller.admit(LAST_POD))
        self.check()

    def _check_effect(self) -> None:
        if self.effect is None:
            return
        if not self.effect.done():
            raise BrokenError(f"{self.disturbance} has no answer")
        error = None if self.effect.cancelled() else self.effect.exception()
        if error is not None and not isinstance(error, QueueStopped):
            raise BrokenError(f"{self.disturbance} failed: {error!r}") from error
        for allocation in self.state.ledger.allocations.values():
            if self.before is not None and allocation.uid not in self.before:
                lost = allocation.exclusive_cpus & LOST.get(self.disturbance, EMPTY)
                if lost or (self.disturbance == "gone" and allocation.has_devices):
                    raise BrokenError(f"{allocation.uid} was given what was not there any longer")

    def _recover(self) -> None:
        """Let disk and cgroups be written again, and the agent compare."""
        faulty = self.disk.full or self._writes_fail
        self.disk.full = self._writes_fail = False
        if faulty:
            self.complete(self.controller.reconcile(insist=True))

    def _check_saved(self) -> None:
        """Raise `BrokenError` unless what is saved is in use, and no more is reserved."""
        in_use, saved = (
            # That devices are prepared is a fact, whether or not it could be saved.
            [replace(allocation, unprepared="") for allocation in ledger.allocations.values()]
            for ledger in (self.state.ledger, self.disk.saved.ledger)
        )
        if in_use != saved:
            raise BrokenError("what is saved is not what is in use")
        managers = self.state.configured.rules
        parts = {
            manager.name: manager.restored(managers, None, self.state.ledger.allocations)
            for manager in managers.managers
        }
        if dict(self.state.ledger.parts) != parts:
            raise BrokenError("something is reserved that no pod has")

    def _check_enforced(self, allocation: PodAllocation) -> None:
        """Raise `BrokenError` unless the kernel has the set of a pod, and others are not in it.

        Or it must be said that they are.
        """
        online = self.configured.host.online
        uid, cpus = allocation.uid, allocation.exclusive_cpus & online
        if not cpus:  # with all of its CPUs offline it runs on shared ones
            return
        if self._set(uid) & online != cpus:
            raise BrokenError(f"the kernel has {self._set(uid)} for {uid}, not {cpus}")
        if (both := self.kernel.allowed(PROCESS)[0] & cpus) and uid not in self.state.intrusions:
            raise BrokenError(f"a process on shared CPUs may use {both}, which are {uid}'s")

    def mark(self) -> bytes:
        """Return what distinguishes this moment from others; two with one mark go on alike."""
        state, disk = self.state, self.disk
        return mark_of(
            asyncio.all_tasks(self.loop),
            {number: task.cancelling() for number, task in self.asked.items() if not task.done()},
            self.answers,
            self.disturbed,
            self.controller.queue,
            self.intake,
            state.ledger,
            state.configured,
            state.observed.records.differences(),
            state.observed.unenforced,
            disk.saved,
            [self._set(uid) for uid in self._known()],
            self.plugin.waiting,
            self.plugin.devices,
            self.prepared,
            len(self.loop.calls),
            len(self.clock.pauses),
            self.before,
            self.loop.has_timer,
        )


@cache
def _site(*, replaces: bool) -> tuple[bytes, Checkpoint]:
    """Return the cgroups, pickled, and what is saved, before anything is asked.

    A pod on shared CPUs is there and has a process, and one that is to be replaced.
    """
    world = World((), "")
    kernel = world.kernel
    world.complete(world.controller.admit(SHARED_POD))
    path = f"{LAYOUT.pod(uid_of(SHARED), Tier.BURSTABLE)}/c0"
    kernel.mkdir(path)
    enable(kernel, path)
    kernel.spawn(path, PROCESS)
    world.complete(world.controller.reconcile())
    if replaces:
        world.complete(world.controller.admit(OLD_POD))
    world.close()
    return pickle.dumps(kernel), world.disk.saved


def _answer_of(task: asyncio.Task[Answer]) -> Answer | str:
    if task.cancelled():
        return _LEFT
    error = task.exception()
    return task.result() if error is None else type(error).__name__


def _check_unique(ledger: Ledger) -> None:
    """No CPU, device or name is in two allocations."""
    cpus, devices, names = EMPTY, set[tuple[str, str]](), set[str]()
    for allocation in ledger.allocations.values():
        if twice := allocation.exclusive_cpus & cpus:
            raise BrokenError(f"CPUs {twice} twice")
        cpus |= allocation.exclusive_cpus
        its = {
            (resource, device)
            for container in allocation.containers
            for resource, ids in container.devices.items()
            for device in ids
        }
        if its & devices:
            raise BrokenError(f"{its & devices} twice")
        devices |= its
        if allocation.name in names:
            raise BrokenError(f"two pods are called {allocation.name}")
        names.add(allocation.name)
