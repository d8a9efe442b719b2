"""A device plugin beside the installed agent: registered, allocated, delivered, restarted, killed.

The plugin is a process of its own that speaks gRPC by grpcio; the agent runs as its unit allows.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.guest.inside import containerd, kernel, oci
from tests.guest.inside.agent import PROGRAM, Agent, samples
from tests.guest.inside.commands import run as command

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.guest.inside.checks import Checks
    from tests.guest.inside.guest import Guest

DIRECTORY: Final = Path("/var/lib/kubelet/device-plugins")
POD_RESOURCES: Final = Path("/run/numawarden/pod-resources/kubelet.sock")
WIDGET: Final = "example.com/widget"
PYTHON: Final = Path(PROGRAM).with_name("python3")
PLUGIN: Final = "tests/guest/inside/plugin_process.py"
#: What the agent may have at rest with gRPC on, in MiB.
MOST_MEMORY: Final = 75

UID: Final = "5526cafe-0000-4000-8000-0000000000d1"
OTHER_UID: Final = "5526cafe-0000-4000-8000-0000000000d2"


def pod(uid: str, name: str, widgets: int) -> Mapping[str, Any]:
    """Return a pod with exclusive CPUs and widgets."""
    limits = {"cpu": "2", "memory": "512Mi", WIDGET: str(widgets)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": uid},
        "spec": {"containers": [{"name": "main", "image": "i", "resources": {"limits": limits}}]},
    }


def run(guest: Guest) -> None:
    """Register a plugin with the agent's unit and follow its devices into a container."""
    checks = guest.checks
    root = oci.write_root(guest.work / "root")
    containerd.start(guest, "systemd")
    DIRECTORY.mkdir(mode=0o750, parents=True)
    agent = Agent(
        guest,
        agent={
            "devicePlugins": {"enabled": True},
            "podResources": {"socket": str(POD_RESOURCES)},
        },
    )
    agent.start()
    with plugin(guest, "w0=1", "w1=1"):
        checks.eventually("a plugin registers", lambda: offered(agent), 2)
        _allocated(checks, agent, root)
        _listed(guest, agent)
        before = agent.show(UID)["containers"]
        agent.restart()
        checks.eventually("it registers again after a restart", lambda: offered(agent), 2)
        checks.equal("the allocation is kept", agent.show(UID)["containers"], before)
        checks.eventually("nothing is amiss", lambda: messages(agent), [])
    checks.eventually("a killed plugin leaves no healthy device", lambda: offered(agent), 0)
    checks.equal("nothing is amiss while the plugin may be restarting", messages(agent), [])
    rejected = agent.admit(pod(OTHER_UID, "other", 1))
    checks.check("its free device is not given", not rejected["admitted"], rejected)
    with plugin(guest, "w0=1"):
        checks.eventually("it returns with one device", lambda: offered(agent), 1)
        invalid = [each["message"] for each in agent.show(UID)["invalid"]]
        lost = f"has {WIDGET} w1, which is no longer in the inventory"
        checks.equal("the lost one is reported", invalid, [lost])
        other = agent.admit(pod(OTHER_UID, "other", 1))["pod"]
        given = other and other["containers"][0]["devices"]
        checks.equal("the other one is given once", given, {WIDGET: ["w0"]})
    status = Path(f"/proc/{agent.pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    resident = int(line.split()[1]) >> 10
    checks.check(f"at most {MOST_MEMORY} MiB with gRPC", resident <= MOST_MEMORY, resident)


@contextmanager
def plugin(guest: Guest, *places: str) -> Iterator[None]:
    """Run a plugin until the block ends; then it is killed and its socket stays."""
    process = subprocess.Popen(
        [PYTHON, "-P", guest.job / PLUGIN, DIRECTORY, WIDGET, *places],
        env={**os.environ, "PYTHONPATH": str(guest.job)},
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


def offered(agent: Agent) -> int:
    """Return how many widgets are healthy, allocated or free."""
    shown = samples(agent.metrics())
    return int(shown.get(f'numawarden_allocatable{{resource="{WIDGET}"}}', 0))


def messages(agent: Agent) -> list[str]:
    """Return what is not as it should be, but that nothing was started in the pods."""
    found = agent.status()["conditions"]
    return [each["message"] for each in found if each["type"] != "ContainersFound"]


def _allocated(checks: Checks, agent: Agent, root: Path) -> None:
    answer = agent.admit(pod(UID, "with-widget", 1))
    checks.require("a pod with a widget is admitted", answer["admitted"], answer)
    container = answer["pod"]["containers"][0]
    checks.equal("the plugin's preference is followed", container["devices"], {WIDGET: ["w1"]})
    delivered = container["delivery"]["environment"]
    checks.equal("what the plugin delivered", delivered, {"DEVICES": "w1"})
    checks.equal("the memory is near the device", container["mems"], "1")
    far = [each["why"] for each in answer["pod"]["verdict"] if not each["met"]]
    checks.equal("nothing is second-best", far, [])
    asked = (PROGRAM, "show", "with-widget", "--container", "main", "--arguments", "podman")
    arguments = command(*asked).split()
    options = ("--rm", "--network=host", "--log-driver=none")
    script = 'echo "$DEVICES"; grep Cpus_allowed_list /proc/self/status'
    shell = ("--rootfs", root, "/bin/sh", "-c", script)
    said, allowed = command("podman", "run", *options, *arguments, *shell).splitlines()
    checks.equal("podman: the container has the plugin's variable", said, "w1")
    cpus = kernel.ids(container["cpus"])
    checks.equal("podman: CPUs of the pod", kernel.ids(allowed.split()[-1]), cpus)


def _listed(guest: Guest, agent: Agent) -> None:
    asked = (PYTHON, "-P", guest.job / PLUGIN, "--list", POD_RESOURCES)
    out = subprocess.run(
        asked,
        env={**os.environ, "PYTHONPATH": str(guest.job)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    cpus = sorted(kernel.ids(agent.show(UID)["containers"][0]["cpus"]))
    listed = f'[{{"pod": "with-widget", "container": "main", "cpus": {cpus}, '
    listed += f'"devices": {{"{WIDGET}": ["w1"]}}}}]'
    guest.checks.equal("podresources lists the pod", out.strip(), listed)
