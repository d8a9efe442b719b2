"""A full host that never rests: pods come and go at a fixed rate of virtual time.

The agent is the real one with its socket, checkpoint and worker thread; its kernel is emulated and
its clock virtual. Containers are started and ended as a runtime would. Where systemd makes the
cgroups its bus can hang for a while: then no container can be started, and all else goes on.
"""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections import defaultdict, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random
from time import process_time
from typing import TYPE_CHECKING, Final

import psutil
from msgspec.structs import replace

from agent.config.model import CgroupDriver
from agent.managers.policy import TopologyManagerPolicy, TopologyManagerScope
from cgroupfs.emulated.kernel import EmulatedKernel
from cgroupfs.names import Driver, Layout, Tier
from cgroupfs.tree import join
from sysfs.described import regular_host, write_tree
from sysfs.mask import Mask
from tests.agent.server.support import make_world
from tests.conformance.invariants import broken_invariants
from tests.fakes.kernel import effective_cpus
from tests.fakes.silence import HangingSystemd
from tests.fakes.systemd import FakeSystemd

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.agent.server.support import Running, World

_RECONCILE_SECONDS: Final = 10.0
#: What is said of pods while the bus hangs: who did not answer, and whose cgroup is not made yet.
_MISSED: Final = ("systemd", "does not exist; it was removed, or never created")
_TIERS: Final = {"exclusive": Tier.GUARANTEED, "shared": Tier.BURSTABLE, "budget": Tier.GUARANTEED}
_AMOUNTS: Final = {
    "exclusive": ("{cpu: '1', memory: 8Mi}", "{cpu: 100m, memory: 8Mi}"),
    "shared": ("{cpu: 10m}", "{cpu: 10m}"),
    "budget": ("{cpu: '1', memory: 8Mi}", "{}"),
}


@dataclass(frozen=True, slots=True)
class Pace:
    """How much load: admitted pods, containers of each, virtual seconds, operations a second.

    In the middle systemd's bus hangs for so many seconds of `silence`, if there is one.
    """

    pods: int = 500
    containers: int = 5
    seconds: float = 600.0
    rate: float = 2.0
    silence: float = 0.0


#: Turns of the loop in which the server notices which connections are over.
_TURNS: Final = 1000


@dataclass(frozen=True, slots=True)
class Usage:
    """What the process uses: resident and traced bytes, descriptors, threads, tasks."""

    resident: int
    traced: int
    descriptors: int
    threads: int
    tasks: int

    @classmethod
    def now(cls) -> Usage:
        """Measure, after all unreachable objects are collected."""
        gc.collect()
        process = psutil.Process()
        return cls(
            resident=process.memory_info().rss,
            traced=tracemalloc.get_traced_memory()[0],
            descriptors=process.num_fds(),
            threads=process.num_threads(),
            tasks=len(asyncio.all_tasks()),
        )


@dataclass
class Course:
    """What happened: counts, what was broken, and the usage.

    Of each answer the processor time is kept, in seconds, by the kind of pod. `silent` counts the
    operations and comparisons while the bus hung, `deadlines` the calls that waited for it.
    """

    admitted: int = 0
    rejected: int = 0
    removed: int = 0
    reconciled: int = 0
    silent: int = 0
    silent_reconciles: int = 0
    deadlines: int = 0
    admissions: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    removals: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    broken: list[str] = field(default_factory=list)
    usage: list[Usage] = field(default_factory=list)


def busy_world(directory: Path, driver: Driver = Driver.CGROUPFS) -> World:
    """Return a world with two packages of 64 cores with two threads each."""
    host = regular_host(packages=2, cores_per_node=64, memory_bytes=64 << 30)
    world = make_world(directory, write_tree(host, directory / "busy"))
    world.kernel = EmulatedKernel(host.online, Mask.of(0, 1))
    world.config = replace(
        world.config,
        cgroup_driver=CgroupDriver(str(driver)),
        reserved_system_cpus=Mask.of(0, 128),
        max_pods=10_000,
        topology_manager_policy=TopologyManagerPolicy.RESTRICTED,
        topology_manager_scope=TopologyManagerScope.POD,
    )
    return world


