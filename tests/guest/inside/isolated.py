"""What the scenarios of isolation stand on: what belongs to no pod, where it may run, where it ran.

`Host.begun` starts the agent beside services that wake all the time, admits a pod and has every
interrupt that can be moved come to one of its CPUs.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.guest.inside import kernel, machine
from tests.guest.inside.agent import SERVICE, Agent
from tests.guest.inside.api import ask
from tests.guest.inside.commands import CommandFailed
from tests.guest.inside.commands import run as command
from tests.guest.inside.workloads import systemd_run

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.guest.inside.checks import Checks
    from tests.guest.inside.guest import Guest
    from tests.guest.inside.workloads import Workload

POD: Final = "5526cafe-0000-4000-8000-0000000150a1"
OTHER: Final = "5526cafe-0000-4000-8000-0000000150a2"
SLICE: Final = "kubepods-pod5526cafe_0000_4000_8000_0000000150a1.slice"
DROP_INS: Final = Path(f"/etc/systemd/system/{SERVICE}.d")
#: A slice of a site's own, and the cgroup of a runtime that asks no systemd.
OWN_SLICE: Final = "foo.slice"
RUNTIME: Final = "docker"
SLICES: Final = ("system.slice", "user.slice", "machine.slice", OWN_SLICE)
HOST: Final = (*SLICES, RUNTIME, "init.scope")
CGROUPS: Final = Path("/sys/fs/cgroup")
IRQS: Final = Path("/proc/irq")
#: PF_NO_SETAFFINITY (include/linux/sched.h).
BOUND: Final = 0x04000000
#: Wakes twenty times a second, each time with a new process.
RESTLESS: Final = "while :; do sleep 0.05; done"
#: How long the pod's CPUs are watched for one count: the job's console interrupts every second.
WATCHED: Final = "5s"
TRACING: Final = Path("/sys/kernel/tracing")
LOOPBACK: Final = Path("/sys/class/net/lo/queues/rx-0/rps_cpus")
DEFAULT_STEERING: Final = Path("/proc/sys/net/core/rps_default_mask")
ORIGINALS: Final = Path("/var/lib/numawarden/isolation.json")
#: Where the agent writes what containers have.
ASSIGNED: Final = Path("/run/numawarden-pods")


@dataclass(frozen=True, slots=True)
class Host:
    """A guest with restless services, the agent, and one pod whose container runs on its CPUs.

    `before` are the settings of the host as they were before any item of isolation.
    """

    guest: Guest
    agent: Agent
    own: frozenset[int]
    workload: Workload
    before: dict[str, str]

    @classmethod
    def begun(cls, guest: Guest) -> Host:
        """Start it all; no item of isolation is on."""
        agent = Agent(guest)
        if not (TRACING / "instances").exists():
            command("mount", "-t", "tracefs", "tracefs", TRACING)
        begin_restless()
        # Queues of the network are steered to every CPU.
        for file in (LOOPBACK, DEFAULT_STEERING):
            file.write_text("ffff")
        configure(agent)
        agent.start()
        own = kernel.ids(agent.admit(pod_of("alone", POD))["pod"]["exclusiveCpus"])
        workload = systemd_run("own", SLICE)
        # As an administrator may have it: everything that can be moved comes to one of these CPUs.
        for irq in touching(own):
            (IRQS / irq / "smp_affinity_list").write_text(str(min(own)))
        before = settings()
        guest.log("settings", "\n".join(f"{name} {text}" for name, text in before.items()))
        return cls(guest, agent, own, workload, before)


def begin_restless(script: str = RESTLESS) -> None:
    """Start what wakes all the time, or another script, in each cgroup of the host."""
    for name in SLICES:
        restless(name, script=script)
    cgroup = kernel.Cgroup(CGROUPS / RUNTIME)
    cgroup.path.mkdir(exist_ok=True)
    process = subprocess.Popen(["/bin/busybox", "sh", "-c", script])
    cgroup.write("cgroup.procs", str(process.pid))


def permit(guest: Guest, drop_in: str) -> None:
    """Install a drop-in of deploy/ for the agent's unit."""
    DROP_INS.mkdir(parents=True, exist_ok=True)
    shutil.copy(guest.job / "deploy" / drop_in, DROP_INS / drop_in)
    command("systemctl", "daemon-reload")


def configure(agent: Agent, **isolation: object) -> None:
    """Write the agent's configuration with these items of isolation."""
    agent.configure(agent={"isolation": isolation, "assignedFiles": str(ASSIGNED)})


def switch_on(agent: Agent, items: dict[str, object]) -> None:
    """Have the agent start again with these items, and apply them."""
    configure(agent, **items)
    agent.restart()
    ask("POST", "reconcile")


def restless(of: str, name: str = "first", script: str = RESTLESS) -> None:
    """Start a service in a slice that wakes all the time."""
    unit = f"restless-{of.partition('.')[0]}-{name}"
    options = ("--quiet", f"--slice={of}", f"--unit={unit}")
    command("systemd-run", *options, "/bin/busybox", "sh", "-c", script)


def interference(agent: Agent, *options: str) -> dict[str, Any]:
    """Return what `numawarden interference` saw on the pod's CPUs; 1 says that others ran there."""
    shown = agent.cli("interference", POD, "--for", WATCHED, *options)
    if shown.status not in (0, 1):
        raise CommandFailed(str(shown))
    found: dict[str, Any] = json.loads(shown.stdout)
    return found


