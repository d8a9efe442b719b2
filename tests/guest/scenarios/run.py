"""Commands and units with an allocation of their own: pinned from their start, freed at their end.

Under each cgroup driver; units and podman's quadlets need systemd's.
"""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.guest.inside import kernel, machine, oci, single
from tests.guest.inside.agent import PROGRAM, Agent
from tests.guest.inside.commands import attempt
from tests.guest.inside.commands import run as command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.guest.inside.checks import Checks
    from tests.guest.inside.guest import Guest

ASKED: Final = ("--cpus", "2", "--memory", "256Mi")
#: The pool of commands that share CPUs.
POOL: Final = {"name": "second", "nodes": "1", "memory": "preferred", "qosClasses": ["Burstable"]}
RUN: Final = (PROGRAM, "run", "-q")
#: Holds memory until its input ends.
HOLD: Final = "import sys; held = b'x' * (24 << 20); print('held', flush=True); sys.stdin.read()"
UNITS: Final = Path("/run/systemd/system")
QUADLETS: Final = Path("/run/containers/systemd")
UID: Final = "5d5d0000-0000-4000-8000-000000000001"
POD_SLICE: Final = f"kubepods-pod{UID.replace('-', '_')}.slice"


def run(guest: Guest) -> None:
    """Run commands under both drivers; attach a unit; start a quadlet."""
    agent = Agent(guest, agent={"pools": [POOL]})
    agent.start()
    _numa_policies(guest.checks, agent)
    stopped = _unit(guest.checks, agent)
    # The pod of a unit that was stopped is freed after half a minute: meanwhile there is time.
    _commands(guest.checks, agent, "systemd", beside=stopped)
    _quadlet(guest, agent, beside=stopped)
    _unit_again(guest.checks, agent)
    _unit_with_settings(guest.checks)
    agent.stop()
    agent.configure(cgroupDriver="cgroupfs")
    agent.start()
    _commands(guest.checks, agent, "cgroupfs")
    agent.stop()


