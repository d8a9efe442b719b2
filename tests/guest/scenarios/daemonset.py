"""What deploy/kubernetes has: the agent with a DaemonSet's rights, mounts and configuration.

podman runs the agent's container, with the options that the DaemonSet's pod stands for; containerd
runs the pods of a kubelet.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.guest.inside import containerd, daemonset, kernel, machine
from tests.guest.inside.agent import CONFIG, PROGRAM, Agent
from tests.guest.inside.checks import wait_until
from tests.guest.inside.commands import attempt
from tests.guest.inside.commands import run as command
from tests.guest.inside.kubelet import FakeKubelet, amounts, container

if TYPE_CHECKING:
    from typing import Any

    from tests.guest.inside.checks import Checks
    from tests.guest.inside.guest import Guest

NAME: Final = "numawarden"
#: Where the image's root is mounted, and the Python of its environment.
ROOT: Final = Path("/opt/numawarden")
PYTHON: Final = ROOT / "opt/numawarden/bin/python3"
DROP_IN: Final = Path("/job/deploy/kubernetes/node/containerd-1.7.toml")
#: CAP_DAC_OVERRIDE alone, as a mask (capability.h).
DAC_OVERRIDE: Final = "0000000000000002"
ONLINE: Final = Path("/sys/devices/system/cpu/online")
#: The slices of QoS classes (docs/kubernetes.md, "Remove it").
CLASSES: Final = ("kubepods-burstable.slice", "kubepods-besteffort.slice")


def run(guest: Guest) -> None:
    """Run pods beside the agent, which is restarted and removed in the end."""
    checks = guest.checks
    _check_drop_in(guest)
    containerd.start(guest, "systemd", nri=True)
    kubelet = FakeKubelet(guest, PYTHON)
    kubelet.start("--retry=2", "--linger=2")
    agent = AsDaemonSet(guest)
    agent.start()
    rights = agent.rights()
    checks.equal("its capabilities", rights["CapEff"], DAC_OVERRIDE)
    checks.equal("no new privileges", rights["NoNewPrivs"], "1")
    checks.equal("a filter of system calls", rights["Seccomp"], "2")
    shared = kubelet.put(_pod("shared", 1, containers=[container("app")]))
    checks.require("a pod without requests runs", _runs(kubelet, shared, "app"), "")
    mixed = kubelet.put(
        _pod(
            "mixed",
            2,
            resources={"limits": amounts(3, 128), "requests": amounts(3, 128)},
            containers=[container("worker", amounts(2)), container("logs")],
        )
    )
    checks.require("a mixed pod runs", _runs(kubelet, mixed, "worker", "logs"), "")
    _check_mixed(checks, kubelet, mixed, shared)
    agent.restart()
    _check_mixed(checks, kubelet, mixed, shared)
    _check_removal(checks, agent, kubelet.cgroup(shared, "app"))


def _pod(name: str, number: int, **spec: object) -> dict[str, Any]:
    uid = f"5526cafe-0000-4000-8000-da{number:010x}"
    metadata = {"name": name, "namespace": "default", "uid": uid}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _runs(kubelet: FakeKubelet, uid: str, *containers: str) -> bool:
    return wait_until(lambda: kubelet.is_running(uid, containers))


def _check_mixed(checks: Checks, kubelet: FakeKubelet, mixed: str, shared: str) -> None:
    """Compare the sets of the mixed pod with what its manifest asks for."""
    worker, logs = (kubelet.cgroup(mixed, name) for name in ("worker", "logs"))
    pod, others = kubelet.pod_cgroup(mixed), kubelet.cgroup(shared, "app")
    checks.eventually("two CPUs of its own", lambda: len(worker.cpus), 2, worker)
    checks.eventually("the rest of the budget", lambda: len(logs.cpus), 1, logs)
    checks.equal("the pod has both", pod.cpus, worker.cpus | logs.cpus, pod)
    checks.eventually("others have the rest", lambda: others.cpus, machine.cpus() - pod.cpus)


class AsDaemonSet(Agent):
    """The agent as podman runs the DaemonSet's container, with the configuration of the base."""

    def __init__(self, guest: Guest) -> None:
        self._pod = daemonset.pod_of(daemonset.loaded("daemonset.yaml", PYTHON))
        super().__init__(guest)

    def install(self) -> None:
        """Install nothing: the image has it all."""

    def configure(self, **config: object) -> None:
        """Write the configuration of the base, with some keys changed."""
        CONFIG.parent.mkdir(parents=True, exist_ok=True)
        CONFIG.write_text(json.dumps({**daemonset.loaded("config.yaml", PYTHON), **config}))

    def start(self) -> None:
        """Start the container and wait until the agent is ready."""
        daemonset.write_what_a_kubelet_writes(self._pod)
        log = "--log-driver=k8s-file"
        given = ("--detach", f"--name={NAME}", log, *daemonset.options(self._pod))
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


def _check_removal(checks: Checks, agent: AsDaemonSet, others: kernel.Cgroup) -> None:
    """Stop the agent beside exclusive CPUs, and give all CPUs to the slices of the classes."""
    agent.stop()
    checks.check("stopped: others keep what they have", others.cpus < machine.cpus(), others.cpus)
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
