"""The kubelet of a guest as scenarios use it, and the fake one (`tests/fakes/kubelet`) as a unit.

Containerd runs its pods. The real one: `tests/guest/inside/real_kubelet.py`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.guest.inside import containerd, kernel
from tests.guest.inside.agent import PROGRAM
from tests.guest.inside.commands import attempt, run

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tests.guest.inside.guest import Guest

SERVICE: Final = "kubelet.service"
UNIT: Final = Path("/etc/systemd/system") / SERVICE
#: The agent's own Python, which has gRPC and the agent's packages.
PYTHON: Final = Path(PROGRAM).with_name("python3")
DIRECTORY: Final = Path("/var/lib/kubelet")

TEMPLATE: Final = """\
[Unit]
Description=fake kubelet
[Service]
Environment=PYTHONPATH={job}
ExecStart={python} -P -m tests.fakes.kubelet {control} {options}
KillMode=process
Slice=system.slice
"""
SLEEP: Final = ("/bin/sleep", "1000000")


class Kubelet(ABC):
    """A kubelet as a service, and the pods that it runs."""

    def __init__(self) -> None:
        self._uids: dict[str, str] = {}

    @abstractmethod
    def start(self, *habits: str) -> None:
        """Start the service; `habits` are options of the fake one."""

    def stop(self) -> None:
        """Stop the service; pods go on running."""
        run("systemctl", "stop", SERVICE)

    def restart(self, *habits: str) -> None:
        """Stop the service and start it with other habits."""
        self.stop()
        self.start(*habits)

    @abstractmethod
    def put(self, pod: Mapping[str, Any]) -> str:
        """Have a pod run, or a running one resized; return its uid."""

    @abstractmethod
    def debug(self, name: str, container: Mapping[str, Any]) -> None:
        """Have an ephemeral container start in a pod that was put (`kubectl debug`)."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Delete a pod."""

    def uid(self, name: str) -> str:
        """Return the uid of a pod that was put."""
        return self._uids[name]

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return the statuses of the kubelet's pods by uid."""

    @abstractmethod
    def errors(self, name: str) -> list[str]:
        """Return what went wrong with a pod, in order."""

    @abstractmethod
    def sandboxes(self, name: str) -> int:
        """Return how many sandboxes of a pod were made and not removed."""

    @abstractmethod
    def creations(self, name: str) -> int:
        """Return how many containers of a pod were created."""

    @abstractmethod
    def is_resized(self, name: str) -> bool:
        """Return whether pod and containers have what the pod that was put last asks for."""

    @abstractmethod
    def resize_errors(self, name: str) -> list[str]:
        """Return why a pod does not have what the pod that was put last asks for."""

    @abstractmethod
    def rejected_sandboxes(self) -> list[str]:
        """Return the errors of sandboxes that a plugin of the runtime rejected, of all pods.

        A runtime that is too slow for the kubelet is another error.
        """

    def phase(self, uid: str) -> str:
        """Return a pod's phase; empty where the kubelet does not know it."""
        phase: str = self.state().get(uid, {}).get("phase", "")
        return phase

    def containers(self, uid: str) -> dict[str, dict[str, Any]]:
        """Return the statuses of a pod's containers by name."""
        status = self.state()[uid]
        kinds = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
        return {each["name"]: each for kind in kinds for each in status.get(kind, ())}

    def is_running(self, uid: str, names: Iterable[str]) -> bool:
        """Return whether these containers of a pod run."""
        if uid not in self.state():
            return False
        found = self.containers(uid)
        return all("running" in found.get(name, {}).get("state", {}) for name in names)

    def waits_for(self, uid: str, name: str) -> str:
        """Return what a container waits for: reason and message, empty if it does not wait."""
        if uid not in self.state():
            return ""
        waiting = self.containers(uid).get(name, {"state": {}})["state"].get("waiting", {})
        return f"{waiting['reason']}: {waiting.get('message', '')}" if waiting else ""

    def pod_cgroup(self, uid: str) -> kernel.Cgroup:
        """Return a pod's slice; raises `FileNotFoundError` if it has none."""
        top = kernel.CGROUPS / "kubepods.slice"
        for found in top.rglob(f"kubepods*-pod{uid.replace('-', '_')}.slice"):
            return kernel.Cgroup(found)
        raise FileNotFoundError(f"no slice of pod {uid} below {top}")

    def cgroup(self, uid: str, name: str) -> kernel.Cgroup:
        """Return the cgroup of a container; raises `FileNotFoundError` if it was not created."""
        container = self.containers(uid)[name].get("containerID", "").removeprefix("containerd://")
        if not container:
            raise FileNotFoundError(f"container {name} of pod {uid} is not created")
        return kernel.Cgroup(self.pod_cgroup(uid).path / f"cri-containerd-{container}.scope")