@dataclass(frozen=True, slots=True)
class HostSystemd:
    """A systemd beside a world's kernel, and its bus, which can hang."""

    systemd: FakeSystemd
    bus: HangingSystemd

    @classmethod
    def of(cls, world: World) -> HostSystemd:
        """Put one beside a world; what waits for the bus makes the world's clock go on."""
        systemd = FakeSystemd(world.kernel)

        def wait(seconds: float) -> None:
            world.clock.now += seconds

        bus = HangingSystemd(systemd, wait)
        world.systemd = bus
        return cls(systemd, bus)


@dataclass(slots=True)
class RunningPod:
    """A pod that was admitted, and the cgroups of its containers by name, once these run."""

    number: int
    kind: str
    cgroup: str = ""
    containers: dict[str, str] = field(default_factory=dict)

    @property
    def uid(self) -> str:
        """The pod's uid."""
        return f"{self.number:08d}-0000-4000-8000-000000000000"


@dataclass
class Churn:
    """Drives one running agent; without `host` its cgroups are plain directories."""

    agent: Running
    pace: Pace
    host: HostSystemd | None = None
    course: Course = field(default_factory=Course)
    random: Random = field(default_factory=lambda: Random(5))  # noqa: S311  # no secret
    _running: deque[RunningPod] = field(default_factory=deque)
    _number: int = 0

    async def run(self) -> Course:
        """Fill the host, keep it changing for the virtual time, and empty it."""
        # One caller at a time needs one thread; else how many there are depends on the scheduler.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        while len(self._running) < self.pace.pods:
            await self._admit()
        await self._reconcile()
        quiet = (self.pace.seconds - self.pace.silence) / 2
        await self._churn(quiet)
        await self._measure()  # not before: what comes and goes leaves gaps between what stays
        if self.host is not None and self.pace.silence:
            await self._churn_in_silence(self.host.bus)
        await self._churn(quiet)
        await self._measure()
        while self._running:
            await self._remove()
        await self._reconcile()
        self._check_empty()
        return self.course

    async def _measure(self) -> None:
        await self._reconcile()
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        self.course.usage.append(Usage.now())

    @property
    def _silent(self) -> bool:
        return self.host is not None and self.host.bus.silent

    async def _churn(self, seconds: float) -> None:
        clock = self.agent.world.clock
        end, next_reconcile = clock.now + seconds, clock.now + _RECONCILE_SECONDS
        while clock.now < end:
            if len(self._running) >= self.pace.pods:
                await self._remove()
            else:
                await self._admit()
            self.course.silent += self._silent
            clock.now += 1 / self.pace.rate
            if clock.now >= next_reconcile:
                await self._reconcile()
                self._check()
                next_reconcile = clock.now + _RECONCILE_SECONDS

    async def _churn_in_silence(self, bus: HangingSystemd) -> None:
        """Let the bus hang; afterwards all that was missed is done with one comparison."""
        bus.silent = True
        await self._churn(self.pace.silence)
        bus.silent = False
        self.course.deadlines = bus.deadlines
        # Each comparison asks the bus again, once; what comes after asks nothing more.
        if bus.deadlines > self.course.silent_reconciles + 1:
            self.course.broken.append(
                f"{bus.deadlines} calls waited for the bus, with"
                f" {self.course.silent_reconciles} comparisons"
            )
        await self.agent.controller.reconcile()
        for pod in self._running:
            if not pod.containers:
                self._start(pod)
        await self._reconcile()
        self._check()

    async def _admit(self) -> None:
        self._number += 1
        # Exclusive CPUs are scarce: one pod in eight has some, the others fill the shared pool.
        kind = ("exclusive", "budget", *("shared",) * 14)[self._number % 16]
        pod = RunningPod(self._number, kind)
        pod.cgroup = self._layout.pod(pod.uid, _TIERS[kind])
        text = _manifest(pod, self._names(pod))
        started = process_time()
        answer = await asyncio.to_thread(self.agent.client.admit, text)
        self.course.admissions[kind].append(process_time() - started)
        if not answer.admitted:
            self.course.rejected += 1
            return
        self.course.admitted += 1
        if answer.pod is not None:
            self._note(f"{pod.uid} is not enforced", answer.pod.enforcement.differences)
        self._running.append(pod)
        if not self._silent:
            self._start(pod)

    def _names(self, pod: RunningPod) -> list[str]:
        """Return the names of a pod's containers: names of units belong to one of them alone."""
        stem = "c" if self.host is None else f"p{pod.number}c"
        return [f"{stem}{number}" for number in range(self.pace.containers)]

    def _start(self, pod: RunningPod) -> None:
        """Start the containers of a pod."""
        for number, name in enumerate(self._names(pod)):
            pid = pod.number * 100 + number
            if self.host is None:
                path = join(pod.cgroup, name)
                self.agent.world.kernel.mkdir(path)
                self.agent.world.kernel.spawn(path, pid)
            else:
                above = pod.cgroup.rpartition("/")[2]
                path = self.host.systemd.start_scope(f"{name}.scope", above, pid)
            pod.containers[name] = path

    async def _remove(self) -> None:
        self._running.rotate(-self.random.randrange(len(self._running)))
        pod = self._running.popleft()
        kernel = self.agent.world.kernel
        for path in pod.containers.values():
            for pid in kernel.procs(path):
                kernel.exit(pid)
        started = process_time()
        await asyncio.to_thread(self.agent.client.remove, pod.uid)
        self.course.removals[pod.kind].append(process_time() - started)
        self.course.removed += 1
        if kernel.exists(pod.cgroup) and not self._silent:
            self.course.broken.append(f"/{pod.cgroup} stays")

    async def _reconcile(self) -> None:
        """Settle containers that started meanwhile; a second comparison finds nothing."""
        if self.host is not None:
            self.host.systemd.calls.clear()  # which would grow without end
        first = await self.agent.controller.reconcile()
        document = await self.agent.controller.reconcile()
        self._note("a comparison", (*first.differences, *document.differences))
        if document.found:
            self.course.broken.append(f"drift: {document.found}")
        self.course.reconciled += 2
        self.course.silent_reconciles += 2 * self._silent

    def _note(self, what: str, differences: tuple[str, ...]) -> None:
        """Take note of differences; while the bus hangs there is one, and it is named."""
        self.course.broken.extend(
            f"{what}: {difference}"
            for difference in differences
            if not (self._silent and any(text in difference for text in _MISSED))
        )

    def _check(self) -> None:
        state, kernel = self.agent.controller.state, self.agent.world.kernel
        self.course.broken.extend(broken_invariants(state.configured.rules, state.ledger))
        for pod in self._running:
            for container in state.ledger.allocations[pod.uid].containers:
                path = pod.containers.get(container.name)
                if path is None:
                    continue
                desired = state.shared_cpus if container.cpus is None else container.cpus
                found = effective_cpus(kernel, path)
                if found != str(desired):
                    self.course.broken.append(f"{path}: {found} not {desired}")

    def _check_empty(self) -> None:
        state = self.agent.controller.state
        empty = state.configured.rules.empty_ledger()
        if state.ledger != empty:
            self.course.broken.append("the ledger is not empty after the last pod")
        left = [path for path in self._cgroups("") if self._layout.parse_pod(path) is not None]
        if left:
            self.course.broken.append(f"cgroups are left: {left[:3]}")
        if state.observed.records.pods:
            self.course.broken.append(f"{len(state.observed.records.pods)} records are left")

    @property
    def _layout(self) -> Layout:
        return Layout(Driver.CGROUPFS if self.host is None else Driver.SYSTEMD)

    def _cgroups(self, above: str) -> Iterator[str]:
        for name in self.agent.world.kernel.children(above):
            path = join(above, name)
            yield path
            yield from self._cgroups(path)


def _manifest(pod: RunningPod, names: Sequence[str]) -> bytes:
    """Return a pod whose first container has exclusive CPUs, none has, or all share a budget."""
    first, rest = _AMOUNTS[pod.kind]
    lines = ["apiVersion: v1", "kind: Pod", f"metadata: {{name: p{pod.uid}, uid: {pod.uid}}}"]
    lines += ["spec:"]
    if pod.kind == "budget":
        budget = "{cpu: '2', memory: 64Mi}"
        lines.append(f"  resources: {{requests: {budget}, limits: {budget}}}")
    lines.append("  containers:")
    for number, name in enumerate(names):
        amounts = rest if number else first
        limits = "" if pod.kind == "shared" else f", limits: {amounts}"
        lines += [f"  - name: {name}", f"    resources: {{requests: {amounts}{limits}}}"]
    return "\n".join((*lines, "")).encode()
