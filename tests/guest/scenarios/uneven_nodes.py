"""A node with CPUs and no memory, and one with memory and no CPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.guest.inside import machine, single, topology
from tests.guest.inside.agent import Agent

if TYPE_CHECKING:
    from tests.guest.inside.guest import Guest

#: As Linux numbers them: CPUs and memory, CPUs alone, memory alone.
WHOLE: Final = (0, 1)
CPUS_ONLY: Final = 2
MEMORY_ONLY: Final = 3

CONFIG: Final = {
    "topologyManagerScope": "container",
    "reservedSystemCPUs": "0",
    "kubeReserved": {"memory": "68Mi"},
    "evictionHard": {"memory.available": "28Mi"},
    "reservedMemory": [
        {"numaNode": node, "limits": {"memory": "32Mi"}} for node in (*WHOLE, MEMORY_ONLY)
    ],
}
WITHOUT_MEMORY: Final = {
    "topologyManagerScope": "container",
    "reservedSystemCPUs": "0",
    "memoryManagerPolicy": "None",
    "reservedMemory": [],
}


def run(guest: Guest) -> None:
    """Fill the whole nodes; what is left serves CPUs only, but no pod that asks for memory too."""
    checks = guest.checks
    host = topology.check(checks)
    checks.equal("memory-only nodes", host["totals"]["memory_only_nodes"], 1)
    agent = Agent(guest, **CONFIG)
    agent.start()
    for node in WHOLE:
        pod = single.pod(f"whole-{node}", 3, "64Mi")
        single.admit(checks, agent, pod)
        single.check_lands(checks, agent, pod, frozenset({node}), frozenset({node}))
    third = single.pod("third", 3, "64Mi")
    answer = agent.admit(third)
    checks.check("CPUs without memory are not enough", not answer["admitted"], answer)
    agent.configure(**WITHOUT_MEMORY)
    agent.restart()
    single.admit(checks, agent, third)
    everywhere = machine.memory_nodes()
    single.check_lands(checks, agent, third, frozenset({CPUS_ONLY}), everywhere)
