"""What belongs to no pod keeps off exclusive CPUs: counted without the items, with them, and after.

Services of the host wake all the time, and interrupts are bound to a pod's CPU; `numawarden
interference` counts both. Then the items of `agent.isolation` are switched on, systemd reloads, the
agent is killed, and all is given back. A container reads which CPUs it has.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.guest.inside import kernel, machine
from tests.guest.inside.agent import CONFIG, PROGRAM, SERVICE, Agent
from tests.guest.inside.api import ask
from tests.guest.inside.commands import CommandFailed, attempt
from tests.guest.inside.commands import run as command
from tests.guest.inside.workloads import systemd_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tests.guest.inside.checks import Checks
    from tests.guest.inside.guest import Guest

POD: Final = "5526cafe-0000-4000-8000-0000000150a1"
INFORMED: Final = "5526cafe-0000-4000-8000-0000000150a3"
INFORMED_SLICE: Final = "kubepods-pod5526cafe_0000_4000_8000_0000000150a3.slice"
OTHER: Final = "5526cafe-0000-4000-8000-0000000150a2"
SLICE: Final = "kubepods-pod5526cafe_0000_4000_8000_0000000150a1.slice"
MOMENT: Final = "5526cafe-0000-4000-8000-0000000150a4"
MOMENT_SLICE: Final = "kubepods-pod5526cafe_0000_4000_8000_0000000150a4.slice"
#: How long a process waits for the CPUs of its own container, in seconds.
LONGEST: Final = 20.0
ISOLATION: Final[dict[str, object]] = {
    "hostSlices": True,
    "kernelThreads": True,
    "interrupts": "always",
    "powerClasses": {"awake": {"resumeLatency": "20"}},
    "power": "awake",
}
DROP_IN: Final = Path(f"/etc/systemd/system/{SERVICE}.d/isolation.conf")
HOST: Final = ("system.slice", "user.slice", "machine.slice", "init.scope")
CGROUPS: Final = Path("/sys/fs/cgroup")
IRQS: Final = Path("/proc/irq")
#: PF_NO_SETAFFINITY (include/linux/sched.h).
BOUND: Final = 0x04000000
#: Wakes twenty times a second, each time with a new process.
RESTLESS: Final = "while :; do sleep 0.05; done"
#: Never waits, on the pod's CPUs wherever the kernel lets it.
STRESS: Final = "stress.service"
#: How long the pod's CPUs are watched for one count: the job's console interrupts every second.
WATCHED: Final = "8s"
TRACING: Final = Path("/sys/kernel/tracing")
#: Where the agent writes what containers have, and where one of them has its directory.
ASSIGNED: Final = Path("/run/numawarden-pods")
INSIDE: Final = "etc/assigned/assigned.cpuset"


def run(guest: Guest) -> None:
    """Count without the items and with them; then let others write, kill, and restore."""
    checks, agent = guest.checks, Agent(guest)
    if not (TRACING / "instances").exists():
        command("mount", "-t", "tracefs", "tracefs", TRACING)
    for name in HOST[:3]:
        _restless(name)
    _configure(agent)
    agent.start()
    answer = agent.admit(_pod("alone", POD))
    own = kernel.ids(answer["pod"]["exclusiveCpus"])
    workload = systemd_run("own", SLICE)
    # As an administrator may have it: everything that can be moved comes to one of these CPUs.
    for irq in _touching(own):
        (IRQS / irq / "smp_affinity_list").write_text(str(min(own)))
    guest.log("interrupts", Path("/proc/interrupts").read_text())
    before = _settings()
    guest.log("settings", "\n".join(f"{name} {text}" for name, text in before.items()))
    checks.check("without: services may run on the pod's CPUs", own & _allowed(), own)
    touching = _touching(own)
    checks.check("without: interrupts may come there", touching, touching)
    _each_alone(guest, agent, own)
    _switch_on(agent, ISOLATION)
    _isolated(guest, agent, "with", own)
    checks.equal("with: no condition", _conditions(agent), [])
    _probed(guest, agent)
    checks.equal("with: the pod keeps its CPUs", kernel.affinity(workload.pid), own)
    _others_write(guest, agent, own)
    _restored(guest, agent, own, before)
    _informed(checks, agent)
    _partitions(guest, agent, before)
    _first_moment(guest, agent)
    _lost(checks, agent)


def _configure(agent: Agent, **isolation: object) -> None:
    agent.configure(agent={"isolation": isolation, "assignedFiles": str(ASSIGNED)})


def _switch_on(agent: Agent, items: dict[str, object]) -> None:
    _configure(agent, **items)
    agent.restart()
    ask("POST", "reconcile")


def _each_alone(guest: Guest, agent: Agent, own: frozenset[int]) -> None:
    """Count who runs on the pod's CPUs and interrupts them: without items, and with one of two."""
    checks = guest.checks
    affinity = f"--property=CPUAffinity={' '.join(map(str, own))}"
    options = ("--quiet", "--slice=system.slice", f"--unit={STRESS}", affinity)
    command("systemd-run", *options, "/bin/busybox", "sh", "-c", "while :; do :; done")
    services, interrupts = _counted(guest, agent, "without")
    checks.check("without: services run there", len(services) > 1, services)
    checks.check("without: one never leaves", f"/system.slice/{STRESS}" in services, services)
    checks.check("without: interrupts come there", interrupts, interrupts)

    # The unit as it is may write cgroups: enough for the slices.
    _switch_on(agent, {"hostSlices": True})
    checks.equal("slices alone: exclusive CPUs of services", own & _allowed(), frozenset())
    checks.equal("slices alone: no condition", _conditions(agent), [])
    services, interrupts = _counted(guest, agent, "slices")
    checks.equal("slices alone: services that ran there", services, {})
    checks.check("slices alone: interrupts come there", interrupts, interrupts)
    command("systemctl", "stop", STRESS)

    DROP_IN.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(guest.job / "deploy/isolation.conf", DROP_IN)
    command("systemctl", "daemon-reload")
    _switch_on(agent, {"interrupts": "always"})
    services, interrupts = _counted(guest, agent, "interrupts")
    checks.check("interrupts alone: services run there", services, services)
    _moved(checks, "interrupts alone", interrupts)


