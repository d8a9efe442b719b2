"""Where host-wide settings are read and written, and what was there before.

A place has a name and shows a text:

- `proc/...`, `sys/...`: a file below the host's root;
- `tasks/PID/START`: the CPUs of a thread of the kernel that can be moved, as a list (START is its
  start in clock ticks: a number is used again);
- `irqbalance/banned`: the CPUs that irqbalance keeps interrupts off, over its socket;
- `cgroup/PATH/FILE`, `unit/NAME/PROPERTY`: of the host's own slices;
- `cgroup/PATH/cpuset.cpus.exclusive`: of the cgroup of all pods. Writing it ends the partitions
  below;
- `resctrl/PATH`: a group of the resctrl filesystem, which is made by any text and removed by none.

This module is the only one that writes them.
"""

from __future__ import annotations

import errno
import glob
import os
import re
import socket
import struct
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import msgspec

from agent.files import LARGEST
from agent.isolation.shares import has_lines, parse_schemata
from agent.state.checkpoint import CheckpointIOError, UnusableCheckpointError
from agent.state.store import AtomicFile, OsFiles, read_checked
from cgroupfs.apply import CPUSET, enabled
from cgroupfs.errors import CgroupError
from cgroupfs.partitions import partitions
from cgroupfs.settings import (
    CPUS,
    EXCLUSIVE,
    MEMBER,
    PARTITION,
    PARTITION_FILES,
    PARTITION_WORDS,
)
from cgroupfs.state import CPUS_EFFECTIVE
from cgroupfs.tree import join
from sysfs.mask import EMPTY, Mask
from systemd.bus import Breaker
from systemd.units import BusError, SystemdError, allowed_cpus, bytes_mask, cpuset_partition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from agent.state.store import Files
    from cgroupfs.tree import CgroupTree
    from systemd.bus import Systemd

BANNED: Final = "irqbalance/banned"
TASKS: Final = "tasks/"
CGROUP: Final = "cgroup/"
UNIT: Final = "unit/"
RESCTRL_GROUP: Final = "resctrl/"
RESCTRL_ROOT: Final = "sys/fs/resctrl/"
#: What a place raises where it cannot be read or written.
PLACE_ERRORS: Final = (OSError, ValueError, CgroupError, SystemdError)
#: The unit may not write there.
_FORBIDDEN: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_DROP_IN: Final = "give the unit the drop-in deploy/isolation.conf (docs/isolation.md)"


def why_not(error: Exception) -> str:
    """Return why a place could not be read or written, and what to do where that is known."""
    if not isinstance(error, OSError):
        return str(error)
    why = error.strerror or str(error)
    return f"{why}; {_DROP_IN}" if error.errno in _FORBIDDEN else why


#: A cgroup at the top that exists for a moment, while lost CPUs are taken back.
_RETURNED: Final = "numawarden-returned"
_LONGEST: Final = 1 << 16
_TO_READ: Final = os.O_RDONLY | os.O_CLOEXEC
#: So many files are kept open at once, of the 4096 that the unit allows (LimitNOFILE=).
_MOST_KEPT: Final = 512
_KTHREADD: Final = "2"
#: PF_NO_SETAFFINITY of include/linux/sched.h: the kernel lets no process move the thread.
_BOUND: Final = 0x04000000
#: Places in /proc/PID/stat behind the name (proc(5)).
_PARENT, _FLAGS, _START = 1, 6, 19
#: mm/vmscan.c, mm/compaction.c: they begin on the CPUs of their node.
_OF_NODE: Final = re.compile(r"\((?:kswapd|kcompactd)(\d+)$")
_PCI_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
#: irqbalance answers within a moment, between two rounds of its own work.
_ANSWER_SECONDS: Final = 0.2
_SILENT: Final = "irqbalance does not answer on its socket"
_BANNED_MASK: Final = re.compile(r"BANNED ([0-9a-f,]+)")


# --- forms ----------------------------------------------------------------------------------------
# How a text is a value: two texts are the same setting if their values are equal.


class Form(StrEnum):
    """How a set of CPUs is written, or that a text is none."""

    LIST = "list"
    MASK = "mask"
    WORD = "word"
    #: Some lines of a schemata file of resctrl, which may show more.
    SCHEMATA = "schemata"
    #: A list of the CPUs that something keeps off: it has more, not less.
    AVOIDED = "avoided"


