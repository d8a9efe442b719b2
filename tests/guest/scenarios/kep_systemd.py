"""Every pod of KEP-5526's documents as systemd units and podman containers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.guest.inside.agent import BASE, Agent
from tests.guest.inside.examples import Host
from tests.guest.inside.pods import BACKGROUND, CONTAINER_SCOPE, POD_SCOPE
from tests.guest.inside.starters import Podman, SystemdRun

if TYPE_CHECKING:
    from tests.guest.inside.guest import Guest

#: The documents' own examples of mixed pods run in podman, the others under systemd-run.
IN_PODMAN: Final = ("pod-scope-mixed", "container-scope-mixed")


def run(guest: Guest) -> None:
    """Run the pods of each scope under the agent's systemd service."""
    agent = Agent(guest)
    agent.start()
    units, containers = SystemdRun(), Podman(guest.work / "root")
    host = Host.opened(guest.checks, agent, SystemdRun())
    for scope, examples in (("pod", POD_SCOPE), ("container", CONTAINER_SCOPE)):
        if scope != BASE["topologyManagerScope"]:
            agent.configure(topologyManagerScope=scope)
            agent.restart()
        guest.checks.equal(
            f"{scope} scope: in force", agent.status()["policy"]["topologyManagerScope"], scope
        )
        for example in examples:
            host.run(example, containers if example.name in IN_PODMAN else units)
    guest.checks.equal("all that is left", [pod["uid"] for pod in agent.pods()], [BACKGROUND.uid])