def _interference(agent: Agent, *options: str) -> dict[str, Any]:
    """Return what `numawarden interference` saw on the pod's CPUs; 1 says that others ran there."""
    shown = agent.cli("interference", POD, "--for", WATCHED, *options)
    if shown.status not in (0, 1):
        raise CommandFailed(str(shown))
    found: dict[str, Any] = json.loads(shown.stdout)
    return found


def _counted(guest: Guest, agent: Agent, when: str) -> tuple[Counter[str], Counter[str]]:
    """Return how often tasks of the host ran on the pod's CPUs, and devices interrupted these.

    By cgroup and by source. Threads that the kernel binds to a CPU and interrupts that cannot be
    moved are left out: no setting keeps them off.
    """
    found = _interference(agent)
    guest.log(f"interference-{when}", json.dumps(found, indent=1))
    guest.checks.check(f"{when}: every switch was recorded", found["exact"], found["notes"])
    services: Counter[str] = Counter()
    interrupts: Counter[str] = Counter()
    for cpu in found["cpus"]:
        for task in cpu["tasks"]:
            if not task["kernel"]:
                services[task["cgroup"] or f"{task['name']}, ended"] += task["times"]
        for source, times in cpu["interrupts"].items():
            number = source.partition(" ")[0]
            if number.isdecimal() and _is_movable(IRQS / number / "smp_affinity_list"):
                interrupts[source] += times
    return services, interrupts


def _probed(guest: Guest, agent: Agent) -> None:
    """Let a probe spin on the pod's CPUs, while no task of the host runs there."""
    found = _interference(agent, "--probe")
    guest.log("interference-probe", json.dumps(found, indent=1))
    longest = {each["cpu"]: each["longestSeconds"] for each in found["cpus"]}
    guest.checks.check("with: the probe saw every CPU", all(longest.values()), longest)
    of_host = [task for each in found["cpus"] for task in each["tasks"] if not task["kernel"]]
    guest.checks.equal("with: tasks of the host beside the probe", of_host, [])


