"""Figures of a whole agent: admission to the end, reconciling, starting, and at rest.

In this process the real agent runs with its queue, worker thread and checkpoint, on an emulated
kernel and with a clock that stands still. Start, memory and CPU at rest are those of a process of
its own on an emulated host.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter_ns, process_time_ns
from typing import TYPE_CHECKING, Final

import psutil
from msgspec.structs import replace

from agent.config.isolation import IsolationConfig, PartitionMode, PowerClass
from agent.isolation.places import Form, text_of
from agent.managers.policy import IsolationMode
from agent.server.configured import situate
from agent.server.memory import settle_memory
from agent.state.checkpoint import Checkpoint, host_facts, policy_summary
from agent.state.store import Store
from agent.tools.playground import EmulatedHost
from cgroupfs.emulated.kernel import EmulatedKernel
from sysfs.described import write_tree
from sysfs.mask import Mask
from tests.agent.pods.pods import app, pod, resources
from tests.agent.server.support import make_world, running
from tests.bench import hosts
from tests.bench.measure import Rest, of_samples

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from agent.managers.ledger import Ledger
    from agent.managers.rules import EffectivePolicy
    from tests.agent.server.support import Running, World
    from tests.bench.measure import Figure

ADMITTED: Final = (10, 250, 2500)
_HOST: Final = "2n128c"
_UID: Final = "00000000-0000-4000-8000-{:012d}"
#: Admissions of one figure; each is followed by a removal, which is not timed.
_ADMISSIONS: Final = {10: 100, 250: 30, 2500: 5}
#: Interrupts of a host with some devices of many queues, and admissions beside them.
_IRQS: Final = 300
_IN_TURNS: Final = 60
_CONTAINERS: Final = 5
_PASSES: Final = 30
#: Passes at rest of so many pods in each round.
_IN_EACH_ROUND: Final = {100: 5, 500: 5, 2500: 2}
_ROUNDS: Final = 6
_SETTLING_SECONDS: Final = 2.0
_REST_SECONDS: Final = 30.0


def admissions() -> Iterator[Figure]:
    """Start with so many pods in the checkpoint, and admit to the end.

    That is through the agent's queue: decide, save, write the cgroups, read them back.
    """
    for pods in ADMITTED:
        ready, samples = asyncio.run(_started(pods, _ADMISSIONS[pods]))
        yield of_samples(f"start/{_HOST}/pods{pods}", [ready])
        yield of_samples(f"admit/{_HOST}/enforced-pods{pods}", samples)


def isolated() -> Iterator[Figure]:
    """Admit to the end with no item of isolation and with all of them, in turns; then compare.

    The checkpoint and the saved originals are on a disk, as an agent has them. Of CPU time: waiting
    for the disk is the same for both, and hides the difference.
    """
    yield from asyncio.run(_isolated())


async def _isolated() -> list[Figure]:
    samples: dict[str, list[int]] = {"without": [], "isolated": []}
    async with AsyncExitStack() as opened:
        agents = {}
        for name in samples:
            folder = opened.enter_context(on_tmpfs())
            state = Path(opened.enter_context(TemporaryDirectory(prefix="numawarden-bench-")))
            world = _world(folder)
            items = _with_interrupts(world) if name == "isolated" else IsolationConfig()
            settings = replace(world.config.agent, state_directory=state, isolation=items)
            world.config = replace(world.config, agent=settings)
            agents[name] = await opened.enter_async_context(running(world))
            await agents[name].controller.reconcile()
        settle_memory()
        for number in range(_IN_TURNS):
            for name, agent in agents.items():
                samples[name].append(await _admitted(agent, number, process_time_ns))
        for name, agent in agents.items():
            await agent.controller.admit(hosts.guaranteed_pod(_UID.format(_IN_TURNS), 4))
            await agent.controller.reconcile()
            passes = [await passed(agent) for _ in range(_PASSES)]
            samples[f"{name}-comparison"] = passes
    return [
        of_samples(f"isolate/{_HOST}/irqs{_IRQS}-{name}", each) for name, each in samples.items()
    ]


def _with_interrupts(world: World) -> IsolationConfig:
    """Give a host slices, interrupts of all CPUs and idle states; return what uses all of them.

    Not among them are threads of the kernel, which are no files, and caches.
    """
    cpus = hosts.host(_HOST).online
    for name in ("system.slice", "user.slice", "machine.slice", "init.scope"):
        world.kernel.mkdir(name)
    files = {f"proc/irq/{number}/smp_affinity_list": str(cpus) for number in range(_IRQS)}
    files |= {"proc/irq/default_smp_affinity": text_of(Form.MASK, cpus)}
    files |= {"sys/devices/virtual/workqueue/cpumask": text_of(Form.MASK, cpus)}
    files |= {"proc/sys/kernel/watchdog_cpumask": str(cpus)}
    for cpu in cpus:
        files[f"sys/devices/system/cpu/cpu{cpu}/power/pm_qos_resume_latency_us"] = "0"
    for name, text in files.items():
        file = world.config.agent.sysfs_root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    return IsolationConfig(
        host_slices=True,
        interrupts=IsolationMode.ALWAYS,
        partitions=PartitionMode.ISOLATED,
        power_classes={"awake": PowerClass(resume_latency="n/a")},
        power="awake",
    )


def starts() -> Iterator[Figure]:
    """Start the agent as a process until it is ready."""
    samples = []
    for _ in range(5):
        with on_tmpfs() as folder:
            host = EmulatedHost(folder)
            begun = perf_counter_ns()
            with host.agent("pod"):
                samples.append(perf_counter_ns() - begun)
    yield of_samples(f"start/{_HOST}/process", samples)


def at_rest() -> Iterator[Rest]:
    """Watch an agent of its own that holds nothing; its CPU is what it used once it had settled."""
    with on_tmpfs() as folder, EmulatedHost(folder).agent("pod") as agent:
        process = psutil.Process(agent.pid)
        time.sleep(_SETTLING_SECONDS)
        before, started = process.cpu_times(), perf_counter_ns()
        time.sleep(_REST_SECONDS)
        after, elapsed = process.cpu_times(), (perf_counter_ns() - started) / 1e9
        used = after.user + after.system - before.user - before.system
        yield Rest(process.memory_info().rss, 100 * used / elapsed)


class CountingKernel(EmulatedKernel):
    """An emulated kernel that counts what is written to it."""

    writes: int = 0

    def write(self, path: str, file: str, value: str) -> None:
        self.writes += 1
        super().write(path, file, value)


def state_of(rules: EffectivePolicy, ledger: Ledger) -> Checkpoint:
    """Return what a checkpoint of a ledger holds."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    facts = host_facts(hosts.host(_HOST))
    return Checkpoint(ledger, boot_id=boot_id, host=facts, policy=policy_summary(rules.policy))


