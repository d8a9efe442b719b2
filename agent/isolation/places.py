"""Where host-wide settings are read and written: one small class for each kind of place.

A place has a name, shows a text, and takes one:

- `proc/...`, `sys/...`: a file below the host's root (`SettingFile`, `Interrupt`);
- `tasks/PID/START`: the CPUs of a thread of the kernel that can be moved (`KernelThread`);
- `irqbalance/banned`: the CPUs that irqbalance keeps interrupts off (`Banned`);
- `cgroup/PATH/cpuset.cpus`, `unit/NAME/AllowedCPUs`: of the host's own slices (`SliceSet`,
  `UnitSet`);
- `cgroup/PATH/cpuset.cpus.exclusive`: of the cgroup of all pods (`AllPodsExclusive`);
- `resctrl/PATH`: a group of the resctrl filesystem (`CacheGroup`).

What is particular to a kind stands in its class and nowhere else: `HostPlaces.at` makes the place
of a name. Text goes in and comes out; what a place had before is kept by
`agent.isolation.originals`. Every place raises `PLACE_ERRORS`, and `FileNotFoundError` where there
is none any more.
"""

from __future__ import annotations

import errno
import glob
import os
import re
import socket
import struct
from abc import ABC, abstractmethod
from contextlib import suppress
from enum import StrEnum
from itertools import chain
from typing import TYPE_CHECKING, ClassVar, Final

