"""Which part of each L3 cache, and of memory bandwidth, a class has: pure decisions.

In go the classes of a configuration and what the processor divides (`Resctrl`), out come the lines
of a schemata file for each class (`Schemata`, which `parse_schemata` and `schemata_text` read and
write), and what cannot be. The classes meet masks of ways, whose bits have to be adjacent on most
processors, and a step of bandwidth. Parts that are asked for as percentages are placed here, the
exclusive ones first, so that they are the same at each start and whichever pods come.

Source: Documentation/filesystems/resctrl.rst of Linux 6.12 (info/, schemata, mode).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.yaml import Mistake

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from agent.config.isolation import ResctrlClass, ResctrlConfig

#: The lines of a schemata file for the L3 cache: one, or two where code and data are divided (CDP).
CACHES: Final = ("L3", "L3CODE", "L3DATA")
BANDWIDTH: Final = "MB"
_CLASSES: Final = "agent.isolation.resctrl.classes"

#: A schemata file: the value of each cache id, by the name of the line.
Schemata = dict[str, dict[int, int]]


class CacheControl(Struct, frozen=True):
    """How the processor divides a cache: `info/L3`."""

    #: All ways (`cbm_mask`), the fewest of a part (`min_cbm_bits`), those that devices use as well
    #: (`shareable_bits`), and whether the ways of a part may lie apart (`sparse_masks`).
    whole: int
    least: int
    shareable: int
    sparse: bool

    def fault(self, ways: int) -> str:
        """Return what is wrong with a mask, "" for nothing."""
        if ways & ~self.whole:
            return f"the cache has {self.whole:#x}"
        if ways.bit_count() < self.least:
            return f"the processor needs {self.least} ways at least"
        if not self.sparse and ways != _runs(ways)[0]:
            return "the processor needs adjacent ways"
        return ""

    def left(self, taken: int) -> int:
        """Return the most ways that can be used beside these, 0 where that are too few."""
        free = self.whole & ~taken
        best = free if self.sparse else max(_runs(free), key=int.bit_count, default=0)
        return best if best.bit_count() >= self.least else 0

    def ways(self, percentage: str) -> int:
        """Return how many ways a percentage is, rounded up."""
        share = -(-int(percentage.removesuffix("%")) * self.whole.bit_count() // 100)
        return max(self.least, share)

    def place(self, count: int, taken: int) -> int:
        """Return a run of so many ways beside those that are taken, 0 where there is none.

        It lies at the end of the cache that devices do not use, so that the rest is in one piece.
        """
        size = self.whole.bit_length()
        starts: Iterable[int] = range(size - count + 1)
        if self.shareable & 1:
            starts = reversed(range(size - count + 1))
        for start in starts:
            run = ((1 << count) - 1) << start
            if not run & (taken | ~self.whole):
                return run
        return 0


class BandwidthControl(Struct, frozen=True):
    """How the processor limits memory bandwidth: `info/MB`."""

    #: `min_bandwidth` and `bandwidth_gran`.
    least: int
    step: int
    #: Whether the values are percentages: Intel's are, AMD's are 1/8 GB/s, and with the mount
    #: option mba_MBps they are MB/s.
    percent: bool


class Resctrl(Struct, frozen=True):
    """What a host divides; `caches` is by the name of a line, `ids` has the ids of a line."""

    #: How many control groups there can be, that of all other tasks among them.
    groups: int
    caches: Mapping[str, CacheControl]
    bandwidth: BandwidthControl | None
    ids: Mapping[str, Sequence[int]]


class Shares(Struct, frozen=True):
    """The schemata of each class, and what of the configuration the host cannot give."""

    schemata: Mapping[str, Schemata]
    mistakes: tuple[Mistake, ...] = ()


def shares(config: ResctrlConfig, host: Resctrl) -> Shares:
    """Return what each class has on a host.

    With a mistake nothing of it is to be used: no two classes could rely on each other's parts.
    """
    mistakes: list[Mistake] = []
    schemata: dict[str, Schemata] = {name: {} for name in config.classes}
    if len(schemata) >= host.groups:
        most = f"this processor has control groups for {host.groups - 1}"
        mistakes.append(Mistake(_CLASSES, f"there are {len(schemata)} classes, and {most}"))
    for line in host.caches:
        for cache in host.ids.get(line, ()):
            for name, ways, fault in _divide(config.classes, host.caches[line], cache):
                if fault:
                    path = f"{_CLASSES}.{name}.L3" if name else _CLASSES
                    mistakes.append(Mistake(path, f"cache {cache}: {fault}"))
                else:
                    schemata[name].setdefault(line, {})[cache] = ways
    for name, cache_class in config.classes.items():
        mistakes.extend(_cache_mistakes(name, cache_class, host))
        if cache_class.mb:
            mistakes.extend(_limit(name, cache_class, host, schemata[name]))
    unique = {(one.path, one.message): one for one in mistakes}
    return Shares(MappingProxyType(schemata), tuple(unique.values()))


def beside(shown: Schemata, host: Resctrl, exclusive: Iterable[Schemata]) -> Schemata:
    """Return what all other tasks keep of what they had, beside exclusive classes."""
    taken: Schemata = {}
    for schemata in exclusive:
        for line in host.caches.keys() & schemata.keys():
            for cache, ways in schemata[line].items():
                at = taken.setdefault(line, {})
                at[cache] = at.get(cache, 0) | ways
    left: Schemata = {}
    for line, by_id in taken.items():
        control = host.caches[line]
        for cache, ways in by_id.items():
            kept = shown.get(line, {}).get(cache, control.whole) & ~ways
            usable = kept and not control.fault(kept)
            left.setdefault(line, {})[cache] = kept if usable else control.left(ways)
    return left


def _divide(
    classes: Mapping[str, ResctrlClass], control: CacheControl, cache: int
) -> Iterator[tuple[str, int, str]]:
    """Yield for each class its ways of one cache, and what is wrong with them, "" for nothing."""
    asked = {name: _at(cache_class.l3, cache) for name, cache_class in classes.items()}
    taken = 0
    # Masks before percentages, which are placed beside them.
    for name in sorted(asked, key=lambda name: (asked[name].endswith("%"), name)):
        if classes[name].exclusive:
            ways, fault = _exclusive_ways(control, asked[name], taken)
            yield name, ways, fault
            taken |= 0 if fault else ways
    rest = control.left(taken)
    for name, text in asked.items():
        if not classes[name].exclusive:
            yield name, *_other_ways(control, text, taken, rest)
    if not rest:
        yield "", 0, "exclusive classes leave too little to all others"


def _exclusive_ways(control: CacheControl, text: str, taken: int) -> tuple[int, str]:
    if not text:
        return 0, "an exclusive class needs a part of each cache"
    if text.endswith("%"):
        count = control.ways(text)
        ways = control.place(count, taken | control.shareable)
        return ways, "" if ways else f"{count} adjacent ways are not free beside other classes"
    ways = int(text, 16)
    devices, others = ways & control.shareable, ways & taken
    if devices:
        return ways, f"devices use {devices:#x} of it"
    if others:
        return ways, f"another exclusive class has {others:#x} of it"
    return ways, control.fault(ways)


def _other_ways(control: CacheControl, text: str, taken: int, rest: int) -> tuple[int, str]:
    if text.endswith("%"):
        count = control.ways(text)
        ways = control.place(count, ~rest)
        left = f"{rest.bit_count()} ways are left beside exclusive classes, not {count}"
        return ways, "" if ways else left
    if not text:
        return rest, ""
    ways = int(text, 16)
    if ways & taken:
        return ways, f"an exclusive class has {ways & taken:#x} of it"
    return ways, control.fault(ways)


def _cache_mistakes(name: str, cache_class: ResctrlClass, host: Resctrl) -> Iterator[Mistake]:
    path = f"{_CLASSES}.{name}.L3"
    if (cache_class.l3 or cache_class.exclusive) and not host.caches:
        yield Mistake(path, "this processor does not divide its L3 caches (CAT)")
    for line in host.caches:
        yield from _unknown(path, cache_class.l3, host.ids.get(line, ()))


def _limit(
    name: str, cache_class: ResctrlClass, host: Resctrl, lines: Schemata
) -> Iterator[Mistake]:
    """Note the bandwidth of a class; yield what the processor cannot do."""
    path, control = f"{_CLASSES}.{name}.MB", host.bandwidth
    if control is None:
        yield Mistake(path, "this processor does not limit memory bandwidth (MBA)")
        return
    ids = host.ids.get(BANDWIDTH, ())
    yield from _unknown(path, cache_class.mb, ids)
    for cache in ids:
        text = _at(cache_class.mb, cache)
        if not text:
            continue
        value = int(text.removesuffix("%"))
        if text.endswith("%") and not control.percent:
            unit = "its unit is 1/8 GB/s (AMD), or MB/s with the mount option mba_MBps"
            yield Mistake(path, f"this host takes no percentage: {unit}; give a number")
        elif control.percent and not control.least <= value <= 100:  # noqa: PLR2004  # percent
            yield Mistake(path, f"this processor takes {control.least} to 100 percent")
        else:
            lines.setdefault(BANDWIDTH, {})[cache] = -(-value // control.step) * control.step


def _unknown(path: str, text: str, ids: Sequence[int]) -> Iterator[Mistake]:
    for part in text.split(";") if "=" in text else ():
        if int(part.partition("=")[0]) not in ids:
            there = ", ".join(map(str, ids))
            yield Mistake(path, f"there is no cache {part.partition('=')[0]}, there are {there}")


def _at(text: str, cache: int) -> str:
    """Return what is asked for one cache, "" for nothing."""
    if "=" not in text:
        return text
    parts = (part.partition("=") for part in text.split(";"))
    return {int(at): value for at, _, value in parts}.get(cache, "")


def _runs(ways: int) -> list[int]:
    """Return the runs of adjacent ways, from the lowest."""
    runs = []
    while ways:
        run = ways & ~(ways + (ways & -ways))
        runs.append(run)
        ways &= ~run
    return runs


def parse_schemata(text: str) -> Schemata:
    """Return the lines of a schemata file that are known; raises `ValueError`."""
    lines: Schemata = {}
    for row in text.splitlines():
        name, _, values = row.strip().partition(":")
        if name in (*CACHES, BANDWIDTH):
            parts = (part.partition("=") for part in values.split(";"))
            base = 10 if name == BANDWIDTH else 16
            lines[name] = {int(at): int(value, base) for at, _, value in parts}
    return lines


def schemata_text(lines: Schemata) -> str:
    """Return the text that the kernel takes."""

    def written(name: str, value: int) -> str:
        return str(value) if name == BANDWIDTH else f"{value:x}"

    rows = (
        f"{name}:" + ";".join(f"{at}={written(name, value)}" for at, value in by_id.items())
        for name, by_id in lines.items()
    )
    return "".join(f"{row}\n" for row in rows)


def has_lines(shown: Schemata, lines: Schemata) -> bool:
    """Return whether all of these lines are among those that are shown."""
    return all(
        shown.get(line, {}).get(cache) == value
        for line, by_id in lines.items()
        for cache, value in by_id.items()
    )