def _informed(checks: Checks, agent: Agent) -> None:
    """Let a container read its CPUs while one of them goes offline and comes back."""
    answer = agent.admit(_pod("informed", INFORMED))
    own = kernel.ids(answer["pod"]["exclusiveCpus"])
    bind = f"--property=BindReadOnlyPaths={ASSIGNED / INFORMED / 'main'}:/{Path(INSIDE).parent}"
    options = ("--quiet", "--unit=informed", f"--slice={INFORMED_SLICE}", bind)
    command("systemd-run", *options, "/bin/busybox", "sleep", "1000000")
    pid = command("systemctl", "show", "--value", "--property=MainPID", "informed.service")
    file = Path(f"/proc/{pid.strip()}/root") / INSIDE
    ask("POST", "reconcile")
    checks.equal("the container reads its CPUs", _read_ids(file), own)
    switch = Path(f"/sys/devices/system/cpu/cpu{max(own)}/online")
    for text, left in (("0", own - {max(own)}), ("1", own)):
        switch.write_text(text)
        ask("POST", "reconcile")
        what = "offline" if text == "0" else "back"
        checks.eventually(f"CPU {what}: the container reads", partial(_read_ids, file), left)
    command("systemctl", "stop", "informed.service")
    agent.remove(INFORMED)


def _read_ids(file: Path) -> frozenset[int]:
    return kernel.ids(file.read_text())


def _restless(of: str, name: str = "first") -> None:
    """Start a service in a slice that wakes all the time."""
    unit = f"restless-{of.partition('.')[0]}-{name}"
    options = ("--quiet", f"--slice={of}", f"--unit={unit}")
    command("systemd-run", *options, "/bin/busybox", "sh", "-c", RESTLESS)


def _others_write(guest: Guest, agent: Agent, own: frozenset[int]) -> None:
    """Let systemd write, kill the agent, and have another pod come and go."""
    checks = guest.checks
    command("systemctl", "daemon-reload")
    command("systemctl", "set-property", "--runtime", "system.slice", "CPUWeight=200")
    _restless("system.slice", "late")
    _isolated(guest, agent, "after a reload", own)
    agent.kill()
    ask("POST", "reconcile")
    _isolated(guest, agent, "after a kill", own)
    answer = agent.admit(_pod("beside", OTHER))
    both = own | kernel.ids(answer["pod"]["exclusiveCpus"])
    # Threads of the kernel are moved by the comparison.
    ask("POST", "reconcile")
    _isolated(guest, agent, "beside another pod", both)
    agent.remove(OTHER)
    slices = {name: _effective(name) for name in HOST}
    free = machine.cpus() - own
    checks.equal("once that is removed", slices, dict.fromkeys(HOST, free))


def _restored(guest: Guest, agent: Agent, own: frozenset[int], before: dict[str, str]) -> None:
    """Have all given back by the command, and by the agent when the pod is removed."""
    checks = guest.checks
    agent.stop()
    shown = attempt(PROGRAM, "isolation", "status", "--config", CONFIG)
    guest.log("isolation-status", shown.stdout)
    checks.check("isolation status names the slices", "system.slice" in shown.stdout, shown)
    restored = attempt(PROGRAM, "isolation", "restore", "--config", CONFIG)
    checks.check("isolation restore succeeds", restored.ok, restored)
    _as_before(checks, "restored by command", before)
    agent.start()
    ask("POST", "reconcile")
    _isolated(guest, agent, "after the next start", own)
    command("systemctl", "stop", "own.service")
    agent.remove(POD)
    _as_before(checks, "once the pod is removed", before)