from agent.isolation.shares import has_lines, parse_schemata
from cgroupfs.apply import CPUSET, enabled
from cgroupfs.errors import CgroupError
from cgroupfs.partitions import is_partition, partitions
from cgroupfs.settings import (
    CPUS,
    EXCLUSIVE,
    MEMBER,
    PARTITION,
    PARTITION_FILES,
)
from cgroupfs.state import CPUS_EFFECTIVE
from cgroupfs.tree import descendants
from sysfs.mask import EMPTY, Mask
from systemd.bus import Breaker
from systemd.units import (
    BusError,
    NoSuchUnitError,
    SystemdError,
    allowed_cpus,
    bytes_mask,
    cpuset_partition,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from cgroupfs.tree import CgroupTree
    from systemd.bus import Systemd

BANNED: Final = "irqbalance/banned"
TASKS: Final = "tasks/"
IRQ: Final = "proc/irq/"
AFFINITY: Final = "/smp_affinity_list"
DEFAULT_IRQ: Final = f"{IRQ}default_smp_affinity"
RESCTRL_GROUP: Final = "resctrl/"
RESCTRL_ROOT: Final = "sys/fs/resctrl/"
ROOT_SCHEMATA: Final = f"{RESCTRL_ROOT}schemata"
_CGROUP: Final = "cgroup/"
_UNIT: Final = "unit/"
_CPU: Final = "sys/devices/system/cpu/"
#: What a place raises where it cannot be read or written.
PLACE_ERRORS: Final = (OSError, ValueError, CgroupError, SystemdError)
#: The unit may not write there.
_FORBIDDEN: Final = frozenset({errno.EROFS, errno.EACCES})
#: Bits of CapEff in /proc/PID/status (include/uapi/linux/capability.h).
_CAPABILITIES: Final = {"CAP_NET_ADMIN": 12, "CAP_SYS_NICE": 23}
_DROP_IN: Final = "give the unit the drop-in deploy/isolation.conf (docs/isolation.md)"
_LONGEST: Final = 1 << 16
_TO_READ: Final = os.O_RDONLY | os.O_CLOEXEC
#: So many files are kept open at once, of the 4096 that the unit allows (LimitNOFILE=).
_MOST_KEPT: Final = 512
_KTHREADD: Final = "2"
#: PF_NO_SETAFFINITY of include/linux/sched.h: the kernel lets no process move the thread.
_BOUND: Final = 0x04000000
#: Places in /proc/PID/stat behind the name (proc(5)).
_PARENT, _FLAGS, _START = 1, 6, 19
_ALLOWED: Final = "Cpus_allowed_list:"
#: mm/vmscan.c, mm/compaction.c: they begin on the CPUs of their node.
_OF_NODE: Final = re.compile(r"\((?:kswapd|kcompactd)(\d+)$")
_PCI_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
#: irqbalance answers within a moment, between two rounds of its own work.
_ANSWER_SECONDS: Final = 0.2
_SILENT: Final = "irqbalance does not answer on its socket"
_SOCKETS: Final = "run/irqbalance/irqbalance*.sock"
_BANNED_MASK: Final = re.compile(r"BANNED ([0-9a-f,]+)")


def why_not(error: Exception) -> str:
    """Return why a place could not be read or written, and what to do where that is known.

    A capability that is missing is said by the error (`HostPlaces.write`).
    """
    if not isinstance(error, OSError):
        return str(error)
    why = error.strerror or str(error)
    return f"{why}; {_DROP_IN}" if error.errno in _FORBIDDEN else why


def set_of_slice(cgroup: str) -> str:
    """Return the name of the place that has the CPUs of one of the host's own slices."""
    return f"{_CGROUP}{cgroup}/{CPUS}"


def set_of_unit(unit: str) -> str:
    """Return the name of the place that has the CPUs of a unit on record."""
    return f"{_UNIT}{unit}/{allowed_cpus(EMPTY).name}"


def slices_of(places: Iterable[str]) -> Mapping[str, str]:
    """Return those of these places that have the CPUs of a cgroup at the top, with its name."""
    return {
        place: place.removeprefix(_CGROUP).rpartition("/")[0]
        for place in places
        if kind_of(place) is SliceSet
    }


def exclusive_of(all_pods: str) -> str:
    """Return the name of the place that has the exclusive CPUs of the cgroup of all pods."""
    return f"{_CGROUP}{all_pods}/{EXCLUSIVE}"


class Form(StrEnum):
    """How a text is a value: two texts are the same setting if their values are equal."""

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
    if form is Form.WORD or one.strip() == other.strip():
        return one.strip() == other.strip()
    try:
        if form is Form.SCHEMATA:
            return has_lines(parse_schemata(one), parse_schemata(other))
        return cpus_of(form, one) == cpus_of(form, other)
    except ValueError:
        return False


class Place(ABC):
    """One setting of the host; the class says what is particular to its kind."""

    #: How the text is a value.
    form: Form = Form.LIST
    #: Places with a lower order are given back first; each class says before which it comes.
    order: int = 5
    #: With these errors the kernel says that no process may change this one.
    immovable: ClassVar[frozenset[int]] = frozenset()
    #: There are hundreds that an admission writes: the answer to the write says that it took, and
    #: the comparison that follows reads them.
    many: ClassVar[bool] = False
    #: What was written shows only after a while.
    shows_later: ClassVar[bool] = False
    #: The capability without which the kernel answers EPERM to a write.
    needs: str = ""
    #: Whether the place is in the cgroup tree, or with systemd.
    in_tree: ClassVar[bool] = False
    in_systemd: ClassVar[bool] = False

    def __init__(self, name: str, host: HostPlaces) -> None:
        self.name = name
        self._host = host

    @property
    def chosen(self) -> bool:
        """Whether another writer chooses the text, so that it becomes the original.

        Not where the kernel moves things by itself, and not in the agent's own cgroup.
        """
        return True

    @abstractmethod
    def read(self) -> str:
        """Return the text that the place shows."""

    @abstractmethod
    def write(self, text: str) -> None:
        """Write a text in one system call, or one message; the caller reads it back."""

    def same(self, shown: str, text: str) -> bool:
        """Return whether what is shown is the setting that a text is."""
        return same(self.form, shown, text)


class SettingFile(Place):
    """A file of procfs or sysfs, whose name says its form."""

    _FORMS: Final = {
        "smp_affinity_list": Form.LIST,
        "default_smp_affinity": Form.MASK,
        "cpumask": Form.MASK,
        "rps_cpus": Form.MASK,
        "xps_cpus": Form.MASK,
        "rps_default_mask": Form.MASK,
        "watchdog_cpumask": Form.LIST,
        "schemata": Form.SCHEMATA,
    }
    #: net/core/net-sysfs.c: store_rps_map, xps_cpus_store.
    _OF_NETWORK: Final = frozenset({"rps_cpus", "xps_cpus", "rps_default_mask"})
    #: Before those that depend on them: what interrupts come with; some governors reset the energy
    #: preference.
    _FIRST: Final = frozenset({"default_smp_affinity", "scaling_governor"})

    def __init__(self, name: str, host: HostPlaces) -> None:
        super().__init__(name, host)
        file = name.rpartition("/")[2]
        self.form = self._FORMS.get(file, Form.WORD)
        self.order = 4 if file in self._FIRST else 5
        if file in self._OF_NETWORK:
            self.needs = "CAP_NET_ADMIN"

    def read(self) -> str:
        """Return the text of the file."""
        return self._host.read_file(self.name)

    def write(self, text: str) -> None:
        """Write the file."""
        self._host.write_file(self.name, text)


class Interrupt(SettingFile):
    """The CPUs to which an interrupt may come."""

    #: The interrupt is managed by its driver, per CPU, or its controller cannot move it: EIO, and
    #: EPERM in newer kernels, 6.12 among them (write_irq_affinity in kernel/irq/proc.c).
    immovable = frozenset({errno.EIO, errno.EPERM})
    many = True


class CacheGroup(Place):
    """A group of the resctrl filesystem, which is made by any text and removed by none.

    Before the schemata of the root: the ways of an exclusive group are given to no other.
    """

    form = Form.WORD
    order = 3

    def _path(self) -> Path:
        return self._host.root / RESCTRL_ROOT / self.name.removeprefix(RESCTRL_GROUP)

    def read(self) -> str:
        """Return `made`; raises `FileNotFoundError` where there is none."""
        if self._path().is_dir():
            return "made"
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.name)

    def write(self, text: str) -> None:
        """Make or remove the group."""
        path = self._path()
        path.mkdir() if text else path.rmdir()


