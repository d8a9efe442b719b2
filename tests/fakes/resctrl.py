"""A resctrl filesystem on a plain directory: what the kernel does with what is written there.

Documentation/filesystems/resctrl.rst and fs/resctrl/rdtgroup.c of Linux 6.18 say what is valid; a
rejected write leaves its reason in `info/last_cmd_status`. A new thread starts in the group of the
one that it came from (`fork`).
"""

from __future__ import annotations

import errno
import os
import shutil
from typing import TYPE_CHECKING, Final

from agent.isolation.places import RESCTRL_ROOT, HostPlaces

if TYPE_CHECKING:
    from pathlib import Path

    from cgroupfs.tree import CgroupTree
    from systemd.bus import Systemd

#: A processor with twelve ways, of which devices use the upper two, and a limit in steps of ten.
_INFO: Final = {
    "L3/cbm_mask": "fff",
    "L3/min_cbm_bits": "1",
    "L3/shareable_bits": "c00",
    "L3/num_closids": "4",
    "L3/sparse_masks": "0",
    "MB/min_bandwidth": "10",
    "MB/bandwidth_gran": "10",
    "MB/delay_linear": "1",
    "MB/num_closids": "8",
    "L3_MON/mon_features": "llc_occupancy\nmbm_total_bytes\nmbm_local_bytes",
    "last_cmd_status": "ok",
}
_WHOLE: Final = {"L3": {0: 0xFFF, 1: 0xFFF}, "MB": {0: 100, 1: 100}}
_EVENTS: Final = ("llc_occupancy", "mbm_total_bytes", "mbm_local_bytes")


