"""The machines that are measured, and what is held on them already."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from agent.managers.admission import admit, remove
from agent.managers.machine import Machine
from agent.managers.policy import (
    CpuManagerPolicy,
    CpuPolicy,
    CpuPolicyOptions,
    FeatureGates,
    MemoryManagerPolicy,
    MemoryPolicy,
    Policy,
    TopologyManagerPolicy,
    TopologyManagerScope,
    TopologyPolicy,
)
from agent.managers.rules import Rules
from sysfs.mask import Mask
from sysfs.shapes import regular_host, with_memory_only_nodes
from tests.agent.pods.pods import app, guaranteed, pod

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.ledger import Ledger
    from agent.pods.model import Pod
    from sysfs.host import Host

GIB: Final = 1 << 30

#: Machines by the name that figures carry.
HOSTS: Final[dict[str, Callable[[], Host]]] = {
    "2n128c": lambda: regular_host(2, 1, 32, memory_bytes=256 * GIB),
    "8n256c": lambda: regular_host(2, 4, 16, memory_bytes=64 * GIB),
    "16n512c": lambda: regular_host(4, 4, 16, memory_bytes=64 * GIB),
    "34n": lambda: with_memory_only_nodes(
        regular_host(2, 1, 36, memory_bytes=256 * GIB), [96 * GIB] * 32
    ),
    "64n4096c": lambda: regular_host(16, 4, 32, memory_bytes=64 * GIB),
}
#: Those on which a whole admission is measured today: hints are enumerated, 2^nodes of them.
DECIDED: Final = ("2n128c", "8n256c")


@lru_cache
def host(name: str) -> Host:
    """Return one of the machines."""
    return HOSTS[name]()


def rules(
    name: str,
    topology: TopologyManagerPolicy = TopologyManagerPolicy.RESTRICTED,
    scope: TopologyManagerScope = TopologyManagerScope.POD,
    **options: bool,
) -> Rules:
    """Return static policies on one of the machines, with a core reserved."""
    machine = Machine.of(host(name))
    first = Mask(machine.cpus.cores[0].cpus)
    kept = {node.id: {"memory": GIB} for node in machine.nodes}
    return Rules(
        machine,
        Policy(
            cpu=CpuPolicy(CpuManagerPolicy.STATIC, CpuPolicyOptions(**options), first),
            memory=MemoryPolicy(MemoryManagerPolicy.STATIC, kept),
            topology=TopologyPolicy(topology, scope),
            gates=FeatureGates(pod_level_resource_managers=True),
        ),
    )


def guaranteed_pod(uid: str, cpus: int = 2) -> Pod:
    """Return a pod of one Guaranteed container."""
    return pod(app("main", guaranteed(f"cpu={cpus} memory=1Gi")), uid=uid)


def pod_level_pod(uid: str) -> Pod:
    """Return a pod with a budget: one container exclusive, two sharing."""
    budget = guaranteed("cpu=4 memory=2Gi")
    exclusive = app("main", guaranteed("cpu=2 memory=1Gi"))
    return pod(exclusive, app("side"), app("logs"), of_pod=budget, uid=uid)


def shared_pod(uid: str) -> Pod:
    """Return a pod that holds nothing exclusively."""
    return pod(app("main"), uid=uid)


def filled(rules_in_force: Rules, share: float, *, fragmented: bool = False) -> Ledger:
    """Return a ledger with this share of the CPUs held by pods of two CPUs each.

    `fragmented`: twice as many were admitted and every other one has ended.
    """
    ledger = rules_in_force.empty_ledger()
    wanted = int(len(rules_in_force.assignable_cpus) * share)
    uids: list[str] = []
    while len(ledger.exclusive_cpus) + 2 <= (min(2 * wanted, 1 << 30) if fragmented else wanted):
        uid = f"held-{len(uids)}"
        decision = admit(rules_in_force, ledger, guaranteed_pod(uid, 2 if not fragmented else 1))
        if not decision.admitted:
            break
        uids.append(uid)
        ledger = decision.ledger
    for uid in uids[::2] if fragmented else ():
        ledger = remove(rules_in_force, ledger, uid)
    return ledger


def held(rules_in_force: Rules, pods: int) -> Ledger:
    """Return a ledger with this many pods, most of which share."""
    ledger = rules_in_force.empty_ledger()
    for number in range(pods):
        make = guaranteed_pod if number % 50 == 0 and number < 1000 else shared_pod
        ledger = admit(rules_in_force, ledger, make(f"held-{number}")).ledger
    return ledger