@contextmanager
def on_tmpfs() -> Iterator[Path]:
    """Make a directory in memory where there is a place for it, for this block."""
    tmpfs = Path("/dev/shm")
    with TemporaryDirectory(prefix="numawarden-bench-", dir=tmpfs if tmpfs.is_dir() else None) as f:
        Path(f).chmod(0o700)
        yield Path(f)


def _world(folder: Path) -> World:
    host = hosts.host(_HOST)
    world = make_world(folder, write_tree(host, folder / "host"))
    world.kernel = _kernel()
    world.config = replace(world.config, reserved_system_cpus=Mask.of(0, 64), max_pods=10_000)
    return world


def _kernel() -> CountingKernel:
    host = hosts.host(_HOST)
    return CountingKernel(host.online, Mask.from_ids(node.id for node in host.nodes))


async def _started(pods: int, admissions: int) -> tuple[int, list[int]]:
    """Return how long a start with so many pods in the checkpoint took, and then admissions."""
    with on_tmpfs() as folder:
        world = _world(folder)
        rules = situate(world.config, hosts.host(_HOST)).rules
        with Store(world.config.agent.state_directory) as store:
            store.save(state_of(rules, hosts.ledger_with(rules, pods)))
        begun = perf_counter_ns()
        async with running(world) as agent:
            ready = perf_counter_ns() - begun
            await agent.controller.reconcile()
            settle_memory()
            return ready, [await _admitted(agent, 10_000 + n) for n in range(admissions)]


