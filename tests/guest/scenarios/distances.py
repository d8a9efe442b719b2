"""Four nodes, near and far: pods that need two nodes, with and without prefer-closest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.guest.inside import single, topology
from tests.guest.inside.agent import Agent

if TYPE_CHECKING:
    from tests.guest.inside.guest import Guest

CONFIG: Final = {
    "topologyManagerPolicy": "restricted",
    "topologyManagerScope": "container",
    "reservedSystemCPUs": "0",
    "kubeReserved": {"memory": "100Mi"},
    "evictionHard": {"memory.available": "28Mi"},
    "reservedMemory": [{"numaNode": node, "limits": {"memory": "32Mi"}} for node in range(4)],
}
CLOSEST: Final = {"topologyManagerPolicyOptions": {"prefer-closest-numa-nodes": "true"}}


def run(guest: Guest) -> None:
    """Fill node 1; a pod of two nodes then lands on 0 and 2, or on the near 2 and 3."""
    checks = guest.checks
    host = topology.check(checks)
    near = host["nodes"][2]["distances"]
    checks.equal("node 2 is near to 3", (near["0"], near["1"], near["3"]), (21, 21, 12))
    agent = Agent(guest, **CONFIG)
    agent.start()
    filler, wide = single.pod("filler", 4, "64Mi"), single.pod("wide", 6, "600Mi")
    only = frozenset({1})
    single.admit(checks, agent, filler)
    single.check_lands(checks, agent, filler, only, only)
    for options, nodes in (({}, frozenset({0, 2})), (CLOSEST, frozenset({2, 3}))):
        if options:
            agent.configure(**CONFIG, **options)
            agent.restart()
        single.admit(checks, agent, wide)
        single.check_lands(checks, agent, wide, nodes, nodes)
        agent.remove(single.uid_of("wide"))
    single.check_lands(checks, agent, filler, only, only)