def _numa_policies(checks: Checks, agent: Agent) -> None:
    """Spread a command over its nodes, prefer those of a pool, miss what is not set."""
    # More CPUs than a node has, and memory that would fit on one.
    with _held(*RUN, "--cpus", "10", "--memory", "64Mi", "--interleave", "--") as pid:
        checks.equal("interleaved: its nodes", kernel.memory_nodes(pid), {0, 1})
        policy, pages = kernel.numa_policy(pid), kernel.pages_by_node(pid)
        checks.equal("interleaved: its policy", policy, "interleave=relative:0-1")
        checks.equal("interleaved: on two nodes", set(pages), {0, 1})
        # What is not taken in huge pages is less even: a page fault may take more than one page.
        uneven = abs(pages[0] - pages[1])
        checks.check("interleaved: evenly", uneven <= sum(pages.values()) // 8, pages)
        checks.equal("interleaved: nothing is missed", _missed(agent), [])
    _freed(checks, agent, "interleaved: an end")
    with _held(*RUN, "--cpus", "1", "--shared", "--") as pid:
        policy = kernel.numa_policy(pid)
        checks.equal("a pool prefers its node", policy, "prefer (many)=static:1")
        checks.equal("a pool: nothing is missed", _missed(agent), [])
    _freed(checks, agent, "a pool: an end")
    asked = single.pod("else", 10, "64Mi")
    asked["metadata"]["annotations"] = {"memory.numawarden.dev/policy": "interleave"}
    single.admit(checks, agent, asked)
    uid = single.uid_of("else")
    scope = ("--scope", "--slice", agent.cgroup_of(uid).path.name, "--unit", "else-app")
    with _held("systemd-run", "--quiet", *scope):
        missed = "app: its memory is not even"
        found = "started otherwise: it is missed"
        checks.eventually(found, lambda: [each[: len(missed)] for each in _missed(agent)], [missed])
    agent.remove(uid)
    _freed(checks, agent, "started otherwise: removal")


@contextmanager
def _held(*starter: str) -> Iterator[int]:
    """Have a starter, which becomes what it starts, hold memory for the time of a context."""
    argv = [*starter, "/usr/bin/python3", "-c", HOLD]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.stdin.close()


def _missed(agent: Agent) -> list[str]:
    """Return what is said of the NUMA policies of the only pod."""
    [pod] = agent.pods()
    causes = agent.show(pod["uid"])["slow"]["causes"]
    return [f"{each['container']}: {each['message']}" for each in causes
            if each["cause"] == "numa_policy"]  # fmt: skip


def _commands(checks: Checks, agent: Agent, driver: str, beside: str = "") -> None:
    outcome = attempt(PROGRAM, "run", *ASKED, "--", "/bin/cat", "/proc/self/status")
    status = dict(line.split(":\t", 1) for line in outcome.stdout.splitlines() if ":\t" in line)
    checks.require(f"{driver}: run", outcome.ok, outcome)
    cpus = kernel.ids(status["Cpus_allowed_list"])
    checks.equal(f"{driver}: two CPUs from the first instruction", len(cpus), 2)
    nodes = kernel.ids(status["Mems_allowed_list"])
    checks.equal(f"{driver}: memory on their node", nodes, machine.nodes_of(cpus))
    _freed(checks, agent, f"{driver}: an end", beside)

    script = 'echo "$NUMAWARDEN_CPUS;$(cat)"; grep Cpus_allowed_list /proc/self/status; exit 3'
    said = attempt(PROGRAM, "run", "-q", *ASKED, "--", "/bin/sh", "-c", script, stdin="input")
    checks.equal(f"{driver}: its exit code is the command's", said.status, 3)
    checks.equal(f"{driver}: -q prints nothing", said.stderr, "")
    first, allowed = said.stdout.split("\n")[:2]
    checks.equal(f"{driver}: input and environment", first, f"{allowed.split()[-1]};input")
    killed = attempt(PROGRAM, "run", "-q", *ASKED, "--", "/bin/sh", "-c", "kill -TERM $$")
    checks.equal(f"{driver}: its signal is the command's", killed.status, -signal.SIGTERM)
    rejected = attempt(PROGRAM, "run", "--cpus", "99", "--", "/bin/true")
    checks.equal(f"{driver}: rejected", rejected.status, 1)
    missing = attempt(PROGRAM, "run", "--", "/no/such/program")
    checks.equal(f"{driver}: no such command", missing.status, 127)
    _freed(checks, agent, f"{driver}: all of them", beside)

    with _daemonized() as parent:
        checks.eventually(f"{driver}: it runs", lambda: len(_processes(agent, beside)), 2)
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        checks.eventually(f"{driver}: its child is left", lambda: len(_processes(agent, beside)), 1)
        agent.kill()
        command(PROGRAM, "status")
        checks.equal(f"{driver}: as long as it runs the pod stays", len(_uids(agent, beside)), 1)
        for pid in _processes(agent, beside):
            os.kill(pid, signal.SIGKILL)
    _freed(checks, agent, f"{driver}: SIGKILL of everything", beside)


@contextmanager
def _daemonized() -> Iterator[subprocess.Popen[bytes]]:
    """Run a command that leaves a child behind which is no longer of its session."""
    script = "setsid sleep 100000 </dev/null >/dev/null 2>&1 & exec sleep 100000"
    argv = [PROGRAM, "run", *ASKED, "--", "/bin/sh", "-c", script]
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL) as parent:
        yield parent


def _uids(agent: Agent, beside: str) -> list[str]:
    """Return the uids of the pods, but for the pod `beside`."""
    return [pod["uid"] for pod in agent.pods() if pod["uid"] != beside]


def _processes(agent: Agent, beside: str) -> list[int]:
    found = [pid for uid in _uids(agent, beside) for pid in agent.cgroup_of(uid).processes]
    # The command line itself is not the command yet.
    return [pid for pid in found if b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes()[:12]]


