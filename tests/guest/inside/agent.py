"""The installed agent: its files, its service, its command line, its metrics page."""

from __future__ import annotations

import json
import os
import shutil
import signal
import urllib.request
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.guest.inside import kernel
from tests.guest.inside.api import answer_to, ask
from tests.guest.inside.checks import PATIENCE, STUCK, wait_until
from tests.guest.inside.commands import CommandFailed, Outcome, attempt, run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.guest.inside.guest import Guest

PROGRAM: Final = "/opt/numawarden/bin/numawarden"
SERVICE: Final = "numawarden.service"
CONFIG: Final = Path("/etc/numawarden/config.yaml")
METRICS: Final = "127.0.0.1:9464"

#: Where the files of deploy/ go, as the installation instructions have it.
INSTALLED: Final = {
    "numawarden.service": "/etc/systemd/system/numawarden.service",
    "sysusers.conf": "/usr/lib/sysusers.d/numawarden.conf",
    "tmpfiles.conf": "/usr/lib/tmpfiles.d/numawarden.conf",
}

#: The configuration of every scenario, in the kubelet's words; each changes what it is about.
BASE: Final[Mapping[str, object]] = {
    "cpuManagerPolicy": "static",
    "memoryManagerPolicy": "Static",
    "topologyManagerPolicy": "restricted",
    "topologyManagerScope": "pod",
    "reservedSystemCPUs": "0,8",
    "kubeReserved": {"memory": "412Mi"},
    "evictionHard": {"memory.available": "100Mi"},
    "reservedMemory": [
        {"numaNode": 0, "limits": {"memory": "256Mi"}},
        {"numaNode": 1, "limits": {"memory": "256Mi"}},
    ],
    "featureGates": {"PodLevelResourceManagers": True},
    "cgroupDriver": "systemd",
}


class Agent:
    """The agent as its systemd service."""

    def __init__(self, guest: Guest, **config: object) -> None:
        self._guest = guest
        self._manifests = guest.work / "pods"
        self._manifests.mkdir(exist_ok=True)
        self.install()
        self.configure(**config)
        guest.at_end(self._collect)

    def install(self) -> None:
        """Install the files of deploy/; systemd finds a new unit by itself when it is started."""
        for name, target in INSTALLED.items():
            shutil.copy(self._guest.job / "deploy" / name, target)
        run("systemd-sysusers", INSTALLED["sysusers.conf"])
        run("systemd-tmpfiles", "--create", INSTALLED["tmpfiles.conf"])

    def configure(self, **config: object) -> None:
        """Write the configuration of the service: the base with some keys changed."""
        CONFIG.parent.mkdir(parents=True, exist_ok=True)
        self.write_config(CONFIG, **config)

    def write_config(self, file: Path, **config: object) -> Path:
        """Write a configuration, the base with some keys changed (YAML includes JSON)."""
        file.write_text(json.dumps({**BASE, **config}, indent=1))
        return file

    def start(self) -> None:
        """Start the service; it is up when it says so (`Type=notify`)."""
        run("systemctl", "start", SERVICE)

    def stop(self) -> None:
        """Stop the service as `systemctl` does, with SIGTERM."""
        run("systemctl", "stop", SERVICE)

    def restart(self) -> None:
        """Stop and start the service."""
        run("systemctl", "restart", SERVICE)

    @property
    def pid(self) -> int:
        """The service's main process; 0 when it does not run."""
        return int(run("systemctl", "show", "--value", "--property=MainPID", SERVICE))

    def kill(self) -> None:
        """Kill the service with SIGKILL and wait until systemd has it running again."""
        before = self.pid
        run("systemctl", "kill", "--signal=KILL", SERVICE)
        # The socket first: to ask systemd again and again takes CPUs from the agent that starts.
        again = wait_until(lambda: self.is_ready() and self.pid not in (0, before))
        if not again:
            shown = attempt("systemctl", "status", "--no-pager", SERVICE)
            raise LookupError(f"killed, {SERVICE} did not come back within {PATIENCE:g} s: {shown}")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the agent's process: what is done in this context is one event for the agent."""
        pid = self.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            wait_until(lambda: kernel.is_stopped(pid))
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def is_ready(self) -> bool:
        """Return whether it answers and says that it is ready."""
        try:
            return bool(self.status()["ready"])
        except (OSError, HTTPException):
            return False

    def cli(self, *arguments: str | Path) -> Outcome:
        """Run `numawarden ARGUMENTS --output json` to its end."""
        return attempt(PROGRAM, *arguments, "--output", "json")

    def manifest(self, pod: Mapping[str, Any]) -> Path:
        """Write a manifest to a file and return it."""
        file = self._manifests / f"{pod['metadata']['name']}.yaml"
        file.write_text(json.dumps(pod, indent=1))
        return file

    def admit(self, pod: Mapping[str, object]) -> dict[str, Any]:
        """Ask to admit a pod; returns the answer, also a rejection; raises `CommandFailed`."""
        status, answer = answer_to("POST", "pods", pod)
        if "admitted" not in answer:
            raise CommandFailed(f"POST /v1/pods: {status} {answer}")
        return answer

    def remove(self, uid: str) -> None:
        """Remove a pod; raises `CommandFailed`."""
        ask("DELETE", f"pods/{uid}")

    def bind(self, uid: str, container: str, pid: int) -> dict[str, Any]:
        """Say which cgroup a container got, by one of its processes; raises `CommandFailed`."""
        return ask("POST", f"pods/{uid}/containers/{container}/bind", {"pid": pid})

    def show(self, uid: str) -> dict[str, Any]:
        """Return all about a pod; raises `CommandFailed`."""
        return ask("GET", f"pods/{uid}")

    def pods(self) -> list[dict[str, Any]]:
        """Return the pods that the agent holds; raises `CommandFailed`."""
        listed = ask("GET", "pods")["pods"]
        assert isinstance(listed, list)
        return listed

    def status(self) -> dict[str, Any]:
        """Return how the agent is doing; raises `CommandFailed`."""
        return ask("GET", "status")

    def differences(self) -> list[str]:
        """Return what the agent finds the kernel not to enforce; raises `CommandFailed`."""
        return [
            difference for pod in self.pods() for difference in pod["enforcement"]["differences"]
        ]

    def cgroup_of(self, uid: str) -> kernel.Cgroup:
        """Return a pod's cgroup, as the agent shows it."""
        return kernel.Cgroup(self.show(uid)["kernel"][0]["cgroup"])

    def metrics(self) -> str:
        """Return the metrics page."""
        return page(f"http://{METRICS}/metrics")

    def _collect(self) -> None:
        unit = attempt("journalctl", "--no-pager", "--boot", f"--unit={SERVICE}", "-o", "cat")
        self._guest.log("agent.log", unit.stdout)
        try:
            self._guest.log("pods.json", json.dumps(self.pods(), indent=1))
        except OSError as error:
            self._guest.log("pods.json", f"no answer: {error}\n")


def page(address: str) -> str:
    """Return the body of a page; raises `OSError` on any answer but 200."""
    with urllib.request.urlopen(address, timeout=STUCK) as reply:  # noqa: S310 - always http
        text: str = reply.read().decode()
        return text


def samples(text: str) -> dict[str, float]:
    """Return the samples of a metrics page by their name and labels, as written."""
    lines = (line.rpartition(" ") for line in text.splitlines() if line and line[0] != "#")
    return {name: float(value) for name, _, value in lines}
