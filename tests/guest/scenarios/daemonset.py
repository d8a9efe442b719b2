"""What deploy/kubernetes has: the agent with a DaemonSet's rights and mounts, a drop-in.

podman runs the container, with the options that the DaemonSet's pod stands for.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.guest.inside import machine
from tests.guest.inside.agent import PROGRAM, Agent
from tests.guest.inside.checks import wait_until
from tests.guest.inside.commands import attempt
from tests.guest.inside.commands import run as command
from tests.guest.inside.daemonset import MANIFEST, make_what_a_kubelet_makes, options, pod_of
from tests.guest.inside.examples import Host, start
from tests.guest.inside.pods import POD_SCOPE
from tests.guest.inside.starters import SystemdRun

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.guest.inside.checks import Checks
    from tests.guest.inside.guest import Guest
    from tests.guest.inside.kernel import Cgroup
    from tests.guest.inside.workloads import Workload

NAME: Final = "numawarden"
#: Where the image's root is mounted.
ROOT: Final = Path("/opt/numawarden")
DROP_IN: Final = Path("/job/deploy/kubernetes/node/containerd-1.7.toml")
#: CAP_DAC_OVERRIDE alone, as a mask (capability.h).
DAC_OVERRIDE: Final = "0000000000000002"
ONLINE: Final = Path("/sys/devices/system/cpu/online")
#: The slices of QoS classes (docs/kubernetes.md, "Remove it").
CLASSES: Final = ("kubepods-burstable.slice", "kubepods-besteffort.slice")
#: One with a budget, and one that is rejected.
EXAMPLES: Final = ("pod-scope-mixed", "pod-scope-admission-failure")


def run(guest: Guest) -> None:
    """Take pods through their lives, the agent's container restarted among them."""
    checks = guest.checks
    _check_drop_in(guest)
    agent = AsDaemonSet(guest)
    agent.start()
    rights = agent.rights()
    checks.equal("its capabilities", rights["CapEff"], DAC_OVERRIDE)
    checks.equal("no new privileges", rights["NoNewPrivs"], "1")
    checks.equal("a filter of system calls", rights["Seccomp"], "2")
    host = Host.opened(checks, agent, SystemdRun())
    mixed, rejected = (pod for pod in POD_SCOPE if pod.name in EXAMPLES)
    host.run(rejected, SystemdRun())

    def restarted(_pod: Cgroup, running: Mapping[str, Workload]) -> None:
        before = {name: workload.cgroup.cpus for name, workload in running.items()}
        agent.restart()
        after = {name: workload.cgroup.cpus for name, workload in running.items()}
        checks.equal("restarted: the pins stay", after, before)
        checks.eventually("restarted: it finds all enforced", agent.differences, [])

    host.run(mixed, SystemdRun(), restarted)
    _check_removal(checks, agent, host)


class AsDaemonSet(Agent):
    """The agent as podman runs the DaemonSet's container; its configuration is the guests'."""

    def __init__(self, guest: Guest) -> None:
        self._pod = pod_of(MANIFEST, ROOT / "opt/numawarden/bin/python3")
        super().__init__(guest)

    def install(self) -> None:
        """Install nothing: the image has it all."""

    def start(self) -> None:
        """Start the container and wait until the agent is ready."""
        make_what_a_kubelet_makes(self._pod)
        log = "--log-driver=k8s-file"
        given = ("--detach", f"--name={NAME}", log, *options(self._pod))
        arguments = self._pod["containers"][0]["args"]
        # The root is mounted read-only; podman's own mount points go to a layer above.
        command("podman", "run", *given, "--rootfs", f"{ROOT}:O", PROGRAM, *arguments)
        self._wait()

    def restart(self) -> None:
        """End the container with SIGTERM and start it again."""
        command("podman", "restart", "--time=60", NAME)
        self._wait()

    def stop(self) -> None:
        """End the container with SIGTERM."""
        command("podman", "stop", "--time=60", NAME)

    def rights(self) -> dict[str, str]:
        """Return what the kernel says of the agent's process (proc_pid_status(5))."""
        pid = command("podman", "inspect", "--format={{.State.Pid}}", NAME).strip()
        lines = Path("/proc", pid, "status").read_text().splitlines()
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}

    def _wait(self) -> None:
        ready = wait_until(self.is_ready)
        self._guest.checks.require("the agent is ready in its container", ready, self._log())

    def _log(self) -> str:
        return str(attempt("podman", "logs", NAME))

    def _collect(self) -> None:
        self._guest.log("agent.log", self._log())


def _check_removal(checks: Checks, agent: AsDaemonSet, host: Host) -> None:
    """Stop the agent beside exclusive CPUs, and give all CPUs to the slices of the classes."""
    mixed = next(pod for pod in POD_SCOPE if pod.name == EXAMPLES[0])
    start(checks, agent, SystemdRun(), mixed)
    others = host.background.cgroup
    checks.check("others have what is left", others.cpus < machine.cpus(), others.cpus)
    agent.stop()
    checks.check("the agent stopped: they still do", others.cpus < machine.cpus(), others.cpus)
    everything = ONLINE.read_text().strip()
    for name in CLASSES:
        # systemd writes no empty set.
        command("systemctl", "set-property", "--runtime", name, f"AllowedCPUs={everything}")
    checks.eventually("given back: all CPUs", lambda: others.cpus, machine.cpus(), others)


def _check_drop_in(guest: Guest) -> None:
    """Compare what containerd makes of its configuration with and without the file."""
    config = guest.work / "containerd.toml"
    config.write_text("version = 2\n")
    guest.checks.equal("containerd 1.7 by itself", _nri_is_off(config), expected=True)
    config.write_text(f'version = 2\nimports = ["{DROP_IN}"]\n')
    guest.checks.equal("with the file", _nri_is_off(config), expected=False)


def _nri_is_off(config: Path) -> bool:
    whole = tomllib.loads(command("containerd", "--config", config, "config", "dump"))
    off: bool = whole["plugins"]["io.containerd.nri.v1.nri"]["disable"]
    return off