def _partitions(guest: Guest, agent: Agent, before: dict[str, str]) -> None:
    """Have the kernel take the CPUs; break that, kill the agent, have another pod come and go."""
    checks, all_cpus = guest.checks, machine.cpus()
    agent.configure(agent={"isolation": {"partitions": "asked"}})
    shutil.copy(guest.job / "deploy/partitions.conf", DROP_IN.with_name("partitions.conf"))
    command("systemctl", "daemon-reload")
    agent.restart()
    pod = _pod("partition", POD, {"isolation.numawarden.dev/partition": "isolated"})
    own = kernel.ids(agent.admit(pod)["pod"]["exclusiveCpus"])
    workload = systemd_run("own", SLICE)
    ask("POST", "reconcile")
    guest.log("partition", attempt(PROGRAM, "show", POD).stdout)
    _partitioned(checks, agent, "partition", own)
    checks.equal("partition: the pod has its CPUs", kernel.affinity(workload.pid), own)
    cpumask = int(Path("/sys/devices/virtual/workqueue/cpumask").read_text().replace(",", ""), 16)
    on_own = [cpu for cpu in own if cpumask >> cpu & 1]
    checks.equal("partition: CPUs of unbound workqueues that are exclusive", on_own, [])

    other = CGROUPS / "kubepods.slice/other"
    other.mkdir()
    (other / "cpuset.cpus").write_text(f"{min(all_cpus - own)},{min(own)}")
    ask("POST", "reconcile")
    guest.log("invalid-partition", "\n".join(_conditions(agent)))
    named = [each for each in _conditions(agent) if "isolated invalid (" in each]
    checks.check("partition: invalid, in the kernel's words", len(named) == 1, _conditions(agent))
    shown = attempt(PROGRAM, "check", "--cgroups")
    checks.check("partition: check --cgroups names it", "invalid" in shown.stdout, shown)
    agrees = ask("GET", "verify")["agrees"]
    checks.equal("partition: an invalid one leaves its pod enforced", agrees, expected=True)
    other.rmdir()
    ask("POST", "reconcile")
    _partitioned(checks, agent, "repaired", own)
    command("systemctl", "daemon-reload")
    agent.kill()
    ask("POST", "reconcile")
    _partitioned(checks, agent, "partition after a kill", own)
    beside = _pod("beside", OTHER, {"isolation.numawarden.dev/partition": "root"})
    both = own | kernel.ids(agent.admit(beside)["pod"]["exclusiveCpus"])
    ask("POST", "reconcile")
    checks.equal("two partitions: CPUs of services", _effective("system.slice"), all_cpus - both)
    agent.remove(OTHER)
    _partitioned(checks, agent, "once that is removed, the partition", own)
    _partitions_end(checks, agent, own, before)


def _partitions_end(
    checks: Checks, agent: Agent, own: frozenset[int], before: dict[str, str]
) -> None:
    """End the partition by command, by the configuration, and with its pod."""
    agent.stop()
    restored = attempt(PROGRAM, "isolation", "restore", "--config", CONFIG)
    checks.check("partition: restore succeeds", restored.ok, restored)
    _unpartitioned(checks, "partition ended by command", before)
    agent.start()
    ask("POST", "reconcile")
    _partitioned(checks, agent, "partition after the next start", own)
    agent.configure(agent={"isolation": {}})
    agent.restart()
    ask("POST", "reconcile")
    _unpartitioned(checks, "partitions switched off", before)
    agent.configure(agent={"isolation": {"partitions": "isolated"}})
    agent.restart()
    ask("POST", "reconcile")
    _partitioned(checks, agent, "partitions switched on", own)
    command("systemctl", "stop", "own.service")
    agent.remove(POD)
    ask("POST", "reconcile")
    _unpartitioned(checks, "partition of a removed pod", before)