def cpus_of(form: Form, text: str) -> Mask:
    """Return the set of CPUs that a text is; raises `ValueError`."""
    if form is not Form.MASK:
        return Mask.parse(text)
    return Mask(int(text.strip().replace(",", "") or "0", 16))


def text_of(form: Form, cpus: Mask) -> str:
    """Return the text that the kernel takes for a set of CPUs."""
    if form is not Form.MASK:
        return str(cpus)
    digits = f"{cpus.bits:x}"
    first = len(digits) % 8
    groups = [digits[:first], *(digits[at : at + 8] for at in range(first, len(digits), 8))]
    return ",".join(filter(None, groups))


def same(form: Form, one: str, other: str) -> bool:
    """Return whether a text that is shown is the same setting as another."""
    if form is Form.WORD:
        return one.strip() == other.strip()
    if one == other:
        return True
    try:
        if form is Form.SCHEMATA:
            return has_lines(parse_schemata(one), parse_schemata(other))
        return cpus_of(form, one) == cpus_of(form, other)
    except ValueError:
        return one == other


# --- places ---------------------------------------------------------------------------------------


class HostPlaces:
    """All places of one host; every method but `find` raises `PLACE_ERRORS`.

    `root` is where the host's proc, sys and run stand. `tree` has the host's cgroups and `systemd`
    its units, None where there is none. `affinity` reads and sets the CPUs of a thread.
    """

    def __init__(
        self,
        root: Path,
        tree: CgroupTree | None = None,
        systemd: Systemd | None = None,
        affinity: tuple[Callable[[int], set[int]], Callable[[int, Mask], None]] | None = None,
    ) -> None:
        self._root = root
        #: Joining paths would cost as much as reading the file, for hundreds at an admission.
        self._prefix = "" if str(root) == "/" else str(root)
        self._tree = tree
        self._systemd = None if systemd is None else Breaker(systemd)
        self._affinity = affinity or (os.sched_getaffinity, os.sched_setaffinity)
        #: What is not done again before `refresh`: asking a silent irqbalance, and looking for
        #: places, which costs more than reading them.
        self._silent = False
        self._found: dict[str, Sequence[str]] = {}
        #: The descriptors of files that are read and then written, by place.
        self._kept: dict[str, int] = {}
        #: The nodes of the threads that the kernel has for each.
        self._nodes: dict[str, int] = {}

    def refresh(self) -> None:
        """Ask an irqbalance that did not answer again, and look for places that appeared."""
        self._silent = False
        self._found.clear()

    def try_again(self) -> None:
        """Ask a systemd that did not answer again; until this call it is not asked."""
        if self._systemd is not None:
            self._systemd.try_again()

    def find(self, pattern: str) -> Sequence[str]:
        """Return the places of a pattern, of which `*` is any name, as of the last `refresh`."""
        if pattern not in self._found:
            self._found[pattern] = self.look_for(pattern)
        return self._found[pattern]

    def look_for(self, pattern: str) -> Sequence[str]:
        """Return the places of a pattern as of now."""
        if pattern.startswith(TASKS):
            return self._kernel_threads()
        if pattern == BANNED:
            return (BANNED,) if self._irqbalance() else ()
        return sorted(glob.glob(pattern, root_dir=self._root))  # noqa: PTH207  # names, not paths

    def node_threads(self) -> Sequence[str]:
        """Return the threads that the kernel has for each memory node, those that reclaim."""
        return [place for place in self.find(f"{TASKS}*") if place in self._nodes]

    def node_of(self, thread: str) -> int | None:
        """Return the memory node of a thread, None of all others."""
        self.find(f"{TASKS}*")
        return self._nodes.get(thread)

    def cpus_of_node(self, thread: str) -> Mask:
        """Return the CPUs of the node of a thread among `node_threads`."""
        return Mask.parse(self.read(f"sys/devices/system/node/node{self._nodes[thread]}/cpulist"))

    def irqs_of(self, device: str) -> Sequence[int]:
        """Return the interrupts of a PCI device; of other devices none are known."""
        if not _PCI_ADDRESS.fullmatch(device):
            return ()
        names = self.find(f"sys/bus/pci/devices/{device}/msi_irqs/*")
        return [int(name.rpartition("/")[2]) for name in names]

    def package_of(self, cpu: int) -> str:
        """Return the package of a CPU as the names of uncore directories have it."""
        file = self._root / f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"
        try:
            return f"{int(file.read_text()):02}"
        except (OSError, ValueError):
            return "none"

    def online(self) -> Mask:
        """Return the CPUs of the host that are online."""
        return Mask.parse(self.read("sys/devices/system/cpu/online"))

    def lost(self) -> Mask:
        """Return the online CPUs that neither the root nor a partition has, as far as is known.

        Those of a partition without one above that was removed while invalid (Linux 6.12).
        """
        tree = self._tree
        if tree is None:
            return EMPTY
        word, shown = tree.read_many("", (PARTITION, CPUS_EFFECTIVE))
        if word is not None or shown is None:
            return EMPTY  # not the host's root
        lacking = self.online() - Mask.parse(shown)
        if not lacking:
            return EMPTY
        return lacking - Mask.union(cpus for at, cpus in partitions(tree) if at != _RETURNED)

    def take_back(self, cpus: Mask) -> None:
        """Have the kernel give lost CPUs back: to a partition of the root, which is ended.

        Nothing is given back while another cgroup at the top lists one of them.
        """
        tree = self._tree
        if tree is None:
            return
        with suppress(FileExistsError):  # of an agent that was killed here
            tree.mkdir(_RETURNED)
        try:
            tree.write(_RETURNED, CPUS, str(cpus))
            for word in (PARTITION_WORDS[0], MEMBER):
                tree.write(_RETURNED, PARTITION, word)
        finally:
            tree.rmdir(_RETURNED)

    def has_cgroup(self, cgroup: str) -> bool:
        """Return whether a cgroup exists."""
        return self._tree is not None and self._tree.exists(cgroup)

    def has_file(self, place: str) -> bool:
        """Return whether a cgroup has a file: the kernel offers it."""
        cgroup, _, file = place.removeprefix(CGROUP).rpartition("/")
        if self._tree is None or not self._tree.exists(cgroup):
            return False
        return self._tree.read_many(cgroup, (file,))[0] is not None

    def own_sets(self, cgroup: str) -> Iterator[tuple[str, Mask]]:
        """Yield the cgroups inside one that have CPUs of their own, with these."""
        if self._tree is None or CPUSET not in enabled(self._tree, cgroup):
            return
        for name in self._tree.children(cgroup):
            path = join(cgroup, name)
            if cpus := Mask.parse(self._tree.read_many(path, (CPUS,))[0] or ""):
                yield path, cpus
            yield from self.own_sets(path)

    def threads_in(self, cgroup: str) -> Iterator[int]:
        """Yield the threads in a cgroup and inside it, none where it is gone."""
        if self._tree is None or not self._tree.exists(cgroup):
            return
        (threads,) = self._tree.read_many(cgroup, ("cgroup.threads",))
        yield from map(int, (threads or "").split())
        for name in self._tree.children(cgroup):
            yield from self.threads_in(join(cgroup, name))

    def irqbalance_runs(self) -> bool:
        """Return whether irqbalance runs as a unit; only one with a socket can be asked."""
        return self.has_cgroup("system.slice/irqbalance.service")

    def described(self, irq_place: str) -> str:
        """Return the names of the devices of an interrupt, "" without one."""
        directory = (self._root / irq_place).parent
        try:
            return ", ".join(sorted(each.name for each in directory.iterdir() if each.is_dir()))
        except OSError:
            return ""

    def keep_open(self, place: str) -> None:
        """Open a file once for the read and the write that follow, until that or `close_kept`."""
        if len(self._kept) < _MOST_KEPT:
            with suppress(OSError):  # the read that follows says why, or the write
                self._kept[place] = os.open(f"{self._prefix}/{place}", os.O_RDWR | os.O_CLOEXEC)

    def close_kept(self) -> None:
        """Close the files that were kept open and not written."""
        while self._kept:
            os.close(self._kept.popitem()[1])

    def read(self, place: str) -> str:
        """Return the text that a place shows."""
        kind, _, rest = place.partition("/")
        match kind:
            case "tasks":
                return str(Mask.from_ids(self._affinity[0](self._thread(rest))))
            case "irqbalance":
                found = _BANNED_MASK.search(self._asked("setup"))
                if found is None:
                    raise OSError(errno.EPROTO, "irqbalance does not name the CPUs it avoids")
                return str(cpus_of(Form.MASK, found[1]))
            case "cgroup" if self._tree is not None:
                cgroup, _, file = rest.rpartition("/")
                return self._tree.read(cgroup, file)
            case "unit" if self._systemd is not None:
                (value,) = self._systemd.unit_properties(*rest.split("/"))
                return str(bytes_mask(value if isinstance(value, bytes) else b""))
            case "resctrl":
                if (self._root / RESCTRL_ROOT / rest).is_dir():
                    return "made"
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), place)
            case _:
                kept = self._kept.get(place)
                fd = os.open(f"{self._prefix}/{place}", _TO_READ) if kept is None else kept
                try:
                    return os.pread(fd, _LONGEST, 0).decode()
                finally:
                    if kept is None:
                        os.close(fd)

    def write(self, place: str, text: str) -> None:
        """Write a text in one system call, or one message."""
        kind, _, rest = place.partition("/")
        match kind:
            case "tasks":
                self._affinity[1](self._thread(rest), Mask.parse(text))
            case "irqbalance":
                self._asked(f"settings cpus {text.strip() or 'NULL'}")
            case "cgroup" if self._tree is not None:
                cgroup, _, file = rest.rpartition("/")
                if file == EXCLUSIVE:
                    end_partitions(self._tree, cgroup, self._forget_partition)
                self._write_set(self._tree, cgroup, file, text=text)
            case "unit" if self._systemd is not None:
                unit, _, _ = rest.partition("/")
                self._systemd.set_properties(unit, (allowed_cpus(Mask.parse(text)),))
            case "resctrl" if text:
                (self._root / RESCTRL_ROOT / rest).mkdir()
            case "resctrl":
                (self._root / RESCTRL_ROOT / rest).rmdir()
            case _:
                self._put(place, text)

    def _put(self, place: str, text: str) -> None:
        """Write a text to a file, the one that was kept open if there is one."""
        data, kept = text.encode() or b"\n", self._kept.pop(place, None)
        to_write = os.O_WRONLY | os.O_CLOEXEC
        fd = os.open(f"{self._prefix}/{place}", to_write) if kept is None else kept
        try:
            os.write(fd, data)
            # Not by O_TRUNC: procfs shows no length, so that there is nothing to cut off.
            if os.fstat(fd).st_size > len(data):
                os.ftruncate(fd, len(data))
        except OSError as error:
            if kept is None or error.errno != errno.EIO:
                raise
            # So answers the file of an interrupt that was freed since it was read (proc_reg_write
            # in fs/proc/inode.c); its number may be another one's now.
            self._put(place, text)
        finally:
            os.close(fd)

    @staticmethod
    def _write_set(tree: CgroupTree, cgroup: str, file: str, *, text: str) -> None:
        """Write the CPUs of a cgroup; where none were set, all: the kernel clears no set in use."""
        try:
            tree.write(cgroup, file, text.strip() or "\n")
        except OSError as error:
            if error.errno != errno.ENOSPC or text.strip() or file != CPUS:
                raise
            tree.write(cgroup, file, tree.read("", CPUS_EFFECTIVE).strip())

    def _forget_partition(self, unit: str) -> None:
        """Have systemd make no partition of a unit again, where it has a property of that."""
        if self._systemd is not None and unit.endswith((".slice", ".scope", ".service")):
            with suppress(BusError):
                self._systemd.set_properties(unit, (cpuset_partition(MEMBER),))

    def _kernel_threads(self) -> list[str]:
        """Return the threads of the kernel that can be moved."""
        found: list[str] = []
        self._nodes.clear()
        for name in os.listdir(self._root / "proc"):  # noqa: PTH208  # names alone, of thousands
            if not name.isdecimal():
                continue
            try:
                called, fields = self._stat(name)
            except OSError:  # it has ended
                continue
            if fields[_PARENT] == _KTHREADD and not int(fields[_FLAGS]) & _BOUND:
                found.append(f"{TASKS}{name}/{fields[_START]}")
                if of_node := _OF_NODE.search(called):
                    self._nodes[found[-1]] = int(of_node[1])
        return found

    def _stat(self, pid: str) -> tuple[str, list[str]]:
        """Return the number and name of a thread as the kernel shows them, and what follows."""
        called, _, rest = (self._root / "proc" / pid / "stat").read_text().rpartition(")")
        return called, rest.split()

    def _thread(self, named: str) -> int:
        """Return the id of a thread; raises `FileNotFoundError` where it has ended."""
        pid, _, start = named.partition("/")
        try:
            if self._stat(pid)[1][_START] == start:
                return int(pid)
        except ProcessLookupError:
            pass
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"{TASKS}{named}")

    def _irqbalance(self) -> Sequence[str]:
        pattern = "run/irqbalance/irqbalance*.sock"
        return sorted(glob.glob(pattern, root_dir=self._root))  # noqa: PTH207  # as above

    def _asked(self, message: str) -> str:
        """Send one message to each irqbalance; return what they answer.

        It answers to root alone, which it takes from the credentials of the message
        (irqbalance(1), "COMMUNICATION VIA SOCKET").
        """
        sockets = self._irqbalance()
        if not sockets:
            raise FileNotFoundError(errno.ENOENT, "irqbalance has no socket", BANNED)
        if self._silent:
            raise TimeoutError(errno.ETIMEDOUT, _SILENT)
        answers = []
        credentials = struct.pack("iII", os.getpid(), os.geteuid(), os.getegid())
        for name in sockets:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(_ANSWER_SECONDS)
                try:
                    connection.connect(str(self._root / name))
                    ancillary = [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, credentials)]
                    connection.sendmsg([message.encode() + b"\0"], ancillary)
                    if message == "setup":
                        answers.append(connection.recv(_LONGEST).decode(errors="replace"))
                except TimeoutError:
                    self._silent = True
                    raise TimeoutError(errno.ETIMEDOUT, _SILENT) from None
        return "\n".join(answers)


