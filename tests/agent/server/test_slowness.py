"""Why a pod is slow: each cause with its figure, in `show`, and what metrics count of that."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from agent.cli.pod_text import pod_lines
from agent.isolation.report import IsolationReport, LateInterrupt
from agent.managers.allocation import ContainerAllocation, Isolation, PodAllocation
from agent.managers.numa_policy import NumaMode, NumaPolicy
from agent.managers.quality import Intrusion, Judgement
from agent.pods.model import ContainerKind, QosClass, Quality
from agent.server.slowness import ALWAYS_KNOWN, PodReading, SlowKind, slowness
from cgroupfs.load import LOAD_KEYS
from sysfs.mask import Mask
from sysfs.speeds import CpuSpeed
from tests.agent.server.support import UID, in_loop, manifest, running

if TYPE_CHECKING:
    from cgroupfs.load import CgroupLoad
    from tests.agent.server.support import World

OWN = ContainerAllocation("own", ContainerKind.APP, Isolation.CONTAINER, cpus=Mask.of(1, 9))
SHARED = ContainerAllocation("shared", ContainerKind.APP)
POD = PodAllocation("u", "web", "shop", QosClass.GUARANTEED, "", (OWN, SHARED))
QUOTA = "its quota ended too early in 12 of 340 periods, its CPUs stood still for 0.84 s together"


def quota(periods: float, throttled: float) -> CgroupLoad:
    numbers = {"nr_periods": periods, "nr_throttled": throttled, "throttled_usec": 840000}
    return {"cpu.stat": numbers}


def pressure(resource: str, avg10: float, avg60: float) -> CgroupLoad:
    return {f"{resource}.pressure": {"avg10": avg10, "avg60": avg60}}


def events(high: float, most: float, killed: float) -> CgroupLoad:
    return {"memory.events": {"high": high, "max": most, "oom_kill": killed}}


#: What was read, and what is said of it: the cause, the container, and words of the message.
LOADS: dict[str, tuple[str | None, CgroupLoad, list[tuple[str, str, str]]]] = {
    "one throttled period of a container with own CPUs": (
        "own",
        quota(1000, 1),
        [("throttled", "own", "ended too early in 1 of 1000 periods, its CPUs stood still for")],
    ),
    "few of one without": ("shared", quota(1000, 9), []),
    "more of one without": (
        "shared",
        quota(1000, 10),
        [("throttled", "shared", "in 10 of 1000 periods")],
    ),
    "a quota that was never used": ("own", quota(0, 0), []),
    "pressure below what counts": (
        "own",
        {**pressure("cpu", 50, 0.99), **pressure("memory", 50, 0.99)},
        [],
    ),
    "waiting for both": (
        "own",
        {**pressure("cpu", 0, 1), **pressure("memory", 3.21, 12.5)},
        [
            ("cpu_wait", "own", "waited for a CPU in 1.0 % of the last 60 s, 0.0 % of the last 10"),
            ("memory_wait", "own", "waited for memory in 12.5 % of the last 60 s"),
        ],
    ),
    "the pressure of a pod is that of its containers": (
        None,
        {**quota(1000, 1), **pressure("cpu", 9, 9)},
        [("throttled", "", "in 1 of 1000 periods")],
    ),
    "reclaimed and killed": (
        "shared",
        events(7, 3, 2),
        [
            ("reclaimed", "shared", "reached memory.high 7 times and memory.max 3 times"),
            ("killed", "shared", "processes killed because memory ran out: 2"),
        ],
    ),
    "nothing": ("own", events(0, 0, 0), []),
}


@pytest.mark.parametrize(("name", "load", "said"), LOADS.values(), ids=LOADS)
def test_what_the_kernel_counts_is_said_from_where_it_matters(
    name: str | None, load: CgroupLoad, said: list[tuple[str, str, str]]
) -> None:
    found = slowness(POD, PodReading({}, ((name, load),)), (), (), ())
    assert [(each.cause, each.container) for each in found.causes] == [each[:2] for each in said]
    assert all(words in c.message for (_, _, words), c in zip(said, found.causes, strict=True))
    assert set(found.unknown) == LOAD_KEYS.keys() - (load if name else {})


MIB = 1 << 20
INTERLEAVED = NumaPolicy(NumaMode.INTERLEAVE, Mask.parse("0-2"))
PREFERRED = NumaPolicy(NumaMode.PREFERRED, Mask.of(1))


@pytest.mark.parametrize(
    ("policy", "by_node", "said"),
    [
        (INTERLEAVED, (50, 50), ""),
        (INTERLEAVED, (75, 25), ""),
        (INTERLEAVED, (76, 24), "not even: 76 MiB on node 0, 24 MiB on node 1"),
        (INTERLEAVED, (15, 0), ""),  # little
        (INTERLEAVED, (50, 50, 0), "50 MiB on node 0, 50 MiB on node 1, 0 B on node 2"),
        (INTERLEAVED, (40, 40, 20), ""),
        (INTERLEAVED, (100,), ""),
        (PREFERRED, (50, 50), ""),
        (PREFERRED, (50, 49, 1), "51 MiB of its memory is not on node 1, which its pool prefers"),
        (PREFERRED, (100,), ""),  # it may not use the node of the pool
        (None, (100, 0), ""),
    ],
)
def test_memory_on_other_nodes_than_asked_for_is_said(
    policy: NumaPolicy | None, by_node: tuple[int, ...], said: str
) -> None:
    memory = {node: size * MIB for node, size in enumerate(by_node)}
    reading = PodReading({}, memory=(("own", memory),))
    causes = slowness(POD, reading, (), (), (), policy).causes
    assert [each.cause for each in causes] == ["numa_policy"] * bool(said)
    assert all(said in each.message for each in causes)


def test_what_is_known_of_the_allocation_and_of_its_cpus_is_said() -> None:
    speeds = (
        CpuSpeed(1, 2400000, 3600000, 0),
        CpuSpeed(9, 2400000, 3600000, 12),
        CpuSpeed(2, 3600000, 3600000),
        CpuSpeed(3, None, 3600000),
    )
    judgements = (
        Judgement("own", Quality.EXCLUSIVE, "it is not Guaranteed"),
        Judgement("own", Quality.ALIGNED, "CPUs on nodes 0-1"),
        Judgement("own", Quality.NEAR_DEVICE),
        Judgement("own", Quality.WHOLE_CORES, "not its own on the same cores: CPU 8"),
    )
    intruding = [Intrusion(f"u{n}.service", Mask.of(1), "", "unknown", "") for n in range(5)]
    late = (LateInterrupt("5 (eth0)", Mask.of(9)), LateInterrupt("6 (eth1)", Mask.of(4)))
    found = slowness(POD, PodReading({}, (), speeds), judgements, intruding, late)
    assert [f"{each.cause} {each.container}: {each.message}" for each in found.causes] == [
        "frequency : CPUs 1,9 may reach 2.40 of 3.60 GHz (scaling_max_freq)",
        "heat : CPUs 9 slowed 12 times since the host started",
        "not_aligned own: CPUs on nodes 0-1",
        "shared_cores own: not its own on the same cores: CPU 8",
        "intruders : /u0.service, /u1.service, /u2.service and 2 more may use its CPUs 1",
        "interrupts : still come: 5 (eth0) to 9",
    ]
    assert found.unknown == tuple(LOAD_KEYS)


@in_loop
async def test_a_pod_is_shown_with_what_makes_it_slow_and_how_long_its_admission_took(
    world: World,
) -> None:
    read, make, cgroup = world.kernel.read, world.kernel.mkdir, f"kubepods/pod{UID}"
    container = f"{cgroup}/c0"
    shown = {
        "cpu.stat": "nr_periods 340\nnr_throttled 12\nthrottled_usec 840000\n",
        "memory.events": "high 0\nmax 0\noom_kill 1\n",
    }

    def reading(path: str, file: str) -> str:
        return shown[file] if path == container and file in shown else read(path, file)

    def making(path: str) -> None:
        make(path)
        world.clock.now += 0.25 * (path == cgroup)

    world.kernel.read = reading  # type: ignore[method-assign]
    world.kernel.mkdir = making  # type: ignore[method-assign]
    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest(cpu="3"))
        world.kernel.mkdir(container)
        pod = await asyncio.to_thread(agent.client.pod, UID)
        (listed,) = await asyncio.to_thread(agent.client.pods)
        await agent.ask(agent.client.reconcile)
        history = await asyncio.to_thread(agent.client.history, limit=9)
        text = agent.controller.metrics.render(agent.controller.state.reading()).decode()
    *_, head, throttled, killed, cores, unknown = pod_lines(pod)
    assert [head, throttled, killed, cores, unknown] == [
        "slow",
        f"  c0 throttled: {QUOTA}",
        "  c0 killed: processes killed because memory ran out: 1",
        "  c0 shared cores: not its own on the same cores: CPU 0",
        "  not known, as no cgroup of a container has it: cpu.pressure, memory.pressure",
    ]
    assert listed.slow is None
    assert pod.admission_seconds == listed.admission_seconds == 0.25
    (admitted,) = [each for each in history.entries if each.type == "PodAdmitted"]
    assert admitted.message.endswith("; enforced after 250 ms")
    assert 'numawarden_slow_pods{cause="shared_cores"} 1.0' in text
    assert 'numawarden_slow_pods{cause="intruders"} 0.0' in text


@in_loop
async def test_uneven_memory_of_a_pod_that_asks_for_even_memory_is_shown(world: World) -> None:
    read, container = world.kernel.read, f"kubepods/pod{UID}/c0"

    def reading(path: str, file: str) -> str:
        stat = f"anon N0={64 * MIB} N1=0\nfile N0=0 N1={64 * MIB}\n"
        return stat if (path, file) == (container, "memory.numa_stat") else read(path, file)

    world.kernel.read = reading  # type: ignore[method-assign]
    annotation = b"  annotations: {memory.numawarden.dev/policy: interleave}\nspec:\n"
    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest(cpu="2").replace(b"spec:\n", annotation, 1))
        world.kernel.mkdir(container)
        await agent.ask(agent.client.reconcile)
        pod = await asyncio.to_thread(agent.client.pod, UID)
    text = "  c0 numa policy: its memory is not even: 64 MiB on node 0, 0 B on node 1"
    assert text in list(pod_lines(pod))


def slow_pods(text: str) -> dict[str, float]:
    prefix = 'numawarden_slow_pods{cause="'
    lines = [line for line in text.splitlines() if line.startswith(prefix)]
    return {line.removeprefix(prefix).partition('"')[0]: float(line.split()[-1]) for line in lines}


@in_loop
async def test_a_pod_counts_once_for_each_cause(world: World) -> None:
    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest(cpu="3", containers=2))
        state = agent.controller.state
        assert state.parts.isolation is not None
        late = (LateInterrupt("5 (eth0)", state.ledger.allocations[UID].exclusive_cpus),)
        state.parts.isolation.report = IsolationReport(late=late)
        text = agent.controller.metrics.render(state.reading()).decode()
    expected = {str(cause): 0.0 for cause in ALWAYS_KNOWN}
    assert slow_pods(text) == {
        **expected,
        SlowKind.SHARED_CORES: 1.0,
        SlowKind.INTERRUPTS: 1.0,
    }