class KernelThread(Place):
    """The CPUs of a thread of the kernel; START is in clock ticks, since numbers are used again.

    Some kernels take only CPUs that are online.
    """

    #: The kernel binds it to its CPU.
    immovable = frozenset({errno.EINVAL})
    needs = "CAP_SYS_NICE"

    @property
    def chosen(self) -> bool:
        """Not those of a memory node, which the kernel moves (up to Linux 6.19)."""
        return self.name not in self._host.nodes

    def _id(self) -> int:
        pid, _, start = self.name.removeprefix(TASKS).partition("/")
        try:
            if self._host.stat(pid)[1][_START] == start:
                return int(pid)
        except ProcessLookupError:
            pass
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.name)

    def read(self) -> str:
        """Return the list of its CPUs."""
        return str(Mask.from_ids(self._host.affinity[0](self._id())))

    def write(self, text: str) -> None:
        """Move the thread."""
        self._host.affinity[1](self._id(), Mask.parse(text))

    def same(self, shown: str, text: str) -> bool:
        """Return whether the CPUs that are online are the same."""
        return super().same(shown, text) or Mask.parse(shown) == (
            Mask.parse(text) & self._host.cpus("online")
        )


class SliceSet(Place):
    """The CPUs of a slice. Before Linux 7.0 no set in use is cleared: all CPUs are the same."""

    order = 2
    in_tree = True

    def _at(self) -> tuple[str, str]:
        cgroup, _, file = self.name.removeprefix(_CGROUP).rpartition("/")
        return cgroup, file

    def read(self) -> str:
        """Return the list of its CPUs, a blank line without a set of its own."""
        return self._host.tree.read(*self._at())

    def write(self, text: str) -> None:
        """Write the set; where there was none, none or all possible CPUs, offline ones too."""
        try:
            self._host.tree.write(*self._at(), text.strip() or "\n")
        except OSError as error:
            if error.errno != errno.ENOSPC or text.strip():
                raise
            self._host.tree.write(*self._at(), str(self._host.cpus("possible")))

    def same(self, shown: str, text: str) -> bool:
        """Return whether the sets are equal, or both are none."""
        if super().same(shown, text):
            return True
        return not text.strip() and self._host.cpus("possible") <= Mask.parse(shown)


