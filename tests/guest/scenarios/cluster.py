"""The pods of a kubelet, run by containerd, with the agent beside: they get what they ask for.

The kubelet is a fake that does as the real one was seen to; containerd, systemd and the kernel are
real. What is checked is read from the kernel.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.guest.inside import kernel
from tests.guest.inside.agent import PROGRAM
from tests.guest.inside.beside import (
    ALL_RUN,
    MIXED,
    RUNNING,
    Node,
    environment_of,
    facts,
    own,
    pod,
)
from tests.guest.inside.commands import attempt
from tests.guest.inside.commands import run as command
from tests.guest.inside.kubelet import amounts, container

if TYPE_CHECKING:
    from tests.guest.inside.guest import Guest

#: Pods at once, beside the others: each takes an emulated machine seconds; `crowd` has 110.
CROWD: Final = 4
#: Beside the mixed pod on the other node it leaves 3 CPUs on each, so that `WAITING` fits on none.
LARGE: Final = pod("large", 2, own("app", 4))
SECOND: Final = pod("second", 3, own("app", 6))
AWAY: Final = pod("away", 5, own("app", 6))
WAITING: Final = pod("waiting", 4, own("app", 5))

PINNED: Final = pod("pinned", 10, own("app", 2))
#: On the node beside the mixed pod's; only one of the two has room there.
GHOST: Final = pod("ghost", 11, own("app", 6))
HEIR: Final = pod("heir", 12, own("app", 6))

#: What the agent has a container wait for.
UNDECIDED: Final = "the pod is not decided yet"
UNCERTAIN: Final = "pods that may have ended"


def run(guest: Guest) -> None:
    """Run pods of every shape."""
    node = Node.started(guest)
    _shapes(node)
    _resize(node)
    _debugged(node)
    _rejected(node)
    _away(node)
    _ended_while_away(node)
    _shares(node)
    _crowd(node)
    _end(node)


def _shapes(node: Node) -> None:
    """Run a mixed pod and a plain one, and have systemd reload."""
    checks, kubelet = node.checks, node.kubelet
    plain = node.runs(pod("plain", 9, container("app")))
    uid = node.runs(MIXED)
    node.check_mixed("started")
    checks.equal("the start of pods is not drift", node.drift(), [])
    log = Path(f"/var/log/pods/default_mixed_{uid}/init/0.log").read_text()
    said = kernel.ids(log.split()[-1])
    within = kubelet.pod_cgroup(uid).cpus
    checks.check(
        "the init container ran on CPUs of its own", len(said) == 2 and said <= within, log
    )
    shared = node.cpus(plain, "app")
    checks.check("a pod that asks for nothing has none of them", not shared & within, shared)
    given = environment_of(kubelet.cgroup(uid, "app"))
    said_cpus = kernel.ids(given.get("NUMAWARDEN_CPUS", ""))
    checks.equal("the process can read its CPUs", said_cpus, node.cpus(uid, "app"), given)
    command("systemctl", "daemon-reload")
    node.runs(pod("other", 8, container("app", amounts("100m"))))
    node.check_mixed("after a daemon-reload and another pod")
    # On a busy machine the kubelet may have to try again until the pod is decided.
    rejected = [each for each in kubelet.errors("mixed") if UNDECIDED not in each]
    checks.equal("nothing was rejected", rejected, [])


def _resize(node: Node) -> None:
    """Have the kubelet resize a budget: an error, since neither CPUs nor quota change."""
    uid = node.kubelet.uid("mixed")
    cgroups = node.cgroups(uid, RUNNING)
    before, drifted = facts(cgroups), node.drift()
    larger: dict[str, Any] = {**MIXED, "spec": {**MIXED["spec"]}}
    larger["spec"]["containers"] = [own("app", 3), container("aux")]
    larger["spec"]["resources"] = {"limits": amounts(5, 320), "requests": amounts(5, 320)}
    node.kubelet.put(larger)

    def why() -> str:
        return "; ".join(node.kubelet.resize_errors("mixed"))

    node.checks.eventually(
        "the kubelet does not get its resize done, and knows why",
        lambda: "CPUs do not change while the pod runs" in why(),
        expected=True,
    )
    node.checks.eventually(
        "a resize changes no CPU and brings no quota", lambda: facts(cgroups), before
    )
    node.kubelet.put(MIXED)
    node.checks.eventually(
        "taken back, it is done", lambda: node.kubelet.is_resized("mixed"), expected=True
    )
    node.checks.eventually("with what it had", lambda: facts(cgroups), before)
    _grown(node)
    node.checks.equal("a resize is not drift", node.drift(), drifted)


def _grown(node: Node) -> None:
    """Have the kubelet resize a container with CPUs of its own, which the agent decides."""
    checks, name = node.checks, "grown"
    small = pod(name, 13, own("app", 2))
    uid = node.runs(small)
    first = node.cpus(uid, "app")
    node.kubelet.put(pod(name, 13, own("app", 3)))
    checks.eventually("a container grows", lambda: len(node.cpus(uid, "app")), 3)
    checks.check("with those that it had", first <= node.cpus(uid, "app"))
    checks.check("the pool has none of them", not node.pool() & node.cpus(uid, "app"))
    checks.eventually("it is done", lambda: node.kubelet.is_resized(name), expected=True)
    node.kubelet.put(small)
    checks.eventually("it shrinks to what it had", lambda: node.cpus(uid, "app"), first)
    node.is_gone(small)


def _debugged(node: Node) -> None:
    """Have ephemeral containers run, in pods with nothing but exclusive CPUs and with others."""
    node.runs(PINNED)
    _debug(node, "pinned", millicores=None)
    _debug(node, "mixed", millicores=4000)
    node.is_gone(PINNED)


def _debug(node: Node, name: str, millicores: int | None) -> None:
    """Have an ephemeral container run in a pod, and end."""
    checks, kubelet = node.checks, node.kubelet
    uid, drifted = kubelet.uid(name), node.drift()
    checks.eventually(f"{name}: what is said is enforced", node.agent.differences, [])
    cgroups = node.cgroups(uid, RUNNING if name == "mixed" else ("app",))
    before = facts(cgroups)
    kubelet.debug(name, container("debugger"))
    checks.eventually(
        f"{name}: a debugger runs", lambda: kubelet.is_running(uid, ["debugger"]), expected=True
    )

    def found() -> tuple[bool, int | None]:
        cgroup = kubelet.cgroup(uid, "debugger")
        return cgroup.cpus == node.pool(), cgroup.millicores_within(kubelet.pod_cgroup(uid))

    checks.eventually(f"{name}: in the node's pool, bounded as its pod", found, (True, millicores))
    whole = cgroups.pop("pod")
    widened = {each: before[each] for each in cgroups}
    checks.equal(f"{name}: its containers keep theirs", facts(cgroups), widened)
    debugger = kubelet.cgroup(uid, "debugger")
    said = attempt(PROGRAM, "check", "--cgroups")
    checks.check(
        f"{name}: check --cgroups says so",
        f"{debugger.path.name} of pod {uid} is an ephemeral" in said.stdout,
        said,
    )
    os.kill(kernel.only_process(debugger, "sleep"), signal.SIGKILL)
    cgroups["pod"] = whole
    checks.eventually(
        f"{name}: when it ends, the pod has what it had", lambda: facts(cgroups), before
    )
    checks.equal(f"{name}: a debugger is not drift", node.drift(), drifted)


def _rejected(node: Node) -> None:
    """Run a pod without room: it waits with the reason, and starts by itself later."""
    checks, kubelet = node.checks, node.kubelet
    node.runs(LARGE)
    uid = kubelet.put(WAITING)

    def why() -> str:
        return kubelet.waits_for(uid, "app").partition(":")[0]

    checks.eventually("a pod without room waits", why, "CreateContainerError")
    # On a busy host the first answer may be that the pod is not decided yet.
    checks.eventually(
        "the reason is that of the topology manager",
        lambda: "TopologyAffinity" in kubelet.waits_for(uid, "app"),
        expected=True,
    )
    checks.equal("its sandbox was made once", kubelet.sandboxes("waiting"), 1)
    for words in (("list",), ("show", "waiting"), ("status",), ("history",)):
        said = attempt(PROGRAM, *words)
        checks.check(f"{words[0]} has it by name", "default/waiting" in said.stdout, said)
    node.is_gone(LARGE)
    checks.eventually("there is room, it starts", lambda: node.state_of(uid, WAITING), ALL_RUN)
    checks.eventually("and has its CPUs", lambda: len(node.cpus(uid, "app")), 5)
    node.is_gone(WAITING)


def _away(node: Node) -> None:
    """Start pods while the agent is away, or does not answer in time: they are repaired."""
    checks = node.checks
    node.agent.stop()
    uid = node.runs(AWAY)
    found = node.cpus(uid, "app")
    checks.check("without the agent it has no CPUs of its own", len(found) > 6, found)
    node.agent.start()
    checks.eventually("the agent is back, it has", lambda: len(node.cpus(uid, "app")), 6)
    exclusive = node.cpus(uid, "app")
    checks.eventually("they left the pool", lambda: node.pool() & exclusive, frozenset())
    node.is_gone(AWAY)
    with node.agent.paused():
        uid = node.runs(SECOND)
    checks.eventually("a late agent repairs", lambda: len(node.cpus(uid, "app")), 6)
    node.check_mixed("after the agent was away")
    node.is_gone(SECOND)


def _ended_while_away(node: Node) -> None:
    """Delete a pod while the agent is away: what it had is another's at once."""
    checks, kubelet = node.checks, node.kubelet
    uid = node.runs(GHOST)
    node.agent.stop()
    kubelet.remove("ghost")
    checks.eventually("a pod ends while the agent is away", lambda: kubelet.phase(uid), "")
    node.agent.start()
    heir = node.runs(HEIR)
    checks.eventually("another has its CPUs", lambda: len(node.cpus(heir, "app")), 6)
    checks.equal("its allocation has ended", node.allocations() & {uid}, set())
    waits = (UNDECIDED, UNCERTAIN)
    final = [each for each in kubelet.errors("heir") if not any(why in each for why in waits)]
    checks.equal("nothing was rejected against it for good", final, [])
    node.is_gone(HEIR)


