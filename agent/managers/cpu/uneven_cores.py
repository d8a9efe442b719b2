"""The fewest cores for a number of CPUs, where cores differ in size.

In go free CPUs (bits) and the number of CPUs asked for. Out comes a set of that many free CPUs
(`fewest_cores`), or only how many of them can be in whole cores. Cores differ in size where threads
are offline or the processor is a hybrid one. The kubelet knows only the average core and packs by
that size. Here each core counts with the threads that are online.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from agent.managers.cpu.topology import inner_order, lowest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agent.managers.cpu.topology import CpuTopology, Groups


class _FreeCores(NamedTuple):
    """The cores that have free CPUs, in the order of taking; of each its free CPUs (bits)."""

    #: Cores without a busy CPU, by size: the largest size first.
    whole: Mapping[int, Sequence[int]]
    #: The other cores.
    partial: Sequence[int]


class _Choice(NamedTuple):
    """Whole cores, and a rest of CPUs from parts of cores. The smallest choice is the best."""

    #: The number of CPUs in parts of cores; 0 where whole cores are not asked for.
    torn: int
    #: The number of cores touched.
    cores: int
    #: Whether the rest is from a core that was whole.
    breaks: bool
    #: The number of whole cores of each size, in the order of `_FreeCores.whole`.
    numbers: tuple[int, ...]
    #: The free CPUs (bits) of each core that gives a part of the rest.
    parts: tuple[int, ...]


def fewest_cores(topology: CpuTopology, free: int, count: int, *, whole: bool) -> int:
    """Return `count` of the `free` CPUs (bits) on as few cores as possible.

    CPUs beside busy ones of their core are taken only where no free core is left that they would
    fill. A partly busy core is preferred to a part of a free core. With `whole` (`full-pcpus-only`)
    as many CPUs as possible are in whole cores, however many cores that takes. Cores of equal size
    are taken in the kubelet's order. `count` is at most the number of `free`.
    """
    cores = _free_cores(topology, free)
    best = min(_choices(cores, count, whole=whole))
    taken = 0
    for group, number in zip(cores.whole.values(), best.numbers, strict=False):
        taken |= sum(group[:number])
    for part in best.parts:
        taken |= lowest(part, count - taken.bit_count())
    return taken


def most_in_whole_cores(topology: CpuTopology, free: int, count: int) -> int:
    """Return the most of `count` CPUs that can be in whole cores of the `free` CPUs (bits)."""
    return _sums(_whole_sizes(topology.cores, free), count).bit_length() - 1


def most_by_set(topology: CpuTopology, free: int, count: int) -> list[int]:
    """Return `most_in_whole_cores` of every set of NUMA nodes, in the order of `subset_sums`."""
    sums = [1]  # of each set the numbers of CPUs that its whole cores can make, as bits
    for node in topology.nodes:
        sizes = _whole_sizes(topology.cores_in_node[node.id], node.cpus & free)
        more = {beside: _sums(sizes, count, beside) for beside in set(sums)}  # few differ
        sums += [more[beside] for beside in sums]
    return [each.bit_length() - 1 for each in sums]


def _sums(sizes: Sequence[int], most: int, beside: int = 1) -> int:
    """Return as bits the sums up to `most` of some of the sizes and one number of `beside`."""
    for size in sizes:
        beside |= beside << size
    return beside & (2 << most) - 1


def _whole_sizes(cores: Groups, free: int) -> list[int]:
    return [core.size for core in cores if not core.cpus & ~free]


def _free_cores(topology: CpuTopology, free: int) -> _FreeCores:
    whole: dict[int, list[int]] = {}
    partial: list[int] = []
    unseen = free
    for inner in inner_order(topology, free):
        for core in topology.levels.cores_of[inner.id]:
            if not core.cpus & ~unseen:
                whole.setdefault(core.size, []).append(core.cpus)
            elif core.cpus & unseen:
                partial.append(core.cpus & unseen)
            unseen &= ~core.cpus
    return _FreeCores(dict(sorted(whole.items(), reverse=True)), partial)


def _choices(cores: _FreeCores, count: int, *, whole: bool) -> Iterator[_Choice]:
    sizes = [(size, len(group)) for size, group in cores.whole.items()]
    for rest, numbers in _whole_numbers(sizes, count):
        torn, used = rest if whole else 0, sum(numbers)
        if not rest:
            yield _Choice(torn, used, breaks=False, numbers=numbers, parts=())
            continue
        left = _cores_left(cores, numbers)
        larger = [part for part in left if part.bit_count() > rest]
        if larger:  # the smallest, the first of equal ones
            part = min(larger, key=int.bit_count)
            yield _Choice(torn, used + 1, breaks=True, numbers=numbers, parts=(part,))
        if len(larger) == len(left):
            parts = _fewest_parts(cores.partial, rest)
            if parts:
                used += len(parts)
                yield _Choice(torn, used, breaks=False, numbers=numbers, parts=parts)


def _whole_numbers(
    sizes: Sequence[tuple[int, int]], count: int
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the CPUs that remain of `count`, and the number of whole cores of each size.

    `sizes` are pairs of a size and the number of its cores, the largest size first. Numbers of the
    last sizes may be left out; they are 0. For each size only the `size` highest numbers that fit
    are tried: where `size` or more of the smaller cores are taken instead, some of them have a
    multiple of `size` CPUs together, and fewer cores of this size have as many.
    """
    yield count, ()
    fewest: dict[int, tuple[int, ...]] = {count: ()}
    for size, available in sizes:
        following: dict[int, tuple[int, ...]] = {}
        for remaining, numbers in fewest.items():
            most = min(available, remaining // size)
            for number in range(most, max(most - size, -1), -1):
                chosen = (*numbers, number)
                known = following.setdefault(remaining - number * size, chosen)
                if sum(chosen) < sum(known):
                    following[remaining - number * size] = chosen
        yield from following.items()
        fewest = following


def _cores_left(cores: _FreeCores, numbers: Sequence[int]) -> list[int]:
    """Return the next whole core of each size that has more than the number taken."""
    left: list[int] = []
    for place, group in enumerate(cores.whole.values()):
        taken = numbers[place] if place < len(numbers) else 0
        left += group[taken : taken + 1]
    return left


def _fewest_parts(partial: Sequence[int], count: int) -> tuple[int, ...]:
    """Return the fewest parts of cores that have `count` CPUs; none where all have fewer."""
    enough = [part for part in partial if part.bit_count() >= count]
    if enough:
        return (min(enough, key=int.bit_count),)
    parts: list[int] = []
    for part in sorted(partial, key=int.bit_count, reverse=True):
        parts.append(part)
        count -= part.bit_count()
        if count <= 0:
            return tuple(parts)
    return ()
