"""Who else ran on exclusive CPUs, or interrupted them, within a time.

What the kernel counts for each CPU is read before and after (`read_counters`), and what ran there
is collected meanwhile (`Runs`): exactly from the tracepoint `sched_switch` where tracefs can be
used, else from the run times of all threads, of which each counts for the CPU that it was on last.
`interference` is the pure part: two readings and what ran become a document. A probe, which spins
on the CPUs themselves, measures how long it was kept from running.

Everything is read below a root, line by line: of `/proc/interrupts`, which has a column for each
CPU of the host, only the columns of the CPUs in question are kept.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple, Self

from msgspec import Struct
from msgspec.structs import replace

from agent.api.documents.interference import (
    DisturbedCpuDocument,
    InterferenceDocument,
    InterferingTaskDocument,
)
from agent.managers.allocation import Isolation
from agent.reconcile.binding import cgroup_of_pid
from agent.reconcile.report import BindingError
from agent.reconcile.tasks import LONGEST_NAME, ExclusiveTerritory
from agent.text import printable
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import TypeAlias

    from agent.api.documents.pods import PodDocument

    #: Threads by id and start: an id is used again.
    Threads: TypeAlias = Mapping[tuple[int, int], "Thread"]

PROC: Final = "proc"
TRACING: Final = "sys/kernel/tracing"
CGROUPS: Final = "sys/fs/cgroup"

#: A line of /proc/interrupts has 11 characters for each of at most 8,192 CPUs, and its names.
_LONGEST_LINE: Final = 1 << 17
#: So many interrupts and softirqs are counted one by one, so many threads on CPUs; the rest is
#: counted together.
_MOST_SOURCES: Final = 1 << 16
_MOST_THREADS: Final = 1 << 17
_MOST_RUNS: Final = 1 << 14
_OTHERS: Final = "others"
#: The thread id of all idle tasks (`swapper/N`), and of a task that is not known.
_IDLE: Final = 0
_UNKNOWN: Final = -1
_NS: Final = 1_000_000_000
_TICK_NS: Final = _NS // os.sysconf("SC_CLK_TCK")
#: The row of the timer tick of x86, and the names of the timers of arm64 and RISC-V.
_TICK_ROW: Final = "LOC"
_TICK_NAMES: Final = ("arch_timer", "riscv-timer")
#: PF_KTHREAD of the kernel's include/linux/sched.h.
_KERNEL_THREAD: Final = 0x00200000


class InterferenceError(Exception):
    """Interference cannot be measured; the message says what was found and what to do."""


def territories_of(pods: Iterable[PodDocument]) -> tuple[ExclusiveTerritory, ...]:
    """Return the exclusive CPUs of pods, by who may run there: a container, or the pod's rest.

    The pods are as the agent answers about each of them, with their cgroups. A container whose
    cgroup is not known stands for all of its pod, since its tasks cannot be distinguished.
    """
    found: list[ExclusiveTerritory] = []
    for pod in pods:
        left = exclusive = Mask.parse(pod.exclusive_cpus)
        kernels = (pod.kernel, *(container.kernel for container in pod.containers))
        every = tuple(each.cgroup.strip("/") for kernel in kernels for each in kernel)
        name = f"{pod.namespace}/{pod.name}" if pod.name else pod.uid
        for container in pod.containers:
            cpus = Mask.parse(container.cpus) & exclusive
            if container.isolation == Isolation.HOST or not cpus:
                continue
            own = tuple(each.cgroup.strip("/") for each in container.kernel) or every
            found.append(ExclusiveTerritory(f"{name}/{container.name}", cpus, own))
            left -= cpus
        if left:
            found.append(ExclusiveTerritory(name, left, every))
    return tuple(found)


def all_cpus(territories: Iterable[ExclusiveTerritory]) -> Mask:
    """Return the CPUs of all territories together."""
    cpus = EMPTY
    for each in territories:
        cpus |= each.cpus
    return cpus


class CpuCounters(Struct, frozen=True):
    """What the kernel has counted for some CPUs since the boot; only what is not 0 is kept."""

    #: The CPUs among them that are online.
    online: Mask
    #: By source (`24 nvme0q3`, `LOC Local timer interrupts`), then by CPU.
    interrupts: Mapping[str, Mapping[int, int]]
    #: By kind (`TIMER`), then by CPU.
    softirqs: Mapping[str, Mapping[int, int]]
    #: The time in which the hypervisor ran something else, in clock ticks by CPU.
    steal: Mapping[int, int]
    #: How often a task began to run, by CPU; empty where the kernel does not count that.
    slices: Mapping[int, int]


def read_counters(root: Path, cpus: Mask) -> CpuCounters:
    """Return what the kernel counts for some CPUs; raises `OSError` without a procfs."""
    proc = root / PROC
    online, steal = _read_stat(proc / "stat", cpus)
    return CpuCounters(
        online,
        _read_table(proc / "interrupts", cpus),
        _read_table(proc / "softirqs", cpus),
        steal,
        _read_slices(proc / "schedstat", cpus),
    )


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file; of one that is longer than any of a kernel only the beginning."""
    while line := file.readline(_LONGEST_LINE):
        yield line
        while not line.endswith(b"\n") and (line := file.readline(_LONGEST_LINE)):
            pass


