"""What the kernel shows of a cgroup."""

from __future__ import annotations

import errno
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from cgroupfs.settings import CPUS, EFFECTIVE, MEMS, VALUE_FILES, row_of
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cgroupfs.tree import CgroupTree

EVENTS: Final = "cgroup.events"
#: The line of `EVENTS` where processes live in the cgroup or below.
POPULATED: Final = "populated 1"
#: How the kernel says that a cgroup was removed, the second one of a file that was open already.
GONE: Final = frozenset({errno.ENOENT, errno.ENODEV})
CPUS_EFFECTIVE: Final = EFFECTIVE[CPUS]
MEMS_EFFECTIVE: Final = EFFECTIVE[MEMS]
_FILES: Final = (CPUS, CPUS_EFFECTIVE, EVENTS)
_NODES: Final = (MEMS, MEMS_EFFECTIVE)
#: So many different cgroups are remembered by all of their texts.
_STATES: Final = 1024


class CgroupState(Struct, frozen=True):
    """One cgroup as read: empty `cpus`/`mems` is unset, that is the parent's.

    None stands for a file that is not there because the controller is not enabled, and for memory
    nodes that were not asked for. `values` holds the texts of the files of one value
    (`cgroupfs.settings`) as far as they are there, `in_use` the bytes in use of those limits of
    which that was asked (`with_use`).
    """

    cpus: Mask | None
    cpus_effective: Mask | None
    mems: Mask | None
    mems_effective: Mask | None
    populated: bool
    values: Mapping[str, str] = MappingProxyType({})
    in_use: Mapping[str, int] = MappingProxyType({})


class Writer(Struct, frozen=True):
    """The process that wrote a cgroup file last, as it was when the write was noticed.

    `command` and `cgroup` are "" and `uid` is null where the process had ended by then.
    """

    pid: int
    #: The text of `/proc/PID/comm`.
    command: str
    uid: int | None
    cgroup: str

    def line(self) -> str:
        """Return who wrote, in a few words."""
        user = "" if self.uid is None else f", uid {self.uid}"
        where = f", in {self.cgroup}" if self.cgroup else ""
        return f"written by {self.command or 'process'}[{self.pid}]{user}{where}"


class WriterRecord(Struct, frozen=True):
    """What systemd or a runtime would write into a cgroup; None for files it would not write."""

    cpus: Mask | None = None
    mems: Mask | None = None
    values: Mapping[str, str] = MappingProxyType({})

    def has(self, file: str, text: str) -> bool:
        """Return whether `text` of `file` is what this record would write."""
        value = {CPUS: self.cpus, MEMS: self.mems, **self.values}.get(file)
        return value is not None and str(value) == text


class Reading(Struct, frozen=True):
    """What was read of a cgroup: `files` with their texts, and the state that these show.

    `above` is the text of the CPUs in effect in the parent where those of the cgroup follow from
    that and were not read, `effective` that of the cgroup itself ("": there is no such file).
    """

    files: tuple[str, ...]
    texts: tuple[str | None, ...]
    above: str | None
    effective: str
    state: CgroupState

    def lasts(self, tree: CgroupTree, path: str, above: str | None) -> bool:
        """Return whether the cgroup, read again, shows the same. Raises as `read_cgroup` does."""
        if self.above is not None and self.above != above:
            return False
        try:
            return tree.read_many(path, self.files) == self.texts
        except FileNotFoundError:
            return False