def count(guest: Guest, agent: Agent, when: str) -> tuple[Counter[str], Counter[str]]:
    """Return how often tasks of the host ran on the pod's CPUs, and devices interrupted these.

    By cgroup and by source. Threads that the kernel binds to a CPU and interrupts that cannot be
    moved are left out: no setting keeps them off.
    """
    found = interference(agent)
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


def check_isolated(guest: Guest, agent: Agent, when: str, own: frozenset[int]) -> None:
    """Check that nothing of the host may come to these CPUs, and that nothing runs on the pod's."""
    checks = guest.checks
    checks.equal(f"{when}: CPUs of services that are exclusive", own & allowed(), frozenset())
    checks.equal(f"{when}: interrupts that may come there", touching(own), [])
    services, interrupts = count(guest, agent, when.replace(" ", "-"))
    checks.equal(f"{when}: services that ran there", services, {})
    check_moved(checks, when, interrupts)
    of_kernel = {name_of(thread) for thread, cpus in threads() if own & cpus}
    checks.equal(f"{when}: threads of the kernel that may run there", of_kernel, set())
    of_work = own & mask_of(Path("/sys/devices/virtual/workqueue/cpumask").read_text())
    checks.equal(f"{when}: CPUs of unbound workqueues that are exclusive", of_work, frozenset())
    for file in (LOOPBACK, DEFAULT_STEERING):
        steered = own & mask_of(file.read_text())
        checks.equal(f"{when}: CPUs of {file.name} that are exclusive", steered, frozenset())
    latency = {_latency(cpu).read_text().strip() for cpu in own}
    checks.equal(f"{when}: the longest wait for a CPU's idle state", latency, {"20"})


def check_moved(checks: Checks, when: str, interrupts: Counter[str]) -> None:
    """Check that each interrupt came to the CPUs once at most: the next that comes moves it."""
    again = {source: times for source, times in interrupts.items() if times > 1}
    checks.equal(f"{when}: interrupts that came there again", again, {})


def check_as_before(checks: Checks, when: str, before: dict[str, str]) -> None:
    """Check that the host is as it was before any item."""
    after = settings()
    changed = {name: (text, after.get(name)) for name, text in before.items()}
    differing = {name: pair for name, pair in changed.items() if pair[0] != pair[1]}
    checks.equal(f"{when}: settings that are not as they were", differing, {})
    slices = {name: effective(name) for name in HOST}
    checks.equal(f"{when}: the slices", slices, dict.fromkeys(HOST, machine.cpus()))


def settings() -> dict[str, str]:
    """Return every setting that the items may write, as it shows."""
    files = [
        IRQS / "default_smp_affinity",
        *sorted(IRQS.glob("*/smp_affinity_list")),
        Path("/sys/devices/virtual/workqueue/cpumask"),
        Path("/proc/sys/kernel/watchdog_cpumask"),
        *sorted(Path("/sys/class/net").glob("*/queues/*/*ps_cpus")),
        DEFAULT_STEERING,
        *(_latency(cpu) for cpu in sorted(machine.cpus())),
    ]
    shown = {}
    for file in files:
        try:
            shown[str(file)] = file.read_text()
        except OSError:  # XPS of a queue that has none
            continue
    lasting = ("kswapd", "kcompactd", "khugepaged", "oom_reaper", "kauditd")
    for thread, cpus in threads():
        if (name := name_of(thread)).startswith(lasting):
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


def allowed() -> frozenset[int]:
    """Return all CPUs that any process of the host's slices may use."""
    found: frozenset[int] = frozenset()
    for pid in _processes(CGROUPS / name for name in HOST):
        try:
            found |= kernel.affinity(pid)
        except ProcessLookupError:
            continue
    return found


def mask_of(text: str) -> frozenset[int]:
    """Return the CPUs of a mask as the kernel shows it."""
    bits = int(text.replace(",", ""), 16)
    return frozenset(cpu for cpu in range(bits.bit_length()) if bits >> cpu & 1)


def _is_movable(file: Path) -> bool:
    """Return whether the kernel lets an interrupt be moved: it takes the set that there is."""
    try:
        file.write_text(file.read_text())
    except OSError:
        return False
    return True


def touching(own: frozenset[int]) -> list[str]:
    """Return the interrupts that may come to these CPUs and that the kernel lets be moved."""
    files = sorted(IRQS.glob("*/smp_affinity_list"))
    found = [file for file in files if own & kernel.ids(file.read_text().strip())]
    return [file.parent.name for file in found if _is_movable(file)]


def threads() -> Iterator[tuple[int, frozenset[int]]]:
    """Yield the threads of the kernel that can be moved, with the CPUs that each may use."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            cpus = kernel.affinity(int(entry.name))
        except OSError:  # it has ended
            continue
        if "2" in (entry.name, fields[1]) and not int(fields[6]) & BOUND:
            yield int(entry.name), cpus


def name_of(pid: int) -> str:
    """Return the name of a task, empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def set_of(file: str) -> frozenset[int]:
    """Return the CPUs that a file of the cgroup tree lists."""
    return kernel.ids((CGROUPS / file).read_text().strip())


def effective(cgroup: str) -> frozenset[int]:
    """Return the CPUs that a cgroup has."""
    return kernel.Cgroup(cgroup).cpus


def originals() -> list[str]:
    """Return the places that the agent has changed and not yet given back."""
    saved: dict[str, Any] = json.loads(ORIGINALS.read_text()) if ORIGINALS.exists() else {}
    return sorted(saved.get("originals", {}))


def conditions(agent: Agent) -> list[str]:
    """Return what the agent could not isolate."""
    return [each["message"] for each in agent.status()["conditions"] if each["type"] == "Isolated"]


def pod_of(
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