def _read_table(path: Path, cpus: Mask) -> dict[str, dict[int, int]]:
    """Return the counts of a file with a column for each CPU and a row for each source.

    A row with fewer counts than columns (`ERR`) is of no CPU, and left out.
    """
    found: dict[str, dict[int, int]] = {}
    with path.open("rb") as file:
        lines = _lines(file)
        header = next(lines, b"").split()
        columns = [
            (place, cpu)
            for place, name in enumerate(header)
            if name[3:].isdigit() and (cpu := int(name[3:])) in cpus
        ]
        for line in lines:
            label, colon, rest = line.partition(b":")
            fields = rest.split(None, len(header))
            if not colon or len(fields) < len(header):
                continue
            counts = {cpu: int(fields[at]) for at, cpu in columns if fields[at].isdigit()}
            if not any(counts.values()):
                continue
            what = fields[len(header)] if len(fields) > len(header) else b""
            name = _source(label, what) if len(found) < _MOST_SOURCES else _OTHERS
            known = found.setdefault(name, {})
            for cpu, count in counts.items():
                if count:
                    known[cpu] = known.get(cpu, 0) + count
    return found


def _source(label: bytes, what: bytes) -> str:
    """Return the name of a row: its label, and the last of its columns, which are two blanks apart.

    That is the name of the device's driver; before it are chip, number and kind of the interrupt.
    """
    last = os.fsdecode(what.strip()).rpartition("  ")[2]
    return printable(f"{os.fsdecode(label.strip())} {last}".strip(), LONGEST_NAME)


def _is_tick(source: str) -> bool:
    return source.partition(" ")[0] == _TICK_ROW or source.endswith(_TICK_NAMES)


def _read_stat(path: Path, cpus: Mask) -> tuple[Mask, dict[int, int]]:
    """Return which CPUs are online (proc(5): the others have no line), and their stolen time."""
    online: list[int] = []
    steal: dict[int, int] = {}
    with path.open("rb") as file:
        for line in _lines(file):
            name, *fields = line.split(None, 9)
            if not name.startswith(b"cpu"):
                break
            if name[3:].isdigit() and (cpu := int(name[3:])) in cpus:
                online.append(cpu)
                if len(fields) > 7 and fields[7].isdigit():  # noqa: PLR2004  # the eighth column
                    steal[cpu] = int(fields[7])
    return Mask.from_ids(online), steal


def _read_slices(path: Path, cpus: Mask) -> dict[int, int]:
    """Return the ninth number of each CPU (Documentation/scheduler/sched-stats.rst)."""
    found: dict[int, int] = {}
    try:
        with path.open("rb") as file:
            for line in _lines(file):
                name, *fields = line.split(None, 10)
                if name[:3] == b"cpu" and name[3:].isdigit() and int(name[3:]) in cpus:
                    found[int(name[3:])] = int(fields[8])
    except (OSError, ValueError, IndexError):  # built without CONFIG_SCHEDSTATS, or of another form
        return {}
    return found


