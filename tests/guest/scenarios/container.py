"""The container image's agent, privileged: another machine's sysfs, the real cgroup tree."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.guest.inside import kernel, placements
from tests.guest.inside.agent import BASE, CONFIG, PROGRAM, Agent, page, samples
from tests.guest.inside.agent import METRICS as ADDRESS
from tests.guest.inside.checks import STUCK, wait_until
from tests.guest.inside.commands import attempt
from tests.guest.inside.commands import run as command
from tests.guest.inside.examples import start
from tests.guest.inside.pods import BACKGROUND, POD_SCOPE
from tests.guest.inside.starters import Podman

if TYPE_CHECKING:
    from tests.guest.inside.checks import Checks
    from tests.guest.inside.guest import Guest

NAME: Final = "numawarden"
#: Where the image's root is mounted, and the health check of its configuration.
ROOT: Final = Path("/opt/numawarden")
PATIENT: Final = f"--health-timeout={STUCK:g}s"
HEALTH: Final = "/usr/bin/numawarden-health"
MIXED: Final = next(example for example in POD_SCOPE if example.name == "pod-scope-mixed")

#: The machine of `described.py`: CPU n and n+8 are one core, 0-3 and 8-11 are node 0; the core of
#: CPUs 0 and 8 is reserved. Four CPUs are then the next two cores, of which the first is one slice.
EXCLUSIVE: Final = kernel.ids("1,9")
SHARED: Final = kernel.ids("2,10")


def run(guest: Guest) -> None:
    """Run the agent in podman and have it pin containers by what the described machine is like."""
    machine = guest.work / "machine"
    with_package = ("env", "PYTHONPATH=/job", ROOT / "opt/numawarden/bin/python3")
    command(*with_package, "-m", "tests.guest.inside.described", machine)
    agent = InContainer(guest, machine)
    agent.start()
    _check_topology(guest.checks, agent)
    healthy = attempt("podman", "healthcheck", "run", NAME)
    guest.checks.check("the image's health check", healthy.ok, healthy)
    podman = Podman(guest.work / "root", "cgroupfs")
    _, idle = start(guest.checks, agent, Podman(guest.work / "root", "cgroupfs"), BACKGROUND)
    background = idle[BACKGROUND.containers[0]]
    pod, running = start(guest.checks, agent, podman, MIXED)
    first, *others = MIXED.containers
    checks = guest.checks
    checks.eventually("one core of its own", lambda: running[first].cgroup.cpus, EXCLUSIVE)
    checks.equal("it runs there", kernel.affinity(running[first].pid), EXCLUSIVE)
    for other in others:
        checks.eventually("the next core", partial(getattr, running[other].cgroup, "cpus"), SHARED)
        limit = partial(running[other].cgroup.millicores_within, pod)
        checks.eventually("its quota", limit, MIXED.budget * 1000)
    checks.equal("the pod", pod.cpus, EXCLUSIVE | SHARED)
    taken = placements.exclusive_cpus(MIXED, running)
    checks.check(
        "no other pod has them", not taken & background.cgroup.cpus, background.cgroup.cpus
    )
    found = samples(page(f"http://{ADDRESS}/metrics"))
    checks.equal("metrics", found.get("numawarden_pods"), 2.0)
    agent.stop()
    checks.equal("stopped: the pins stay", running[first].cgroup.cpus, EXCLUSIVE)


class InContainer(Agent):
    """The agent as a container of podman; the command line is the guest's."""

    def __init__(self, guest: Guest, machine: Path) -> None:
        self._sysfs = machine / "sys/devices/system"
        super().__init__(guest, cgroupDriver="cgroupfs")

    def install(self) -> None:
        """Install nothing: the image has it all."""

    def start(self) -> None:
        """Start the container and wait until the agent is ready."""
        for directory in ("/run/numawarden", "/var/lib/numawarden"):
            Path(directory).mkdir(exist_ok=True)
        config = f"{CONFIG}:{CONFIG}:ro"
        kept = ("/run/numawarden:/run/numawarden", "/var/lib/numawarden:/var/lib/numawarden")
        sysfs = (f"{self._sysfs / name}:/sys/devices/system/{name}:ro" for name in ("cpu", "node"))
        volumes = (f"--volume={volume}" for volume in (config, *kept, *sysfs))
        host = ("--privileged", "--cgroupns=host", "--network=host", "--pid=host")
        health = (f"--health-cmd=CMD {HEALTH}", "--health-interval=disable", PATIENT)
        options = ("--detach", f"--name={NAME}", "--log-driver=k8s-file", *health, *host, *volumes)
        run = (PROGRAM, "agent", "--config", CONFIG)
        # The root is mounted read-only; what podman writes into it goes to a layer above.
        command("podman", "run", *options, "--rootfs", f"{ROOT}:O", *run)
        ready = wait_until(self.is_ready)
        self._guest.checks.require("the agent is ready in its container", ready, self._log())

    def stop(self) -> None:
        """Stop the container with SIGTERM."""
        command("podman", "stop", "--time=60", NAME)

    def _log(self) -> str:
        return str(attempt("podman", "logs", NAME))

    def _collect(self) -> None:
        self._guest.log("agent.log", self._log())


def _check_topology(checks: Checks, agent: Agent) -> None:
    shown: dict[str, Any] = json.loads(
        command("podman", "exec", NAME, PROGRAM, "topology", "--output=json")
    )
    nodes = {node["id"]: node["cpus"] for node in shown["nodes"]}
    checks.equal("the described machine is seen", nodes, {0: "0-3,8-11", 1: "4-7,12-15"})
    policy = agent.status()["policy"]
    checks.equal("reserved", policy["reservedCpus"], BASE["reservedSystemCPUs"])
