"""Hosts with uneven cores, drawn from a seed, and how well sets of CPUs lie on their cores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.managers.cpu.topology import CpuTopology
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    #: CPU, core, socket, node, uncore cache; ids are host-wide.
    Row = tuple[int, int, int, int, int]


def draw_host(random: Random) -> CpuTopology:
    """Draw a host whose cores differ: threads offline, hybrid cores, or both on uneven sockets."""
    while True:
        rows = random.choice([_with_threads_offline, _hybrid, _of_uneven_sockets])(random)
        topology = CpuTopology.from_rows(rows)
        if not topology.cores_alike:
            return topology


def _with_threads_offline(random: Random) -> list[Row]:
    threads = random.choice([2, 2, 2, 2, 4])
    caches = [[threads] * (random.choice([8, 16]) // threads)]
    nodes = random.choice([1, 2, 2, 4])
    rows = _rows([caches] * nodes, nodes_per_socket=random.choice([1, 2]), linux=_often(random))
    lost = random.sample(rows, random.choice([1, 1, 1, 2, 4]))
    return [row for row in rows if row not in lost]


def _hybrid(random: Random) -> list[Row]:
    """Draw nodes of performance cores (two threads) and efficiency cores (one)."""
    nodes = random.choice([1, 1, 2])
    performance, efficiency = random.randint(2, 6), random.randint(2, 8)
    cores = [2] * performance + [1] * efficiency
    if _often(random):
        random.shuffle(cores)
    caches = [cores[:performance], cores[performance:]]
    return _rows([caches] * nodes, nodes_per_socket=1, linux=_often(random))


def _of_uneven_sockets(random: Random) -> list[Row]:
    """Draw nodes of one to three caches of one to six cores, some with a thread offline."""
    parts = [
        [
            [random.choice([1, 2, 2, 2, 2]) for _ in range(random.randint(1, 6))]
            for _ in range(random.randint(1, 3))
        ]
        for _ in range(random.choice([2, 3, 4]))
    ]
    return _rows(parts, nodes_per_socket=random.choice([1, 2]), linux=_often(random))


def _often(random: Random) -> bool:
    return random.random() < 0.5


def _rows(
    parts: Sequence[Sequence[Sequence[int]]], *, nodes_per_socket: int, linux: bool
) -> list[Row]:
    """Return the rows of nodes of caches of cores of so many threads.

    With `linux` the first threads of all cores come first, else siblings are neighbours.
    """
    threads = [
        (thread, core, node, cache)
        for core, (node, cache, size) in enumerate(
            (node, (node, at), size)
            for node, caches in enumerate(parts)
            for at, cores in enumerate(caches)
            for size in cores
        )
        for thread in range(size)
    ]
    ids = {cache: number for number, cache in enumerate(dict.fromkeys(one[3] for one in threads))}
    if linux:
        threads.sort(key=lambda one: one[:2])
    first: dict[int, int] = {}
    return [
        (cpu, first.setdefault(core, cpu), node // nodes_per_socket, node, ids[cache])
        for cpu, (_, core, node, cache) in enumerate(threads)
    ]


def cores_touched(topology: CpuTopology, cpus: Mask) -> int:
    return sum(1 for core in topology.cores if core.cpus & cpus.bits)


def cores_needed(topology: CpuTopology, free: Mask, count: int) -> int:
    """Return on how few cores `count` of the free CPUs lie: those with the most first."""
    number = 0
    for size in sorted((core.cpus & free.bits).bit_count() for core in topology.cores)[::-1]:
        if count <= 0:
            return number
        count -= size
        number += 1
    return number


def needlessly_shared(topology: CpuTopology, free: Mask, others: Mask, chosen: Mask) -> Mask:
    """Return the chosen CPUs that have CPUs of `others` on their core for no reason.

    There is one where no core would serve instead: a core all of whose CPUs were `free`, are not
    chosen, and are no more than those that stand beside others (so nothing of it is left over).
    """
    shared = topology.cores_of(others) & chosen
    serves = any(
        not core.cpus & ~free.bits and not core.cpus & chosen.bits and core.size <= len(shared)
        for core in topology.cores
    )
    return shared if serves else EMPTY


def torn(topology: CpuTopology, cpus: Mask) -> int:
    """Return how many of the CPUs are on cores that have others as well."""
    return sum(
        (core.cpus & cpus.bits).bit_count() for core in topology.cores if core.cpus & ~cpus.bits
    )
