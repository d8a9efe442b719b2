"""The content of a checkpoint: ledger, bindings, and the host and policy they were valid for."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003  # msgspec reads it at run time
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from agent.managers.allocations.bindings import NO_BINDINGS, Bindings
from agent.managers.allocations.cordons import NO_CORDONS, Cordons
from agent.managers.allocations.origin import Source  # noqa: TC001  # msgspec reads it at run time
from agent.values import Name, Saved, Size
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from msgspec import Raw

    from agent.managers.allocations.ledger import Ledger
    from agent.managers.policy import Policy
    from sysfs.host import Host, Node

_OPTIONS: Final = "cpuManagerPolicyOptions"
_TOPOLOGY_OPTIONS: Final = "topologyManagerPolicyOptions"
_GATES: Final = "featureGates"
#: How the keys of switches begin.
_SWITCHES: Final = tuple(f"{section}." for section in (_OPTIONS, _TOPOLOGY_OPTIONS, _GATES))


class NodeFacts(Saved, frozen=True):
    """One NUMA node: online CPUs, MemTotal in bytes or None, {page size in bytes: pages}."""

    id: Size
    cpus: Mask
    memory_bytes: Size | None
    hugepages: Mapping[Size, Size] = MappingProxyType({})


class HostFacts(Saved, frozen=True):
    """The facts of a host that decide whether an allocation is still valid there."""

    online: Mask = EMPTY
    offline: Mask = EMPTY
    nodes: tuple[NodeFacts, ...] = ()


class SharedPod(Saved, frozen=True):
    """A pod that was rejected and runs in the shared pool until it ends.

    `name` and `namespace` are "" where only the uid is known. `source` asked for the pod, `why` is
    its rejection, reason first.
    """

    uid: Name
    name: str
    namespace: str
    source: Source
    why: str


class SavedBesideLedger(Saved, frozen=True, kw_only=True):
    """What a checkpoint has beside the ledger, as it is in the file."""

    bindings: Bindings = NO_BINDINGS
    #: Uids of pods that are not in the ledger but may still have cgroups, such as removed pods
    #: whose processes still run: these cgroups are not recovered as allocations.
    orphaned: frozenset[Name] = frozenset()
    #: What an operator took out of use.
    cordons: Cordons = NO_CORDONS
    #: Rejected pods that run in the shared pool, by uid; none of them is in the ledger.
    shared: Mapping[Name, SharedPod] = MappingProxyType({})
    #: The kernel's random boot id.
    boot_id: str = ""
    host: HostFacts = HostFacts()
    #: The policy under which the last decision was made, as {the configuration's key: its value}.
    policy: Mapping[str, str] = MappingProxyType({})
    #: The release that wrote the file.
    agent_version: str = ""


class Checkpoint(SavedBesideLedger, frozen=True):
    """Everything that outlives the process."""

    ledger: Ledger
    #: The fields that this release does not know, as they were in the file, for the next one.
    unknown: Mapping[str, Raw] = MappingProxyType({})

    def without_pod(self, ledger: Ledger, uid: str) -> Checkpoint:
        """Return the state after a pod was removed, with the remaining `ledger`.

        The pod's bindings stay until the processes in the bound cgroups have ended, because these
        have to be confined until then.
        """
        return replace(self, ledger=ledger, orphaned=self.orphaned | {uid})

    def with_pod(self, ledger: Ledger, uid: str) -> Checkpoint:
        """Return the state after the pod of `uid` was admitted, with the `ledger` that has it."""
        names = {container.name for container in ledger.allocations[uid].containers}
        return replace(
            self,
            ledger=ledger,
            bindings=self.bindings.of_containers(uid, names),
            orphaned=self.orphaned - {uid},
            shared=self._shared_without(uid),
        )

    def with_shared(self, pod: SharedPod) -> Checkpoint:
        """Return the state with one more pod that runs in the shared pool."""
        return replace(self, shared=MappingProxyType({**self.shared, pod.uid: pod}))

    def without_shared(self, uid: str) -> Checkpoint:
        """Return the state after a pod that ran in the shared pool ended."""
        return replace(self, shared=self._shared_without(uid))

    def _shared_without(self, uid: str) -> Mapping[str, SharedPod]:
        if uid not in self.shared:
            return self.shared
        return MappingProxyType({key: pod for key, pod in self.shared.items() if key != uid})


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
    there are any.
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

    A switch that a summary does not list is off: the release that made the summary did not have
    it. An empty summary says nothing about the policy.
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
