"""A full host that never rests: pods come and go at a fixed rate of virtual time.

The agent is the real one with its socket, checkpoint and worker thread; its kernel is emulated and
its clock virtual. Containers are started and ended as a runtime would.
"""

from __future__ import annotations

import asyncio
import gc
import os
import tracemalloc
from collections import defaultdict, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random
from time import process_time
from typing import TYPE_CHECKING, Final

import psutil
from msgspec.structs import replace

from agent.managers.policy import TopologyManagerPolicy, TopologyManagerScope
from cgroupfs.emulated.kernel import EmulatedKernel
from sysfs.mask import Mask
from sysfs.shapes import regular_host
from sysfs.tree import write_tree
from tests.agent.service.support import make_world
from tests.conformance.invariants import broken_invariants

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.service.support import Running, World

RECONCILE_SECONDS: Final = 10.0
TIERS: Final = {"exclusive": "", "shared": "/burstable", "budget": ""}
_AMOUNTS: Final = {
    "exclusive": ("{cpu: '1', memory: 8Mi}", "{cpu: 100m, memory: 8Mi}"),
    "shared": ("{cpu: 10m}", "{cpu: 10m}"),
    "budget": ("{cpu: '1', memory: 8Mi}", "{}"),
}


@dataclass(frozen=True, slots=True)
class Pace:
    """How much load: pods held, containers of each, virtual seconds, operations a second."""

    pods: int = 500
    containers: int = 5
    seconds: float = 600.0
    rate: float = 2.0


#: Turns of the loop in which closed connections are noticed.
_TURNS: Final = 1000


@dataclass(frozen=True, slots=True)
class Usage:
    """What the process holds: resident and traced bytes, descriptors, threads, tasks."""

    resident: int
    traced: int
    descriptors: int
    threads: int
    tasks: int

    @classmethod
    def now(cls) -> Usage:
        """Measure, after everything that nobody refers to is gone."""
        gc.collect()
        process = psutil.Process()
        return cls(
            resident=process.memory_info().rss,
            traced=tracemalloc.get_traced_memory()[0],
            descriptors=process.num_fds(),
            threads=process.num_threads(),
            tasks=len(asyncio.all_tasks()),
        )