def _freed(checks: Checks, agent: Agent, what: str, beside: str = "") -> None:
    """Check that no pod is left, and no cgroup of one, but perhaps the pod `beside` (uid).

    Those of QoS classes stay.
    """

    def cgroups() -> list[Path]:
        top = next(path for path in kernel.CGROUPS.glob("kubepods*") if path.is_dir())
        other = beside.replace("-", "_") or "/"
        pods = (each for each in top.glob("*pod*") if not each.name.startswith("kubepods-b"))
        return [each for each in pods if each.is_dir() and other not in each.name]

    checks.eventually(f"{what} frees its pod", lambda: _uids(agent, beside), [])
    checks.eventually(f"{what} removes its cgroup", cgroups, [])


def _affinity(unit: str) -> frozenset[int]:
    pid = command("systemctl", "show", "--value", "--property=MainPID", unit)
    return kernel.affinity(int(pid))


def _unit(checks: Checks, agent: Agent) -> str:
    """Attach a unit and stop it; return the uid of the pod, which stays for a while."""
    service = "[Service]\nExecStart=/bin/sleep 100000\nRestart=always\nRestartSec=1\n"
    (UNITS / "db.service").write_text(service)
    command("systemctl", "daemon-reload")
    command("systemctl", "start", "db.service")
    attached = attempt(PROGRAM, "attach", "--unit", "db", *ASKED)
    checks.require("attach", attached.ok, attached)
    own = _affinity("db.service")
    checks.equal("attach: two CPUs", len(own), 2)
    (pod,) = agent.pods()
    checks.equal("attach: the pod's", own, kernel.ids(pod["exclusiveCpus"]))
    command("systemctl", "restart", "db.service")
    checks.equal("restart: the same CPUs at once", _affinity("db.service"), own)
    command("systemctl", "kill", "--signal=KILL", "db.service")
    active = ("systemctl", "show", "--value", "--property=SubState", "db.service")
    checks.eventually("killed: it is restarted", lambda: command(*active).strip(), "running")
    checks.equal("killed: the same CPUs", _affinity("db.service"), own)
    agent.restart()
    checks.equal("the agent's restart: the same CPUs", _affinity("db.service"), own)
    command("systemctl", "stop", "db.service")
    uid: str = pod["uid"]
    return uid


def _unit_again(checks: Checks, agent: Agent) -> None:
    """Wait until the pod of the unit that was stopped is freed; attach the unit and detach it."""
    _freed(checks, agent, "stop")
    command("systemctl", "start", "db.service")
    checks.equal("stopped for good: it starts free", _affinity("db.service"), machine.cpus())

    again = attempt(PROGRAM, "attach", "--unit", "db.service", *ASKED)
    checks.require("attach again", again.ok, again)
    detached = attempt(PROGRAM, "detach", "db.service")
    checks.check("detach", detached.ok, detached)
    checks.equal("detach: in the shared pool", _affinity("db.service"), machine.cpus())
    command("systemctl", "restart", "db.service")
    checks.equal("detach: it starts free", _affinity("db.service"), machine.cpus())
    _freed(checks, agent, "detach")
    command("systemctl", "stop", "db.service")


def _status() -> str:
    shown = ("systemctl", "show", "--value", "--property=ExecMainStatus", "set.service")
    return command(*shown).strip()


