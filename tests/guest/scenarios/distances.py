"""Four nodes, near and far: pods that need two nodes, with and without prefer-closest."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from tests.guest.inside import kernel, machine
from tests.guest.inside.agent import PROGRAM, Agent
from tests.guest.inside.commands import run as command
from tests.guest.inside.workloads import Workload, stop_unit, systemd_run

if TYPE_CHECKING:
    from tests.guest.inside.checks import Checks
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

#: As the machine is described in `tests/guest/topologies.py`.
DISTANCES: Final = {
    0: {0: 10, 1: 12, 2: 21, 3: 21},
    1: {0: 12, 1: 10, 2: 21, 3: 21},
    2: {0: 21, 1: 21, 2: 10, 3: 12},
    3: {0: 21, 1: 21, 2: 12, 3: 10},
}


def run(guest: Guest) -> None:
    """Fill node 1; a pod of two nodes then lands on 0 and 2, or on the near 2 and 3."""
    _check_topology(guest.checks)
    agent = Agent(guest, **CONFIG)
    agent.start()
    filler = _pod("filler", 4, "64Mi")
    guest.checks.require("filler: admitted", agent.admit(filler)["admitted"])
    _check_lands(guest.checks, agent, filler, frozenset({1}))
    wide = _pod("wide", 6, "600Mi")
    _take_through(guest.checks, agent, wide, frozenset({0, 2}))
    agent.configure(**CONFIG, **CLOSEST)
    agent.restart()
    _check_lands(guest.checks, agent, filler, frozenset({1}))
    _take_through(guest.checks, agent, wide, frozenset({2, 3}))


def _check_topology(checks: Checks) -> None:
    shown = _topology()
    found = {
        node["id"]: {int(other): value for other, value in node["distances"].items()}
        for node in shown["nodes"]
    }
    checks.equal("distances as the machine has them", found, DISTANCES)
    own = {node["id"]: kernel.ids(node["cpus"]) for node in shown["nodes"]}
    checks.equal("the nodes' CPUs as the kernel shows them", own, machine.nodes())


def _topology() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(command(PROGRAM, "topology", "--output", "json"))
    return loaded


def _pod(name: str, cpus: int, memory: str) -> dict[str, Any]:
    amounts = {"cpu": str(cpus), "memory": memory}
    resources = {"requests": amounts, "limits": amounts}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "uid": f"uid-{name}"},
        "spec": {"containers": [{"name": "app", "image": "example", "resources": resources}]},
    }


def _take_through(checks: Checks, agent: Agent, pod: dict[str, Any], nodes: frozenset[int]) -> None:
    answer = agent.admit(pod)
    name = pod["metadata"]["name"]
    checks.require(f"{name}: admitted", answer["admitted"], answer.get("refusal") or "")
    _check_lands(checks, agent, pod, nodes)
    agent.remove(pod["metadata"]["uid"])


def _check_lands(checks: Checks, agent: Agent, pod: dict[str, Any], nodes: frozenset[int]) -> None:
    """Start the pod's container and check that its CPUs and memory are of the given nodes."""
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    unit = f"{name}-app"
    workload: Workload = systemd_run(unit, agent.cgroup_of(uid).path.name)
    cpus = int(pod["spec"]["containers"][0]["resources"]["limits"]["cpu"])
    checks.eventually(f"{name}: CPUs", lambda: len(workload.cgroup.cpus), cpus)
    checks.equal(f"{name}: nodes of its CPUs", machine.nodes_of(workload.cgroup.cpus), nodes)
    checks.equal(f"{name}: runs on them", kernel.affinity(workload.pid), workload.cgroup.cpus)
    checks.equal(f"{name}: nodes of its memory", kernel.memory_nodes(workload.pid), nodes)
    checks.equal(f"{name}: no quota", workload.cgroup.millicores, None)
    stop_unit(unit)
