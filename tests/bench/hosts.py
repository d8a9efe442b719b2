"""The machines that are measured, and what is allocated on them already."""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate, islice
from random import Random
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from agent.managers.admission import admit, remove
from agent.managers.cpu.manager import exclusive_cpus
from agent.managers.ledger import Taken
from agent.managers.machine import Machine
from agent.managers.policy import (
    CpuManagerPolicy,
    CpuPolicy,
    CpuPolicyOptions,
    FeatureGates,
    MemoryManagerPolicy,
    MemoryPolicy,
    NodeFit,
    PluginDevice,
    Policy,
    TopologyManagerPolicy,
    TopologyManagerScope,
    TopologyPolicy,
)
from agent.managers.registry import MANAGERS
from agent.managers.rules import EffectivePolicy
from agent.pods.model import CPU
from sysfs.described import regular_host, with_memory_only_nodes
from sysfs.mask import EMPTY, Mask
from tests.agent.pods.pods import app, guaranteed, pod

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agent.managers.ledger import Ledger
    from agent.pods.model import Pod
    from sysfs.host import Host

GIB: Final = 1 << 30
MIB: Final = 1 << 20
#: Huge pages of every node that has CPUs: 16 GiB in small ones, 8 GiB in large ones.
PAGES: Final = ((2 * MIB, 8192), (GIB, 8))

#: Machines by the name that figures carry.
HOSTS: Final[dict[str, Callable[[], Host]]] = {
    "2n128c": lambda: regular_host(2, 1, 32, memory_bytes=256 * GIB, hugepages=PAGES),
    "8n256c": lambda: regular_host(2, 4, 16, memory_bytes=64 * GIB, hugepages=PAGES),
    "16n512c": lambda: regular_host(4, 4, 16, memory_bytes=64 * GIB, hugepages=PAGES),
    "34n": lambda: with_memory_only_nodes(
        regular_host(2, 1, 36, memory_bytes=256 * GIB, hugepages=PAGES), [96 * GIB] * 32
    ),
    "64n4096c": lambda: regular_host(16, 4, 32, memory_bytes=64 * GIB, hugepages=PAGES),
}
#: What a pod asks for, one more each time: cpu and memory always, their managers do not care.
RESOURCES: Final = tuple(
    accumulate(
        (
            "cpu=4 memory=1Gi",
            "",
            " hugepages-2Mi=64Mi",
            " hugepages-1Gi=1Gi",
            " example.com/gpu=1",
            " example.com/nic=1",
        )
    )
)
#: What the kubelet allows to be on together (`agent.config.policy_options`).
OPTIONS: Final[tuple[tuple[str, ...], ...]] = (
    (),
    ("full_pcpus_only",),
    ("distribute_cpus_across_numa",),
    ("align_by_socket",),
    ("distribute_cpus_across_cores",),
    ("strict_cpu_reservation",),
    ("prefer_align_cpus_by_uncorecache",),
    ("full_pcpus_only", "distribute_cpus_across_numa"),
    ("full_pcpus_only", "align_by_socket"),
    ("full_pcpus_only", "prefer_align_cpus_by_uncorecache"),
    ("align_by_socket", "distribute_cpus_across_numa"),
    ("align_by_socket", "distribute_cpus_across_cores"),
    ("align_by_socket", "prefer_align_cpus_by_uncorecache"),
)


@lru_cache
def host(name: str) -> Host:
    """Return one of the machines."""
    return HOSTS[name]()


def rules(
    name: str,
    topology: TopologyManagerPolicy = TopologyManagerPolicy.RESTRICTED,
    scope: TopologyManagerScope = TopologyManagerScope.POD,
    *,
    closest: bool = False,
    memory: bool = True,
    **options: bool,
) -> EffectivePolicy:
    """Return static policies on one of the machines, with a core reserved.

    Two GPUs are on every node that has CPUs, a network card on every other one of these.
    """
    return rules_of(
        Machine.of(host(name)), topology, scope, closest=closest, memory=memory, **options
    )


