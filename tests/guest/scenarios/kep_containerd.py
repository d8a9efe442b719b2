"""The examples of KEP-5526's documents as containers of containerd, made through CRI."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.guest.inside import containerd
from tests.guest.inside.agent import Agent
from tests.guest.inside.examples import Host
from tests.guest.inside.pods import CONTAINER_SCOPE_EXAMPLES, POD_SCOPE_EXAMPLES
from tests.guest.inside.starters import Cri

if TYPE_CHECKING:
    from tests.guest.inside.guest import Guest


def run_with(guest: Guest, driver: str, runtime: str) -> None:
    """Run the pods of each scope with one cgroup driver and one OCI runtime."""
    containerd.start(guest, driver, runtime)
    agent = Agent(guest, cgroupDriver=driver)
    agent.start()
    host = Host.opened(guest.checks, agent, Cri(driver))
    starter = Cri(driver)
    for scope, examples in (("pod", POD_SCOPE_EXAMPLES), ("container", CONTAINER_SCOPE_EXAMPLES)):
        agent.configure(topologyManagerScope=scope, cgroupDriver=driver)
        agent.restart()
        host.run_all(examples, starter)