def end_partitions(tree: CgroupTree, cgroup: str, forget: Callable[[str], None]) -> None:
    """Make members of all partitions below a cgroup; the inner ones first.

    `forget` is called with the name of each before it is written.
    """
    for name in tree.children(cgroup):
        path = join(cgroup, name)
        exclusive, word = tree.read_many(path, PARTITION_FILES)
        if word is None:
            continue  # nothing below has a set
        end_partitions(tree, path, forget)
        if word.strip() != MEMBER:
            forget(name)
            tree.write(path, PARTITION, MEMBER)
        if exclusive and exclusive.strip():
            tree.write(path, EXCLUSIVE, "\n")


# --- originals ------------------------------------------------------------------------------------

ORIGINALS_NAME: Final = "isolation.json"
_REMEDY: Final = "put an intact copy in its place, or remove it and restart the host"


class _Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file; `boot_id` is the kernel's: after a reboot nothing is as it was written."""

    version: int
    boot_id: str
    originals: dict[str, str]


_VERSION: Final = 1


def running_boot(proc: Path) -> str:
    """Return the kernel's random boot id, "" where a sandbox hides that."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class Originals:
    """What places showed before the agent first wrote them, in one file of the state directory.

    `boot_id` is that of the running kernel: those of another are forgotten.
    """

    def __init__(self, directory: Path, boot_id: str, files: Files | None = None) -> None:
        self._boot_id = boot_id
        self._files = OsFiles() if files is None else files
        self._file = AtomicFile(directory / ORIGINALS_NAME, self._files)

    def load(self) -> dict[str, str]:
        """Return the originals by place, none where nothing is written.

        Raises `UnusableCheckpointError` and `CheckpointIOError`.
        """
        path = self._file.path
        try:
            data = read_checked(self._files, path)
        except FileNotFoundError:
            return {}
        try:
            saved = msgspec.json.decode(data, type=_Saved)
        except msgspec.DecodeError as error:
            raise UnusableCheckpointError(path, "$", str(error), _REMEDY) from error
        if saved.version != _VERSION:
            found = f"version {saved.version} is not {_VERSION}"
            raise UnusableCheckpointError(path, "$.version", found, "use the newer release")
        return saved.originals if saved.boot_id == self._boot_id else {}

    def save(self, originals: Mapping[str, str]) -> None:
        """Save all originals, durable on return; raises `CheckpointIOError`."""
        data = msgspec.json.encode(
            _Saved(_VERSION, self._boot_id, dict(originals)), order="deterministic"
        )
        if len(data) > LARGEST:
            too_large = OSError(errno.EFBIG, os.strerror(errno.EFBIG))
            raise CheckpointIOError("saving", self._file.path, too_large)
        self._file.replace(data + b"\n")