def _first_moment(guest: Guest, agent: Agent) -> None:
    """Measure for how long a container that starts may run on the CPUs of another of its pod."""
    checks = guest.checks
    for mode in ("never", "root", "isolated"):
        agent.configure(agent={"isolation": {"partitions": mode}})
        agent.restart()
        agent.admit(_pod("moment", MOMENT, main="4", side="2"))
        main = systemd_run("main", MOMENT_SLICE)
        ask("POST", "reconcile")
        own = kernel.affinity(main.pid)
        if mode != "never":
            shown = main.cgroup.read("cpuset.cpus.partition")
            checks.equal(f"first moment, {mode}: the container is a partition", shown, mode)
            checks.equal(f"first moment, {mode}: no condition", _conditions(agent), [])
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
    """Remove a partition while it is invalid, as others may: the agent has the CPUs given back."""
    agent.configure(agent={"isolation": {"partitions": "root"}})
    agent.restart()
    ask("POST", "reconcile")
    there = _set_of("cpuset.cpus.effective")
    lab = kernel.Cgroup(CGROUPS / "lab")
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
    lost = there - _set_of("cpuset.cpus.effective")
    checks.equal("lost CPUs: they are in no cgroup", lost, {12, 13})
    # The slices had sets once, and the kernel empties none in which processes are.
    for _ in range(2):
        ask("POST", "reconcile")
    (why,) = _conditions(agent)
    checks.check(
        "lost CPUs: a condition while slices list them", "CPUs 12-13 are in no" in why, why
    )
    for name in HOST:
        (CGROUPS / name / "cpuset.cpus").write_text("0-11,14-15")
    ask("POST", "reconcile")
    checks.equal("lost CPUs: given back", _set_of("cpuset.cpus.effective"), there)
    checks.equal("lost CPUs: no condition", _conditions(agent), [])


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


def _partitioned(checks: Checks, agent: Agent, when: str, own: frozenset[int]) -> None:
    free = machine.cpus() - own
    checks.equal(f"{when}: no condition", _conditions(agent), [])
    checks.equal(f"{when}: isolated CPUs", _set_of("cpuset.cpus.isolated"), own)
    slices = {name: _effective(name) for name in HOST}
    checks.equal(f"{when}: CPUs of services", slices, dict.fromkeys(HOST, free))
    checks.equal(f"{when}: CPUs of PID 1", kernel.affinity(1), free)
    reclaiming = {_name(thread): cpus for thread, cpus in _threads()}
    nodes = {
        name: kernel.ids(Path(f"/sys/devices/system/node/node{name[-1]}/cpulist").read_text())
        for name in reclaiming
        if name.startswith(("kswapd", "kcompactd"))
    }
    shown = {name: reclaiming[name] for name in nodes}
    desired = {name: cpus - own or free for name, cpus in nodes.items()}
    checks.equal(f"{when}: CPUs of threads that reclaim memory of nodes", shown, desired)


def _unpartitioned(checks: Checks, when: str, before: dict[str, str]) -> None:
    checks.equal(f"{when}: isolated CPUs", _set_of("cpuset.cpus.isolated"), frozenset())
    exclusive = _set_of("kubepods.slice/cpuset.cpus.exclusive")
    checks.equal(f"{when}: exclusive CPUs of the pods", exclusive, frozenset())
    _as_before(checks, when, before)


def _set_of(file: str) -> frozenset[int]:
    return kernel.ids((CGROUPS / file).read_text().strip())


def _pod(
    name: str, uid: str, annotations: dict[str, str] | None = None, **cpus: str
) -> dict[str, object]:
    containers = []
    for container, cpu in (cpus or {"main": "4"}).items():
        amounts = {"cpu": cpu, "memory": "64Mi"}
        resources = {"requests": amounts, "limits": amounts}
        containers.append({"name": container, "image": "x", "resources": resources})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": uid,
            "annotations": annotations or {},
        },
        "spec": {"containers": containers},
    }


def _isolated(guest: Guest, agent: Agent, when: str, own: frozenset[int]) -> None:
    """Check that nothing of the host may come to these CPUs, and that nothing runs on the pod's."""
    checks = guest.checks
    checks.equal(f"{when}: CPUs of services that are exclusive", own & _allowed(), frozenset())
    checks.equal(f"{when}: interrupts that may come there", _touching(own), [])
    services, interrupts = _counted(guest, agent, when.replace(" ", "-"))
    checks.equal(f"{when}: services that ran there", services, {})
    _moved(checks, when, interrupts)
    threads = {_name(thread) for thread, cpus in _threads() if own & cpus}
    checks.equal(f"{when}: threads of the kernel that may run there", threads, set())
    cpumask = int(Path("/sys/devices/virtual/workqueue/cpumask").read_text().replace(",", ""), 16)
    on_own = [cpu for cpu in own if cpumask >> cpu & 1]
    checks.equal(f"{when}: CPUs of unbound workqueues that are exclusive", on_own, [])
    latency = {_latency(cpu).read_text().strip() for cpu in own}
    checks.equal(f"{when}: the longest wait for a CPU's idle state", latency, {"20"})