async def _settled() -> None:
    """Let the server see which connections are over: their tasks and descriptors go then."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)


@dataclass
class Course:
    """What happened: counts, what was broken, and the usage.

    Of each answer the processor time is kept, in seconds, by the kind of pod.
    """

    admitted: int = 0
    refused: int = 0
    removed: int = 0
    reconciled: int = 0
    admissions: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    removals: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    broken: list[str] = field(default_factory=list)
    usage: list[Usage] = field(default_factory=list)


def busy_world(directory: Path) -> World:
    """Return a world with two packages of 64 cores with two threads each."""
    host = regular_host(packages=2, cores_per_node=64, memory_bytes=64 << 30)
    world = make_world(directory, write_tree(host, directory / "busy"))
    world.kernel = EmulatedKernel(host.online, Mask.of(0, 1))
    world.config = replace(
        world.config,
        reserved_system_cpus=Mask.of(0, 128),
        max_pods=10_000,
        topology_manager_policy=TopologyManagerPolicy.RESTRICTED,
        topology_manager_scope=TopologyManagerScope.POD,
    )
    return world


@dataclass
class Churn:
    """Drives one running agent."""

    agent: Running
    pace: Pace
    course: Course = field(default_factory=Course)
    random: Random = field(default_factory=lambda: Random(5))  # noqa: S311  # no secret
    _held: deque[tuple[str, str, str]] = field(default_factory=deque)
    _number: int = 0

    async def run(self) -> Course:
        """Fill the host, keep it changing for the virtual time, and empty it."""
        # One caller at a time needs one thread; else how many there are depends on the scheduler.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        while len(self._held) < self.pace.pods:
            await self._admit()
        await self._reconcile()
        await _settled()
        self.course.usage.append(Usage.now())
        await self._churn()
        await self._reconcile()
        await _settled()
        self.course.usage.append(Usage.now())
        while self._held:
            await self._remove()
        await self._reconcile()
        self._check_empty()
        return self.course

    async def _churn(self) -> None:
        clock = self.agent.world.clock
        end, next_reconcile = clock.now + self.pace.seconds, clock.now + RECONCILE_SECONDS
        while clock.now < end:
            if len(self._held) >= self.pace.pods:
                await self._remove()
            else:
                await self._admit()
            clock.now += 1 / self.pace.rate
            if clock.now >= next_reconcile:
                next_reconcile += RECONCILE_SECONDS
                await self._reconcile()
                self._check()

    async def _admit(self) -> None:
        self._number += 1
        uid = uid_of(self._number)
        # Exclusive CPUs are scarce: one pod in eight has some, the others fill the shared pool.
        kind = ("exclusive", "budget", *("shared",) * 14)[self._number % 16]
        text = manifest_of(uid, kind, self.pace.containers)
        started = process_time()
        answer = await asyncio.to_thread(self.agent.client.admit, text)
        self.course.admissions[kind].append(process_time() - started)
        if not answer.admitted:
            self.course.refused += 1
            return
        self.course.admitted += 1
        if answer.pod is not None and not answer.pod.enforcement.enforced:
            self.course.broken.append(f"{uid} is not enforced: {answer.pod.enforcement}")
        cgroup = f"kubepods{TIERS[kind]}/pod{uid}"
        self._held.append((uid, kind, cgroup))
        for number in range(self.pace.containers):
            self.agent.world.kernel.mkdir(f"{cgroup}/c{number}")
            self.agent.world.kernel.spawn(f"{cgroup}/c{number}", self._number * 100 + number)

    async def _remove(self) -> None:
        self._held.rotate(-self.random.randrange(len(self._held)))
        uid, kind, cgroup = self._held.popleft()
        kernel = self.agent.world.kernel
        for number in range(self.pace.containers):
            for pid in kernel.procs(f"{cgroup}/c{number}"):
                kernel.exit(pid)
        started = process_time()
        await asyncio.to_thread(self.agent.client.remove, uid)
        self.course.removals[kind].append(process_time() - started)
        self.course.removed += 1
        if kernel.exists(cgroup):
            self.course.broken.append(f"/{cgroup} stays")

    async def _reconcile(self) -> None:
        """Settle containers that started meanwhile; a second look finds nothing."""
        first = await self.agent.keeper.reconcile()
        document = await self.agent.keeper.reconcile()
        self.course.broken.extend((*first.problems, *document.problems))
        if document.found:
            self.course.broken.append(f"drift: {document.found}")
        self.course.reconciled += 2

    def _check(self) -> None:
        state, kernel = self.agent.keeper.state, self.agent.world.kernel
        self.course.broken.extend(broken_invariants(state.situation.rules, state.ledger))
        for uid, _, cgroup in self._held:
            grant = state.ledger.grants[uid]
            for container in grant.containers:
                wanted = state.shared_cpus if container.cpus is None else container.cpus
                found = kernel.read(f"{cgroup}/{container.name}", "cpuset.cpus.effective").strip()
                if found != str(wanted):
                    self.course.broken.append(f"{cgroup}/{container.name}: {found} not {wanted}")

    def _check_empty(self) -> None:
        state = self.agent.keeper.state
        empty = state.situation.rules.empty_ledger()
        if state.ledger != empty:
            self.course.broken.append("the ledger is not empty after the last pod")
        left = [
            name
            for tier in ("kubepods", "kubepods/burstable")
            if self.agent.world.kernel.exists(tier)
            for name in self.agent.world.kernel.children(tier)
            if name.startswith("pod")
        ]
        if left:
            self.course.broken.append(f"cgroups are left: {left[:3]}")
        if state.records.pods:
            self.course.broken.append(f"{len(state.records.pods)} records are left")


def uid_of(number: int) -> str:
    """Return the uid of the pod of a number."""
    return f"{number:08d}-0000-4000-8000-000000000000"


def manifest_of(uid: str, kind: str, containers: int) -> bytes:
    """Return a pod whose first container has exclusive CPUs, none has, or all share a budget."""
    first, rest = _AMOUNTS[kind]
    lines = ["apiVersion: v1", "kind: Pod", "metadata:", f"  name: p{uid}", f"  uid: {uid}"]
    lines += ["spec:"]
    if kind == "budget":
        budget = "{cpu: '2', memory: 64Mi}"
        lines.append(f"  resources: {{requests: {budget}, limits: {budget}}}")
    lines.append("  containers:")
    for number in range(containers):
        amounts = rest if number else first
        limits = "" if kind == "shared" else f", limits: {amounts}"
        lines += [f"  - name: c{number}", f"    resources: {{requests: {amounts}{limits}}}"]
    return "\n".join((*lines, "")).encode()


def own_descriptors() -> list[str]:
    """Return what the process has open, for a report of what leaked."""
    names = []
    for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208  # names, not paths
        try:
            names.append(os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: PTH115  # as above
        except OSError:
            continue
    return sorted(names)