async def _admitted(
    agent: Running, number: int, clock_ns: Callable[[], int] = perf_counter_ns
) -> int:
    """Return how long an admission took; the pod is removed again."""
    pod = hosts.guaranteed_pod(_UID.format(number), 4)
    started = clock_ns()
    answer = await agent.controller.admit(pod)
    taken = clock_ns() - started
    if not answer.admitted:
        raise RuntimeError(f"the pod of a figure was not admitted: {answer.rejection}")
    await agent.controller.remove(pod.uid)
    return taken


def reconciling() -> Iterator[Figure]:
    """Reconcile pods of five containers each, with nothing to repair and no write; processor time.

    In turns, so that a machine that is slow for a while is slow for each number.
    """
    yield from asyncio.run(_reconciled())


async def _reconciled() -> list[Figure]:
    samples: dict[int, list[int]] = {pods: [] for pods in _IN_EACH_ROUND}
    async with AsyncExitStack() as opened:
        agents = {pods: await opened.enter_async_context(settled(pods)) for pods in samples}
        for _ in range(_ROUNDS):
            for pods, agent in agents.items():
                samples[pods] += [await passed(agent) for _ in range(_IN_EACH_ROUND[pods])]
    return [
        of_samples(f"reconcile/{_HOST}/containers{pods * _CONTAINERS}", each)
        for pods, each in samples.items()
    ]


@asynccontextmanager
async def settled(pods: int) -> AsyncIterator[Running]:
    """Run an agent with so many pods, all as desired; raises when it writes meanwhile."""
    with on_tmpfs() as folder:
        world = _world(folder)
        world.kernel = kernel = _kernel()
        async with running(world) as agent:
            for number in range(pods):
                await _run_pod(agent, _UID.format(number))
            await agent.controller.reconcile()
            await agent.controller.reconcile()
            uids = map(_UID.format, range(pods))
            cgroups = [cgroup for uid in uids for cgroup in _containers(uid)]
            if any(kernel.read(cgroup, "cpu.max").startswith("max") for cgroup in cgroups):
                raise RuntimeError("the agent has not found all containers")
            kernel.writes = 0
            settle_memory()
            yield agent
    if kernel.writes:
        raise RuntimeError(f"{kernel.writes} writes while there was nothing to repair")


async def _run_pod(agent: Running, uid: str) -> None:
    members = [app(f"c{place}", resources("cpu=1m", "cpu=20m")) for place in range(_CONTAINERS)]
    answer = await agent.controller.admit(pod(*members, uid=uid, name=uid))
    if not answer.admitted:
        raise RuntimeError(f"the pod of a figure was not admitted: {answer.rejection}")
    for place, cgroup in enumerate(_containers(uid)):
        agent.world.kernel.mkdir(cgroup)
        agent.world.kernel.spawn(cgroup, int(uid[-12:]) * 10 + place + 2)


def _containers(uid: str) -> list[str]:
    return [f"kubepods/burstable/pod{uid}/c{place}" for place in range(_CONTAINERS)]


async def passed(agent: Running) -> int:
    """Return the time of all CPUs that a pass takes; raises when it finds anything."""
    started = process_time_ns()
    document = await agent.controller.reconcile()
    taken = process_time_ns() - started
    if document.found or document.differences:
        raise RuntimeError(f"there was something to repair: {document}")
    return taken
