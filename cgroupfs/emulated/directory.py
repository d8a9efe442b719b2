"""The emulated hierarchy kept in plain files, for running without root.

Every change is written out as the files a kernel would show, so that other processes can read
them; what other processes change there (a value, a new or removed directory) is applied before the
next operation, under the kernel's rules: a value that the kernel would reject is reset.

An operation costs as much as it changes, not as much as there is: inotify says which files others
changed, and only the cgroups that may show something else are written out. Where the host has no
more inotify watches every operation reads all files.
"""

from __future__ import annotations

import os
import shutil
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from cgroupfs.emulated.kernel import EmulatedKernel
from cgroupfs.emulated.rules import LINUX_6_12
from cgroupfs.errors import CgroupRootError
from cgroupfs.tree import FlockedTree, ancestors, join
from cgroupfs.watch import NAMES_IN_DIRECTORY, Change, Inotify
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from cgroupfs.emulated.group import Group
    from cgroupfs.emulated.rules import Rules
    from cgroupfs.tree import TreeLock

_PROCS: Final = "cgroup.procs"
_SUBTREE: Final = "cgroup.subtree_control"
#: What a process in a cgroup changes of the cgroups above it.
_OF_PROCESSES: Final = ("cgroup.events", "cgroup.type")
_WATCHED: Final = NAMES_IN_DIRECTORY | Change.MODIFY | Change.DONT_FOLLOW
_MOVED: Final = Change.MOVED_FROM | Change.MOVED_TO


