"""The emulated hierarchy kept in plain files, for running without root.

Every change is written out as the files a kernel would show, so that other processes can read
them; what other processes change there (a value, a new or removed directory) is applied before the
next operation, under the kernel's rules: a value that the kernel would reject is reset.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

from cgroupfs.emulated.kernel import EmulatedKernel
from cgroupfs.errors import CgroupRootError
from cgroupfs.tree import FlockedTree, join
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from cgroupfs.emulated.group import Group
    from cgroupfs.tree import TreeLock


class DirectoryTree:
    """An emulated cgroup v2 hierarchy in the directory `root`; a `cgroupfs.tree.Tree`.

    A directory without `cgroup.controllers` is initialized for the CPUs `possible` and the memory
    nodes `memory`; a directory with that file is taken over with its contents (a restart). Raises
    `CgroupRootError` when `root` contains anything else.
    """

    def __init__(self, root: Path, possible: Mask, memory: Mask) -> None:
        self.root = root
        self._shown: dict[str, dict[str, str]] = {}
        self._kernel = EmulatedKernel(possible, memory)
        fresh = not (root / "cgroup.controllers").exists()
        if fresh and any(root.iterdir()):
            remedy = "name an empty directory, or one that such a tree was made in"
            raise CgroupRootError(root, "it contains something that is not a cgroup tree", remedy)
        if not fresh:
            self._load()
        self._show()

    def read(self, path: str, file: str) -> str:
        """Return the text of one file; see `cgroupfs.tree.Tree`."""
        self._absorb()
        return self._kernel.read(path, file)

    def read_many(self, path: str, files: Sequence[str]) -> tuple[str | None, ...]:
        """Return the texts of several files; see `cgroupfs.tree.Tree`."""
        self._absorb()
        return self._kernel.read_many(path, files)

    def write(self, path: str, file: str, value: str) -> None:
        """Give one file a value; see `cgroupfs.tree.Tree`."""
        self._absorb()
        self._kernel.write(path, file, value)
        self._show()

    def mkdir(self, path: str) -> None:
        """Create one cgroup; see `cgroupfs.tree.Tree`."""
        self._absorb()
        self._kernel.mkdir(path)
        self._show()

    def rmdir(self, path: str) -> None:
        """Remove one cgroup; see `cgroupfs.tree.Tree`."""
        self._absorb()
        self._kernel.rmdir(path)
        self._show()

    def exists(self, path: str) -> bool:
        """Return whether the cgroup exists; see `cgroupfs.tree.Tree`."""
        self._absorb()
        return self._kernel.exists(path)

    def children(self, path: str) -> tuple[str, ...]:
        """Return the names of the child cgroups; see `cgroupfs.tree.Tree`."""
        self._absorb()
        return self._kernel.children(path)

    def procs(self, path: str) -> tuple[int, ...]:
        """Return the processes of one cgroup; see `cgroupfs.tree.Tree`."""
        self._absorb()
        return self._kernel.procs(path)

    def lock(self) -> TreeLock:
        """Take the tree for this process alone; see `cgroupfs.tree.Tree`."""
        directory = os.open(self.root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return FlockedTree(self.root, directory)
        finally:
            os.close(directory)

    def spawn(self, path: str, pid: int) -> None:
        """Start an emulated process in a cgroup; see `EmulatedKernel.spawn`."""
        self._absorb()
        self._kernel.spawn(path, pid)
        self._show()

    def exit(self, pid: int) -> None:
        """End an emulated process."""
        self._absorb()
        self._kernel.exit(pid)
        self._show()

    def set_online(self, cpus: Mask) -> None:
        """Take CPUs offline or back: exactly `cpus` are up afterwards."""
        self._absorb()
        self._kernel.set_online(cpus)
        self._show()

    # --- files to model ---------------------------------------------------------------------

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
        self._absorb()

    def _absorb(self) -> None:
        """Take in what others did to the files since they were last written out."""
        seen = set()
        rejected = False
        for path, directory in self._directories():
            seen.add(path)
            if path and not self._kernel.exists(path):
                self._kernel.mkdir(path)
            rejected |= self._absorb_values(path, directory)
        gone = [group for group in self._kernel.root.walk() if group.path not in seen]
        for group in reversed(gone):
            self._forget(group)
        if rejected or gone or seen != set(self._shown):
            self._show()

    def _absorb_values(self, path: str, directory: Path) -> bool:
        shown = self._shown.get(path, {})
        changed = False
        for file in self._writable(path):
            text = _text(directory / file)
            if text in (None, shown.get(file)):
                continue
            changed = True
            try:
                self._kernel.raw_write(path, file, text or "")
            except OSError:
                # A kernel would return an error to the writer; here the old value is restored.
                shown.pop(file, None)
        return self._absorb_procs(path, directory) or changed

    def _absorb_procs(self, path: str, directory: Path) -> bool:
        """Take in process ids that others wrote: each moves here, as a write to the kernel does."""
        if _text(directory / "cgroup.procs") in (
            None,
            self._shown.get(path, {}).get("cgroup.procs"),
        ):
            return False
        here = set(self._kernel.procs(path))
        named = {int(word) for word in _words(directory / "cgroup.procs") if word.isdigit()}
        for pid in sorted(named - here):
            with suppress(OSError):
                self._kernel.admit(pid, path)
        return True

    def _writable(self, path: str) -> list[str]:
        # Controllers first: the other files exist only with them.
        found = [name for name in self._kernel.writable(path) if name != "cgroup.procs"]
        return sorted(found, key=lambda name: name != "cgroup.subtree_control")

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

    # --- model to files ---------------------------------------------------------------------

    def _show(self) -> None:
        """Write out every file whose text changed; remove files and directories that are gone."""
        desired = {group.path: self._kernel.texts(group) for group in self._kernel.root.walk()}
        for path in sorted(set(self._shown) - set(desired)):
            shutil.rmtree(self.root / path, ignore_errors=True)
        for path, texts in desired.items():
            directory = self.root / path
            directory.mkdir(exist_ok=True)
            shown = self._shown.get(path, {})
            for file in shown.keys() - texts.keys():
                (directory / file).unlink(missing_ok=True)
            for file, text in texts.items():
                if _text(directory / file) != text:
                    (directory / file).write_text(text)
        self._shown = desired


def _text(file: Path) -> str | None:
    try:
        return file.read_text()
    except FileNotFoundError:
        return None


def _words(file: Path) -> list[str]:
    return (_text(file) or "").split()
