"""What the guests are booted for: one module a scenario, its `run(guest)` is run inside."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final


class Kubelet(Enum):
    """Which kubelet a scenario has pods of."""

    NONE = auto()
    #: The project's fake one, or a real one that the runner is given.
    EITHER = auto()
    REAL = auto()


@dataclass(frozen=True, slots=True)
class Scenario:
    """One guest: the module of this package it runs, its machine and its limit in seconds.

    The limit is for a busy host: a scenario takes some minutes where nothing else runs, and
    each of its waits ends by itself.

    `agent` says whether the agent's environment is laid at its place, `packages` whether the
    job brings Debian packages to install it from, `image` whether the container image's root is
    laid there instead of the environment. One that is not `usual` runs when it is named.
    `kubelet` says whose pods it has; one that needs a real kubelet is not usual.
    """

    name: str
    topology: str
    summary: str
    timeout: float = 7200
    agent: bool = True
    packages: bool = False
    image: bool = False
    usual: bool = True
    kubelet: Kubelet = Kubelet.NONE

    @property
    def module(self) -> str:
        """The module inside the guest."""
        return f"{__name__}.{self.name.replace('-', '_')}"


SCENARIOS: Final = {
    scenario.name: scenario
    for scenario in (
        # The long ones first, so that two at a time end together.
        Scenario(
            "installation",
            "two-sockets",
            "the Debian package: installed, upgraded and removed beside pods; the unit's hardening",
            agent=False,
            packages=True,
        ),
        Scenario(
            "cluster",
            "two-sockets",
            "pods of a kubelet through containerd and NRI: every shape, resize, rejection, a crowd",
            kubelet=Kubelet.EITHER,
        ),
        Scenario(
            "cluster-restarts",
            "two-sockets",
            "kubelet, containerd and agent restart in every order beside the kubelet's pods",
            kubelet=Kubelet.EITHER,
        ),
        Scenario(
            "daemonset",
            "two-sockets",
            "the agent with the rights and mounts of deploy/kubernetes",
            image=True,
        ),
        Scenario(
            "run",
            "two-sockets",
            "commands and units with an allocation of their own, and a quadlet of podman",
        ),
        Scenario(
            "kep-systemd",
            "two-sockets",
            "the pods of KEP-5526 under systemd-run and podman, agent as a service",
        ),
        Scenario(
            "containerd-systemd",
            "two-sockets",
            "the examples of KEP-5526 through CRI: runc, systemd driver",
        ),
        Scenario(
            "containerd-cgroupfs",
            "two-sockets",
            "the examples of KEP-5526 through CRI: crun, cgroupfs driver",
        ),
        Scenario(
            "shapes",
            "two-sockets",
            "init containers, sidecars, devices, each topology policy, whole cores, the gate",
        ),
        Scenario(
            "survival",
            "two-sockets",
            "the agent stopped, restarted, killed, rolled back; workloads and allocations stay",
        ),
        Scenario(
            "provocations",
            "two-sockets",
            "systemd, other writers, CPUs that go, a lost checkpoint; one reconcile repairs",
        ),
        Scenario(
            "withheld",
            "two-sockets",
            "partitions of another program, before pods and under them, of every kind",
        ),
        Scenario(
            "shared-pool",
            "two-sockets",
            "sixty pods inherit the shared pool; sets of other writers and of older versions",
        ),
        Scenario(
            "kills",
            "two-sockets",
            "pods come and go while the agent is killed, also amid requests",
        ),
        Scenario(
            "container",
            "two-sockets",
            "the agent in a privileged container with another machine's sysfs",
            image=True,
        ),
        Scenario(
            "metrics",
            "two-sockets",
            "a real Prometheus scrapes, promtool judges",
        ),
        Scenario(
            "devices",
            "two-sockets",
            "what comes with devices: podman, containerd, ctr and systemd-run, odd paths too",
        ),
        Scenario(
            "device-plugins",
            "two-sockets",
            "a device plugin and podresources beside the unit: registered, delivered, restarted",
        ),
        Scenario(
            "who-wrote",
            "two-sockets",
            "who asked for a pod, and which process wrote a container's cgroup",
        ),
        Scenario(
            "isolation",
            "two-sockets",
            "services, interrupts and threads of the kernel keep off a pod's CPUs; all is restored",
        ),
        Scenario(
            "distances",
            "four-nodes",
            "pods of two nodes, with and without prefer-closest-numa-nodes",
        ),
        Scenario(
            "uneven-nodes",
            "uneven-nodes",
            "a node without memory and one without CPUs",
        ),
        Scenario(
            "manifests",
            "two-sockets",
            "the manifest directory: pods come and go with their files",
        ),
        Scenario(
            "cgroup-contract",
            "two-sockets",
            "the contract tests of the emulated cgroup tree, against the kernel's",
        ),
        Scenario(
            "crowd",
            "two-sockets",
            "110 pods of a kubelet at once",
            timeout=6 * 3600,
            usual=False,
            kubelet=Kubelet.EITHER,
        ),
        Scenario(
            "cluster-reports",
            "two-sockets",
            "what users of a cluster see: rejections, Events, topology; the kubelet's other lists",
            usual=False,
            kubelet=Kubelet.REAL,
        ),
        Scenario(
            "daemonset-of-kubelet",
            "two-sockets",
            "the pod of deploy/kubernetes, run by a real kubelet from the image",
            image=True,
            usual=False,
            kubelet=Kubelet.REAL,
        ),
        Scenario(
            "required-plugin",
            "two-sockets",
            "pods that wait for the agent, where the runtime knows of it",
            usual=False,
            kubelet=Kubelet.REAL,
        ),
        Scenario(
            "moving-a-node",
            "two-sockets",
            "from a real kubelet's managers to the agent and back, with pods that run on",
            usual=False,
            kubelet=Kubelet.REAL,
        ),
        Scenario(
            "kills-100",
            "two-sockets",
            "the same with 100 kills",
            timeout=8 * 3600,
            usual=False,
        ),
        Scenario(
            "plumbing",
            "two-sockets",
            "everything the other scenarios stand on, without the agent",
            agent=False,
            usual=False,
        ),
    )
}