class UnitSet(Place):
    """The CPUs that systemd has on record of a unit, and writes: before those of its cgroup."""

    order = 1
    in_systemd = True

    def read(self) -> str:
        """Return the list of CPUs, "" where the property is not set."""
        try:
            (value,) = self._host.systemd.unit_properties(*self.name.removeprefix(_UNIT).split("/"))
        except NoSuchUnitError as error:
            raise FileNotFoundError(errno.ENOENT, str(error), self.name) from error
        return str(bytes_mask(value if isinstance(value, bytes) else b""))

    def write(self, text: str) -> None:
        """Set the property of the running unit."""
        unit = self.name.removeprefix(_UNIT).partition("/")[0]
        self._host.systemd.set_properties(unit, (allowed_cpus(Mask.parse(text)),))


class AllPodsExclusive(SliceSet):
    """The CPUs that partitions below the cgroup of all pods may have; the kernel clears this set.

    To write it ends the partitions below. They come before threads, of which the kernel moves some
    when a partition ends.
    """

    order = 0

    @property
    def chosen(self) -> bool:
        """No other writer's: the cgroup is the agent's."""
        return False

    def write(self, text: str) -> None:
        """End all partitions below, the inner ones first, then write the set."""
        tree, (cgroup, file) = self._host.tree, self._at()
        for path, word, exclusive in self._below(tree, cgroup):
            if word != MEMBER:
                self._forget(path.rpartition("/")[2])
                tree.write(path, PARTITION, MEMBER)
            if exclusive:
                tree.write(path, EXCLUSIVE, "\n")
        tree.write(cgroup, file, text.strip() or "\n")

    def same(self, shown: str, text: str) -> bool:
        """Return whether the sets are equal and nothing below is a partition or may be one."""
        return same(self.form, shown, text) and not self._below(self._host.tree, self._at()[0])

    def _below(self, tree: CgroupTree, cgroup: str) -> Sequence[tuple[str, str, str]]:
        """Return what is a partition or has exclusive CPUs, with both files; inner ones first."""
        found = []
        # Where there is no file of partitions, nothing below has a set.
        for path in descendants(tree, cgroup, lambda path: CPUSET in enabled(tree, path)):
            with suppress(FileNotFoundError):  # it has ended
                exclusive, word = tree.read_many(path, PARTITION_FILES)
                shown = (word or MEMBER).strip(), (exclusive or "").strip()
                if shown != (MEMBER, ""):
                    found.append((path, *shown))
        return found[::-1]

    def _forget(self, unit: str) -> None:
        """Have systemd make no partition of a unit again, where it has a property of that."""
        if self._host.asks_systemd and unit.endswith((".slice", ".scope", ".service")):
            with suppress(BusError):
                self._host.systemd.set_properties(unit, (cpuset_partition(MEMBER),))


class Banned(Place):
    """The CPUs that irqbalance keeps interrupts off, over its socket.

    It answers to root alone, which it takes from the credentials of the message (irqbalance(1),
    "COMMUNICATION VIA SOCKET"), and shows what it was sent after its next round.
    """

    form = Form.AVOIDED
    shows_later = True

    def read(self) -> str:
        """Return the list of CPUs that all that run keep off."""
        banned = _BANNED_MASK.search(self._asked("setup"))
        if banned is None:
            raise OSError(errno.EPROTO, "irqbalance does not name the CPUs it avoids")
        return str(cpus_of(Form.MASK, banned[1]))

    def write(self, text: str) -> None:
        """Send the CPUs to all that run."""
        self._asked(f"settings cpus {text.strip() or 'NULL'}")

    def _asked(self, message: str) -> str:
        """Send one message to each irqbalance; return what they answer."""
        sockets = self._host.look_for(_SOCKETS)
        if not sockets:
            raise FileNotFoundError(errno.ENOENT, "irqbalance has no socket", BANNED)
        if self._host.silent:
            raise TimeoutError(errno.ETIMEDOUT, _SILENT)
        answers = []
        credentials = struct.pack("iII", os.getpid(), os.geteuid(), os.getegid())
        for name in sockets:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(_ANSWER_SECONDS)
                try:
                    connection.connect(str(self._host.root / name))
                    ancillary = [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, credentials)]
                    connection.sendmsg([message.encode() + b"\0"], ancillary)
                    if message == "setup":
                        answers.append(connection.recv(_LONGEST).decode(errors="replace"))
                except TimeoutError:
                    self._host.silent = True
                    raise TimeoutError(errno.ETIMEDOUT, _SILENT) from None
        return "\n".join(answers)