def read_cgroup(
    tree: CgroupTree,
    path: str,
    values: tuple[str, ...] = VALUE_FILES,
    *,
    nodes: bool = True,
    above: str | None = None,
) -> Reading | None:
    """Read one cgroup, None when it is gone. Raises `OSError` for anything but its absence.

    `values` are the files of one value that are read as well, with `nodes` also the memory nodes.
    `above` is the text of the CPUs in effect in the parent, "" where it has no such file. Then only
    what does not follow from that is read: a cgroup without a set has its parent's CPUs, and below
    one without the controller there is none either (cgroup-v2.rst, "Cpuset Interface Files" and
    "Enabling and Disabling").
    """
    sets = (CPUS, CPUS_EFFECTIVE) if above is None else (CPUS,) if above else ()
    files = (*sets, EVENTS, *_NODES, *values) if nodes else (*sets, EVENTS, *values)
    try:
        texts = tree.read_many(path, files)
    except FileNotFoundError:
        return None
    if above and texts[0] is not None and not texts[0].isspace():
        return read_cgroup(tree, path, values, nodes=nodes)
    return _reading(files, texts, above)


def read_state(
    tree: CgroupTree, path: str, values: tuple[str, ...] = VALUE_FILES
) -> CgroupState | None:
    """Return the state of one cgroup; see `read_cgroup`."""
    found = read_cgroup(tree, path, values)
    return None if found is None else found.state


def is_populated(tree: CgroupTree, path: str) -> bool:
    """Return whether processes live in a cgroup or below; none do once its removal has begun."""
    try:
        return POPULATED in tree.read(path, EVENTS)
    except OSError as error:
        if error.errno not in GONE:
            raise
        return False


@lru_cache(maxsize=_STATES)
def _reading(files: tuple[str, ...], texts: tuple[str | None, ...], above: str | None) -> Reading:
    """Return what these files show. Most cgroups of a host show the same texts."""
    shown = {file: text for file, text in zip(files, texts, strict=True) if text is not None}
    if above and CPUS in shown:
        shown[CPUS_EFFECTIVE] = above
    state = CgroupState(
        cpus=_mask(shown.get(CPUS)),
        cpus_effective=_mask(shown.get(CPUS_EFFECTIVE)),
        mems=_mask(shown.get(MEMS)),
        mems_effective=_mask(shown.get(MEMS_EFFECTIVE)),
        populated=POPULATED in shown.get(EVENTS, ""),
        values=MappingProxyType(
            {f: text.strip() for f, text in shown.items() if f not in _FILES and f not in _NODES}
        ),
    )
    return Reading(files, texts, above, shown.get(CPUS_EFFECTIVE, ""), state)


def fresh_state(tree: CgroupTree, files: Iterable[str]) -> CgroupState:
    """Return what the kernel shows of a cgroup just made that has these files of one value."""
    cpus, mems = effective_sets(tree, "")
    values = {file: row_of(file).unset for file in files}
    return CgroupState(EMPTY, cpus, EMPTY, mems, populated=False, values=values)


def effective_sets(tree: CgroupTree, path: str) -> tuple[Mask, Mask]:
    """Return the CPUs and memory nodes that a cgroup has, empty when the kernel shows none.

    Raises `OSError` as the tree does, but not for a missing cgroup.
    """
    try:
        cpus, mems = tree.read_many(path, (CPUS_EFFECTIVE, MEMS_EFFECTIVE))
    except FileNotFoundError:
        return EMPTY, EMPTY
    return Mask.parse(cpus or ""), Mask.parse(mems or "")


def with_use(tree: CgroupTree, path: str, state: CgroupState, limits: Iterable[str]) -> CgroupState:
    """Return the state with how many bytes of these limits are in use; see `read_state`."""
    return replace(state, in_use=read_use(tree, path, limits))


def read_use(tree: CgroupTree, path: str, limits: Iterable[str]) -> dict[str, int]:
    """Return how many bytes of these limits (files) are in use, 0 where the kernel does not say."""
    files = {limit: use for limit in limits if (use := row_of(limit).use)}
    if not files:
        return {}
    try:
        texts = tree.read_many(path, tuple(files.values()))
    except FileNotFoundError:
        return {}
    return {
        limit: int(text) if text is not None and text.strip().isdecimal() else 0
        for limit, text in zip(files, texts, strict=True)
    }


def _mask(text: str | None) -> Mask | None:
    return None if text is None else Mask.parse(text)
