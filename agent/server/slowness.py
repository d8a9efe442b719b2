"""Why a pod is slow: what the agent knows of its allocation, and what the kernel counts of it.

In go the allocation with its judgements and its intruders; for a single pod also what was read of
its cgroups and CPUs. Out come causes, each a line with a figure. Pure: nothing is read, kept or
compared with an earlier reading, so counts are those since a cgroup was made.
"""

from __future__ import annotations

from collections import defaultdict
from enum import StrEnum
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.api.documents.slowness import SlowCause, Slowness
from agent.managers.allocation import Isolation
from agent.managers.amounts import nodes_text, size_text
from agent.managers.numa_policy import NumaMode
from agent.pods.model import Quality
from agent.text import some_of
from cgroupfs.load import (
    CPU_PRESSURE,
    CPU_STAT,
    LOAD_KEYS,
    MEMORY_EVENTS,
    MEMORY_PRESSURE,
)
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.api.documents.kernel import KernelDocument
    from agent.isolation.report import LateInterrupt
    from agent.managers.allocation import PodAllocation
    from agent.managers.numa_policy import NumaPolicy
    from agent.managers.quality import Intrusion, Judgement
    from cgroupfs.load import CgroupLoad
    from sysfs.speeds import CpuSpeed


class SlowKind(StrEnum):
    """What makes a pod slow."""

    THROTTLED = "throttled"
    CPU_WAIT = "cpu_wait"
    MEMORY_WAIT = "memory_wait"
    RECLAIMED = "reclaimed"
    KILLED = "killed"
    NOT_ALIGNED = "not_aligned"
    FAR_DEVICE = "far_device"
    SHARED_CORES = "shared_cores"
    INTRUDERS = "intruders"
    INTERRUPTS = "interrupts"
    FREQUENCY = "frequency"
    HEAT = "heat"
    NUMA_POLICY = "numa_policy"


#: The causes that are known of every pod without reading its cgroups and CPUs.
ALWAYS_KNOWN: Final = (
    SlowKind.NOT_ALIGNED,
    SlowKind.FAR_DEVICE,
    SlowKind.SHARED_CORES,
    SlowKind.INTRUDERS,
    SlowKind.INTERRUPTS,
)
#: From how many percent on a share of time counts. Of all other causes the first one counts.
LEAST: Final = MappingProxyType(
    {
        # Of the periods of a quota, where no CPU is exclusive: a burst now and then is what a
        # quota is there to cut. A container or pod with exclusive CPUs should never be held back.
        SlowKind.THROTTLED: 1.0,
        # Of the last 60 seconds: below are the wake-ups that every busy host has, and a peak of
        # the last 10 seconds may be over before anybody has read of it.
        SlowKind.CPU_WAIT: 1.0,
        SlowKind.MEMORY_WAIT: 1.0,
    }
)
_PRESSURES: Final = (
    (SlowKind.CPU_WAIT, CPU_PRESSURE, "a CPU"),
    (SlowKind.MEMORY_WAIT, MEMORY_PRESSURE, "memory"),
)
#: From how many bytes on memory on other nodes counts. It is uneven if one node has less than half
#: of its share: the pages of a process are not taken in turn one by one.
_LEAST_MEMORY: Final = 16 << 20
#: The most cgroups, interrupts and nodes that a line names.
_NAMED: Final = 3
_OF_QUALITY: Final = MappingProxyType(
    {
        Quality.ALIGNED: SlowKind.NOT_ALIGNED,
        Quality.NEAR_DEVICE: SlowKind.FAR_DEVICE,
        Quality.WHOLE_CORES: SlowKind.SHARED_CORES,
    }
)


class PodReading(Struct, frozen=True):
    """What was read of a pod."""

    #: The settings of its cgroups, by container; None stands for the pod's own.
    settings: Mapping[str | None, tuple[KernelDocument, ...]]
    #: The load of each cgroup behind the name of its container, None for the pod's own.
    loads: tuple[tuple[str | None, CgroupLoad], ...] = ()
    #: Its exclusive CPUs.
    speeds: tuple[CpuSpeed, ...] = ()
    #: By the name of a container: the bytes that its processes have on each NUMA node that they may
    #: use. Empty for pods without a NUMA policy.
    memory: tuple[tuple[str, Mapping[int, int]], ...] = ()


def slowness(
    allocation: PodAllocation,
    reading: PodReading,
    judgements: Iterable[Judgement],
    intruding: Iterable[Intrusion],
    late: Iterable[LateInterrupt],
    policy: NumaPolicy | None = None,
) -> Slowness:
    """Return what makes a pod slow, what the kernel counts first.

    `policy` is the NUMA policy that its processes are to have.
    """
    known = frozenset[str]().union(*(load for name, load in reading.loads if name))
    return Slowness(
        (
            *chain.from_iterable(_of_load(allocation, *each) for each in reading.loads),
            *_of_speeds(reading.speeds),
            *_of_memory(policy, reading.memory),
            *known_causes(allocation, judgements, intruding, late),
        ),
        tuple(file for file in LOAD_KEYS if file not in known),
    )


