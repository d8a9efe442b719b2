"""The content of a checkpoint: ledger, bindings, and the host and policy they were valid for."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.managers.allocations.bindings import NO_BINDINGS, Bindings
from agent.managers.allocations.cordons import NO_CORDONS, Cordons
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.managers.allocations.ledger import Ledger
    from agent.managers.allocations.origin import Source
    from agent.managers.policy import Policy
    from sysfs.host import Host, Node

_OPTIONS: Final = "cpuManagerPolicyOptions"
_TOPOLOGY_OPTIONS: Final = "topologyManagerPolicyOptions"
_GATES: Final = "featureGates"
#: How the keys of switches begin.
_SWITCHES: Final = tuple(f"{section}." for section in (_OPTIONS, _TOPOLOGY_OPTIONS, _GATES))


class NodeFacts(Struct, frozen=True):
    """One NUMA node: online CPUs, MemTotal in bytes or None, {page size in bytes: pages}."""

    id: int
    cpus: Mask
    memory_bytes: int | None
    hugepages: Mapping[int, int] = MappingProxyType({})


class HostFacts(Struct, frozen=True):
    """The facts of a host that decide whether an allocation is still valid there."""

    online: Mask = EMPTY
    offline: Mask = EMPTY
    nodes: tuple[NodeFacts, ...] = ()


class SharedPod(Struct, frozen=True):
    """A pod that was rejected and runs in the shared pool until it ends.

    `name` and `namespace` are "" where only the uid is known. `source` asked for the pod, `why` is
    its rejection, reason first.
    """

    uid: str
    name: str
    namespace: str
    source: Source
    why: str


#: No pod runs shared.
NONE_SHARED: Final[Mapping[str, SharedPod]] = MappingProxyType({})


class Checkpoint(Struct, frozen=True):
    """Everything that outlives the process.

    `boot_id` is the kernel's random boot id. `policy` is the policy under which the last decision
    was made, as {the configuration's key: its value}. `agent_version` is the release that wrote it.
    `orphaned` are the uids of pods that are not in the ledger although their cgroups existed, such
    as removed pods whose processes still run: these cgroups are not recovered as allocations.
    `cordons` are what an operator took out of use. `shared` are the rejected pods that run in the
    shared pool, by uid.
    """

    ledger: Ledger
    bindings: Bindings = NO_BINDINGS
    boot_id: str = ""
    host: HostFacts = HostFacts()
    policy: Mapping[str, str] = MappingProxyType({})
    agent_version: str = ""
    orphaned: frozenset[str] = frozenset()
    cordons: Cordons = NO_CORDONS
    shared: Mapping[str, SharedPod] = NONE_SHARED


def host_facts(host: Host) -> HostFacts:
    """Return the facts of a host that a checkpoint keeps."""
    return HostFacts(host.online, host.offline, tuple(_node_facts(node) for node in host.nodes))


def host_changes(before: HostFacts, after: HostFacts) -> tuple[str, ...]:
    """Name, one sentence each, what differs between two hosts; empty when nothing does.

    A node that was renumbered shows as changes of the nodes concerned.
    """
    return (
        *_moved("CPUs", "online", before.online, after.online),
        *_moved("CPUs", "offline", before.offline, after.offline),
        *_node_changes(
            {node.id: node for node in before.nodes}, {node.id: node for node in after.nodes}
        ),
    )


def policy_summary(policy: Policy) -> Mapping[str, str]:
    """Return the effective policy as {the configuration's key: its value}, sorted by key.

    Options and gates are listed whether on (`true`) or off (`false`), reservations of memory where
    there are any. Summaries of earlier releases left out what was off.
    """
    summary = {
        "cpuManagerPolicy": str(policy.cpu.policy),
        "memoryManagerPolicy": str(policy.memory.policy),
        "topologyManagerPolicy": str(policy.topology.policy),
        "topologyManagerScope": str(policy.topology.scope),
        "reservedSystemCPUs": str(policy.cpu.reserved),
        **dict(_switches(policy)),
        **dict(_reserved_memory(policy)),
    }
    return MappingProxyType(dict(sorted(summary.items())))


def policy_changes(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """Name, one sentence each, what differs between two summaries of a policy.

    A switch that a summary does not list is off: an earlier release left out switches that were
    off, and did not have the unknown ones. An empty summary says nothing about the policy.
    """
    if not before:
        return ()
    return tuple(
        f"{key} is {new}, it was {old}"
        for key in sorted(before.keys() | after.keys())
        if (old := before.get(key, _unlisted(key))) != (new := after.get(key, _unlisted(key)))
    )


def _unlisted(key: str) -> str:
    return "false" if key.startswith(_SWITCHES) else "unset"


def _node_facts(node: Node) -> NodeFacts:
    pages = {page.size_bytes: page.count for page in node.hugepages}
    return NodeFacts(node.id, node.cpus, node.memory_bytes, MappingProxyType(pages))


def _moved(what: str, state: str, before: Mask, after: Mask) -> Iterator[str]:
    if gone := before - after:
        yield f"{what} {gone} are no longer {state}"
    if new := after - before:
        yield f"{what} {new} are {state} now"


def _node_changes(before: Mapping[int, NodeFacts], after: Mapping[int, NodeFacts]) -> Iterator[str]:
    for node in sorted(before.keys() | after.keys()):
        match before.get(node), after.get(node):
            case None, _:
                yield f"node {node} is new"
            case _, None:
                yield f"node {node} is gone"
            case NodeFacts() as old, NodeFacts() as new:
                yield from _one_node_changes(old, new)


def _one_node_changes(old: NodeFacts, new: NodeFacts) -> Iterator[str]:
    if old.cpus != new.cpus:
        yield f"node {old.id} has CPUs {new.cpus or 'none'}, it had {old.cpus or 'none'}"
    if old.memory_bytes != new.memory_bytes:
        had_memory, has_memory = _amount(old.memory_bytes), _amount(new.memory_bytes)
        yield f"node {old.id} has {has_memory} of memory, it had {had_memory}"
    for size in sorted(old.hugepages.keys() | new.hugepages.keys()):
        had, has = old.hugepages.get(size, 0), new.hugepages.get(size, 0)
        if had != has:
            yield f"node {old.id} has {has} pages of {size} bytes, it had {had}"


def _amount(size: int | None) -> str:
    return "an unknown amount" if size is None else f"{size} bytes"


def _switches(policy: Policy) -> Iterator[tuple[str, str]]:
    cpu, topology, gates = policy.cpu.options, policy.topology, policy.gates
    quota_lifted = gates.disable_cpu_quota_with_exclusive_cpus
    for section, name, on in (
        (_OPTIONS, "full-pcpus-only", cpu.full_pcpus_only),
        (_OPTIONS, "distribute-cpus-across-numa", cpu.distribute_cpus_across_numa),
        (_OPTIONS, "align-by-socket", cpu.align_by_socket),
        (_OPTIONS, "distribute-cpus-across-cores", cpu.distribute_cpus_across_cores),
        (_OPTIONS, "strict-cpu-reservation", cpu.strict_cpu_reservation),
        (_OPTIONS, "prefer-align-cpus-by-uncorecache", cpu.prefer_align_cpus_by_uncorecache),
        (_TOPOLOGY_OPTIONS, "prefer-closest-numa-nodes", topology.prefer_closest_numa_nodes),
        (_GATES, "PodLevelResources", gates.pod_level_resources),
        (_GATES, "PodLevelResourceManagers", gates.pod_level_resource_managers),
        (_GATES, "DisableCPUQuotaWithExclusiveCPUs", quota_lifted),
        (_GATES, "CPUManagerPolicyAlphaOptions", gates.cpu_manager_policy_alpha_options),
        (_GATES, "CPUManagerPolicyBetaOptions", gates.cpu_manager_policy_beta_options),
    ):
        yield f"{section}.{name}", "true" if on else "false"


def _reserved_memory(policy: Policy) -> Iterator[tuple[str, str]]:
    for node, types in policy.memory.reserved.items():
        for type_name, size in types.items():
            yield f"reservedMemory.{node}.{type_name}", str(size)