def _unit_with_settings(checks: Checks) -> None:
    """Attach a unit that its own settings keep elsewhere: as advised, and against that."""
    for setting, none, status in (
        (f"CPUAffinity={max(machine.cpus())}", "CPUAffinity=", "215"),
        ("NUMAPolicy=bind\nNUMAMask=1", "NUMAPolicy=default", "242"),
    ):
        what = none.partition("=")[0]
        unit, drop_in = UNITS / "set.service", UNITS / "set.service.d/50-none.conf"
        # It is started as often as the checks are fast: systemd's limit of starts is not meant.
        unit.write_text(
            f"[Unit]\nStartLimitIntervalSec=0\n[Service]\nExecStart=/bin/sleep 100000\n{setting}\n"
        )
        drop_in.parent.mkdir(exist_ok=True)
        drop_in.unlink(missing_ok=True)
        command("systemctl", "daemon-reload")
        command("systemctl", "restart", "set.service")
        before = _affinity("set.service")
        rejected = attempt(PROGRAM, "attach", "--unit", "set", *ASKED)
        checks.equal(f"{what} elsewhere: attach rejects it", rejected.status, 7)
        checks.check(f"{what} elsewhere: by its status", f"({status}/" in rejected.stderr, rejected)
        checks.equal(f"{what} elsewhere: it keeps its CPUs", _affinity("set.service"), before)

        drop_in.write_text(f"[Service]\n{none}\n")
        command("systemctl", "daemon-reload")
        command("systemctl", "restart", "set.service")
        attached = attempt(PROGRAM, "attach", "--unit", "set", *ASKED)
        checks.check(f"{what} taken back: attach", attached.ok, attached)
        command("systemctl", "restart", "set.service")
        checks.equal(f"{what} taken back: two CPUs", len(_affinity("set.service")), 2)

        drop_in.unlink()
        command("systemctl", "daemon-reload")
        attempt("systemctl", "restart", "set.service")
        checks.eventually(f"{what} again: no start", _status, status)
        attempt(PROGRAM, "detach", "set")


def _quadlet(guest: Guest, agent: Agent, beside: str) -> None:
    """Start the quadlet of docs/containers.md: podman's container in a service in the pod's slice.

    The manifest is admitted before; on a host the manifest directory does that.
    """
    checks = guest.checks
    amounts = {"cpu": "2", "memory": "256Mi"}
    container = {"name": "web", "resources": {"requests": amounts, "limits": amounts}}
    metadata = {"name": "web", "uid": UID}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata,
           "spec": {"containers": [container]}}  # fmt: skip
    checks.require("quadlet: admitted", agent.admit(pod)["admitted"])
    QUADLETS.mkdir(parents=True, exist_ok=True)
    root = oci.write_root(guest.work / "quadlet")
    lines = ("[Container]", f"Rootfs={root}", "Network=host", "LogDriver=none",
             "Exec=/bin/sleep 100000", "StopTimeout=1", "[Service]",
             f"Slice={POD_SLICE}", "[Unit]", "After=numawarden.service")  # fmt: skip
    (QUADLETS / "web.container").write_text("\n".join((*lines, "")))
    # systemd would run this as a generator; the guest has none (recipe/excluded).
    command("/usr/libexec/podman/quadlet", UNITS)
    command("systemctl", "daemon-reload")
    started = attempt("systemctl", "start", "web.service")
    checks.require("quadlet: started", started.ok, attempt("journalctl", "-u", "web", "-n", "30"))
    cgroup = agent.cgroup_of(UID)
    checks.eventually("quadlet: it runs in the pod", lambda: len(_sleeping(cgroup)), 1)
    own = kernel.ids(agent.show(UID)["exclusiveCpus"])
    checks.equal("quadlet: two CPUs", len(own), 2)
    checks.eventually("quadlet: pinned", lambda: kernel.affinity(_sleeping(cgroup)[0]), own)
    found = "quadlet: found by its name"
    checks.eventually(found, lambda: agent.show(UID)["containersFound"], 1)
    command("systemctl", "stop", "web.service")
    agent.remove(UID)
    _freed(checks, agent, "quadlet: removal", beside)


def _sleeping(cgroup: kernel.Cgroup) -> list[int]:
    names = {pid: Path(f"/proc/{pid}/comm").read_text().strip() for pid in cgroup.processes}
    return [pid for pid, name in names.items() if name in ("sleep", "busybox")]
