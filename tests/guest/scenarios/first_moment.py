"""How long a new container may use the CPUs of another, and CPUs that the kernel loses."""

from __future__ import annotations

import os
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from tests.guest.inside import isolated, kernel
from tests.guest.inside.agent import Agent
from tests.guest.inside.api import ask
from tests.guest.inside.commands import run as command
from tests.guest.inside.workloads import systemd_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.guest.inside.checks import Checks
    from tests.guest.inside.guest import Guest

MOMENT: Final = "5526cafe-0000-4000-8000-0000000150a4"
MOMENT_SLICE: Final = "kubepods-pod5526cafe_0000_4000_8000_0000000150a4.slice"
#: How long a process waits for the CPUs of its own container, in seconds.
LONGEST: Final = 20.0


def run(guest: Guest) -> None:
    """Start containers beside another with each kind of partition; then lose CPUs."""
    agent = Agent(guest)
    for drop_in in ("isolation.conf", "partitions.conf"):
        isolated.permit(guest, drop_in)
    isolated.begin_restless()
    # The slices have sets from then on: the kernel empties none in which processes are.
    isolated.switch_on(agent, {"hostSlices": True})
    agent.admit(isolated.pod_of("first", isolated.OTHER))
    agent.remove(isolated.OTHER)
    _first_moment(guest, agent)
    if not kernel.keeps_partitions():  # else no cgroup beside makes a partition invalid
        _lost(guest.checks, agent)


def _first_moment(guest: Guest, agent: Agent) -> None:
    """Measure for how long a container that starts may run on the CPUs of another of its pod."""
    checks = guest.checks
    for mode in ("never", "root", "isolated"):
        agent.configure(agent={"isolation": {"partitions": mode}})
        agent.restart()
        agent.admit(isolated.pod_of("moment", MOMENT, main="4", side="2"))
        main = systemd_run("main", MOMENT_SLICE)
        ask("POST", "reconcile")
        own = kernel.affinity(main.pid)
        if mode != "never":
            shown = main.cgroup.read("cpuset.cpus.partition")
            checks.equal(f"first moment, {mode}: the container is a partition", shown, mode)
            checks.equal(f"first moment, {mode}: no condition", isolated.conditions(agent), [])
        side = kernel.Cgroup(main.cgroup.path.parent / "side")
        with agent.paused():
            born = _of_new_process(side, lambda: ",".join(map(str, kernel.affinity(0))))
        # On the CPUs of another as long as its set is not written, unless the kernel took them.
        beside = bool(own & kernel.ids(born))
        checks.equal(f"first moment, {mode}: born on its CPUs", beside, mode == "never")
        found = [float(_of_new_process(side, partial(_seconds_beside, own))) for _ in range(9)]
        figures = (
            f"median {statistics.median(found) * 1000:.1f} ms, longest {max(found) * 1000:.1f} ms "
            f"of {len(found)} starts"
        )
        guest.log(f"first-moment-{mode}", figures)
        checks.equal(f"first moment, {mode}: main keeps its CPUs", kernel.affinity(main.pid), own)
        # How long is the agent's pace; without a partition it may be quicker than the process.
        ends = max(found) < LONGEST if mode == "never" else not any(found)
        checks.check(f"first moment, {mode}: how long it may use them", ends, figures)
        command("systemctl", "stop", "main.service")
        agent.remove(MOMENT)


def _lost(checks: Checks, agent: Agent) -> None:
    """Remove a partition while it is invalid, as others may.

    This kernel may crash at the next change of a partition: none may follow in this guest.
    """
    agent.configure(agent={"isolation": {"partitions": "root"}})
    agent.restart()
    ask("POST", "reconcile")
    there = isolated.set_of("cpuset.cpus.effective")
    checks.equal("lost CPUs: no condition before", isolated.conditions(agent), [])
    lab = kernel.Cgroup(isolated.CGROUPS / "lab")
    partition, beside = kernel.Cgroup(lab.path / "partition"), kernel.Cgroup(lab.path / "beside")
    lab.path.mkdir()
    lab.write("cgroup.subtree_control", "+cpuset")
    lab.write("cpuset.cpus.exclusive", "12-13")
    partition.path.mkdir()
    partition.write("cpuset.cpus.exclusive", "12-13")
    partition.write("cpuset.cpus.partition", "root")
    beside.path.mkdir()
    beside.write("cpuset.cpus", "13-14")
    shown = partition.read("cpuset.cpus.partition")
    checks.check("lost CPUs: the partition is invalid", "invalid" in shown, shown)
    for each in (partition, beside, lab):
        each.path.rmdir()
    lost = there - isolated.set_of("cpuset.cpus.effective")
    checks.equal("lost CPUs: they are in no cpuset", lost, {12, 13})
    for when in ("", " after a restart"):
        ask("POST", "reconcile")
        (why,) = isolated.conditions(agent)
        checks.check(f"lost CPUs: a condition{when}", "CPUs 12-13 are in no" in why, why)
        agent.restart()


def _of_new_process(cgroup: kernel.Cgroup, asked: Callable[[], str]) -> str:
    """Return what a process finds that is the first of a new cgroup."""
    cgroup.path.mkdir()
    reads, writes = os.pipe()
    pid = os.fork()
    if not pid:
        cgroup.write("cgroup.procs", "0")
        os.write(writes, asked().encode())
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as shown:
        found = shown.read()
    os.waitpid(pid, 0)
    cgroup.path.rmdir()
    return found


def _seconds_beside(others: frozenset[int]) -> str:
    """Return for how long this process may run on CPUs of others, in seconds."""
    started = ended = time.monotonic()
    while others & kernel.affinity(0) and ended < started + LONGEST:
        time.sleep(0.0005)
        ended = time.monotonic()
    return f"{ended - started}"
