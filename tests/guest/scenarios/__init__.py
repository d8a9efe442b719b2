"""What the guests are booted for: one module a scenario, its `run(guest)` is run inside."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

#: The suite of Debian that guests are made of where no other is named.
SUITE: Final = "trixie"
SUITES: Final = (SUITE, "testing", "bookworm")


class When(Enum):
    """When a scenario runs that is not named."""

    #: In CI: the ground of all others, each on the kernel or on an installed host.
    CI = auto()
    #: With `--nightly`: variations of these, and what takes long.
    NIGHTLY = auto()
    NEVER = auto()


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
    laid there instead of the environment. `kubelet` says whose pods it has; one that needs a
    real kubelet runs when it is named. `reboots`: it is run again after each reboot of the guest,
    whose disk stays.
    """

    name: str
    topology: str
    summary: str
    timeout: float = 7200
    agent: bool = True
    packages: bool = False
    image: bool = False
    when: When = When.NIGHTLY
    kubelet: Kubelet = Kubelet.NONE
    reboots: bool = False

    @property
    def module(self) -> str:
        """The module inside the guest."""
        return f"{__name__}.{self.name.replace('-', '_')}"

    def runs_on(self, suite: str) -> bool:
        """Return whether it can run on a suite: package and image are made for one."""
        return suite == SUITE or not (self.packages or self.image)


SCENARIOS: Final = {
    scenario.name: scenario
    for scenario in (
        # The long ones first, so that two at a time end together.
        Scenario(
            "cluster",
            "two-sockets",
            "pods of a kubelet through containerd and NRI: every shape, resize, rejection, a crowd",
            kubelet=Kubelet.EITHER,
            when=When.CI,
        ),
        Scenario(
            "installation",
            "two-sockets",
            "the Debian package: installed, upgraded and removed beside pods; the unit's hardening",
            agent=False,
            packages=True,
            when=When.CI,
        ),
        Scenario(
            "isolation",
            "two-sockets",
            "services, interrupts and threads of the kernel keep off a pod's CPUs; all is restored",
            when=When.CI,
        ),
        Scenario(
            "shared-pool",
            "two-sockets",
            "sixty pods inherit the shared pool; sets of other writers and of older versions",
            when=When.CI,
        ),
        Scenario(
            "shared-pool-writes",
            "two-sockets",
            "what an exclusive pod writes and asks of systemd beside 200 Guaranteed pods",
        ),
        Scenario(
            "partitions",
            "two-sockets",
            "partitions around a pod's CPUs: made, broken, repaired, ended in each way",
            when=When.CI,
        ),
        Scenario(
            "provocations",
            "two-sockets",
            "systemd, other writers, CPUs that go, a lost checkpoint; one reconcile repairs",
            when=When.CI,
        ),
        Scenario(
            "survival",
            "two-sockets",
            "the agent stopped, restarted, killed, rolled back; workloads and allocations stay",
            when=When.CI,
        ),
        Scenario(
            "kep-systemd",
            "two-sockets",
            "the pods of KEP-5526 under systemd-run and podman, agent as a service",
            when=When.CI,
        ),
        Scenario(
            "live",
            "two-sockets",
            "a running process gets more, fewer, other CPUs: by command, in a budget, by its file",
            when=When.CI,
        ),
        Scenario(
            "containerd-cgroupfs",
            "two-sockets",
            "the examples of KEP-5526 through CRI: crun, cgroupfs driver",
            when=When.CI,
        ),
        Scenario(
            "cgroup-contract",
            "isolated-cpus",
            "the contract tests of the emulated cgroup tree, against the kernel's",
            when=When.CI,
        ),
        Scenario(
            "huge-pages",
            "two-sockets",
            "pods use all their huge pages, counted as memory and not; a page more is ENOMEM",
            when=When.CI,
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
            "affinities",
            "two-sockets",
            "services with CPUAffinity= while the slices of the host are narrowed",
        ),
        Scenario(
            "run",
            "two-sockets",
            "commands and units with an allocation of their own, and a quadlet of podman",
        ),
        Scenario(
            "containerd-systemd",
            "two-sockets",
            "the examples of KEP-5526 through CRI: runc, systemd driver",
        ),
        Scenario(
            "shapes",
            "two-sockets",
            "init containers, sidecars, devices, each topology policy, whole cores, the gate",
        ),
        Scenario(
            "withheld",
            "two-sockets",
            "partitions of another program, before pods and under them, of every kind",
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
            "isolated-cpus",
            "isolated-cpus",
            "exclusive pods run on CPUs of isolcpus= first, shared ones never",
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
            "isolation-items",
            "two-sockets",
            "host slices alone, interrupts alone; a container reads which CPUs it has",
        ),
        Scenario(
            "isolation-slices",
            "two-sockets",
            "an administrator sets slices before, amid and after a pod; a CPU goes offline",
        ),
        Scenario(
            "isolation-reboot",
            "two-sockets",
            "isolation after a reboot with the agent as a service, and after one without it",
            reboots=True,
        ),
        Scenario(
            "isolation-kills",
            "two-sockets",
            "twenty kills amid admissions and removals with all items of isolation on",
        ),
        Scenario(
            "first-moment",
            "two-sockets",
            "how long a new container may use the CPUs of another; CPUs that the kernel loses",
        ),
        Scenario(
            "crowd",
            "two-sockets",
            "110 pods of a kubelet at once",
            timeout=6 * 3600,
            when=When.NEVER,
            kubelet=Kubelet.EITHER,
        ),
        Scenario(
            "cluster-reports",
            "two-sockets",
            "what users of a cluster see: rejections, Events, topology; the kubelet's other lists",
            when=When.NEVER,
            kubelet=Kubelet.REAL,
        ),
        Scenario(
            "daemonset-of-kubelet",
            "two-sockets",
            "the pod of deploy/kubernetes, run by a real kubelet from the image",
            image=True,
            when=When.NEVER,
            kubelet=Kubelet.REAL,
        ),
        Scenario(
            "required-plugin",
            "two-sockets",
            "pods that wait for the agent, where the runtime knows of it",
            when=When.NEVER,
            kubelet=Kubelet.REAL,
        ),
        Scenario(
            "moving-a-node",
            "two-sockets",
            "from a real kubelet's managers to the agent and back, with pods that run on",
            when=When.NEVER,
            kubelet=Kubelet.REAL,
        ),
        Scenario(
            "kills-100",
            "two-sockets",
            "the same with 100 kills",
            timeout=8 * 3600,
            when=When.NEVER,
        ),
        Scenario(
            "shared-pool-writes-1000",
            "two-sockets",
            "what an exclusive pod writes beside 1,000 Guaranteed pods",
            timeout=8 * 3600,
            when=When.NEVER,
        ),
        Scenario(
            "plumbing",
            "two-sockets",
            "everything the other scenarios stand on, without the agent",
            agent=False,
            when=When.NEVER,
        ),
    )
}