class DirectoryTree:
    """An emulated cgroup v2 hierarchy in the directory `root`; a `cgroupfs.tree.CgroupTree`.

    A directory without `cgroup.controllers` is initialized for the CPUs `possible` and the memory
    nodes `memory`; a directory with that file is taken over with its contents (a restart). Raises
    `CgroupRootError` when `root` contains anything else. `rules` are those of a kernel's version,
    `isolcpus` the CPUs that its command line isolates.
    """

    def __init__(
        self,
        root: Path,
        possible: Mask,
        memory: Mask,
        *,
        rules: Rules = LINUX_6_12,
        isolcpus: Mask = EMPTY,
    ) -> None:
        self.root = root
        self.rules = rules
        self.isolcpus = isolcpus
        self._shown: dict[str, dict[str, str]] = {}
        self._watch = _Watch(root)
        #: The files in each cgroup's directory that others wrote while it was noticed.
        self._late: dict[str, dict[str, None]] = {}
        self._kernel = EmulatedKernel(possible, memory, rules=rules, isolcpus=isolcpus)
        fresh = not (root / "cgroup.controllers").exists()
        if fresh and any(root.iterdir()):
            remedy = "name an empty directory, or one that such a tree was made in"
            raise CgroupRootError(root, "it contains something that is not a cgroup tree", remedy)
        if not fresh:
            self._load()
        self._show()

    def read(self, path: str, file: str) -> str:
        self._absorb()
        return self._kernel.read(path, file)

    def read_many(self, path: str, files: Sequence[str]) -> tuple[str | None, ...]:
        self._absorb()
        return self._kernel.read_many(path, files)

    def write(self, path: str, file: str, value: str) -> None:
        self._absorb()
        split, home = self._kernel.partitioned, self._home_of(file, value)
        self._kernel.write(path, file, value)
        self._changed(path, *home, files=(file,), split=split)

    def mkdir(self, path: str) -> None:
        self._absorb()
        self._kernel.mkdir(path)
        self._changed(path)

    def rmdir(self, path: str) -> None:
        self._absorb()
        split = self._kernel.partitioned
        self._kernel.rmdir(path)
        self._unshow(path)
        if split:
            self._show()

    def exists(self, path: str) -> bool:
        self._absorb()
        return self._kernel.exists(path)

    def children(self, path: str) -> tuple[str, ...]:
        self._absorb()
        return self._kernel.children(path)

    def listed(self, path: str) -> dict[str, bool]:
        self._absorb()
        return self._kernel.listed(path)

    def procs(self, path: str) -> tuple[int, ...]:
        self._absorb()
        return self._kernel.procs(path)

    def lock(self) -> TreeLock:
        directory = os.open(self.root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return FlockedTree(self.root, directory)
        finally:
            os.close(directory)

    def spawn(self, path: str, pid: int) -> None:
        """Start an emulated process in a cgroup; see `EmulatedKernel.spawn`."""
        self._absorb()
        self._kernel.spawn(path, pid)
        self._changed(path, files=(_PROCS,))

    def exit(self, pid: int) -> None:
        """End an emulated process."""
        self._absorb()
        home = self._home_of(_PROCS, str(pid))
        self._kernel.exit(pid)
        self._changed(*home, files=(_PROCS,))

    def set_online(self, cpus: Mask) -> None:
        """Take CPUs offline or back: exactly `cpus` are up afterwards."""
        self._absorb()
        self._kernel.set_online(cpus)
        self._show()

    def _load(self) -> None:
        online = (self.root / "cpuset.cpus.effective").read_text()
        self._kernel.set_online(Mask.parse(online) or self._kernel.root.cpus)
        for path, directory in self._directories():
            if path:
                self._kernel.mkdir(path)
            enabled = _words(directory / "cgroup.subtree_control")
            self._kernel.raw_write(
                path, "cgroup.subtree_control", " ".join(f"+{name}" for name in enabled)
            )
        self._absorb_all()

    def _home_of(self, file: str, text: str) -> tuple[str, ...]:
        """Return the cgroup that a process is about to leave, if it is one and has one."""
        word = text.strip()
        home = self._kernel.home(int(word)) if file == _PROCS and word.isdecimal() else None
        return () if home is None else (home.path,)

    def _absorb(self) -> None:
        """Take in what others did to the files since they were last written out."""
        noticed, late = self._watch.noticed(), self._late
        self._late = {}
        if noticed is None:
            self._absorb_all()
            return
        for path, names in late.items():
            noticed.setdefault(path, {}).update(names)
        for path in sorted(noticed):  # those above first
            if path in self._shown and (self.root / path).is_dir():
                self._absorb_names(path, noticed[path])

    def _absorb_all(self) -> None:
        seen = set()
        rejected = False
        for path, directory in self._directories():
            seen.add(path)
            if path and not self._kernel.exists(path):
                self._kernel.mkdir(path)
            rejected |= bool(self._absorb_values(path, directory))
        gone = [group for group in self._kernel.root.walk() if group.path not in seen]
        for group in reversed(gone):
            self._forget(group)
        if rejected or gone or seen != set(self._shown):
            self._show()

    def _absorb_names(self, path: str, names: Iterable[str]) -> None:
        """Take in what others did to some files and directories in a cgroup's directory."""
        split, directory = self._kernel.partitioned, self.root / path
        children = {name: join(path, name) for name in names if name not in self._shown[path]}
        for name, child in children.items():
            there = (directory / name).is_dir() and not (directory / name).is_symlink()
            new = there and not (directory / name / "cgroup.controllers").exists()
            known = self._kernel.find(child)
            if known is not None and (new or not there):
                for group in reversed(list(known.walk())):
                    self._forget(group)
                self._unshow(child, keep=there)
                self._show_above(child)
                if split:
                    self._show()
            if there and not self._kernel.exists(child):
                self._kernel.mkdir(child)
                written = self._absorb_values(child, directory / name)
                self._changed(child, *written.get(_PROCS, ()), files=tuple(written), split=split)
                # What was made in it before it was watched.
                with os.scandir(directory / name) as entries:
                    inside = [entry.name for entry in entries if entry.is_dir()]
                self._absorb_names(child, inside)
        changed = self._absorb_values(path, directory, {*names} - children.keys())
        if changed:
            self._changed(path, *changed.get(_PROCS, ()), files=tuple(changed), split=split)

    def _absorb_values(
        self, path: str, directory: Path, names: AbstractSet[str] | None = None
    ) -> dict[str, tuple[str, ...]]:
        """Take in what others wrote into the files of a cgroup, of all files or of some.

        Return the files that were not as shown, with the cgroups that processes left for this one.
        A value that a kernel would reject, with an error to the writer, is restored, and so is
        what stands in a file that takes none; what it would accept is shown as it would show it.
        """
        shown = self._shown.get(path, {})
        writable = self._writable(path)
        changed: dict[str, tuple[str, ...]] = {}
        for file in (*writable, *(names or frozenset()) - {*writable}):
            if names is not None and file not in names:
                continue
            text = _text(directory / file)
            if text == shown.get(file):
                continue
            shown.pop(file, None)
            changed[file] = ()
            if file == _PROCS:
                changed[file] = tuple(self._absorb_procs(path, text or ""))
            elif file in writable:
                with suppress(OSError):
                    self._kernel.raw_write(path, file, text or "")
        return changed

    def _absorb_procs(self, path: str, text: str) -> Iterator[str]:
        """Take in process ids that others wrote: each moves here, as a write to the kernel does."""
        here = set(self._kernel.procs(path))
        named = {int(word) for word in text.split() if word.isdigit()}
        for pid in sorted(named - here):
            home = self._kernel.home(pid)
            with suppress(OSError):
                self._kernel.admit(pid, path)
            yield path if home is None else home.path

    def _writable(self, path: str) -> list[str]:
        # Controllers first: the other files exist only with them. Processes last.
        found = self._kernel.writable(path)
        return sorted(found, key=lambda name: (name == _PROCS, name != _SUBTREE))

    def _forget(self, group: Group) -> None:
        for pid in tuple(group.procs):
            self._kernel.exit(pid)
        self._kernel.rmdir(group.path)

    def _directories(self) -> Iterator[tuple[str, Path]]:
        """Yield path and directory of every cgroup in the files, parents first; no links."""
        waiting = [("", self.root)]
        while waiting:
            path, directory = waiting.pop()
            yield path, directory
            with os.scandir(directory) as entries:
                names = sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))
            waiting.extend((join(path, name), directory / name) for name in names)

    def _changed(self, *paths: str, files: Sequence[str] = (), split: bool = False) -> None:
        """Write out what an operation on `files` of cgroups changed, here and elsewhere.

        `split`: there were partitions before, which concern all cgroups.
        """
        if split or self._kernel.partitioned:
            self._show()
            return
        below = any(file == _SUBTREE or file.startswith("cpuset.") for file in files)
        moved = _PROCS in files
        for path in paths:
            group = self._kernel.find(path)
            if group is not None:
                for each in group.walk() if below or (moved and group.subtree) else (group,):
                    self._show_group(each)
            if moved:
                self._show_above(path)

    def _show_above(self, path: str) -> None:
        """Write out what shows in the cgroups above that processes came or went."""
        for above in ancestors(path) if path else ():
            group = self._kernel.find(above)
            if group is not None:
                files = self._kernel.files(group)
                known = {name: files[name] for name in _OF_PROCESSES if name in files}
                texts = {name: file.show(self._kernel, group) for name, file in known.items()}
                self._write_out(above, self._shown[above] | texts)

    def _show(self) -> None:
        """Write out every file whose text changed; remove files and directories that are gone."""
        groups = list(self._kernel.root.walk())
        for path in sorted(set(self._shown) - {group.path for group in groups}):
            self._unshow(path)
        for group in groups:
            self._show_group(group)

    def _show_group(self, group: Group) -> None:
        path, texts = group.path, self._kernel.texts(group)
        if path not in self._shown:
            directory = self.root / path
            directory.mkdir(exist_ok=True)
            self._watch.add(path)
            self._show_new(path, directory, texts)
        self._write_out(path, texts)

    def _show_new(self, path: str, directory: Path, texts: dict[str, str]) -> None:
        """Make the files of a cgroup's directory that are not there, and note those that are.

        In a tree that is taken over only what differs is written. What others wrote into a file
        since the directory was noticed stays, and is taken in with the next operation.
        """
        shown = self._shown[path] = {}
        writable = self._writable(path)
        for name, text in texts.items():
            there = _text(directory / name)
            if there is None:
                with (
                    suppress(FileExistsError, FileNotFoundError),
                    (directory / name).open("x") as file,
                ):
                    there = text
                    file.write(text)
            if there is not None and name not in writable:
                shown[name] = there
                continue
            shown[name] = text
            if there != text:
                self._late.setdefault(path, {})[name] = None

    def _write_out(self, path: str, texts: dict[str, str]) -> None:
        shown, directory = self._shown[path], self.root / path
        for file in shown.keys() - texts.keys():
            (directory / file).unlink(missing_ok=True)
        with suppress(FileNotFoundError):  # it is noticed with the directory above it
            for file, text in texts.items():
                if shown.get(file) != text:
                    (directory / file).write_text(text)
        self._shown[path] = texts

    def _unshow(self, path: str, *, keep: bool = False) -> None:
        """Forget what a cgroup showed, and remove its directory unless it is a new one (`keep`)."""
        if not keep:
            shutil.rmtree(self.root / path, ignore_errors=True)
        for known in [each for each in self._shown if f"{each}/".startswith(f"{path}/")]:
            del self._shown[known]


