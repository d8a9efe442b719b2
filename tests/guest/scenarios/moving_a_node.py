"""docs/moving-a-node.md on a node with a real kubelet: its commands, in their order.

The kubelet's managers decide, then the agent, then they again. Pods run all the while, and those
with exclusive CPUs keep them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.guest.inside import containerd, kernel
from tests.guest.inside.agent import BASE, PROGRAM, Agent
from tests.guest.inside.beside import MIXED, RUNNING, facts, own, pod
from tests.guest.inside.commands import run as command
from tests.guest.inside.kubelet import DIRECTORY, amounts, container
from tests.guest.inside.real_kubelet import NODE, PROGRAMS, RealKubelet
from tests.guest.inside.snapshot import touched
from tests.guest.inside.workloads import Workload

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from tests.guest.inside.guest import Guest

PAGE: Final = "docs/moving-a-node.md"
_SH: Final = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: The kubelet's managers as the page finds them; the agent's base has the same words.
MANAGERS: Final[Mapping[str, object]] = {
    **{name: value for name, value in BASE.items() if name not in ("cgroupDriver", "featureGates")},
    "systemReserved": {},
    "featureGates": {"PodsAPI": True, "PodLevelResourceManagers": True},
}
PINNED: Final = pod("pinned", 11, own("app", 2))
#: Guaranteed, and nothing of its own.
SHARING: Final = pod("sharing", 12, container("app", amounts("500m")))
PLAIN: Final = pod("plain", 13, container("app"))
#: Pods that the agent, and then the kubelet, admits.
OF_AGENT: Final = pod("of-agent", 14, own("app", 3))
OF_KUBELET: Final = pod("of-kubelet", 15, own("app", 2))


def run(guest: Guest) -> None:
    """Move the node to the agent, and back."""
    node = MovedNode(guest)
    node.check_exclusive("by the kubelet", PINNED, "app", 2)
    node.follow("to the agent")
    node.check_nothing_changed("by the agent")
    node.check_agent()
    node.runs(OF_AGENT)
    node.check_exclusive("admitted by the agent", OF_AGENT, "app", 3)
    node.keep(OF_AGENT, "app")
    node.end_budgets()
    node.follow("back")
    node.check_nothing_changed("by the kubelet again")
    node.check_state()
    node.runs(OF_KUBELET)
    node.check_exclusive("admitted by the kubelet", OF_KUBELET, "app", 2)
    node.check_shared_again()
    guest.checks.equal("no container was touched", touched(node.workloads), [])


class MovedNode:
    """A node whose kubelet manages CPUs and memory, with pods; the agent is installed."""

    def __init__(self, guest: Guest) -> None:
        self.checks = guest.checks
        self._guest = guest
        self.kubelet = RealKubelet(guest, **MANAGERS)
        containerd.start(guest, "systemd", nri=True)
        self.agent = Agent(guest)
        text = (guest.job / PAGE).read_text()
        there, back = text.split("## Back to the kubelet")
        self._blocks = {"to the agent": _SH.findall(there), "back": _SH.findall(back)}
        self._environment = {
            "HOME": "/root",
            "NODE": NODE,
            "KUBECONFIG": str(self.kubelet.api.kubeconfig()),
            "PATH": f"{Path(PROGRAM).parent}:{PROGRAMS}:/usr/sbin:/usr/bin",
        }
        self.kubelet.start()
        for each in (MIXED, PINNED, SHARING, PLAIN):
            self.runs(each)
        self._cgroups: dict[str, kernel.Cgroup] = {}
        self.workloads: list[Workload] = []
        self.keep(MIXED, *RUNNING)
        self.keep(PINNED, "app")
        self.before = facts(self._cgroups)

    def runs(self, manifest: Mapping[str, Any]) -> str:
        """Have a pod run; return its uid."""
        uid = self.kubelet.put(manifest)
        name = manifest["metadata"]["name"]
        self.checks.eventually(f"{name} runs", lambda: self.kubelet.phase(uid), "Running")
        return uid

    def keep(self, manifest: Mapping[str, Any], *containers: str) -> None:
        """Have the sets of these containers compared from now on."""
        pod_name = manifest["metadata"]["name"]
        uid = self.kubelet.uid(pod_name)
        for name in containers:
            cgroup = self.kubelet.cgroup(uid, name)
            pid = kernel.only_process(cgroup, "sleep")
            self._cgroups[f"{pod_name}/{name}"] = cgroup
            self.workloads.append(Workload(name, cgroup, pid, kernel.start_time(pid)))
        self.before = facts(self._cgroups)

    def end_budgets(self) -> None:
        """End the pod with a budget, which a kubelet v1.36 would kill when it starts."""
        uid = self.kubelet.uid("mixed")
        self.kubelet.remove("mixed")
        self.checks.eventually("mixed is gone", lambda: self.kubelet.phase(uid), "")
        for name in RUNNING:
            del self._cgroups[f"mixed/{name}"]
        self.workloads = [each for each in self.workloads if each.cgroup.exists]
        self.before = facts(self._cgroups)
        self.checks.eventually(
            "its allocation ends",
            lambda: uid in {each["uid"] for each in self.agent.pods()},
            expected=False,
        )

    def follow(self, way: str) -> None:
        """Run the page's commands in one direction."""
        for number, block in enumerate(self._blocks[way], 1):
            if "rm /var/lib/kubelet/cpu_manager_state" in block:
                self.kubelet.configure()  # its managers are off, as the page has it before
            if "set-property" in block:
                self.checks.eventually(
                    "the kubelet writes sets into all containers", self._without_set, []
                )
            outcome = command(
                "env",
                *(f"{name}={value}" for name, value in self._environment.items()),
                *("bash", "-euo", "pipefail", "-c", f"cd {self._guest.work}\n{block}"),
            )
            self._guest.log(f"{way.replace(' ', '-')}-{number}.txt", f"{block}\n{outcome}")

    def _without_set(self) -> list[str]:
        """Return the pods whose container has no set of its own."""
        names = ("pinned", "sharing", "plain", "of-agent")
        cgroups = {name: self.kubelet.cgroup(self.kubelet.uid(name), "app") for name in names}
        return [name for name, cgroup in cgroups.items() if not cgroup.read("cpuset.cpus")]

    def cpus(self, name: str, container_name: str) -> frozenset[int]:
        """Return the CPUs that a container may use."""
        return self.kubelet.cgroup(self.kubelet.uid(name), container_name).cpus

    def shared(self) -> frozenset[int]:
        """Return the CPUs of containers that have none of their own."""
        return self.cpus("plain", "app") | self.cpus("sharing", "app")

    def check_exclusive(
        self, when: str, manifest: Mapping[str, Any], name: str, count: int
    ) -> None:
        """Check that a container has CPUs of its own."""
        pod_name = manifest["metadata"]["name"]
        self.checks.eventually(
            f"{when}: {pod_name} has its CPUs", lambda: len(self.cpus(pod_name, name)), count
        )
        given = self.cpus(pod_name, name)
        self.checks.eventually(
            f"{when}: no other container has them",
            lambda: self.shared() & given,
            frozenset(),
        )
        taken = {key: each.cpus & given for key, each in self._cgroups.items()}
        taken.pop(f"{pod_name}/{name}", None)
        self.checks.equal(
            f"{when}: nor has a pinned one", {k: v for k, v in taken.items() if v}, {}
        )

    def check_nothing_changed(self, when: str) -> None:
        """Check that each pinned container has what it had."""
        self.checks.equal(f"{when}: nothing changed", facts(self._cgroups), self.before)

    def check_agent(self) -> None:
        """Check that the agent has the pods and enforces what it says."""
        uids = {self.kubelet.uid(name) for name in ("mixed", "pinned")}
        self.checks.eventually(
            "the agent has the pods",
            lambda: uids & {each["uid"] for each in self.agent.pods()},
            uids,
        )
        self.checks.eventually("and enforces what it says", self.agent.differences, [])
        self.check_nothing_changed("after a reconcile")

    def check_state(self) -> None:
        """Check that the kubelet's state has what the kernel has."""
        state = json.loads((DIRECTORY / "cpu_manager_state").read_text())
        entries = {
            "pinned": state["entries"][self.kubelet.uid("pinned")]["app"],
            "of-agent": state["entries"][self.kubelet.uid("of-agent")]["app"],
        }
        found = {name: kernel.ids(cpus) for name, cpus in entries.items()}
        expected = {name: self.cpus(name, "app") for name in entries}
        self.checks.equal("the kubelet's state has the agent's pods", found, expected)

    def check_shared_again(self) -> None:
        """Check that the shared containers have all that is not exclusive."""
        everything = kernel.ids(kernel.Cgroup("kubepods.slice").read("cpuset.cpus.effective"))
        names = (("pinned", "app"), ("of-agent", "app"), ("of-kubelet", "app"))
        taken = frozenset().union(*(self.cpus(*name) for name in names))
        self.checks.eventually("others have the rest", self.shared, everything - taken)
