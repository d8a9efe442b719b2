"""CPU time: who burns it, who gets it, and who is throttled.

The guest's CPUs are emulated one after the other on one core of the host. Its clocks go on
meanwhile, so a busy CPU seems to work all the time, and shares of CPU time are right although each
CPU does little in it. A loop is given up to 100 ms before the next CPU has its turn, a whole quota
period, unless it executes PAUSE: then the others follow at once, and measured shares are right to
1 %.
"""

from __future__ import annotations

import struct
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from tests.guest.inside import machine
from tests.guest.inside.pods import E2, SHARED
from tests.guest.inside.staged import Staged, apps
from tests.guest.inside.stages import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tests.guest.inside.examples import Host
    from tests.guest.inside.kernel import Cgroup

#: `pause`, and a jump back to it.
LOOP: Final = b"\xf3\x90\xeb\xfc"

#: Where the program is loaded, and the size of an ELF header with one program header.
BASE: Final = 0x400000
HEADERS: Final = 64 + 56


#: A budget of 4: 2 CPUs of its own, and 1 for each of the two that share.
LOADED: Final = Staged("loaded", 4, apps(E2, SHARED, SHARED))
EXCLUSIVE: Final = 2
EACH: Final = 1000

#: Seconds until quotas are in step, and seconds that are measured: 40 periods.
SETTLE: Final = 1
MEASURED: Final = 4
#: Seconds that are measured at most. A CPU that the host does not let run goes on to be charged,
#: beyond the quota; the kernel takes that off later periods, so over a longer time it is right.
LONGEST: Final = 120

#: What the exclusive container may lose to clocks that a busy host moves in leaps, and what the
#: others may use beyond their share in so few periods. Both are 1 % where the host is quiet.
LOSS: Final = 0.05
EXCESS: Final = 0.10


@dataclass(frozen=True, slots=True)
class Usage:
    """What a cgroup did: CPUs it used on average, and periods in which it was throttled."""

    cpus: float
    throttled: int


