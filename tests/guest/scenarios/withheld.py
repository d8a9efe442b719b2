"""Another program's cpuset partitions: no pod has their CPUs, before pods came and after."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.guest.inside import kernel
from tests.guest.inside.agent import Agent
from tests.guest.inside.workloads import systemd_run

if TYPE_CHECKING:
    from tests.guest.inside.guest import Guest
    from tests.guest.inside.workloads import Workload

FIRST: Final = "5526cafe-0000-4000-8000-0000000150c1"
SECOND: Final = "5526cafe-0000-4000-8000-0000000150c2"
#: The core that the first pod of two CPUs gets where pods can have all of the host.
TAKEN: Final = kernel.ids("2-3")
ROOT: Final = kernel.Cgroup(Path("/sys/fs/cgroup"))
#: The other program's cgroups: the second is a partition without one above, as node tuning's.
OVS: Final = kernel.Cgroup(ROOT.path / "ovs")
REMOTE: Final = kernel.Cgroup(OVS.path / "dpdk")


def run(guest: Guest) -> None:
    """Have a partition there when the agent starts; then make each kind under a pod, and end it."""
    checks, agent = guest.checks, Agent(guest)
    ROOT.write("cgroup.subtree_control", "+cpuset")
    OVS.path.mkdir()
    _take(OVS, "root")
    agent.start()
    said = f"CPUs 2-3 belong to the partition /{OVS.path.name}"
    checks.equal("before: status names the partition", _withheld(agent), [said])
    own, first = _start(agent, "first", FIRST)
    checks.check("before: the pod has others", not own & TAKEN, own)
    checks.equal("before: the pod runs there", kernel.affinity(first.pid), own)
    checks.equal("before: no condition", _conditions(agent), [])
    _end(OVS)
    checks.eventually("ended: nothing is withheld", lambda: _withheld(agent), [])
    theirs, second = _start(agent, "second", SECOND)
    checks.equal("ended: the next pod has these CPUs", theirs, TAKEN)
    for cgroup, word in ((OVS, "root"), (OVS, "isolated"), (REMOTE, "root")):
        what = f"after, {cgroup.path.name} {word}"
        _take(cgroup, word)
        elsewhere = TAKEN | own
        checks.eventually(
            f"{what}: the pod runs on no CPU of others",
            lambda others=elsewhere: kernel.affinity(second.pid) & others,  # type: ignore[misc]
            frozenset(),
        )
        checks.equal(f"{what}: nor does the other pod", kernel.affinity(first.pid), own)
        named = f"partition /{cgroup.path.relative_to(ROOT.path)}"
        found = _conditions(agent)
        checks.check(f"{what}: conditions", found and all(named in each for each in found), found)
        _end(cgroup)
        checks.eventually(f"{what}: no condition once it ended", lambda: _conditions(agent), [])
        checks.equal(f"{what}: the pod has its CPUs", kernel.affinity(second.pid), TAKEN)


def _take(cgroup: kernel.Cgroup, word: str) -> None:
    """Make a partition of the CPUs; below another cgroup that has to pass them on."""
    cpus = ",".join(map(str, sorted(TAKEN)))
    if cgroup is REMOTE:
        OVS.write("cgroup.subtree_control", "+cpuset")
        OVS.write("cpuset.cpus.exclusive", cpus)
        REMOTE.path.mkdir()
        REMOTE.write("cpuset.cpus.exclusive", cpus)
    cgroup.write("cpuset.cpus", cpus)
    cgroup.write("cpuset.cpus.partition", word)
    shown = cgroup.read("cpuset.cpus.partition")
    if shown != word:
        raise LookupError(f"{cgroup} is not a partition: {shown}")


def _end(cgroup: kernel.Cgroup) -> None:
    cgroup.write("cpuset.cpus.partition", "member")


def _start(agent: Agent, name: str, uid: str) -> tuple[frozenset[int], Workload]:
    """Admit a pod of two CPUs and start its container; return its CPUs and that."""
    amounts = {"cpu": "2", "memory": "64Mi"}
    container = {
        "name": "main",
        "image": "x",
        "resources": {"requests": amounts, "limits": amounts},
    }
    answer = agent.admit(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "uid": uid},
            "spec": {"containers": [container]},
        }
    )
    workload = systemd_run(name, f"kubepods-pod{uid.replace('-', '_')}.slice")
    return kernel.ids(answer["pod"]["exclusiveCpus"]), workload


def _withheld(agent: Agent) -> list[str]:
    return [each["detail"] for each in agent.status()["withheld"]]


def _conditions(agent: Agent) -> list[str]:
    return [each["message"] for each in agent.status()["conditions"]]