def _shares(node: Node) -> None:
    """Let rejected pods share: that is said, and ends where there is room."""
    checks, kubelet = node.checks, node.kubelet
    node.configure(onReject="share")
    node.agent.restart()
    _ended_while_away(node)
    node.runs(LARGE)
    uid = node.runs(WAITING)
    checks.eventually(
        "a pod without room shares the pool",
        lambda: node.cpus(uid, "app") == node.pool(),
        expected=True,
    )
    for words, what in ((("list",), "runs shared"), (("history", "waiting"), "without CPUs")):
        said = attempt(PROGRAM, *words)
        checks.check(f"{words[0]} says that it shares", what in said.stdout, said)
    node.is_gone(LARGE)
    checks.eventually(
        "there is room, and status says so",
        lambda: "there is room now" in attempt(PROGRAM, "status").stdout,
        expected=True,
    )
    checks.equal("it shares still", node.cpus(uid, "app"), node.pool())
    os.kill(kernel.only_process(kubelet.cgroup(uid, "app"), "sleep"), signal.SIGKILL)
    checks.eventually("its next start has the CPUs", lambda: len(node.cpus(uid, "app")), 5)
    checks.eventually(
        "they left the pool", lambda: node.pool() & node.cpus(uid, "app"), frozenset()
    )
    node.check_mixed("beside a pod that shared")
    node.is_gone(WAITING)


def _crowd(node: Node) -> None:
    """Several pods at once, and how long the agent took for their containers."""
    kubelet = node.kubelet
    crowd = [pod(f"crowd-{number}", 100 + number, container("app")) for number in range(CROWD)]
    uids = [kubelet.put(each) for each in crowd]

    def states() -> list[str]:
        return [node.state_of(uid, each) for uid, each in zip(uids, crowd, strict=True)]

    node.checks.eventually("a crowd runs", states, [ALL_RUN] * CROWD)
    outside = [uid for uid in uids if node.cpus(uid, "app") - node.pool()]
    node.checks.equal("all in the shared pool", outside, [])
    node.check_mixed("beside a crowd")


def _end(node: Node) -> None:
    """Delete a pod: its CPUs come back, and no sandbox was ever rejected."""
    checks, kubelet = node.checks, node.kubelet
    before = node.pool()
    given = kubelet.pod_cgroup(kubelet.uid("mixed")).cpus
    node.is_gone(MIXED)
    checks.eventually("its CPUs are in the pool again", node.pool, before | given)
    checks.equal("no sandbox was rejected", kubelet.rejected_sandboxes(), [])