def rules_of(
    machine: Machine,
    topology: TopologyManagerPolicy = TopologyManagerPolicy.RESTRICTED,
    scope: TopologyManagerScope = TopologyManagerScope.POD,
    *,
    closest: bool = False,
    memory: bool = True,
    **options: bool,
) -> EffectivePolicy:
    """Return static policies on any machine, as `rules` does."""
    first = Mask(machine.cpus.cores[0].cpus)
    kept = {node.id: {"memory": GIB} for node in machine.nodes}
    return EffectivePolicy(
        machine,
        Policy(
            cpu=CpuPolicy(CpuManagerPolicy.STATIC, CpuPolicyOptions(**options), first),
            memory=MemoryPolicy(MemoryManagerPolicy.STATIC, kept) if memory else MemoryPolicy(),
            topology=TopologyPolicy(topology, scope, closest),
            gates=FeatureGates(pod_level_resource_managers=True),
            devices={
                "example.com/gpu": tuple(_devices("gpu", machine, 2, 1)),
                "example.com/nic": tuple(_devices("nic", machine, 4, 2)),
            },
            fit=NodeFit(max_pods=10_000),
        ),
        MANAGERS,
    )


def _devices(kind: str, machine: Machine, each: int, every: int) -> Iterator[PluginDevice]:
    for node in islice(machine.cpus.nodes, 0, None, every):
        for number in range(each):
            yield PluginDevice(f"{kind}-{node.id:02}-{number}", Mask.of(node.id))


def pod_of(uid: str, asked: str) -> Pod:
    """Return a pod of one Guaranteed container that asks for this."""
    return pod(app("main", guaranteed(asked)), uid=uid, name=uid)


def guaranteed_pod(uid: str, cpus: int = 2) -> Pod:
    """Return a pod of one Guaranteed container."""
    return pod(app("main", guaranteed(f"cpu={cpus} memory=1Gi")), uid=uid, name=uid)


def pod_level_pod(uid: str) -> Pod:
    """Return a pod with a budget: one container exclusive, two sharing."""
    budget = guaranteed("cpu=4 memory=2Gi")
    exclusive = app("main", guaranteed("cpu=2 memory=1Gi"))
    return pod(exclusive, app("side"), app("logs"), of_pod=budget, uid=uid, name=uid)


def unalignable(rules_in_force: EffectivePolicy, ledger: Ledger) -> Iterator[tuple[str, str]]:
    """Yield what pods ask for that fit on a host but on no set of nodes as they should.

    More CPUs than are free; more than any node has free; either of them with all six resources.
    """
    free = rules_in_force.assignable_cpus - exclusive_cpus(ledger)
    nodes = rules_in_force.machine.cpus.nodes
    roomiest = max((node.cpus & free.bits).bit_count() for node in nodes)
    for variant, cpus in (("large", len(free) + 2), ("wide", roomiest + 2)):
        for number in (2, 6):
            asked = RESOURCES[number - 1].replace("cpu=4", f"cpu={cpus}")
            yield f"{variant}-{number}r", asked


def shared_pod(uid: str) -> Pod:
    """Return a pod that holds nothing exclusively."""
    return pod(app("main"), uid=uid, name=uid)


def filled(rules_in_force: EffectivePolicy, share: float) -> Ledger:
    """Return a ledger with this share of the CPUs allocated to pods of many sizes.

    They ask for two to a dozen CPUs, for memory, and some for huge pages and devices. Those that
    do not fit are left out.
    """
    ledger = rules_in_force.empty_ledger()
    desired = int(len(rules_in_force.assignable_cpus) * share)
    draw = Random(7)  # noqa: S311  (the same ledger in every run)
    for number in range(desired):
        if len(exclusive_cpus(ledger)) >= desired:
            break
        ledger = admit(rules_in_force, ledger, pod_of(f"pod-{number}", _some(draw))).ledger
    return ledger


def fragmented(rules_in_force: EffectivePolicy) -> Ledger:
    """Return a ledger with about half of the CPUs allocated: of many pods every other one ended."""
    draw = Random(11)  # noqa: S311  (the same ledger in every run)
    return _halved(rules_in_force, filled(rules_in_force, 0.95), draw)


