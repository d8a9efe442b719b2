"""Who else ran on exclusive CPUs: readings of a procfs, switches of a trace, a probe."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.api.documents.explanations import HintDocument
from agent.api.documents.kernel import EnforcementDocument
from agent.api.documents.kernel import KernelDocument as Kernel
from agent.api.documents.pods import ContainerDocument, PodDocument
from agent.cli.errors import ExitCode
from agent.cli.main import run_command
from agent.reconcile.tasks import ExclusiveTerritory
from agent.tools.interference import (
    CpuCounters,
    InterferenceError,
    Measuring,
    Probes,
    RunningTask,
    Runs,
    interference,
    measure,
    read_counters,
    read_threads,
    spinning_program,
    territories_of,
    traced,
)
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

CPUS: Final = Mask.of(2, 3)
OWN: Final = ExclusiveTerritory("default/db/main", CPUS, ("kubepods/pod1/main",))
KERNEL, GUEST = 0x00200000, 0


class FakeProc:
    """A root whose procfs shows three CPUs, of which 2 and 3 are exclusive, and some threads."""

    def __init__(self, root: Path) -> None:
        self.root, self.proc = root, root / "proc"
        self.proc.mkdir(parents=True)
        self.counts({"24": (0, 5, 7)}, (0, 1, 2))

    def counts(self, rows: Mapping[str, tuple[int, ...]], steal: tuple[int, ...]) -> None:
        online = (0, 2, 3)[: len(steal)]
        header = "      " + "".join(f"{f'CPU{cpu}':>11}" for cpu in online) + "\n"
        body = "".join(
            f"{label:>4}: {''.join(f'{count:>11}' for count in counts)}  MSI  1-edge      nvme0q3\n"
            for label, counts in rows.items()
        )
        (self.proc / "interrupts").write_text(f"{header}{body} ERR:          3\n")
        (self.proc / "softirqs").write_text(f"{header}TIMER: {' 9' * len(online)}\n")
        lines = (f"cpu{cpu} 1 0 1 1 0 0 0 {n} 0 0\n" for cpu, n in zip(online, steal, strict=True))
        (self.proc / "stat").write_text(f"cpu  9 0 9 9 0 0 0 9 0 0\n{''.join(lines)}intr 99 1\n")

    def thread(self, pid: int, name: str, cpu: int, ns: int, flags: int = GUEST) -> None:
        directory = self.proc / f"{pid}/task/{pid}"
        directory.mkdir(parents=True, exist_ok=True)
        fields = ["S", "1", "0", "0", "0", "0", str(flags), *"0" * 12, "77", *"0" * 16, str(cpu)]
        for place in (directory, self.proc / str(pid)):
            (place / "stat").write_text(f"{pid} ({name}) {' '.join(fields)} 0 0\n")
        (directory / "schedstat").write_text(f"{ns} 0 {ns // 1000}\n")
        (self.proc / f"{pid}/cgroup").write_text(f"0::/{name}.service\n")


@pytest.fixture
def host(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path / "host")


def nothing_ran() -> Runs:
    return Runs(CPUS, lambda _: RunningTask(None, kernel=False))


TABLES = st.dictionaries(
    st.sampled_from(["24 nvme0q3", "25 eth0", "LOC Local timer interrupts", "30 arch_timer"]),
    st.dictionaries(st.sampled_from([2, 3]), st.integers(0, 1 << 40)),
)


@given(TABLES, TABLES)
def test_sources_and_ticks_of_a_cpu_are_what_all_its_counters_grew_by(
    before: dict[str, dict[int, int]], grown: dict[str, dict[int, int]]
) -> None:
    after = {
        source: {
            cpu: before.get(source, {}).get(cpu, 0) + grown.get(source, {}).get(cpu, 0)
            for cpu in CPUS
        }
        for source in before.keys() | grown.keys()
    }
    first, second = (CpuCounters(CPUS, table, {}, {}, {}) for table in (before, after))
    document = interference([OWN], first, second, nothing_ran(), 1.0, exact=True)
    for each in document.cpus:
        total = sum(counts.get(each.cpu, 0) for counts in grown.values())
        assert sum(each.interrupts.values()) + each.ticks == total
        assert each.switches is None


def test_of_all_columns_those_of_the_cpus_are_read(host: FakeProc) -> None:
    shown = read_counters(host.root, CPUS)
    assert shown.interrupts == {"24 nvme0q3": {2: 5, 3: 7}}
    assert shown.softirqs == {"TIMER": {2: 9, 3: 9}}
    assert (shown.online, shown.steal, shown.slices) == (CPUS, {2: 1, 3: 2}, {})


@pytest.mark.parametrize(
    ("text", "slices"),
    [
        ("version 15\ncpu0 0 0 1 1 1 1 1 1 4\ncpu2 0 0 9 1 5 4 10 20 33\ndomain0 f 1\n", {2: 33}),
        ("version 99\ncpu2 1 2\n", {}),
        ("\0\0", {}),
    ],
)
def test_time_slices_are_read_where_the_kernel_shows_them(
    host: FakeProc, text: str, slices: dict[int, int]
) -> None:
    (host.proc / "schedstat").write_text(text)
    assert read_counters(host.root, CPUS).slices == slices


def test_a_file_of_any_size_costs_bounded_memory(host: FakeProc) -> None:
    rows = "".join(f"{n:>5}: 1 1 1  chip  x\x1b[2J{n}\n" for n in range(1 << 16, (1 << 16) + 99))
    endless = "7" * (1 << 19)
    many = "".join(f"{n:>5}: 1 1 1  chip  dev{n}\n" for n in range(1 << 16))
    (host.proc / "interrupts").write_text(f" CPU0 CPU2 CPU3\n{endless}\n{many}{rows}")
    shown = read_counters(host.root, CPUS).interrupts
    assert len(shown) == (1 << 16) + 1
    assert shown["others"] == {2: 99, 3: 99}
    assert sum(counts[2] for counts in shown.values()) == (1 << 16) + 99


def test_a_cpu_that_went_offline_counts_nothing_and_is_named(host: FakeProc) -> None:
    before = read_counters(host.root, CPUS)
    host.counts({"24": (0, 9)}, (0, 1))
    after = read_counters(host.root, CPUS)
    document = interference([OWN], before, after, nothing_ran(), 1.0, exact=True)
    two, three = document.cpus
    assert (two.online, two.interrupts) == (True, {"24 nvme0q3": 4})
    assert (three.online, three.interrupts, three.softirqs) == (False, {}, {})
    (note,) = document.notes
    assert note.startswith("CPUs 3 were offline at the beginning or at the end, or this host")


def test_a_sample_counts_threads_that_ran_and_stood_on_the_cpus(host: FakeProc) -> None:
    host.thread(10, "idle", 2, 500)
    host.thread(11, "cron", 2, 1_000)
    host.thread(12, "elsewhere", 0, 1_000)
    host.thread(13, "moves", 0, 4_000)
    host.thread(14, "vanishes", 2, 1)
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if now[0] == 1.5:
            host.thread(11, "cron", 2, 5_000)
            host.thread(12, "elsewhere", 0, 9_000)
            host.thread(13, "moves", 3, 10_000)
            host.thread(15, "kworker/3:0", 3, 7_000, KERNEL)
            shutil.rmtree(host.proc / "14")

    how = Measuring(host.root, monotonic=lambda: now[0], sleep=sleep)
    document = measure([OWN], 1.5, how)
    assert document.seconds == 1.5
    assert not document.exact
    seen = {
        each.cpu: [
            (t.name, t.cgroup, t.kernel, round(t.seconds * 1e9), t.times) for t in each.tasks
        ]
        for each in document.cpus
    }
    assert seen[2] == [("cron", "/cron.service", False, 4_000, 4)]
    assert seen[3] == [
        ("kworker/3:0", None, True, 7_000, 7),
        ("moves", "/moves.service", False, 6_000, 6),
    ]
    assert [each.migrations for each in document.cpus] == [0, 1]


def switch(cpu: int, us: int, before: tuple[str, int], after: tuple[str, int]) -> str:
    return (
        f"          {before[0]}-{before[1]}  [{cpu:03}] d..2. {us // 10**6}.{us % 10**6:06}: "
        f"sched_switch: prev_comm={before[0]} prev_pid={before[1]} prev_prio=120 prev_state=S ==> "
        f"next_comm={after[0]} next_pid={after[1]} next_prio=120"
    )


IDLE = ("swapper/2", 0)


@given(st.lists(st.tuples(st.integers(1, 10**7), st.integers(0, 5)), min_size=1, max_size=40))
def test_the_times_of_a_trace_add_up_to_its_length(steps: list[tuple[int, int]]) -> None:
    runs, now, running = nothing_ran(), 10**6, 0
    runs.trace_begins(now * 1000)
    for us, thread in steps:
        now += us
        runs.feed(switch(2, now, (f"t{running}", running), (f"t{thread}", thread)))
        running = thread
    runs.trace_ends((now + 5) * 1000)
    assert sum(ns for _, ns in runs.ran.values()) == (sum(us for us, _ in steps) + 5) * 1000
    assert sum(times for times, _ in runs.ran.values()) == len(steps) + 1


def test_a_trace_shows_tasks_of_others_apart_from_the_owners() -> None:
    tasks = {7: RunningTask("system.slice/cron.service", kernel=False)}
    own = RunningTask("kubepods/pod1/main/inner", kernel=False)
    runs = Runs(CPUS, lambda thread: tasks.get(thread, own))
    runs.trace_begins(0)
    cron = ("]: sched_switch", 7)  # as much of a line as fits a name
    for line in (
        switch(2, 100, ("db", 5), cron),
        switch(2, 130, cron, ("db", 5)),
        switch(3, 200, ("swapper/3", 0), ("db", 5)),
        switch(0, 210, cron, IDLE),
        "no switch",
    ):
        runs.feed(line)
    runs.trace_ends(1_000_000)
    nothing = CpuCounters(CPUS, {}, {}, {}, {})
    document = interference([OWN], nothing, nothing, runs, 0.001, exact=True)
    two, three = document.cpus
    assert [(t.name, t.times, round(t.seconds * 1e6)) for t in two.tasks] == [(cron[0], 1, 30)]
    assert (round(two.own_seconds * 1e6), round(three.own_seconds * 1e6)) == (970, 800)
    assert (two.migrations, three.migrations) == (0, 1)


def test_what_ran_while_switches_were_lost_is_of_no_task() -> None:
    runs = nothing_ran()
    runs.trace_begins(0)
    runs.feed(switch(2, 100, IDLE, ("cron", 7)))
    runs.feed("CPU:2 [LOST 12 EVENTS]")
    runs.feed(switch(2, 900, ("cron", 7), IDLE))
    runs.trace_ends(1_000_000)
    assert runs.lost == 12
    assert runs.ran[2, 7] == [1, 0]


def test_a_task_that_never_switched_is_sampled_beside_a_trace(host: FakeProc) -> None:
    runs = nothing_ran()
    runs.trace_begins(1)
    runs.feed(switch(2, 100, IDLE, ("cron", 7)))
    host.thread(7, "cron", 2, 10)
    host.thread(8, "hog", 3, 10)
    first = read_threads(host.root)
    host.thread(7, "cron", 2, 99)
    host.thread(8, "hog", 3, 99)
    runs.sampled(first, read_threads(host.root))
    assert runs.ran[2, 7] == [1, 0]
    assert runs.ran[3, 8] == [1, 89]


def test_a_trace_has_an_instance_of_its_own_that_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    instances = tmp_path / "instances"
    (instances / "numawarden-0").mkdir(parents=True)  # of a process that has ended
    files = ("buffer_size_kb", "tracing_cpumask", "trace_clock", "trace_pipe")
    made = Path.mkdir
    written: dict[str, str] = {}

    def instance(path: Path) -> None:
        made(path)
        for name in (*files, "per_cpu/cpu2/buffer_size_kb", "per_cpu/cpu33/buffer_size_kb"):
            os.makedirs((path / name).parent, exist_ok=True)  # noqa: PTH103  # `Path.mkdir` is replaced
            (path / name).write_text("")
        os.makedirs(path / "events/sched/sched_switch")  # noqa: PTH103
        (path / "events/sched/sched_switch/enable").write_text("0")
        (path / "trace_pipe").write_text(f"{switch(2, 5, IDLE, ('cron', 7))}\n")

    def removed(path: Path) -> None:
        written.update({f.name: f.read_text() for f in path.rglob("*") if f.is_file()})
        shutil.rmtree(path)

    monkeypatch.setattr(Path, "mkdir", instance)
    monkeypatch.setattr(Path, "rmdir", removed)
    with traced(tmp_path, Mask.of(2, 33)) as switches:
        assert len(list(switches())) == 1
    assert list(instances.iterdir()) == []
    assert written["tracing_cpumask"] == "00000002,00000004"
    assert (written["trace_clock"], written["enable"]) == ("mono", "0")


def container(name: str, cpus: str, isolation: str, *cgroups: str) -> ContainerDocument:
    return ContainerDocument(
        name=name, kind="app", isolation=isolation, cpus=cpus, mems=None, memory=(), devices={},
        hint=HintDocument(nodes=None, preferred=True), quota_disabled=True,
        kernel=tuple(Kernel(cgroup=path) for path in cgroups),
    )  # fmt: skip


def test_exclusive_cpus_are_the_containers_and_the_rest_the_pods() -> None:
    pod = PodDocument(
        uid="u", name="db", namespace="default", qos="Guaranteed", source="api", spec_digest="",
        cpus="2-6", memory=(), exclusive_cpus="2-6", enforcement=EnforcementDocument(enforced=True),
        kernel=(Kernel(cgroup="/p"),),
        containers=(
            container("main", "2-3", "container", "/p/m"),
            container("log", "4", "pod", "/p/l"),
            container("late", "5", "container"),
            container("guest", "0", "host", "/p/g"),
        ),
    )  # fmt: skip
    every = ("/p", "/p/m", "/p/l", "/p/g")
    assert territories_of([pod]) == (
        ExclusiveTerritory("default/db/main", Mask.of(2, 3), ("p/m",)),
        ExclusiveTerritory("default/db/log", Mask.of(4), ("p/l",)),
        ExclusiveTerritory("default/db/late", Mask.of(5), tuple(p[1:] for p in every)),
        ExclusiveTerritory("default/db", Mask.of(6), tuple(p[1:] for p in every)),
    )


SPIN: Final = Path(sys.modules[measure.__module__].__file__ or "").with_name("spin.py")


def test_a_probe_says_how_long_it_was_interrupted_and_in_which_steps(host: FakeProc) -> None:
    cpu = min(os.sched_getaffinity(0))
    land = ExclusiveTerritory("p", Mask.of(cpu), ())
    nothing = CpuCounters(land.cpus, {}, {}, {}, {})
    document = interference([land], nothing, nothing, nothing_ran(), 0.01, exact=True)
    with spinning_program() as (program, kind):
        for command in {program, (sys.executable, "-I", "-S", str(SPIN))}:
            with Probes([land], 0.01, command, host.root) as probes:
                probed = probes.added(document, kind)
            assert probed.probe.startswith(kind)
            assert 0 < (probed.cpus[0].longest_seconds or 0) < 10


def test_a_probe_that_cannot_run_there_says_why(host: FakeProc) -> None:
    land = ExclusiveTerritory("p", Mask.of(4000), ("gone",))
    nothing = CpuCounters(EMPTY, {}, {}, {}, {})
    document = interference([land], nothing, nothing, nothing_ran(), 0.01, exact=True)
    with (
        Probes([land], 0.01, (sys.executable, "-I", "-S", str(SPIN)), host.root) as probes,
        pytest.raises(InterferenceError, match=r"CPUs 4000: .*gone/cgroup.procs: No such file"),
    ):
        probes.added(document, "Python")


def test_the_command_shows_each_cpu_and_exits_with_1_for_tasks_of_others(
    host: FakeProc, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.cli.interference.leave", lambda _: None)
    asked = ["interference", "--cpus", "2-3", "--root", str(host.root), "--for", "1ms"]
    assert run_command([*asked, "-o", "json"]) == ExitCode.OK
    assert [each["cpu"] for each in json.loads(capsys.readouterr().out)["cpus"]] == [2, 3]

    readings = itertools.count(1)

    def busier(root: Path) -> object:
        host.thread(11, "cron", 2, 5_000 * next(readings))
        return read_threads(root)

    monkeypatch.setattr("agent.tools.interference.read_threads", busier)
    assert run_command(asked) == ExitCode.REJECTED
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"task +cron \(/cron.service\) +2 +5 +5\.0 us", lines[7])
    assert run_command([*asked, "--cgroup", "/cron.service"]) == ExitCode.OK
    capsys.readouterr()
    assert run_command([*asked, "-o", "prometheus"]) == ExitCode.REJECTED
    out = capsys.readouterr().out
    assert 'numawarden_interference_task_runs{cpu="2",owner=""} 5.0' in out
    assert "numawarden_interference_window_seconds " in out


def test_sigterm_ends_the_command_as_an_interrupt_does(
    host: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.cli.interference.leave", lambda _: None)
    before = signal.getsignal(signal.SIGTERM)
    ended: list[str] = []

    def terminated() -> Iterator[str]:
        os.kill(os.getpid(), signal.SIGTERM)
        yield ""

    @contextmanager
    def recording(*_: object) -> Iterator[Callable[[], Iterator[str]]]:
        try:
            yield terminated
        finally:
            ended.append("recording")

    monkeypatch.setattr("agent.tools.interference.traced", recording)
    asked = ["interference", "--cpus", "2-3", "--root", str(host.root), "--for", "1m"]
    assert run_command(asked) == ExitCode.INTERRUPTED
    assert ended == ["recording"]
    assert signal.getsignal(signal.SIGTERM) == before


def test_cpus_and_cgroups_that_are_not_there_are_errors(
    host: FakeProc, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.cli.interference.leave", lambda _: None)
    asked = ["interference", "--root", str(host.root), "--for", "1ms", "--cpus"]
    mount = host.root / "sys/fs/cgroup"
    (mount / "cron.service").mkdir(parents=True)
    (mount / "cgroup.controllers").write_text("cpuset\n")
    for options, said in (
        (["98-99"], "CPUs 98-99 are offline, or this host does not have them"),
        (["2", "--cgroup", "/cronn.service"], "there is no cgroup /cronn.service"),
    ):
        assert run_command([*asked, *options]) == ExitCode.NOT_FOUND
        assert said in capsys.readouterr().err
    assert run_command([*asked, "2", "--cgroup", "/cron.service"]) == ExitCode.OK
    assert capsys.readouterr().out.startswith("1 CPU, ")
    assert run_command([*asked, "2,98"]) == ExitCode.ENVIRONMENT
    unknown = "note: CPUs 98 were offline at the beginning or at the end, or this host does not"
    assert unknown in capsys.readouterr().out