#: How the name of a place begins and ends, and its kind; the first that fits.
_KINDS: Final[tuple[tuple[str, str, type[Place]], ...]] = (
    (IRQ, AFFINITY, Interrupt),
    (TASKS, "", KernelThread),
    (BANNED, "", Banned),
    (_CGROUP, f"/{EXCLUSIVE}", AllPodsExclusive),
    (_CGROUP, "", SliceSet),
    (_UNIT, "", UnitSet),
    (RESCTRL_GROUP, "", CacheGroup),
    ("", "", SettingFile),
)


def kind_of(name: str) -> type[Place]:
    """Return the kind of the place of a name."""
    fitting = (kind for at, end, kind in _KINDS if name.startswith(at) and name.endswith(end))
    return next(fitting)


class HostPlaces:
    """All places of one host, which there are, and what they are read from and written to.

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
        self.root = root
        #: Joining paths would cost as much as reading the file, for hundreds at an admission.
        self._prefix = "" if str(root) == "/" else str(root)
        self._tree = tree
        self._systemd = None if systemd is None else Breaker(systemd)
        self.affinity = affinity or (self._allowed, os.sched_setaffinity)
        #: The nodes of the threads that the kernel has for each, by place.
        self.nodes: dict[str, int] = {}
        #: The descriptors of files that are read and then written, by name.
        self._kept: dict[str, int] = {}
        #: What is not done again before `refresh`: asking a silent irqbalance, and looking for
        #: places, which costs more than reading them.
        self.silent = False
        self._at: dict[str, Place] = {}
        self._found: dict[str, Sequence[str]] = {}

    @property
    def tree(self) -> CgroupTree:
        """The host's cgroups; raises `OSError` where none were opened."""
        if self._tree is None:
            raise OSError(errno.ENODEV, "no cgroups are open here")
        return self._tree

    @property
    def systemd(self) -> Systemd:
        """The host's systemd; raises `OSError` where none is asked."""
        if self._systemd is None:
            why = "systemd is not asked (cgroupDriver); numawarden isolation restore asks it"
            raise OSError(errno.ENODEV, why)
        return self._systemd

    def refresh(self) -> None:
        """Ask an irqbalance that did not answer again, and look for places that appeared."""
        self.silent = False
        there = frozenset().union(*self._found.values())
        self._at = {name: place for name, place in self._at.items() if name in there}
        self._found.clear()

    def try_again(self) -> None:
        """Ask a systemd that did not answer again; until this call it is not asked."""
        if self._systemd is not None:
            self._systemd.try_again()

    def at(self, name: str) -> Place:
        """Return the place of a name."""
        place = self._at.get(name)
        if place is None:
            place = self._at[name] = kind_of(name)(name, self)
        return place

    def read(self, name: str) -> str:
        """Return the text that a place shows."""
        return self.at(name).read()

    def write(self, name: str, text: str) -> None:
        """Write a text to a place; an error says which capability is missing."""
        place = self.at(name)
        try:
            place.write(text)
        except OSError as error:
            if error.errno == errno.EPERM and place.needs and not self._has(place.needs):
                why = f"{os.strerror(errno.EPERM)}: {place.needs} is missing; {_DROP_IN}"
                raise OSError(errno.EPERM, why) from error
            raise

    def _has(self, capability: str) -> bool:
        """Return whether this process has a capability, as far as the host shows it."""
        try:
            lines = self.read_file("proc/self/status").splitlines()
        except OSError:
            return True
        found = [int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")]
        return not found or bool(found[0] >> _CAPABILITIES[capability] & 1)

    @property
    def asks_systemd(self) -> bool:
        """Whether units are with systemd here."""
        return self._systemd is not None

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
            return (BANNED,) if self.look_for(_SOCKETS) else ()
        return sorted(glob.glob(pattern, root_dir=self.root))  # noqa: PTH207  # names, not paths

    def node_threads(self) -> Sequence[str]:
        """Return the threads that the kernel has for each memory node, those that reclaim."""
        return [place for place in self.find(f"{TASKS}*") if place in self.nodes]

    def cpus_of_node(self, thread: str) -> Mask:
        """Return the CPUs of the node of a thread among `node_threads`."""
        node = self.nodes[thread]
        return Mask.parse(self.read(f"sys/devices/system/node/node{node}/cpulist"))

    def irqs_of(self, device: str) -> Sequence[int]:
        """Return the interrupts of a PCI device; of other devices none are known."""
        if not _PCI_ADDRESS.fullmatch(device):
            return ()
        names = self.find(f"sys/bus/pci/devices/{device}/msi_irqs/*")
        return [int(name.rpartition("/")[2]) for name in names]

    def package_of(self, cpu: int) -> str:
        """Return the package of a CPU as the names of uncore directories have it."""
        file = self.root / f"{_CPU}cpu{cpu}/topology/physical_package_id"
        try:
            return f"{int(file.read_text()):02}"
        except (OSError, ValueError):
            return "none"

    def online(self) -> Mask:
        """Return the CPUs of the host that are online."""
        return self.cpus("online")

    def lost(self) -> Mask:
        """Return the online CPUs that neither the root nor a partition has.

        They are of a remote partition that was removed while invalid: Linux 6.12 keeps it in its
        list of partitions after its memory was freed, and crashes when that list changes (seen).
        """
        tree = self._tree
        if tree is None:
            return EMPTY
        # What changes between two reads looks the same, once.
        found = self._without_cgroup(tree)
        return found & self._without_cgroup(tree) if found else found

    def _without_cgroup(self, tree: CgroupTree) -> Mask:
        word, shown = tree.read_many("", (PARTITION, CPUS_EFFECTIVE))
        if word is not None or shown is None:
            return EMPTY  # not the host's root
        lacking = self.online() - Mask.parse(shown)
        return lacking - Mask.union(cpus for _, cpus in partitions(tree)) if lacking else EMPTY

    def at_top(self) -> frozenset[str]:
        """Return the cgroups at the top of the tree as of now."""
        return frozenset() if self._tree is None else frozenset(self._tree.children(""))

    def is_apart(self, cgroup: str) -> bool:
        """Return whether a cgroup is a partition."""
        return any(is_partition(word) for _, (word,) in self._shown((cgroup,), PARTITION))

    def partitions(self, cgroups: Iterable[str]) -> Mapping[str, tuple[str, Mask]]:
        """Return, of those of these cgroups that exist, the partition shown and the CPUs listed.

        The CPUs are those of `cpuset.cpus.exclusive` where that is set, else of `cpuset.cpus`.
        """
        shown = () if self._tree is None else self._shown(cgroups, PARTITION, EXCLUSIVE, CPUS)
        return {
            path: ((word or MEMBER).strip(), Mask.parse(exclusive or "") or Mask.parse(cpus or ""))
            for path, (word, exclusive, cpus) in shown
        }

    def has_cgroup(self, cgroup: str) -> bool:
        """Return whether a cgroup exists."""
        return self._tree is not None and self._tree.exists(cgroup)

    def own_sets(self, cgroup: str) -> Iterator[tuple[str, Mask]]:
        """Yield the cgroups inside one that have CPUs of their own, with these."""
        tree = self._tree
        if tree is None:
            return
        inside = descendants(tree, cgroup, lambda path: CPUSET in enabled(tree, path))
        for path, (text,) in self._shown(inside, CPUS):
            if cpus := Mask.parse(text or ""):
                yield path, cpus

    def threads_in(self, cgroup: str) -> Iterator[int]:
        """Yield the threads in a cgroup and inside it, none where it is gone."""
        tree = self._tree
        if tree is None:
            return
        around = chain((cgroup,), descendants(tree, cgroup))
        for _, (threads,) in self._shown(around, "cgroup.threads"):
            yield from map(int, (threads or "").split())

    def _shown(
        self, cgroups: Iterable[str], *files: str
    ) -> Iterator[tuple[str, tuple[str | None, ...]]]:
        """Yield cgroups with the texts of files in them; what ends meanwhile is left out."""
        for cgroup in cgroups:
            with suppress(FileNotFoundError):
                yield cgroup, self.tree.read_many(cgroup, files)

    def irqbalance_runs(self) -> bool:
        """Return whether irqbalance runs as a unit; only one with a socket can be asked."""
        return self.has_cgroup("system.slice/irqbalance.service")

    def described(self, irq_place: str) -> str:
        """Return the names of the devices of an interrupt, "" without one."""
        directory = (self.root / irq_place).parent
        try:
            return ", ".join(sorted(path.name for path in directory.iterdir() if path.is_dir()))
        except OSError:
            return ""

    def read_file(self, file: str) -> str:
        """Return the text of a file."""
        kept = self._kept.get(file)
        fd = os.open(f"{self._prefix}/{file}", _TO_READ) if kept is None else kept
        try:
            return os.pread(fd, _LONGEST, 0).decode()
        finally:
            if kept is None:
                os.close(fd)

    def write_file(self, file: str, text: str) -> None:
        """Write a text to a file in one system call, to the one that was kept open if one was."""
        data, kept = text.encode() or b"\n", self._kept.pop(file, None)
        to_write = os.O_WRONLY | os.O_CLOEXEC
        fd = os.open(f"{self._prefix}/{file}", to_write) if kept is None else kept
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
            self.write_file(file, text)
        finally:
            os.close(fd)

    def keep_open(self, file: str) -> None:
        """Open a file once for the read and the write that follow, until that or `close_kept`."""
        if len(self._kept) < _MOST_KEPT:
            with suppress(OSError):  # the read that follows says why, or the write
                self._kept[file] = os.open(f"{self._prefix}/{file}", os.O_RDWR | os.O_CLOEXEC)

    def close_kept(self) -> None:
        """Close the files that were kept open and not written."""
        while self._kept:
            os.close(self._kept.popitem()[1])

    def cpus(self, state: str) -> Mask:
        """Return the CPUs of the host that are `online` or `possible`."""
        return Mask.parse(self.read(f"{_CPU}{state}"))

    def stat(self, pid: str) -> tuple[str, list[str]]:
        """Return the number and name of a thread as the kernel shows them, and what follows."""
        called, _, rest = (self.root / "proc" / pid / "stat").read_text().rpartition(")")
        return called, rest.split()

    def _allowed(self, thread: int) -> set[int]:
        """Return the CPUs of a thread, with offline ones, which sched_getaffinity(2) leaves out."""
        lines = self.read_file(f"proc/{thread}/status").splitlines()
        (cpus,) = (line for line in lines if line.startswith(_ALLOWED))
        return set(Mask.parse(cpus.removeprefix(_ALLOWED)))

    def _kernel_threads(self) -> list[str]:
        """Return the threads of the kernel that can be moved."""
        threads: list[str] = []
        self.nodes.clear()
        for name in os.listdir(self.root / "proc"):  # noqa: PTH208  # names alone, of thousands
            if not name.isdecimal():
                continue
            try:
                called, fields = self.stat(name)
            except OSError:  # it has ended
                continue
            of_kernel = _KTHREADD in (name, fields[_PARENT])
            if of_kernel and not int(fields[_FLAGS]) & _BOUND:
                threads.append(f"{TASKS}{name}/{fields[_START]}")
                if of_node := _OF_NODE.search(called):
                    self.nodes[threads[-1]] = int(of_node[1])
        return threads
