"""A node with a kubelet, containerd and the agent beside them: what its pods have in the kernel."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.guest.inside import containerd, kernel
from tests.guest.inside.agent import SERVICE, Agent
from tests.guest.inside.commands import run
from tests.guest.inside.kubelet import FakeKubelet, Kubelet, amounts, container
from tests.guest.inside.pods import manifest
from tests.guest.inside.real_kubelet import RealKubelet

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tests.guest.inside.checks import Checks
    from tests.guest.inside.guest import Guest

NRI: Final = Path("/run/nri/nri.sock")
#: The kubelet's habits: short, as the guests are slow enough.
HABITS: Final = ("--retry=3", "--linger=3")
#: A container's words about itself, for its log: its CPUs as the scheduler has them.
SAY: Final = ("/bin/sh", "-c", "grep Cpus_allowed_list /proc/self/status")
PREFIX: Final = "NUMAWARDEN"
#: An agent that is stopped for longer than its watchdog's time would be killed.
UNWATCHED: Final = Path("/etc/systemd/system") / f"{SERVICE}.d" / "watchdog.conf"


def pod(
    name: str, number: int, *containers: object, cpus: int = 0, **spec: object
) -> dict[str, Any]:
    """Return a manifest; with `cpus` the pod has a budget of so many."""
    uid = f"5526cafe-0000-4000-8000-{number:012x}"
    parts: dict[str, object] = {"containers": list(containers), **spec}
    if cpus:
        budget = amounts(cpus, 64 * cpus)
        parts["resources"] = {"limits": budget, "requests": budget}
    return manifest(name, uid, **parts)


def own(name: str, cpus: int, **fields: object) -> dict[str, object]:
    """Return a container that asks for whole CPUs."""
    return container(name, amounts(cpus, 64 * cpus), **fields)


#: All kinds of containers: an exclusive init container, an exclusive sidecar, an exclusive app, and
#: one that shares what the sidecar and the app leave of the budget.
MIXED: Final = pod(
    "mixed",
    1,
    own("app", 2),
    container("aux"),
    cpus=4,
    initContainers=[own("init", 2, command=SAY), own("side", 1, restartPolicy="Always")],
)
#: What of it runs for as long as the pod does.
RUNNING: Final = ("side", "app", "aux")
#: What `Node.state_of` says of a pod that is as it should be.
ALL_RUN: Final = "phase Running, all containers run"


@dataclass(slots=True)
class Node:
    """The three of them, started in the order of a boot."""

    checks: Checks
    kubelet: Kubelet
    agent: Agent
    #: What the configuration has below `agent`, but for `agent.kubelet`.
    agent_settings: dict[str, object]

    @classmethod
    def started(
        cls,
        guest: Guest,
        settings: Mapping[str, object] | None = None,
        habits: Iterable[str] = (),
        *,
        sealed: bool = False,
    ) -> Node:
        """Start containerd with NRI, the agent, and the kubelet.

        `settings` are further ones of the configuration's section `agent`, `habits` further ones
        of the fake kubelet; for `sealed` see `containerd.start`.
        """
        kubelet = RealKubelet(guest) if RealKubelet.is_here(guest) else FakeKubelet(guest)
        # Which may come with the real kubelet.
        containerd.start(guest, "systemd", nri=True, sealed=sealed)
        node = cls(guest.checks, kubelet, Agent(guest), dict(settings or {}))
        node.configure()
        UNWATCHED.parent.mkdir(parents=True, exist_ok=True)
        UNWATCHED.write_text("[Service]\nWatchdogSec=0\n")
        node.agent.start()
        node.kubelet.start(*HABITS, *habits)
        return node

    def configure(self, **kubelet: object) -> None:
        """Write the agent's configuration, with some keys of `agent.kubelet`."""
        beside = {"enabled": True, "nriSocket": str(NRI), **kubelet}
        self.agent.configure(agent={**self.agent_settings, "kubelet": beside})

    def runs(self, manifest: Mapping[str, Any]) -> str:
        """Have a pod run; return its uid.

        On a busy machine containerd may fail to start a container, which the kubelet then creates
        again; its pod is in the phase Running all the same.
        """
        uid = self.kubelet.put(manifest)
        name = manifest["metadata"]["name"]
        self.checks.eventually(f"{name} runs", lambda: self.state_of(uid, manifest), ALL_RUN)
        return uid

    def state_of(self, uid: str, manifest: Mapping[str, Any]) -> str:
        """Return a pod's phase and whether all its containers run, as `ALL_RUN` has it."""
        names = [each["name"] for each in manifest["spec"]["containers"]]
        phase = self.kubelet.phase(uid) or "not reported"
        how_many = "all" if self.kubelet.is_running(uid, names) else "not all"
        return f"phase {phase}, {how_many} containers run"

    def is_gone(self, manifest: Mapping[str, Any]) -> None:
        """Have a pod deleted, and its allocation with it."""
        metadata = manifest["metadata"]
        name, uid = metadata["name"], self.kubelet.uid(metadata["name"])
        self.kubelet.remove(name)
        self.checks.eventually(f"{name} is gone", lambda: self.kubelet.phase(uid), "")
        self.checks.eventually(
            f"the allocation of {name} ends", lambda: self.allocations() & {uid}, set()
        )

    def allocations(self) -> set[str]:
        """Return the uids of the pods that the agent holds."""
        return {each["uid"] for each in self.agent.pods()}

    def drift(self) -> list[Any]:
        """Return what the agent says that other processes changed, the latest only."""
        found: list[Any] = self.agent.status()["drift"]
        return found

    def cpus(self, uid: str, name: str) -> frozenset[int]:
        """Return the CPUs that a container may use, as the kernel has them."""
        return self.kubelet.cgroup(uid, name).cpus

    def pool(self) -> frozenset[int]:
        """Return the node's shared pool, as the kernel has it for pods that ask for nothing."""
        return kernel.Cgroup("kubepods.slice/kubepods-besteffort.slice").cpus

    def cgroups(self, uid: str, names: tuple[str, ...]) -> dict[str, kernel.Cgroup]:
        """Return the cgroups of a pod and its containers, by name."""
        found = {"pod": self.kubelet.pod_cgroup(uid)}
        return found | {name: self.kubelet.cgroup(uid, name) for name in names}

    def check_mixed(self, when: str) -> None:
        """Check that the kernel enforces what KEP-5526 says of the mixed pod."""
        uid = self.kubelet.uid("mixed")

        def found() -> dict[str, object]:
            side, app, aux = (self.cpus(uid, name) for name in RUNNING)
            group = self.kubelet.pod_cgroup(uid)
            return {
                "CPUs": (len(side), len(app), len(aux)),
                "disjoint": not (side & app or side & aux or app & aux),
                "the pod's": group.cpus == side | app | aux,
                "in the pool": sorted(self.pool() & group.cpus),
                "nodes": len(group.mems),
                "quota of the pod and of exclusive containers": [
                    group.millicores,
                    self.kubelet.cgroup(uid, "side").millicores_within(group),
                    self.kubelet.cgroup(uid, "app").millicores_within(group),
                ],
            }

        expected = {
            "CPUs": (1, 2, 1),
            "disjoint": True,
            "the pod's": True,
            "in the pool": [],
            "nodes": 1,
            "quota of the pod and of exclusive containers": [None, None, None],
        }
        self.checks.eventually(f"{when}: the mixed pod has what it asks for", found, expected)

    def restart(self, name: str, *options: str) -> None:
        """Restart the kubelet (with options), containerd, or the agent."""
        if name == "kubelet":
            self.kubelet.restart(*HABITS, *options)
        elif name == "agent":
            self.agent.restart()
        else:
            run("systemctl", "restart", "containerd.service")


def facts(cgroups: Mapping[str, kernel.Cgroup]) -> dict[str, object]:
    """Return what the kernel enforces for cgroups: CPUs, nodes, quota."""
    return {
        name: (sorted(each.cpus), sorted(each.mems), each.quota[0])
        for name, each in cgroups.items()
    }


def environment_of(cgroup: kernel.Cgroup) -> dict[str, str]:
    """Return the variables of a container's first process that the agent gave."""
    pid = min(cgroup.processes)
    text = Path(f"/proc/{pid}/environ").read_text()
    pairs = (entry.partition("=") for entry in text.split("\0"))
    return {name: value for name, _, value in pairs if name.startswith(PREFIX)}