class Thread(NamedTuple):
    """A thread as procfs shows it.

    `cpu` is where it was last, `ns` how long and `times` how often it has run since it began.
    """

    name: str
    cpu: int
    ns: int
    times: int


class RunningTask(NamedTuple):
    """To whom a thread belongs; `cgroup` is None for one of the kernel, and where it has ended."""

    cgroup: str | None
    kernel: bool


class Runs:
    """Which threads ran on some CPUs: how often and how long, by CPU and thread id.

    `resolve` says of a thread id to whom it belongs; it is asked once for each, when it is seen.
    The threads that are `ignored` do not count.
    """

    def __init__(
        self,
        cpus: Mask,
        resolve: Callable[[int], RunningTask],
        ignored: frozenset[int] = frozenset(),
    ) -> None:
        self.cpus = cpus
        self._resolve = resolve
        self._ignored = ignored
        #: [times, nanoseconds] by CPU and thread; the idle tasks are thread 0.
        self.ran: dict[tuple[int, int], list[int]] = {}
        self.names: dict[int, str] = {}
        self.tasks: dict[int, RunningTask] = {}
        #: How often a thread began to run that was on another of these CPUs before, by CPU.
        self.migrations: dict[int, int] = {}
        #: Switches that the kernel or this reader dropped.
        self.lost = 0
        #: The CPU of each thread, and what has run on each CPU since when.
        self._last: dict[int, int] = {}
        self._current: dict[int, tuple[int, int]] = {}
        self._began = 0

    def add(self, cpu: int, thread: int, name: str, times: int, ns: int) -> None:
        """Count that a thread ran on a CPU."""
        if thread in self._ignored:
            return
        known = self.ran.get((cpu, thread))
        if known is None:
            if len(self.ran) >= _MOST_RUNS:
                self.lost += 1
                return
            known = self.ran[cpu, thread] = [0, 0]
            self.names[thread] = printable(name, LONGEST_NAME)
            if thread != _IDLE and thread not in self.tasks:
                self.tasks[thread] = self._resolve(thread)
        known[0] += times
        known[1] += ns

    def sampled(self, before: Threads, after: Threads) -> None:
        """Count the threads that ran between two readings and were on one of the CPUs at the end.

        The time is at most what they ran there: they may have come from elsewhere. Beside a trace
        only those are counted that never switched, which it does not show.
        """
        traced = bool(self._began)
        for (thread, began), now in after.items():
            former = before.get((thread, began))
            ns = now.ns - (former.ns if former else 0)
            if now.cpu not in self.cpus or ns <= 0 or (traced and (now.cpu, thread) in self.ran):
                continue
            times = now.times - (former.times if former else 0)
            self.add(now.cpu, thread, now.name, max(1, times), ns)
            if former and former.cpu != now.cpu and not traced:
                self.migrations[now.cpu] = self.migrations.get(now.cpu, 0) + 1

    def trace_begins(self, now: int) -> None:
        """Count what ran before the first switch of each CPU from this time on, in nanoseconds."""
        self._began = now

    def feed(self, line: str) -> None:
        """Count what ran until a switch, given its line of `trace_pipe`; others are passed over.

        A name of a task cannot look like the numbers around it: it has at most 15 characters.
        """
        dropped = _DROPPED.search(line)
        if dropped:
            self.lost += int(dropped[2])
            self._current[int(dropped[1])] = _UNKNOWN, 0  # what ran meanwhile is not known
            return
        found = _SWITCH.search(line)
        if found is None:
            return
        cpu, seconds, micros, before, prev, after, following = found.groups()
        number, now = int(cpu), int(seconds) * _NS + int(micros) * 1000
        if number not in self.cpus:
            return
        running, since = self._current.get(number, (int(prev), self._began))
        if running == int(prev) and self._began <= since <= now:
            first = number not in self._current
            self.add(number, running, before, int(first), now - since)
        thread = int(following)
        self._current[number] = thread, now
        self.add(number, thread, after, 1, 0)
        if thread != _IDLE:
            if self._last.get(thread, number) != number:
                self.migrations[number] = self.migrations.get(number, 0) + 1
            if len(self._last) < _MOST_THREADS:
                self._last[thread] = number

    def trace_ends(self, now: int) -> None:
        """Count what has run on each CPU since its last switch until this time."""
        for cpu, (thread, since) in self._current.items():
            if thread != _UNKNOWN:
                self.add(cpu, thread, self.names.get(thread, ""), 0, max(0, now - since))
        self._current.clear()