def collect_journal(guest: Guest) -> None:
    """Have what the service says come back from the guest."""
    unit = attempt("journalctl", "--no-pager", "--boot", f"--unit={SERVICE}", "-o", "cat")
    guest.log("kubelet.log", unit.stdout)


class FakeKubelet(Kubelet):
    """The project's fake; `python` has gRPC."""

    def __init__(self, guest: Guest, python: Path = PYTHON) -> None:
        super().__init__()
        self._guest = guest
        self._python = python
        self.control = guest.work / "kubelet"
        self._pods = self.control / "pods"
        self._pods.mkdir(parents=True)
        guest.at_end(self._collect)

    def start(self, *habits: str) -> None:
        given = " ".join(habits)
        text = TEMPLATE.format(
            job=self._guest.job, python=self._python, control=self.control, options=given
        )
        if not UNIT.exists() or UNIT.read_text() != text:
            UNIT.write_text(text)
            run("systemctl", "daemon-reload")
        run("systemctl", "start", SERVICE)

    def stop(self) -> None:
        super().stop()
        (self.control / "state.json").unlink(missing_ok=True)  # what it knew is over

    def put(self, pod: Mapping[str, Any]) -> str:
        name = pod["metadata"]["name"]
        new = self._pods / ".new"
        new.write_text(json.dumps(pod))
        new.replace(self._pods / f"{name}.json")
        self._uids[name] = pod["metadata"]["uid"]
        return self._uids[name]

    def debug(self, name: str, container: Mapping[str, Any]) -> None:
        pod = json.loads((self._pods / f"{name}.json").read_text())
        self.put({**pod, "spec": {**pod["spec"], "ephemeralContainers": [container]}})

    def remove(self, name: str) -> None:
        (self._pods / f"{name}.json").unlink()

    def state(self) -> dict[str, Any]:
        state = self.control / "state.json"
        loaded: dict[str, Any] = json.loads(state.read_text()) if state.exists() else {}
        return loaded  # nothing before the kubelet has begun

    def errors(self, name: str) -> list[str]:
        return [step["error"] for step in self._steps(name) if "error" in step]

    def sandboxes(self, name: str) -> int:
        made = {"RunPodSandbox": 1, "RemovePodSandbox": -1}
        steps = (step for step in self._steps(name) if "error" not in step)
        return sum(made.get(step["step"], 0) for step in steps)

    def creations(self, name: str) -> int:
        done = (step["step"] for step in self._steps(name) if "error" not in step)
        return [*done].count("CreateContainer")

    def is_resized(self, name: str) -> bool:
        return {"resize", "UpdateContainerResources"} <= {s["step"] for s in self._steps(name)}

    def resize_errors(self, name: str) -> list[str]:
        steps = (s for s in self._steps(name) if s["step"] == "UpdateContainerResources")
        return [step["error"] for step in steps if "error" in step]

    def rejected_sandboxes(self) -> list[str]:
        steps = (step for step in self._timeline() if step["step"] == "RunPodSandbox")
        return [step["error"] for step in steps if "NRI" in step.get("error", "")]

    def _steps(self, name: str) -> list[dict[str, Any]]:
        """Return what the kubelet did about a pod, in order."""
        return [step for step in self._timeline() if step.get("pod") == name]

    def _timeline(self) -> list[dict[str, Any]]:
        file = self.control / "timeline.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()]

    def _collect(self) -> None:
        collect_journal(self._guest)
        for name in ("timeline.jsonl", "state.json"):
            file = self.control / name
            self._guest.log(f"kubelet-{name}", file.read_text() if file.exists() else "")


def container(
    name: str, limits: Mapping[str, str] | None = None, **fields: object
) -> dict[str, object]:
    """Return a container of a manifest that sleeps; `limits` are its requests, too."""
    made: dict[str, object] = {"name": name, "image": containerd.IMAGE, "command": SLEEP, **fields}
    return made | ({"resources": {"limits": limits, "requests": limits}} if limits else {})


def amounts(cpus: int | str, mebibytes: int = 64) -> dict[str, str]:
    """Return limits of CPU and memory."""
    return {"cpu": str(cpus), "memory": f"{mebibytes}Mi"}