class _Watch:
    """Which files others may have changed; any, where the host has no inotify watch left."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._inotify: Inotify | None = None
        with suppress(OSError):
            self._inotify = Inotify()
            weakref.finalize(self, self._inotify.close)

    def add(self, path: str) -> None:
        """Watch the directory of a cgroup from now on."""
        try:
            if self._inotify is not None:
                self._inotify.add(self._root / path, _WATCHED)
        except FileNotFoundError:
            return  # another process removed it, which is noticed with the one above it
        except OSError:
            self._inotify = None

    def noticed(self) -> dict[str, dict[str, None]] | None:
        """Return the names in each cgroup's directory that may have changed; None: any."""
        if self._inotify is None:
            return None
        found: dict[str, dict[str, None]] = {}
        while events := self._inotify.read():
            for event in events:
                if event.path is None or (event.change & _MOVED and event.change & Change.ISDIR):
                    self._drain()
                    return None
                if event.name:
                    path = str(event.path)[len(str(self._root)) + 1 :]
                    found.setdefault(path, {})[event.name] = None
        return found

    def _drain(self) -> None:
        while self._inotify is not None and self._inotify.read():
            pass


def _text(file: Path) -> str | None:
    try:
        return file.read_text()
    except FileNotFoundError:
        return None


def _words(file: Path) -> list[str]:
    return (_text(file) or "").split()
