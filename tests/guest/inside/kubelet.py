"""The fake kubelet (`tests/fakes/kubelet`) in the guest: a unit whose pods containerd runs."""

from __future__ import annotations

import json
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


class Kubelet:
    """The fake kubelet as a service, and the pods that it runs; `python` has gRPC."""

    def __init__(self, guest: Guest, python: Path = PYTHON) -> None:
        self._guest = guest
        self._python = python
        self.control = guest.work / "kubelet"
        self._pods = self.control / "pods"
        self._pods.mkdir(parents=True)
        guest.at_end(self._collect)

    def start(self, *options: str) -> None:
        """Start the service with options of the program."""
        given = " ".join(options)
        text = TEMPLATE.format(
            job=self._guest.job, python=self._python, control=self.control, options=given
        )
        if not UNIT.exists() or UNIT.read_text() != text:
            UNIT.write_text(text)
            run("systemctl", "daemon-reload")
        run("systemctl", "start", SERVICE)

    def stop(self) -> None:
        """Stop the service; pods go on running, and what it knew of them is over."""
        run("systemctl", "stop", SERVICE)
        (self.control / "state.json").unlink(missing_ok=True)

    def restart(self, *options: str) -> None:
        """Stop the service and start it with other options."""
        self.stop()
        self.start(*options)

    def put(self, pod: Mapping[str, Any]) -> str:
        """Have a pod run, or a running one resized; return its uid."""
        metadata = pod["metadata"]
        new = self._pods / ".new"
        new.write_text(json.dumps(pod))
        new.replace(self._pods / f"{metadata['name']}.json")
        uid: str = metadata["uid"]
        return uid

    def remove(self, name: str) -> None:
        """Delete a pod."""
        (self._pods / f"{name}.json").unlink()

    def state(self) -> dict[str, Any]:
        """Return the statuses of the kubelet's pods by uid."""
        loaded: dict[str, Any] = json.loads((self.control / "state.json").read_text())
        return loaded

    def phase(self, uid: str) -> str:
        """Return a pod's phase; empty where the kubelet does not know it."""
        phase: str = self.state().get(uid, {}).get("phase", "")
        return phase

    def containers(self, uid: str) -> dict[str, dict[str, Any]]:
        """Return the statuses of a pod's containers by name."""
        status = self.state()[uid]
        listed = [*status["initContainerStatuses"], *status["containerStatuses"]]
        return {each["name"]: each for each in listed}

    def is_running(self, uid: str, names: Iterable[str]) -> bool:
        """Return whether these containers of a pod run."""
        if uid not in self.state():
            return False
        found = self.containers(uid)
        return all("running" in found[name]["state"] for name in names)

    def waits_for(self, uid: str, name: str) -> str:
        """Return what a container waits for: reason and message, empty if it does not wait."""
        if uid not in self.state():
            return ""
        waiting = self.containers(uid)[name]["state"].get("waiting", {})
        return f"{waiting['reason']}: {waiting['message']}" if waiting else ""

    def pod_cgroup(self, uid: str) -> kernel.Cgroup:
        """Return a pod's slice; raises `FileNotFoundError` if it has none."""
        top = kernel.CGROUPS / "kubepods.slice"
        for found in top.rglob(f"kubepods*-pod{uid.replace('-', '_')}.slice"):
            return kernel.Cgroup(found)
        raise FileNotFoundError(f"no slice of pod {uid} below {top}")

    def cgroup(self, uid: str, name: str) -> kernel.Cgroup:
        """Return the cgroup of a container."""
        container = self.containers(uid)[name]["containerID"].removeprefix("containerd://")
        return kernel.Cgroup(self.pod_cgroup(uid).path / f"cri-containerd-{container}.scope")

    def steps(self, name: str) -> list[dict[str, Any]]:
        """Return what the kubelet did about a pod, in order."""
        return [step for step in self._timeline() if step.get("pod") == name]

    def rejected_sandboxes(self) -> list[str]:
        """Return the errors of sandboxes that a plugin of the runtime rejected, of all pods.

        A runtime that is too slow for the kubelet is another error.
        """
        steps = (step for step in self._timeline() if step["step"] == "RunPodSandbox")
        return [step["error"] for step in steps if "NRI" in step.get("error", "")]

    def _timeline(self) -> list[dict[str, Any]]:
        file = self.control / "timeline.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()]

    def _collect(self) -> None:
        unit = attempt("journalctl", "--no-pager", "--boot", f"--unit={SERVICE}", "-o", "cat")
        self._guest.log("kubelet.log", unit.stdout)
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