class FakeResctrl:
    """The filesystem at `root/sys/fs/resctrl`; `write` is what its files do.

    `threads` are the ids of the threads of the host. `rmids` is how many groups can be counted.
    """

    def __init__(self, root: Path, threads: set[int]) -> None:
        self.path = root / "sys/fs/resctrl"
        self.threads = threads
        self.rmids = 5
        #: The groups of each thread: of control, and of monitoring inside ("" for none).
        self.groups: dict[int, tuple[str, str]] = {}
        self.lines = {"": {name: dict(by_id) for name, by_id in _WHOLE.items()}}
        self.modes = {"": "shareable"}
        for name, text in _INFO.items():
            self.info(name, text)
        self._make(self.path)
        self._show()

    def info(self, name: str, text: str) -> None:
        file = self.path / "info" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def group_of(self, thread: int) -> tuple[str, str]:
        return self.groups.get(thread, ("", ""))

    def fork(self, parent: int, thread: int) -> None:
        self.threads.add(thread)
        self.groups[thread] = self.group_of(parent)
        self._show()

    def write(self, name: str, text: str) -> None:
        """Write the file of this name below the mount; raises `OSError` as the kernel does."""
        self.info("last_cmd_status", "ok")
        directory, _, file = name.rpartition("/")
        group, _, monitor = directory.partition("/mon_groups/")
        match file:
            case "schemata":
                self._divide(group, text)
            case "mode" if text.strip() == "exclusive":
                if self._overlapping(group, self.lines[group], _WHOLE["L3"].keys()):
                    raise self._error(errno.EINVAL, "Schemata overlaps")
                self.modes[group] = "exclusive"
            case "mode":
                self.modes[group] = "shareable"
            case _:
                self._put(int(text), group, monitor)
        self._show()

    def mkdir(self, name: str) -> None:
        group, _, monitor = name.partition("/mon_groups/")
        if len(list(self.path.rglob("mon_data"))) >= self.rmids:
            raise self._error(errno.ENOSPC, "Out of RMIDs")
        if not monitor:
            if len(self.lines) >= int(_INFO["L3/num_closids"]):
                raise self._error(errno.ENOSPC, "Out of CLOSIDs")
            # A new group has what no exclusive one has.
            taken = dict.fromkeys(_WHOLE["L3"], 0)
            for each in self.lines:
                for cache in taken if self.modes[each] == "exclusive" else ():
                    taken[cache] |= self.lines[each]["L3"][cache]
            rest = {cache: 0xFFF & ~ways for cache, ways in taken.items()}
            self.lines[group] = {"L3": rest, "MB": dict(_WHOLE["MB"])}
            self.modes[group] = "shareable"
        self._make(self.path / name)
        self._show()

    def rmdir(self, name: str) -> None:
        group, _, monitor = name.partition("/mon_groups/")
        shutil.rmtree(self.path / name)
        for thread, (control, inside) in list(self.groups.items()):
            if control == group and monitor in ("", inside):
                self.groups[thread] = (group, "") if monitor else ("", "")
        if not monitor:
            del self.lines[group], self.modes[group]
        self._show()

    def _put(self, thread: int, group: str, monitor: str) -> None:
        if thread not in self.threads:
            raise self._error(errno.ESRCH, f"No task {thread}")
        if monitor and self.group_of(thread)[0] != group:
            raise self._error(errno.EINVAL, "Can't move task to different control group")
        self.groups[thread] = (group, monitor)

    def _divide(self, group: str, text: str) -> None:
        changed = {name: dict(by_id) for name, by_id in self.lines[group].items()}
        for row in text.splitlines():
            line, _, parts = row.partition(":")
            for part in parts.split(";"):
                cache, _, value = part.partition("=")
                if int(cache) not in changed[line]:
                    raise self._error(errno.EINVAL, "Unknown domain")
                changed[line][int(cache)] = int(value, 16 if line == "L3" else 10)
        for ways in changed["L3"].values():
            if not 0 < ways <= 0xFFF or "01" in f"{ways:b}".rstrip("0"):
                raise self._error(errno.EINVAL, f"The mask {ways:x} has non-consecutive 1-bits")
        moved = [at for at, ways in changed["L3"].items() if ways != self.lines[group]["L3"][at]]
        exclusive = self.modes[group] == "exclusive"
        if self._overlapping(group, changed, moved, every=exclusive):
            raise self._error(errno.EINVAL, "Overlaps with exclusive group")
        self.lines[group] = changed

    def _overlapping(
        self, group: str, lines: dict[str, dict[int, int]], caches: object, *, every: bool = True
    ) -> bool:
        """Return whether ways of a group are also devices' or another's, an exclusive one's."""
        others = [
            each
            for each in self.lines
            if each != group and (every or self.modes[each] == "exclusive")
        ]
        return any(
            lines["L3"][cache] & (self.lines[each]["L3"][cache] | (0xC00 if every else 0))
            for each in others
            for cache in caches  # type: ignore[attr-defined]
        )

    def _error(self, number: int, said: str) -> OSError:
        self.info("last_cmd_status", said)
        return OSError(number, os.strerror(number))

    def _make(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        for cache in ("00", "01"):
            data = directory / f"mon_data/mon_L3_{cache}"
            data.mkdir(parents=True)
            for event in _EVENTS:
                (data / event).write_text("4096\n")
        if directory.parent.name != "mon_groups":
            (directory / "mon_groups").mkdir()

    def _show(self) -> None:
        """Write the files as the kernel shows them."""
        for group, lines in self.lines.items():
            rows = (
                f"{name:>6}:" + ";".join(f"{at}={value:{form}}" for at, value in by_id.items())
                for (name, by_id), form in zip(lines.items(), ("03x", "4d"), strict=True)
            )
            (self.path / group / "schemata").write_text("".join(f"{row}\n" for row in rows))
            (self.path / group / "mode").write_text(f"{self.modes[group]}\n")
        for file in {*self.path.glob("*/mon_groups/*/"), *self.path.glob("*/"), self.path}:
            name = file.relative_to(self.path).as_posix()
            group, _, monitor = ("" if name == "." else name).partition("/mon_groups/")
            if group in self.lines:
                inside = [
                    each
                    for each in sorted(self.threads)
                    if self.group_of(each)[0] == group and monitor in ("", self.group_of(each)[1])
                ]
                (file / "tasks").write_text("".join(f"{each}\n" for each in inside))


class ResctrlPlaces(HostPlaces):
    """The places of a host whose resctrl filesystem is a fake."""

    def __init__(
        self,
        fake: FakeResctrl,
        root: Path,
        tree: CgroupTree | None = None,
        systemd: Systemd | None = None,
    ) -> None:
        super().__init__(root, tree, systemd)
        self._fake = fake

    def write(self, place: str, text: str) -> None:
        kind, _, name = place.partition("/")
        if kind == "resctrl":
            (self._fake.mkdir if text else self._fake.rmdir)(name)
        elif place.startswith(RESCTRL_ROOT):
            self._fake.write(place.removeprefix(RESCTRL_ROOT), text)
        else:
            super().write(place, text)