_SWITCH: Final = re.compile(
    r"\[(\d{3,5})\]\s+\S+\s+(\d{1,12})\.(\d{6}): sched_switch: "
    r"prev_comm=(.{0,15}) prev_pid=(\d+) prev_prio=-?\d+ prev_state=\S+ ==> "
    r"next_comm=(.{0,15}) next_pid=(\d+) next_prio=-?\d+$"
)
_DROPPED: Final = re.compile(r"^CPU:(\d{1,5}) \[LOST (\d+) EVENTS\]")
#: How much the kernel keeps of switches until they are read, in KiB: of the CPUs in question, and
#: of all others.
_BUFFER_KIB: Final = 2048
_LEAST_KIB: Final = 4
_INSTANCE: Final = "numawarden-"


@contextmanager
def traced(tracing: Path, cpus: Mask) -> Iterator[Callable[[], Iterator[str]]]:
    """Have the kernel record the switches of some CPUs; yield what reads those so far, as lines.

    The recording has an instance of tracefs of its own, which is removed at the end; those that
    processes left which have ended are removed before. Raises `OSError` where tracefs is not
    mounted, lacks the event, or is not root's to write.
    """
    instances = tracing / "instances"
    for left in instances.glob(f"{_INSTANCE}*"):
        if not Path(f"/{PROC}", left.name.removeprefix(_INSTANCE)).exists():
            with suppress(OSError):
                left.rmdir()
    own = instances / f"{_INSTANCE}{os.getpid()}"
    own.mkdir()
    try:
        _set(own / "buffer_size_kb", str(_LEAST_KIB))
        for cpu in cpus:
            _set(own / f"per_cpu/cpu{cpu}/buffer_size_kb", str(_BUFFER_KIB))
        _set(own / "tracing_cpumask", _hexadecimal(cpus))
        _set(own / "trace_clock", "mono")
        switch = own / "events/sched/sched_switch/enable"
        _set(switch, "1")
        pipe = os.open(own / "trace_pipe", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            yield lambda: _drained(pipe)
        finally:
            os.close(pipe)
            _set(switch, "0")
    finally:
        own.rmdir()


def _set(file: Path, text: str) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)  # a missing file is none to be made
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _hexadecimal(cpus: Mask) -> str:
    """Return a mask as the kernel reads it: groups of 32 bits."""
    digits = f"{cpus.bits:x}"
    digits = digits.zfill(-(-len(digits) // 8) * 8)
    return ",".join(digits[at : at + 8] for at in range(0, len(digits), 8))


def _drained(pipe: int) -> Iterator[str]:
    """Yield the lines that are there; the kernel gives whole lines at each read."""
    with suppress(BlockingIOError):
        while text := os.read(pipe, 1 << 16):
            yield from os.fsdecode(text).splitlines()


def read_threads(root: Path) -> Threads:
    """Return all threads by id and start, without those that end meanwhile."""
    proc = f"{root / PROC}"
    found: dict[tuple[int, int], Thread] = {}
    for pid in _numbers(proc):
        for thread in _numbers(f"{proc}/{pid}/task"):
            read = _read_thread(f"{proc}/{pid}/task/{thread}")
            if read is not None and len(found) < _MOST_THREADS:
                began, shown = read
                found[thread, began] = shown
    return found


def _numbers(directory: str) -> list[int]:
    try:
        names = os.listdir(directory)  # noqa: PTH208  # names alone, for thousands of threads
        return [int(name) for name in names if name.isdigit()]
    except OSError:  # it has ended
        return []


def _read_thread(directory: str) -> tuple[int, Thread] | None:
    """Return when a thread began (clock ticks) and what it did (proc(5)); None: it has ended."""
    text = _content(f"{directory}/stat")
    head, _, rest = text.rpartition(b")")
    fields = rest.split()
    try:
        began, cpu = int(fields[19]), int(fields[36])
        ns, times = (int(fields[11]) + int(fields[12])) * _TICK_NS, 0
    except (IndexError, ValueError):
        return None
    exact = _content(f"{directory}/schedstat").split()
    if len(exact) == 3 and all(each.isdigit() for each in exact):  # noqa: PLR2004  # time, wait, times
        ns, times = int(exact[0]), int(exact[2])
    return began, Thread(os.fsdecode(head.partition(b"(")[2]), cpu, ns, times)


def _content(path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, 1 << 12)
    except OSError:  # it ended between the two
        return b""
    finally:
        os.close(descriptor)


def running_task(root: Path, thread: int) -> RunningTask:
    """Return to whom a thread belongs; one that has ended is of no cgroup."""
    fields = _content(f"{root / PROC}/{thread}/stat").rpartition(b")")[2].split()
    if len(fields) > 6 and fields[6].isdigit() and int(fields[6]) & _KERNEL_THREAD:  # noqa: PLR2004  # flags
        return RunningTask(None, kernel=True)
    try:
        return RunningTask(cgroup_of_pid(root / PROC, thread), kernel=False)
    except BindingError:
        return RunningTask(None, kernel=False)


def interference(
    territories: Sequence[ExclusiveTerritory],
    before: CpuCounters,
    after: CpuCounters,
    runs: Runs,
    seconds: float,
    *,
    exact: bool,
) -> InterferenceDocument:
    """Return what lies between two readings on exclusive CPUs; pure.

    A task of a territory does not interfere on its CPUs; its time is `own_seconds`. What a CPU
    counted is 0 where the CPU was offline at one of the readings.
    """
    on: dict[int, list[tuple[int, list[int]]]] = {}
    for (cpu, thread), ran in runs.ran.items():
        if thread != _IDLE:
            on.setdefault(cpu, []).append((thread, ran))
    interrupts = _by_cpu(before.interrupts, after.interrupts)
    softirqs = _by_cpu(before.softirqs, after.softirqs)
    online = before.online & after.online
    cpus: list[DisturbedCpuDocument] = []
    for cpu in sorted({cpu for each in territories for cpu in each.cpus}):
        owners = [each for each in territories if cpu in each.cpus]
        tasks, own = [], 0
        for thread, (times, ns) in on.get(cpu, ()):
            task = runs.tasks[thread]
            if any(each.holds(task.cgroup) for each in owners):
                own += ns
            else:
                tasks.append(_task(thread, runs.names[thread], task, times, ns))
        counted = interrupts.get(cpu, {}) if cpu in online else {}
        cpus.append(
            DisturbedCpuDocument(
                cpu=cpu,
                owners=tuple(each.pod for each in owners),
                online=cpu in online,
                tasks=tuple(sorted(tasks, key=lambda each: (-each.seconds, each.thread))),
                own_seconds=own / _NS,
                interrupts={name: n for name, n in counted.items() if not _is_tick(name)},
                ticks=sum(n for name, n in counted.items() if _is_tick(name)),
                softirqs=softirqs.get(cpu, {}) if cpu in online else {},
                steal_seconds=_grown(before.steal.get(cpu, 0), after.steal.get(cpu, 0))
                * _TICK_NS
                / _NS,
                switches=_grown(before.slices.get(cpu, 0), after.slices[cpu])
                if cpu in after.slices
                else None,
                migrations=runs.migrations.get(cpu, 0),
            )
        )
    return InterferenceDocument(
        seconds=seconds,
        exact=exact,
        lost=runs.lost,
        cpus=tuple(cpus),
        notes=tuple(_notes(cpus, runs, exact=exact)),
    )


def _task(
    thread: int, name: str, task: RunningTask, times: int, ns: int
) -> InterferingTaskDocument:
    cgroup = None if task.cgroup is None else f"/{task.cgroup}"
    return InterferingTaskDocument(
        name=name, thread=thread, cgroup=cgroup, kernel=task.kernel, times=times, seconds=ns / _NS
    )


def _grown(before: int, after: int) -> int:
    """Return by how much a counter grew; one that is lower was made again, from 0 on."""
    return after - before if after >= before else after


def _by_cpu(
    before: Mapping[str, Mapping[int, int]], after: Mapping[str, Mapping[int, int]]
) -> dict[int, dict[str, int]]:
    """Return by how much each counter grew that did, by CPU and source."""
    grown: dict[int, dict[str, int]] = {}
    for source, counts in after.items():
        former = before.get(source, {})
        for cpu, count in counts.items():
            if more := _grown(former.get(cpu, 0), count):
                grown.setdefault(cpu, {})[source] = more
    return grown


def _notes(cpus: Iterable[DisturbedCpuDocument], runs: Runs, *, exact: bool) -> Iterator[str]:
    offline = Mask.from_ids(each.cpu for each in cpus if not each.online)
    if offline:
        yield (
            f"CPUs {offline} were offline at the beginning or at the end, or this host does not "
            "have them: who ran there is not known"
        )
    if not exact:
        yield (
            "tasks are sampled: those that came and went between two samples are missing, and the "
            "time of a task that moved is at most what is shown; as root, with tracefs mounted at "
            "/sys/kernel/tracing, they are exact"
        )
    if runs.lost:
        yield (
            f"{runs.lost} switches were dropped: there were too many of them; who ran then is not "
            "known"
        )


#: How often switches are read, and the shortest time between two samples, in seconds.
_POLL_SECONDS: Final = 0.1
_SAMPLE_SECONDS: Final = 1.0
#: Sampling may take this share of a CPU.
_SAMPLE_SHARE: Final = 0.05


class Measuring(Struct, frozen=True):
    """How interference is measured: below which root, with a trace or without, by which clock."""

    root: Path
    trace: bool = True
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def measure(
    territories: Sequence[ExclusiveTerritory],
    seconds: float,
    how: Measuring,
    probes: frozenset[int] = frozenset(),
) -> InterferenceDocument:
    """Return who ran on exclusive CPUs, or interrupted them, within some seconds from now on.

    The threads `probes` are of the measuring itself. Raises `OSError` without a procfs.
    """
    cpus = all_cpus(territories)
    runs = Runs(cpus, lambda thread: running_task(how.root, thread), probes)
    with ExitStack() as opened:
        switches = _trace(how, cpus, opened)
        threads, started = read_threads(how.root), how.monotonic()
        # After all that the measuring itself does, for each step of which CPUs are interrupted.
        before = read_counters(how.root, cpus)
        if switches is not None:
            for _ in switches():
                pass
            runs.trace_begins(int(how.monotonic() * _NS))
        begun = how.monotonic()
        cost = how.monotonic() - started
        while (left := begun + seconds - how.monotonic()) > 0:
            pause = _POLL_SECONDS if switches else max(_SAMPLE_SECONDS, cost / _SAMPLE_SHARE)
            how.sleep(min(left, pause))
            if switches is not None:
                for line in switches():
                    runs.feed(line)
            elif left > pause:
                started = how.monotonic()
                now = read_threads(how.root)
                runs.sampled(threads, now)
                threads, cost = now, how.monotonic() - started
        ended = how.monotonic()
        after = read_counters(how.root, cpus)
        if switches is not None:
            for line in switches():
                runs.feed(line)
            runs.trace_ends(int(how.monotonic() * _NS))
        runs.sampled(threads, read_threads(how.root))
    exact = switches is not None
    return interference(territories, before, after, runs, ended - begun, exact=exact)


def _trace(how: Measuring, cpus: Mask, opened: ExitStack) -> Callable[[], Iterator[str]] | None:
    """Return what reads switches, None where tracefs cannot be used: then tasks are sampled."""
    if not how.trace:
        return None
    with suppress(OSError):
        return opened.enter_context(traced(how.root / TRACING, cpus))
    return None


def leave(cpus: Mask) -> None:
    """Keep this process off some CPUs, if others are left for it: it is to interrupt none."""
    others = Mask.from_ids(os.sched_getaffinity(0)) - cpus
    if others:
        os.sched_setaffinity(0, set(others))


_SOURCE: Final = Path(__file__).with_name("spin.c")
_SCRIPT: Final = Path(__file__).with_name("spin.py")
_COMPILE_SECONDS: Final = 60.0
#: How long a probe may take beyond its time before it is ended.
_PATIENCE_SECONDS: Final = 30.0


@contextmanager
def spinning_program() -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the command of the probe, and what it is: compiled now, else the script."""
    script = ((sys.executable, "-I", "-S", str(_SCRIPT)), "Python: no C compiler")
    compiler = shutil.which("cc")
    with tempfile.TemporaryDirectory(prefix="numawarden-spin-") as directory:
        program = f"{directory}/spin"
        command = (compiler or "", "-O2", "-o", program, str(_SOURCE))
        if compiler is None or not _succeeds(command):
            yield script
        elif not _succeeds((program, "", str(min(os.sched_getaffinity(0))), "0")):
            yield script[0], f"Python: {directory} allows no programs"
        else:
            yield (program,), "C"


def _succeeds(command: Sequence[str]) -> bool:
    try:
        done = subprocess.run(  # noqa: S603  # the compiler and what it made
            command, capture_output=True, timeout=_COMPILE_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


class Probes:
    """One spinning process on each CPU, in a cgroup of whom the CPU belongs to; a context manager.

    It competes with what runs there: the longest interruption includes the turns of the owner.
    """

    def __init__(
        self,
        territories: Sequence[ExclusiveTerritory],
        seconds: float,
        program: Sequence[str],
        mount: Path,
    ) -> None:
        self._processes: dict[int, subprocess.Popen[str]] = {}
        self._deadline = seconds + _PATIENCE_SECONDS
        for each in territories:
            procs = str(mount / each.cgroups[-1] / "cgroup.procs") if each.cgroups else ""
            for cpu in each.cpus:
                if cpu not in self._processes:
                    self._processes[cpu] = subprocess.Popen(  # noqa: S603  # `spinning_program`
                        (*program, procs, str(cpu), str(seconds)),
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        text=True,
                    )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
            process.communicate()

    @property
    def threads(self) -> frozenset[int]:
        """The ids of the probes' threads."""
        return frozenset(process.pid for process in self._processes.values())

    def added(self, document: InterferenceDocument, kind: str) -> InterferenceDocument:
        """Return a document with what the probes saw; raises `InterferenceError` if none ran."""
        seen: dict[int, tuple[int, int, int]] = {}
        failed: dict[int, str] = {}
        for cpu in self._processes:
            answer = self._answer(cpu)
            if isinstance(answer, str):
                failed[cpu] = answer
            else:
                seen[cpu] = answer
        why = next(iter(failed.values()), "")
        unprobed = f"the probe did not run on CPUs {Mask.from_ids(failed)}: {why}"
        if not seen:
            raise InterferenceError(f"{unprobed}; run as root, and name CPUs that are online")
        cpus = tuple(
            replace(each, longest_seconds=seen[each.cpu][0] / _NS, interruptions=seen[each.cpu][2])
            if each.cpu in seen
            else each
            for each in document.cpus
        )
        step = max(shortest for _, shortest, _ in seen.values())
        busy = Mask.from_ids(each.cpu for each in cpus if each.own_seconds > _BUSY)
        beside = (
            f"the owner's tasks ran on CPUs {busy}: what the probe saw there includes them; probe "
            "a pod that does nothing"
        )
        notes = (*((unprobed,) if failed else ()), *((beside,) if busy else ()))
        probe = f"{kind}, in steps of {step} ns"
        return replace(document, cpus=cpus, probe=probe, notes=(*document.notes, *notes))

    def _answer(self, cpu: int) -> tuple[int, int, int] | str:
        """Return the longest gap, the shortest, and how many were long; else why there is none."""
        process = self._processes[cpu]
        try:
            out, err = process.communicate(timeout=self._deadline)
        except subprocess.TimeoutExpired:
            return "it did not end"
        fields = out.split()
        if process.returncode or len(fields) != 3:  # noqa: PLR2004  # as `spin.c` prints them
            return " ".join(err.split()) or "it was ended"
        longest, shortest, gaps = map(int, fields)
        return longest, shortest, gaps


#: Above this time an owner's tasks count as running beside the probe, in seconds.
_BUSY: Final = 0.001
