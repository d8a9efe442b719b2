"""Allocations that change while they live: a running process gets more and fewer CPUs.

A thread looks at the process and at one of the shared pool all the while: no CPU may be of both.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.guest.inside import kernel, machine, single
from tests.guest.inside.agent import PROGRAM, Agent
from tests.guest.inside.api import answer_to
from tests.guest.inside.commands import attempt
from tests.guest.inside.pods import POD_SCOPE
from tests.guest.inside.workloads import ALLOCATED, stop_unit, systemd_run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.guest.inside.checks import Checks
    from tests.guest.inside.guest import Guest

DIRECTORY: Final = Path("/etc/numawarden/manifests")
MIXED: Final = next(example for example in POD_SCOPE if example.name == "pod-scope-mixed")
GROWING: Final = "growing"
UID: Final = single.uid_of(GROWING)
FILED: Final = "filed"
NAMED: Final = "named"
MOVING: Final = "moving"
#: Resizes amid which the agent is killed, each a little later than the one before.
KILLS: Final = 6
GIB: Final = 1 << 30


def run(guest: Guest) -> None:
    """Run a pod in a pool; resize pods of all kinds; kill the agent; edit a file; move."""
    pools = [{"name": "near", "nodes": "0", "memory": "bound"}]
    agent = Agent(guest, staticPodPath=str(DIRECTORY), agent={"pools": pools})
    agent.start()
    _pool(guest.checks, agent)
    _container(guest.checks, agent)
    _budget(guest.checks, agent)
    _burstable(guest.checks, agent)
    _file(guest.checks, agent)
    _moves(guest.checks, agent)


def _pool(checks: Checks, agent: Agent) -> None:
    """Run a pod in a pool of shared CPUs, of which another pod gets some to itself."""
    asked = single.pod("pooled", 1, "64Mi")
    asked["metadata"]["annotations"] = {"cpu.numawarden.dev/pool": "near"}
    asked["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "10m"}}
    single.admit(checks, agent, asked)
    pool = machine.nodes()[0]
    with single.running(agent, "pooled") as pod:
        checks.eventually("a pod runs in its pool", lambda: kernel.affinity(pod.pid), pool)
        checks.equal("with its memory there", kernel.memory_nodes(pod.pid), {0})
        single.admit(checks, agent, single.pod("alone", 2, "64Mi"))
        alone = kernel.ids(agent.show(single.uid_of("alone"))["exclusiveCpus"])
        checks.check("an exclusive pod gets CPUs of the pool", alone <= pool, alone)
        checks.equal("which the pod in the pool leaves", kernel.affinity(pod.pid), pool - alone)
        checks.equal("no difference", agent.differences(), [])
        agent.remove(single.uid_of("alone"))
        checks.equal("and gets back", kernel.affinity(pod.pid), pool)
    agent.remove(single.uid_of("pooled"))


def _resize(uid: str, **asked: str) -> tuple[int, dict[str, Any]]:
    return answer_to("POST", f"pods/{uid}/resize", asked)


def _container(checks: Checks, agent: Agent) -> None:
    """Resize a container with CPUs of its own, beside one of the shared pool."""
    single.admit(checks, agent, single.pod(GROWING, 2, "1Gi"))
    shared = single.pod("shared", 1, "64Mi")
    shared["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "10m"}}
    single.admit(checks, agent, shared)
    with (
        single.running(agent, GROWING) as own,
        single.running(agent, "shared") as other,
        _watched(checks, own.pid, other.pid),
    ):
        cgroup = own.cgroup
        checks.eventually("it has two CPUs", lambda: len(kernel.affinity(own.pid)), 2)
        first, nodes = kernel.affinity(own.pid), kernel.memory_nodes(own.pid)

        grown = attempt(PROGRAM, "resize", GROWING, "--cpus", "6", "--memory", "2Gi")
        checks.require("it grows", grown.ok, grown)
        now = kernel.affinity(own.pid)
        checks.equal("to six CPUs", len(now), 6)
        checks.check("with those that it had", first <= now, f"{first} {now}")
        checks.equal("of one node", machine.nodes_of(now), machine.nodes_of(first))
        checks.equal("of which the shared pool has none", kernel.affinity(other.pid) & now, set())
        checks.equal("its memory stays there", kernel.memory_nodes(own.pid), nodes)
        limit = kernel.Cgroup(cgroup.path.parent).read("memory.max")
        checks.equal("and is limited to more", limit, str(2 * GIB))
        checks.check("the process is the same", own.untouched)
        agent.restart()
        checks.equal("a restart changes nothing", kernel.affinity(own.pid), now)

        status, answer = _resize(UID, cpus="8")
        checks.equal("more than its node has", status, http.client.CONFLICT, answer)
        checks.equal("is infeasible", answer["rejection"]["reason"], "Infeasible")
        checks.equal("and advised", answer["rejection"]["advice"][0]["amount"], 7000)
        status, answer = _resize(UID, cpus="1")
        checks.equal("fewer than at the admission", status, http.client.CONFLICT, answer)
        checks.equal("rejected, it keeps all", kernel.affinity(own.pid), now)

        status, answer = _resize(UID, cpus="2")
        checks.equal("it shrinks", status, http.client.OK, answer)
        checks.equal("to what it had at first", kernel.affinity(own.pid), first)
        pool = machine.cpus() - first
        checks.equal("the pool has the others again", kernel.affinity(other.pid), pool)
        stays = max(first)
        status, answer = _resize(UID, cpus="1", keep=str(stays))
        checks.equal("to the CPU that is named", kernel.affinity(own.pid), {stays}, answer)
        _killed(checks, agent, own.pid)
        checks.check("the process is still the same", own.untouched)
    agent.remove(UID)
    agent.remove(single.uid_of("shared"))
    checks.equal("nothing is left", agent.differences(), [])


def _killed(checks: Checks, agent: Agent, pid: int) -> None:
    """Kill the agent amid resizes: the next one has the pod before or after it, and no other."""
    for number in range(KILLS):
        before = kernel.affinity(pid)
        size = 5 if len(before) != 5 else 3
        keep = ",".join(map(str, sorted(before)[:size]))
        asked = (0.02 * number, str(size), keep if size == 3 else "")
        asking = threading.Thread(target=_ask, args=asked)
        asking.start()
        agent.kill()
        asking.join()
        has = kernel.ids(agent.show(UID)["exclusiveCpus"])
        checks.check(f"kill {number}: before or after", len(has) in (len(before), size), has)
        checks.eventually(f"kill {number}: the kernel agrees", lambda: kernel.affinity(pid), has)
        checks.equal(f"kill {number}: no difference", agent.differences(), [])
        status, answer = _resize(UID, cpus=str(size), keep=keep if size == 3 else "")
        checks.equal(f"kill {number}: asked again", status, http.client.OK, answer)


def _ask(delay: float, cpus: str, keep: str) -> None:
    """Ask for a resize of which no answer may come, after some seconds."""
    time.sleep(delay)
    try:
        _resize(UID, cpus=cpus, keep=keep)
    except (OSError, http.client.HTTPException):
        return


@contextmanager
def _watched(checks: Checks, *pids: int) -> Iterator[None]:
    """Look at two processes all the while: at no time may both run on one CPU."""
    done, found, looks = threading.Event(), set[str](), 0

    def look() -> None:
        nonlocal looks
        while not done.wait(0.0005):
            own, other = (kernel.affinity(pid) for pid in pids)
            # Between the two looks the agent may have given what it had taken: look again.
            if own & other and kernel.affinity(pids[0]) & kernel.affinity(pids[1]) & own & other:
                found.add(f"{sorted(own & other)}")
            looks += 1

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
    checks.equal("at no time was a CPU of both", found, set())
    checks.check("which was looked at often", looks > 100, looks)


def _budget(checks: Checks, agent: Agent) -> None:
    """Resize a slice inside a budget, and the budget."""
    answer = agent.admit(MIXED.manifest)
    checks.require("a budget is admitted", answer["admitted"], answer)
    names = MIXED.containers
    parent = agent.cgroup_of(MIXED.uid).path.name
    own, rest = (systemd_run(name, parent) for name in names[:2])
    checks.eventually("the slice has two CPUs", lambda: len(kernel.affinity(own.pid)), 2)
    first, pool = kernel.affinity(own.pid), kernel.affinity(rest.pid)

    status, answer = _resize(MIXED.uid, container=names[0], cpus="3")
    checks.equal("the slice grows", status, http.client.OK, answer)
    now, left = kernel.affinity(own.pid), kernel.affinity(rest.pid)
    checks.equal("inside the budget", now | left, first | pool)
    checks.equal("beside the pod's pool", (len(now), now & left, first <= now), (3, set(), True))
    status, answer = _resize(MIXED.uid, container=names[0], cpus="4")
    checks.equal("it leaves the pool a CPU", status, http.client.CONFLICT, answer)

    status, answer = _resize(MIXED.uid, cpus="6", memory="5Gi")
    checks.equal("the budget grows", status, http.client.OK, answer)
    checks.equal("for the pool of the pod", len(kernel.affinity(rest.pid)), 3)
    checks.equal("the slice stays", kernel.affinity(own.pid), now)
    status, answer = _resize(MIXED.uid, cpus="4", memory="4Gi")
    checks.equal("the budget shrinks", status, http.client.OK, answer)
    checks.equal("to what it was", kernel.affinity(rest.pid) | now, first | pool)
    stop_unit(*names[:2])
    agent.remove(MIXED.uid)


def _burstable(checks: Checks, agent: Agent) -> None:
    """Give a container of a Burstable pod CPUs that a pod of the same class loses, and more."""
    shared, named = single.pod("shared", 1, "64Mi"), single.pod(NAMED, 2, "64Mi")
    shared["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "10m"}}
    named["metadata"]["annotations"] = {"cpu.numawarden.dev/exclusive": "app"}
    del named["spec"]["containers"][0]["resources"]["limits"]["memory"]
    single.admit(checks, agent, shared)
    with single.running(agent, "shared") as other:
        single.admit(checks, agent, named)
        above = agent.cgroup_of(single.uid_of(NAMED)).path.parent
        checks.equal("both are of one class", other.cgroup.path.parent.parent, above)
        with single.running(agent, NAMED) as own, _watched(checks, own.pid, other.pid):
            checks.eventually("a Burstable pod has CPUs", lambda: len(kernel.affinity(own.pid)), 2)
            first = kernel.affinity(own.pid)
            pool = machine.cpus() - first
            checks.equal("which its class keeps off", kernel.affinity(other.pid), pool)
            checks.equal("it has no quota", own.cgroup.millicores, None)
            status, answer = _resize(single.uid_of(NAMED), cpus="4")
            checks.equal("it grows", status, http.client.OK, answer)
            now = kernel.affinity(own.pid)
            checks.check("and has four CPUs", first < now and len(now) == len(first) + 2, now)
            agent.restart()
            checks.equal("a restart changes nothing", kernel.affinity(own.pid), now)
            checks.equal("no cgroup differs", agent.differences(), [])
        agent.remove(single.uid_of(NAMED))
        checks.eventually(
            "then the class has all", lambda: kernel.affinity(other.pid), pool | first
        )
    agent.remove(single.uid_of("shared"))


def _file(checks: Checks, agent: Agent) -> None:
    """Edit the amounts in a manifest file with a uid: its pod is resized, not replaced."""
    _write(single.pod(FILED, 2, "256Mi"))
    uid = single.uid_of(FILED)
    checks.eventually("a file is admitted", lambda: [pod["uid"] for pod in agent.pods()], [uid])
    with single.running(agent, FILED) as own:
        checks.eventually("it has its CPUs", lambda: len(kernel.affinity(own.pid)), 2)
        first = kernel.affinity(own.pid)
        _write(single.pod(FILED, 4, "256Mi"))
        checks.eventually("edited, it has more", lambda: len(kernel.affinity(own.pid)), 4)
        checks.check("and those that it had", first <= kernel.affinity(own.pid))
        checks.check("its process is the same", own.untouched)
        refused = attempt(PROGRAM, "resize", FILED, "--cpus", "3")
        checks.check("a command does not resize it", not refused.ok, refused)

        def rejected() -> str:
            return str(agent.status()["manifests"][0]["message"]).partition(":")[0]

        _write(single.pod(FILED, 15, "256Mi"))
        checks.eventually("what cannot be is said", rejected, "Infeasible")
        checks.check("and it keeps its CPUs", first <= kernel.affinity(own.pid))
    (DIRECTORY / "filed.yaml").unlink()
    checks.eventually("its end removes it", agent.pods, [])


def _moves(checks: Checks, agent: Agent) -> None:
    """Make room on a node by a plan: the pod that moves takes its processes and pages along."""
    moving = single.pod(MOVING, 2, "64Mi")
    moving["metadata"]["annotations"] = {"move.numawarden.dev/allow": "memory"}
    for each in (moving, single.pod("stays", 2, "64Mi"), single.pod("far", 5, "64Mi")):
        single.admit(checks, agent, each)
    shared = single.pod("shared", 1, "64Mi")
    shared["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "10m"}}
    single.admit(checks, agent, shared)
    fits = single.pod("fits", 4, "64Mi")
    manifest = agent.manifest(fits)
    with (
        single.running(agent, MOVING) as own,
        single.running(agent, "shared") as other,
        _watched(checks, own.pid, other.pid),
    ):
        checks.eventually("the pod has two CPUs", lambda: len(kernel.affinity(own.pid)), 2)
        first, nodes = kernel.affinity(own.pid), kernel.memory_nodes(own.pid)
        planned = agent.cli("plan", "--for", manifest)
        checks.require("a plan makes room", planned.ok, planned)
        plan = json.loads(planned.stdout)
        [move] = plan["moves"]
        checks.equal("by a move of the pod that allows it", move["uid"], single.uid_of(MOVING))
        held = ALLOCATED <= move["bytes"] < 64 << 20
        checks.check("and of what it holds", held, move)
        applied = attempt(PROGRAM, "apply", "-", stdin=planned.stdout)
        checks.require("it is applied", applied.ok, applied)
        checks.check("by the pages first", "itself" not in applied.stderr, applied)
        now = kernel.affinity(own.pid)
        checks.equal("the process has the CPUs of the plan", now, kernel.ids(move["newCpus"]))
        checks.check("the pool has the former ones", first <= kernel.affinity(other.pid))
        on = kernel.memory_nodes(own.pid)
        checks.equal("its memory is on the other node", on & nodes, set())
        pages = {node for node, count in kernel.pages_by_node(own.pid).items() if count}
        checks.equal("with all of its pages", pages, on)
        checks.check("the process is the same", own.untouched)
        single.admit(checks, agent, fits)
        checks.equal("no difference", agent.differences(), [])
    for name in (MOVING, "stays", "far", "shared", "fits"):
        agent.remove(single.uid_of(name))


def _write(manifest: dict[str, object]) -> None:
    temporary = DIRECTORY / ".filed.yaml"
    temporary.write_text(json.dumps(manifest))
    temporary.rename(DIRECTORY / "filed.yaml")
