"""The fewest cores for a number of CPUs where cores differ in size.

Cores differ where threads are offline or the processor is a hybrid one. The kubelet knows only the
average core and packs by that size. Here each core counts with the threads that are online.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from agent.managers.cpu.topology import inner_order, lowest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agent.managers.cpu.topology import CpuTopology, Groups


class _FreeCores(NamedTuple):
    """The cores (bits of their free CPUs) that have free CPUs, in the order of taking.

    `whole` are those without a busy CPU, by size, the largest size first. `partial` are the others.
    """

    whole: Mapping[int, Sequence[int]]
    partial: Sequence[int]


class _Choice(NamedTuple):
    """`numbers` of whole cores of each size, the rest from `parts` of cores; the least is the best.

    `torn` counts the CPUs of the rest where whole cores are asked for, `cores` all cores touched.
    `breaks` is set where the rest is from a core that was whole.
    """

    torn: int
    cores: int
    breaks: bool
    numbers: tuple[int, ...]
    parts: tuple[int, ...]


def fewest_cores(topology: CpuTopology, free: int, count: int, *, whole: bool) -> int:
    """Return `count` of the `free` CPUs (bits) on as few cores as possible.

    CPUs beside busy ones of their core are taken only where no free core is left that these CPUs
    would fill, and one partly busy core is preferred to breaking another. With `whole`
    (`full-pcpus-only`) as many CPUs as possible are in whole cores, however many cores that takes.
    Cores of equal size are taken in the kubelet's order. `count` is at most the number of `free`.
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
    """Return how many of `count` CPUs can be whole cores of the `free` CPUs (bits), at most."""
    return _sums(_whole_sizes(topology.cores, free), count).bit_length() - 1


def most_by_set(topology: CpuTopology, free: int, count: int) -> list[int]:
    """Return the same for every set of NUMA nodes, in the order of `subset_sums`."""
    sums = [1]
    for node in topology.nodes:
        sizes = _whole_sizes(topology.cores_in_node[node.id], node.cpus & free)
        more = {beside: _sums(sizes, count, beside) for beside in set(sums)}  # few differ
        sums += [more[beside] for beside in sums]
    return [each.bit_length() - 1 for each in sums]


def _sums(sizes: Sequence[int], most: int, beside: int = 1) -> int:
    """Return the numbers up to `most`, as bits, that some of the sizes and one of `beside` make."""
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
    """Yield how many CPUs remain of `count` beside numbers of whole cores, one for each size.

    `sizes` are sizes and how many cores have them, the largest first; sizes that are left out at
    the end have no cores. Of `size` smaller cores some always make up a multiple of `size`: fewer
    cores of that size serve as well. So numbers near the most that fit are enough.
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
    """Return the fewest free parts of cores with so many CPUs; none when they do not suffice."""
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