def write_program(file: Path) -> Path:
    """Write the program that does nothing but keep a CPU busy; the guest has no compiler."""
    size = HEADERS + len(LOOP)
    identity = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    entry = (2, 62, 1, BASE + HEADERS, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    segment = (1, 5, 0, BASE, BASE, size, size, 0x1000)
    header = identity + struct.pack("<HHIQQQIHHHHHH", *entry)
    file.write_bytes(header + struct.pack("<IIQQQQQQ", *segment) + LOOP)
    file.chmod(0o755)
    return file


@contextmanager
def busy(program: Path, cgroups: Mapping[str, tuple[Cgroup, int]]) -> Iterator[None]:
    """Keep CPUs busy by so many processes in each cgroup, as if the containers' own did it."""
    processes = []
    try:
        for cgroup, count in cgroups.values():
            for _ in range(count):
                processes.append(subprocess.Popen([program]))
                cgroup.write("cgroup.procs", str(processes[-1].pid))
        yield
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def measure(
    cgroups: Mapping[str, Cgroup],
    seconds: float,
    fits: Callable[[Mapping[str, Usage]], bool] = bool,
) -> dict[str, Usage]:
    """Return what each cgroup uses from now on for so many seconds.

    As long as what was found does not fit, the same time is added, up to `LONGEST`.
    """
    before = {name: _stat(cgroup) for name, cgroup in cgroups.items()}
    started = time.monotonic()
    while True:
        time.sleep(seconds)
        found = _usage(before, cgroups, started)
        if fits(found) or time.monotonic() - started >= LONGEST:
            return found


def _usage(
    before: Mapping[str, Mapping[str, int]], cgroups: Mapping[str, Cgroup], started: float
) -> dict[str, Usage]:
    after = {name: _stat(cgroup) for name, cgroup in cgroups.items()}
    elapsed = (time.monotonic() - started) * 1e6
    return {
        name: Usage(
            cpus=round((after[name]["usage_usec"] - stat["usage_usec"]) / elapsed, 3),
            # The line comes with the cpu controller, which may be enabled meanwhile.
            throttled=after[name].get("nr_throttled", 0) - stat.get("nr_throttled", 0),
        )
        for name, stat in before.items()
    }


def _stat(cgroup: Cgroup) -> dict[str, int]:
    lines = (line.split() for line in cgroup.read("cpu.stat").splitlines())
    return {name: int(value) for name, value in lines}


def check(host: Host, program: Path) -> None:
    """Check that a pod in container scope uses its budget, and its exclusive CPUs undisturbed.

    The exclusive container is busy on both of its CPUs. Each sharing one runs as many processes as
    the host has CPUs, so that nothing but its quota can hold it.
    """
    run = Run.begin(host, LOADED)
    own, *sharing = run.running.values()
    desired = {"the pod": None, own.name: None} | dict.fromkeys((one.name for one in sharing), EACH)
    cgroups = {"the pod": run.cgroup} | {one.name: one.cgroup for one in (own, *sharing)}
    for name, cgroup in cgroups.items():
        title = f"load: cpu.max of {name} in millicores"
        quota = partial(getattr, cgroup, "millicores")
        host.checks.eventually(title, quota, desired[name], cgroup)
    counts = {own.name: EXCLUSIVE} | dict.fromkeys((s.name for s in sharing), len(machine.cpus()))
    with busy(program, {name: (cgroups[name], count) for name, count in counts.items()}):
        measure(cgroups, SETTLE)
        names = [one.name for one in sharing]
        found = measure(
            cgroups, MEASURED, lambda found: all(_shares(found, own.name, names).values())
        )
    _check_shares(host, found, own.name, names)
    _check_said(host, {part: run.running[part].cgroup for part in list(run.running)[1:]})
    run.end()


def _check_said(host: Host, throttled: Mapping[str, Cgroup]) -> None:
    """Check that the agent says of the throttled containers, and of no other, how often they were.

    The guest's kernel counts no pressure (`psi=0`).
    """
    slow = host.agent.show(LOADED.uid)["slow"]
    counts = {name: _stat(cgroup)["nr_throttled"] for name, cgroup in throttled.items()}
    said = {
        each["container"]: f"ended too early in {counts.get(each['container'])} " in each["message"]
        for each in slow["causes"]
        if each["cause"] == "throttled"
    }
    host.checks.equal("load: said to be throttled", said, dict.fromkeys(counts, True), slow)
    unknown = ["cpu.pressure", "memory.pressure"]
    host.checks.equal("load: said not to be known", slow["unknown"], unknown)


#: What an exclusive container uses at least, and those that share and the pod at most.
LEAST: Final = EXCLUSIVE * (1 - LOSS)
MOST_SHARED: Final = (LOADED.budget - EXCLUSIVE) * (1 + EXCESS)
MOST: Final = LOADED.budget * (1 + EXCESS)


def _shares(found: Mapping[str, Usage], own: str, sharing: list[str]) -> dict[str, bool]:
    """Return what must be true of the CPUs that each container used, and whether it is."""
    shared = sum(found[name].cpus for name in sharing)
    return {
        f"load: {own} uses at least {LEAST:.2f} CPUs": found[own].cpus >= LEAST,
        f"load: {sharing} use at most {MOST_SHARED:.2f} CPUs": shared <= MOST_SHARED,
        f"load: the pod uses at most {MOST:.2f} CPUs": found["the pod"].cpus <= MOST,
    }


def _check_shares(host: Host, found: Mapping[str, Usage], own: str, sharing: list[str]) -> None:
    checks = host.checks
    for title, holds in _shares(found, own, sharing).items():
        checks.check(title, holds, found)
    for name in ("the pod", own):
        checks.equal(f"load: periods in which {name} was throttled", found[name].throttled, 0)
    for name in sharing:
        throttled = found[name].throttled
        checks.check(f"load: {name} was throttled, so it desired more", throttled, throttled)