def known_causes(
    allocation: PodAllocation,
    judgements: Iterable[Judgement],
    intruding: Iterable[Intrusion],
    late: Iterable[LateInterrupt],
) -> Iterator[SlowCause]:
    """Yield the causes that are `ALWAYS_KNOWN`.

    `late` are the interrupts of the host that still come to CPUs which they are to avoid.
    """
    for judgement in judgements:
        if judgement.why and (cause := _OF_QUALITY.get(judgement.quality)):
            yield SlowCause(cause, judgement.container, judgement.why)
    if users := tuple(intruding):
        cpus = Mask.union(each.cpus for each in users)
        names = some_of([f"/{each.cgroup}" for each in users], _NAMED)
        yield SlowCause(SlowKind.INTRUDERS, "", f"{names} may use its CPUs {cpus}")
    own = [str(each) for each in late if not each.cpus.isdisjoint(allocation.exclusive_cpus)]
    if own:
        yield SlowCause(SlowKind.INTERRUPTS, "", f"still come: {some_of(own, _NAMED)}")


def _of_load(allocation: PodAllocation, name: str | None, load: CgroupLoad) -> Iterator[SlowCause]:
    """Yield the causes of one cgroup. The pressure of a pod is that of its containers."""
    container = None if name is None else allocation.container(name)
    exclusive = container is not None and container.isolation is Isolation.CONTAINER
    exclusive = exclusive or (name is None and bool(allocation.exclusive_cpus))
    where = name or ""
    if stat := load.get(CPU_STAT):
        throttled, periods = stat["nr_throttled"], stat["nr_periods"]
        least = 0.0 if exclusive else LEAST[SlowKind.THROTTLED]
        if throttled and 100 * throttled >= least * periods:
            figure = f"its quota ended too early in {throttled:.0f} of {periods:.0f} periods"
            lost = f"its CPUs stood still for {stat['throttled_usec'] / 1e6:.2f} s together"
            yield SlowCause(SlowKind.THROTTLED, where, f"{figure}, {lost}")
    for kind, file, what in _PRESSURES if name else ():
        if (pressure := load.get(file)) and pressure["avg60"] >= LEAST[kind]:
            now = f"{pressure['avg10']:.1f} % of the last 10 s"
            message = f"waited for {what} in {pressure['avg60']:.1f} % of the last 60 s, {now}"
            yield SlowCause(kind, where, message)
    if events := load.get(MEMORY_EVENTS):
        limits = [f"memory.{key} {events[key]:.0f} times" for key in ("high", "max") if events[key]]
        if limits:
            yield SlowCause(SlowKind.RECLAIMED, where, f"reached {' and '.join(limits)}")
        if killed := events["oom_kill"]:
            message = f"processes killed because memory ran out: {killed:.0f}"
            yield SlowCause(SlowKind.KILLED, where, message)


def _of_memory(
    policy: NumaPolicy | None, memory: Iterable[tuple[str, Mapping[int, int]]]
) -> Iterator[SlowCause]:
    """Yield which memory is where a NUMA policy would not have it."""
    for name, by_node in memory:
        total = sum(by_node.values())
        if policy is None or total < _LEAST_MEMORY:
            continue
        message = ""
        if policy.mode is NumaMode.INTERLEAVE:
            if 2 * len(by_node) * min(by_node.values()) < total:
                texts = [f"{size_text(size)} on node {node}" for node, size in by_node.items()]
                message = f"its memory is not even: {some_of(texts, _NAMED)}"
        elif near := policy.nodes & Mask.from_ids(by_node):
            elsewhere = total - sum(by_node[node] for node in near)
            if 2 * elsewhere > total:
                where = f"{size_text(elsewhere)} of its memory is not on {nodes_text(near)}"
                message = f"{where}, which its pool prefers"
        if message:
            yield SlowCause(SlowKind.NUMA_POLICY, name, message)


def _of_speeds(speeds: Iterable[CpuSpeed]) -> Iterator[SlowCause]:
    """Yield the causes of CPUs, those with the same figures in one line."""
    capped, slowed = defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)
    for each in speeds:
        if each.limit is not None and each.highest is not None and each.limit < each.highest:
            figure = f"{each.limit / 1e6:.2f} of {each.highest / 1e6:.2f} GHz (scaling_max_freq)"
            capped[f"may reach {figure}"].append(each.cpu)
        if each.slowed:
            slowed[f"slowed {each.slowed} times since the host started"].append(each.cpu)
    for cause, found in ((SlowKind.FREQUENCY, capped), (SlowKind.HEAT, slowed)):
        for figure, cpus in found.items():
            yield SlowCause(cause, "", f"CPUs {Mask.from_ids(cpus)} {figure}")
