"""What an exclusive pod costs beside many Guaranteed ones without CPUs of their own.

Counted from outside: fanotify reports each file of a cgroup that the agent or systemd writes,
`busctl` each call that the agent makes.
"""

from __future__ import annotations

import json
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from tests.guest.inside import kernel
from tests.guest.inside.agent import Agent
from tests.guest.inside.api import ask
from tests.guest.inside.workloads import systemd_run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.guest.inside.guest import Guest

PODS: Final = 200
AT_ONCE: Final = 16
MOST_WRITES: Final = 10
MOST_CALLS: Final = 6
OWN: Final = "5526cafe-0000-4000-8000-00000000beef"
#: Seconds.
SETTLED: Final = 5.0
SHARED: Final = kernel.Cgroup("kubepods.slice/kubepods-shared.slice")
#: The agent's, which has its modules.
PYTHON: Final = "/opt/numawarden/bin/python3"
#: Prints the process and the file of each write to a cgroup.
WRITES: Final = """
import os, select
from pathlib import Path
from cgroupfs.writers import Fanotify
events = Fanotify(Path("/sys/fs/cgroup"))
while select.select([events], [], []):
    for event in events.read():
        print(event.pid, os.readlink(f"/proc/self/fd/{event.fd}"), flush=True)
        os.close(event.fd)
"""


def run(guest: Guest, pods: int = PODS) -> None:
    """Fill the host; admit and remove an exclusive pod twice, the first time unmeasured."""
    plain = {"memoryManagerPolicy": "None", "reservedMemory": [], "topologyManagerPolicy": "none"}
    agent, checks = Agent(guest, **plain, maxPods=pods + 10), guest.checks
    agent.start()
    started = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        answers = list(threads.map(lambda number: agent.admit(_pod(_uid(number))), range(pods)))
    rejected = [each for each in answers if not each["admitted"]]
    checks.equal("all pods are admitted", rejected, [])
    guest.log("admitted", f"{pods} pods in {time.monotonic() - started:.0f} s\n")
    running = systemd_run("app", _slice(_uid(0)))
    ask("POST", "reconcile")
    checks.equal("a comparison finds nothing", ask("POST", "reconcile")["found"], {})
    for measured in (False, True):
        for what, change in (("admission", _admit), ("removal", _remove)):
            with _counted(agent.pid) as (files, calls):
                began = time.monotonic()
                change(agent)
                milliseconds = round(1000 * (time.monotonic() - began))
            pool = kernel.ids(SHARED.read("cpuset.cpus"))
            checks.equal(f"{what}: a pod has the pool", kernel.affinity(running.pid), pool)
            if measured:
                found = {"files": files, "calls": calls, "ms": milliseconds}
                guest.log(what, json.dumps(found, indent=1))
                mine = [path for pid, path in files if pid != 1]
                checks.check(f"{what}: files written", 0 < len(mine) <= MOST_WRITES, mine)
                # systemd writes all files of a unit whose properties are set.
                units = {path.rpartition("/")[0] for _, path in files}
                known = {f"{SHARED.path}", f"{SHARED.path.parent / _slice(OWN)}"}
                checks.equal(f"{what}: other cgroups written", units - known, set())
                checks.check(f"{what}: calls of the bus", 0 < len(calls) <= MOST_CALLS, calls)


def _admit(agent: Agent) -> None:
    answer = agent.admit(_pod(OWN, "4"))
    assert answer["admitted"], answer


def _remove(agent: Agent) -> None:
    agent.remove(OWN)


@contextmanager
def _counted(agent: int) -> Iterator[tuple[list[tuple[int, str]], list[str]]]:
    """Return what the agent and systemd write to cgroups, and the agent's calls, once it ends."""
    files: list[tuple[int, str]] = []
    calls: list[str] = []
    monitor = ["busctl", "monitor", "--json=short", "--match=type=method_call"]
    with _running(*monitor) as bus, _running(PYTHON, "-c", WRITES) as writes:
        time.sleep(SETTLED)  # until both are there
        try:
            yield files, calls
            time.sleep(SETTLED)  # what systemd does later
        finally:
            for process in (bus, writes):
                process.kill()
        shown = [process.communicate()[0].splitlines() for process in (bus, writes)]
    calls += [
        f"{call['member']} {call['payload']['data'][:1]}"
        for call in map(json.loads, shown[0])
        if call.get("destination") == "org.freedesktop.systemd1"
    ]
    writes_shown = [line.split(" ", 1) for line in shown[1]]
    files += [(int(pid), path) for pid, path in writes_shown if int(pid) in (1, agent)]


def _running(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def _uid(number: int) -> str:
    return f"5526cafe-0000-4000-9000-{number:012x}"


def _slice(uid: str) -> str:
    middle = "" if uid == OWN else "-shared"
    return f"kubepods{middle}-pod{uid.replace('-', '_')}.slice"


def _pod(uid: str, cpu: str = "1m") -> Mapping[str, object]:
    amounts = {"cpu": cpu, "memory": "16Mi" if uid in (OWN, _uid(0)) else "1Mi"}
    resources = {"requests": amounts, "limits": amounts}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"pod-{uid[-12:]}", "namespace": "default", "uid": uid},
        "spec": {"containers": [{"name": "app", "image": "example", "resources": resources}]},
    }