def _moved(checks: Checks, when: str, interrupts: Counter[str]) -> None:
    """Check that each interrupt came to the CPUs once at most: the next that comes moves it."""
    again = {source: times for source, times in interrupts.items() if times > 1}
    checks.equal(f"{when}: interrupts that came there again", again, {})


def _as_before(checks: Checks, when: str, before: dict[str, str]) -> None:
    after = _settings()
    changed = {name: (text, after.get(name)) for name, text in before.items()}
    differing = {name: pair for name, pair in changed.items() if pair[0] != pair[1]}
    checks.equal(f"{when}: settings that are not as they were", differing, {})
    slices = {name: _effective(name) for name in HOST}
    checks.equal(f"{when}: the slices", slices, dict.fromkeys(HOST, machine.cpus()))


def _settings() -> dict[str, str]:
    """Return every setting that the items may write, as it shows."""
    files = [
        IRQS / "default_smp_affinity",
        *sorted(IRQS.glob("*/smp_affinity_list")),
        Path("/sys/devices/virtual/workqueue/cpumask"),
        Path("/proc/sys/kernel/watchdog_cpumask"),
        *sorted(Path("/sys/class/net").glob("*/queues/*/*ps_cpus")),
        *(_latency(cpu) for cpu in sorted(machine.cpus())),
    ]
    shown = {}
    for file in files:
        try:
            shown[str(file)] = file.read_text()
        except OSError:  # XPS of a queue that has none
            continue
    lasting = ("kswapd", "kcompactd", "khugepaged", "oom_reaper", "kauditd")
    for thread, cpus in _threads():
        if (name := _name(thread)).startswith(lasting):
            shown[name] = str(sorted(cpus))
    return shown


def _latency(cpu: int) -> Path:
    return Path(f"/sys/devices/system/cpu/cpu{cpu}/power/pm_qos_resume_latency_us")


def _processes(cgroups: Iterable[Path]) -> Iterator[int]:
    for cgroup in cgroups:
        for file in cgroup.rglob("cgroup.procs"):
            try:
                yield from map(int, file.read_text().split())
            except OSError:  # it has ended
                continue


def _allowed() -> frozenset[int]:
    """Return all CPUs that any process of the host's slices may use."""
    found: frozenset[int] = frozenset()
    for pid in _processes(CGROUPS / name for name in HOST):
        try:
            found |= kernel.affinity(pid)
        except ProcessLookupError:
            continue
    return found


def _is_movable(file: Path) -> bool:
    """Return whether the kernel lets an interrupt be moved: it takes the set that there is."""
    try:
        file.write_text(file.read_text())
    except OSError:
        return False
    return True


def _touching(own: frozenset[int]) -> list[str]:
    """Return the interrupts that may come to these CPUs and that the kernel lets be moved."""
    files = sorted(IRQS.glob("*/smp_affinity_list"))
    touching = [file for file in files if own & kernel.ids(file.read_text().strip())]
    return [file.parent.name for file in touching if _is_movable(file)]


def _threads() -> Iterator[tuple[int, frozenset[int]]]:
    """Yield the threads of the kernel that can be moved, with the CPUs that each may use."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            cpus = kernel.affinity(int(entry.name))
        except OSError:  # it has ended
            continue
        if fields[1] == "2" and not int(fields[6]) & BOUND:
            yield int(entry.name), cpus


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _effective(cgroup: str) -> frozenset[int]:
    return kernel.Cgroup(cgroup).cpus


def _conditions(agent: Agent) -> list[str]:
    return [each["message"] for each in agent.status()["conditions"] if each["type"] == "Isolated"]