def grouped(rules_in_force: EffectivePolicy) -> Ledger:
    """Return a ledger with wide pods on groups of nodes and narrow ones between, half of them gone.

    Best-effort has let the wide ones in wherever they fitted.
    """
    rules_of_them = _with_policy(rules_in_force, TopologyManagerPolicy.BEST_EFFORT)
    ledger = rules_in_force.empty_ledger()
    draw = Random(13)  # noqa: S311  (the same ledger in every run)
    for number in range(3 * len(rules_in_force.machine.nodes)):
        asked = _wide(draw, rules_in_force) if number % 3 == 0 else _some(draw)
        ledger = admit(rules_of_them, ledger, pod_of(f"pod-{number}", asked)).ledger
    return _halved(rules_in_force, ledger, draw)


def _halved(rules_in_force: EffectivePolicy, ledger: Ledger, draw: Random) -> Ledger:
    """Return a ledger after every other pod has ended."""
    uids = list(ledger.allocations)
    for uid in draw.sample(uids, len(uids) // 2):
        ledger = remove(rules_in_force, ledger, uid)
    return ledger


def scattered(rules_in_force: EffectivePolicy) -> Ledger:
    """Return a ledger that leaves every node another number of CPUs and no node in use whole.

    Without memory: so memory can be had from any set of nodes, CPUs hardly from any.
    """
    ledger = rules_in_force.empty_ledger()
    draw = Random(17)  # noqa: S311  (the same ledger in every run)
    taken = EMPTY
    for node in rules_in_force.machine.cpus.nodes:
        free = [cpu for cpu in Mask(node.cpus) if cpu in rules_in_force.assignable_cpus]
        taken |= Mask.from_ids(draw.sample(free, draw.randint(0, len(free))))
    return ledger.with_part(CPU, Taken(taken))


#: What is allocated on a host, by the name that figures carry.
STATES: Final[dict[str, Callable[[EffectivePolicy], Ledger]]] = {
    "empty": EffectivePolicy.empty_ledger,
    "half": lambda rules_in_force: filled(rules_in_force, 0.5),
    "fragmented": fragmented,
    "full90": lambda rules_in_force: filled(rules_in_force, 0.9),
    "grouped": grouped,
    "scattered": scattered,
}


@lru_cache(maxsize=64)
def ledger_on(name: str, state: str) -> Ledger:
    """Return what is allocated on a host in one of the states."""
    return STATES[state](rules(name))


def _with_policy(rules_in_force: EffectivePolicy, policy: TopologyManagerPolicy) -> EffectivePolicy:
    topology = replace(rules_in_force.policy.topology, policy=policy)
    return replace(rules_in_force, policy=replace(rules_in_force.policy, topology=topology))


def _wide(draw: Random, rules_in_force: EffectivePolicy) -> str:
    """Return what a pod asks that needs two to a quarter of the nodes."""
    nodes = rules_in_force.machine.cpus.nodes
    number = draw.randint(2, max(2, len(nodes) // 4))
    gib = rules_in_force.machine.nodes[0].known_memory * number * 3 // 4 // GIB
    return f"cpu={nodes[0].size * number * 3 // 8} memory={gib}Gi"


def _some(draw: Random) -> str:
    asked = f"cpu={draw.randint(2, 12)} memory={draw.randint(1, 40) * 256}Mi"
    if draw.random() < 0.4:
        asked += f" hugepages-2Mi={draw.randint(1, 400) * 2}Mi"
    if draw.random() < 0.2:
        asked += " hugepages-1Gi=1Gi"
    if draw.random() < 0.1:
        asked += " example.com/gpu=1"
    return asked


def ledger_with(rules_in_force: EffectivePolicy, pods: int) -> Ledger:
    """Return a ledger with this many pods, most of which share."""
    ledger = rules_in_force.empty_ledger()
    for number in range(pods):
        make = guaranteed_pod if number % 50 == 0 and number < 1000 else shared_pod
        ledger = admit(rules_in_force, ledger, make(f"pod-{number}")).ledger
    return ledger
