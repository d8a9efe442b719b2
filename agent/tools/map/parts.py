"""The parts of a picture: nested parts of a host, marks of its CPUs, lines of spans with a tone."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from enum import Enum
from itertools import groupby, product
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.api.map import CpuUse, MapCpuDocument, is_shared
from agent.pods.model import full_name
from agent.text import printable
from sysfs.host import CoreKind
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from agent.api.map import MapDocument

    #: What a level is called, and the group of a CPU on it.
    Level = tuple[str, Callable[[MapCpuDocument], int | None]]


class Tone(Enum):
    """The meaning of a span, which a terminal shows as a colour: its escape sequence (SGR)."""

    PLAIN = ""
    HEADING = "1"
    FAINT = "2"
    WARNING = "1;31"
    POD_0 = "36"
    POD_1 = "33"
    POD_2 = "35"
    POD_3 = "32"
    POD_4 = "34"
    POD_5 = "96"


#: The tones of pods, in turn.
POD_TONES: Final = (Tone.POD_0, Tone.POD_1, Tone.POD_2, Tone.POD_3, Tone.POD_4, Tone.POD_5)


class TextSpan(Struct, frozen=True):
    """A piece of a line."""

    text: str
    tone: Tone = Tone.PLAIN


#: One line of a picture.
Line = tuple[TextSpan, ...]


def line(*texts: str | TextSpan) -> Line:
    """Return a line of plain texts and spans."""
    return tuple(TextSpan(text) if isinstance(text, str) else text for text in texts)


def indented(by: int, spans: Line) -> Line:
    """Return a line further to the right."""
    return (TextSpan(" " * by), *spans)


#: By how much more than its first line a line continues to the right.
_CONTINUED: Final = 4
_PIECES: Final = re.compile(r" +|[^ ]+")


def broken(spans: Line, width: int) -> Iterator[Line]:
    """Yield a line, broken at blanks where it is longer than `width`; a longer word stays whole."""
    text = "".join(span.text for span in spans).rstrip()
    if len(text) <= width:
        yield spans
        return
    indent = len(text) - len(text.lstrip()) + _CONTINUED
    row: list[TextSpan] = []
    used = at_least = 0
    for blank, word in _words(spans):
        length = sum(len(span.text) for span in word)
        if used > at_least and used + len(blank) + length > width:
            yield _joined(row)
            row, used, at_least = [TextSpan(" " * indent)], indent, indent
        else:
            row.append(TextSpan(blank, word[0].tone))
            used += len(blank)
        row += word
        used += length
    yield _joined(row)


def _joined(spans: Iterable[TextSpan]) -> Line:
    """Return a line in which neighbours of one tone are one span."""
    return tuple(
        TextSpan("".join(span.text for span in same), tone)
        for tone, same in groupby(spans, key=lambda span: span.tone)
    )


def _words(spans: Line) -> Iterator[tuple[str, list[TextSpan]]]:
    """Yield each word, whose letters may have several tones, after the blanks before it."""
    blank, word = "", list[TextSpan]()
    for span in spans:
        for piece in _PIECES.findall(span.text):
            if not piece.startswith(" "):
                word.append(TextSpan(piece, span.tone))
                continue
            if word:
                yield blank, word
                blank, word = "", []
            blank += piece
    if word:
        yield blank, word


def plain(spans: Iterable[TextSpan]) -> str:
    """Return a line without colours and trailing blanks."""
    return printable("".join(span.text for span in spans)).rstrip()


def painted(spans: Iterable[TextSpan]) -> str:
    """Return a line with the escape sequences of a terminal (ECMA-48, SGR)."""
    return "".join(
        f"\x1b[{span.tone.value}m{text}\x1b[0m" if span.tone.value else text
        for span in spans
        for text in (printable(span.text),)
    ).rstrip()


class MappedCore(Struct, frozen=True):
    """One core with its online threads, or one offline CPU, of which no core is known."""

    kind: str
    threads: tuple[MapCpuDocument, ...]


class MappedPart(Struct, frozen=True):
    """One package, die, node or cache: its online CPUs and what is inside; cores if nothing is.

    `first` is false where a node that nests in no order is drawn again. Parts of kind `offline`
    have the offline CPUs of the node `id`.
    """

    kind: str
    id: int | None
    cpus: Mask
    children: tuple[MappedPart, ...]
    cores: tuple[MappedCore, ...]
    first: bool = True

    def shape(self) -> object:
        """Return a value that is equal for parts that differ in their ids alone.

        CPUs that a pod has are never alike: it matters where they are.
        """
        cores = tuple(
            (
                core.kind,
                tuple((cpu.use, cpu.isolated, cpu.owners, cpu.cordoned) for cpu in core.threads),
            )
            for core in self.cores
        )
        place = self.cpus.bits if any(core_owners(core) for core in self.cores) else None
        children = tuple(child.shape() for child in self.children)
        return self.kind, self.first, self.id is None, place, children, cores

    def all_cores(self) -> Iterator[MappedCore]:
        """Yield the cores of this part and of all inside of it."""
        yield from self.cores
        for child in self.children:
            yield from child.all_cores()


def core_owners(core: MappedCore) -> bool:
    """Return whether any thread of a core has an owner."""
    return any(cpu.owners for cpu in core.threads)


def parts_of(document: MapDocument) -> tuple[MappedPart, ...]:
    """Return the outermost parts of a host with all inside, and its offline CPUs by node last.

    Packages are around dies, nodes and caches, in this order, except where a group has CPUs of
    several groups of the level above: then it is drawn around them, so that it is drawn once. Only
    a node that is neither around nor inside of packages is drawn several times, `first` once. Every
    CPU is in exactly one part without children. Nodes without online CPUs are in none.
    """
    online = [cpu for cpu in document.cpus if cpu.use is not CpuUse.OFFLINE]
    offline = [cpu for cpu in document.cpus if cpu.use is CpuUse.OFFLINE]
    return (*_split(online, _nested(online, _levels(online)), set()), *_offline(offline))


def alike(
    parts: Iterable[MappedPart], key: Callable[[MappedPart], object] = MappedPart.shape
) -> list[tuple[MappedPart, ...]]:
    """Return the parts in runs of equal shape."""
    return [tuple(run) for _, run in groupby(parts, key=key)]


def cores_text(cores: Iterable[MappedCore]) -> str:
    """Count cores by kind and threads: `6 performance cores x 2 threads + 8 efficiency cores`."""
    counts = Counter((core.kind, len(core.threads)) for core in cores)
    return " + ".join(
        f"{counted(number, f'{_prefix(kind)}core')}{f' x {threads} threads' if threads > 1 else ''}"
        for (kind, threads), number in counts.items()
    )


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 core`, `2 cores`, `2 L3`."""
    return f"{number} {noun if number == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """Return the plural of the name of a level or core."""
    return noun if noun == "L3" else f"{noun}s"


def _prefix(kind: str) -> str:
    return "" if kind == CoreKind.STANDARD else f"{kind} "


def _levels(cpus: Sequence[MapCpuDocument]) -> tuple[Level, ...]:
    """Leave out what says nothing: unknown packages and caches, dies that are packages."""
    packages = {cpu.package for cpu in cpus} - {None}
    dies = {cpu.die for cpu in cpus} - {None}
    levels: list[Level] = []
    if packages:
        levels.append(("package", lambda cpu: cpu.package))
    if len(dies) > len(packages):
        levels.append(("die", lambda cpu: cpu.die))
    levels.append(("node", lambda cpu: cpu.node))
    if any(cpu.uncore is not None for cpu in cpus):
        levels.append(("L3", lambda cpu: cpu.uncore))
    return tuple(levels)


def _nested(cpus: Sequence[MapCpuDocument], levels: Sequence[Level]) -> list[Level]:
    """Return the levels from the outermost to the innermost, in their order where it does."""
    ordered: list[Level] = []
    for level in levels:
        inner = (
            place
            for place, other in enumerate(ordered)
            if _is_inside(cpus, other, level) and not _is_inside(cpus, level, other)
        )
        ordered.insert(next(inner, len(ordered)), level)
    return ordered


def _is_inside(cpus: Sequence[MapCpuDocument], inner: Level, outer: Level) -> bool:
    pairs = {(inner[1](cpu), outer[1](cpu)) for cpu in cpus}
    return len(pairs) == len({group for group, _ in pairs})


def _split(
    cpus: Sequence[MapCpuDocument], levels: Sequence[Level], drawn: set[int]
) -> tuple[MappedPart, ...]:
    if not levels:
        return ()
    (kind, group_of), deeper = levels[0], levels[1:]
    parts: list[MappedPart] = []
    for group, members in _groups(cpus, group_of):
        again = kind == "node" and group in drawn
        if kind == "node" and group is not None:
            drawn.add(group)
        parts.append(
            MappedPart(
                kind=kind,
                id=group,
                cpus=Mask.from_ids(cpu.id for cpu in members),
                children=_split(members, deeper, drawn),
                cores=() if deeper else _cores(members),
                first=not again,
            )
        )
    return tuple(parts)


def _groups(
    cpus: Iterable[MapCpuDocument], group_of: Callable[[MapCpuDocument], int | None]
) -> list[tuple[int | None, list[MapCpuDocument]]]:
    groups: dict[int | None, list[MapCpuDocument]] = defaultdict(list)
    for cpu in cpus:
        groups[group_of(cpu)].append(cpu)
    return sorted(groups.items(), key=lambda group: (group[0] is None, group[0] or 0))


def _cores(cpus: Sequence[MapCpuDocument]) -> tuple[MappedCore, ...]:
    cores: dict[int | None, list[MapCpuDocument]] = defaultdict(list)
    for cpu in cpus:
        cores[cpu.core].append(cpu)
    return tuple(MappedCore(threads[0].kind, tuple(threads)) for threads in cores.values())


def _offline(cpus: Sequence[MapCpuDocument]) -> Iterator[MappedPart]:
    for node, members in _groups(cpus, lambda cpu: cpu.node):
        yield MappedPart(
            kind="offline",
            id=node,
            cpus=Mask.from_ids(cpu.id for cpu in members),
            children=(),
            cores=tuple(MappedCore(cpu.kind, (cpu,)) for cpu in members),
        )


#: Letters of pods; without those that mean something else in either case: I, O, R, X.
_LETTERS: Final = "ABCDEFGHJKLMNPQSTUVWYZ"
_SIGNS: Final = {
    CpuUse.OFFLINE: "x",
    CpuUse.WITHHELD: "-",
    CpuUse.CORDONED: "/",
    CpuUse.RESERVED: "R",
    CpuUse.SHARED: ".",
    CpuUse.ONLINE: ".",
}
#: What no pod runs on, whatever a pod was given.
NOT_THERE: Final = frozenset({CpuUse.OFFLINE, CpuUse.WITHHELD})
#: The CPU has several owners.
TWICE: Final = "*"
#: Another pod than that on which the map is focused.
OTHER: Final = "o"
ISOLATED: Final = "i"
#: Behind the mark of a thread whose core has several users.
SHARED_CORE: Final = "!"

MEANINGS: Final[Mapping[str, str]] = {
    "R": "reserved",
    ".": "shared pool",
    "/": "cordoned",
    "x": "offline",
    "-": "withheld by another cgroup",
    ISOLATED: "isolated, in the shared pool",
    OTHER: "another pod",
    TWICE: "allocated twice",
    SHARED_CORE: "core with several users",
}


class Marks(Struct, frozen=True):
    """The label of each pod that has CPUs, by uid, and its tone; `focus` is the pod asked for.

    `names` are the `namespace/name` of all pods.
    """

    labels: Mapping[str, str]
    tones: Mapping[str, Tone]
    names: Mapping[str, str]
    focus: str | None = None

    def of(self, cpu: MapCpuDocument) -> TextSpan:
        """Return the mark of a CPU: upper case where it is one container's, lower case the pod's.

        A CPU that is offline or withheld is marked as that also if a pod has it.
        """
        if cpu.use in NOT_THERE or not cpu.owners:
            quiet = cpu.use in (*NOT_THERE, CpuUse.RESERVED, CpuUse.CORDONED)
            unmarked = cpu.isolated and cpu.use in (CpuUse.SHARED, CpuUse.ONLINE)
            sign = ISOLATED if unmarked else _SIGNS[cpu.use]
            return TextSpan(sign, Tone.FAINT if quiet else Tone.PLAIN)
        if len(cpu.owners) > 1:
            return TextSpan(TWICE, Tone.WARNING)
        owner = cpu.owners[0]
        if self.focus not in (None, owner.uid):
            return TextSpan(OTHER, Tone.FAINT)
        label = self.labels[owner.uid]
        return TextSpan(label if owner.container else label.lower(), self.tones[owner.uid])

    def in_core(self, core: MappedCore) -> Iterator[tuple[TextSpan, ...]]:
        """Yield the marks of the threads of a core; those of a shared core have a sign behind."""
        shared = is_shared(core.threads)
        for cpu in core.threads:
            mark = self.of(cpu)
            yield (mark, TextSpan(SHARED_CORE, Tone.WARNING)) if shared else (mark,)


def marks_of(document: MapDocument, focus: str | None = None) -> Marks:
    """Return the marks of a map; with `focus`, the uid of a pod, all others are alike."""
    owners = {owner.uid for cpu in document.cpus for owner in cpu.owners}
    names = _names()
    labels = {pod.uid: next(names) for pod in document.pods if pod.uid in owners}
    tones = {uid: POD_TONES[place % len(POD_TONES)] for place, uid in enumerate(labels)}
    return Marks(labels, tones, {pod.uid: full_name(pod) for pod in document.pods}, focus)


def _names() -> Iterator[str]:
    """Yield A to Z, AA to ZZ and so on, without the letters that mean something else."""
    length = 1
    while True:
        yield from map("".join, product(_LETTERS, repeat=length))
        length += 1
