"""A host's NUMA nodes as a NodeResourceTopology, which the topology-aware scheduler reads.

The object is of topology.node.k8s.io/v1alpha2 (noderesourcetopology-api). The scheduler
(kubernetes-sigs/scheduler-plugins, NodeResourceTopologyMatch) reads:

- zones of type `Node` that are called `node-<id>`, with an id below 64;
- the amounts of a resource that are `available` in a zone;
- the costs between zones, and the attributes of the whole object.

As with other publishers, only what is allocated exclusively is not available: containers of the
shared pool take no CPU away from a zone. Devices of the kubelet's plugins are in the zones as far
as the kubelet lists them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from msgspec import Struct

from agent.cluster.fingerprint import pod_fingerprint
from agent.managers.cpu.manager import exclusive_cpus
from agent.managers.device.kubelet import NOT_LISTED, kubelet_devices
from agent.managers.device.manager import allocated_devices
from agent.managers.memory.state import free_memory, initial_memory, memory_charge
from agent.managers.policy import PluginDevice
from agent.pods.model import CPU, MEMORY
from agent.pods.quantity import Quantity
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.managers.device.kubelet import KubeletDevice, KubeletListing
    from agent.managers.ledger import Ledger
    from agent.managers.machine import MachineNode
    from agent.managers.rules import EffectivePolicy


API_VERSION: Final = "topology.node.k8s.io/v1alpha2"
KIND: Final = "NodeResourceTopology"
#: The scheduler keeps a zone in an array of 64.
ZONES: Final = 64
#: What the kubelet supports without `max-allowable-numa-nodes`, and the scheduler expects.
_USUAL_NODES: Final = 8
#: The fingerprint is of all pods of the node.
_METHOD: Final = "all"
_Json: TypeAlias = "dict[str, Any]"


class NodeTopology(Struct, frozen=True):
    """The topology of a node, ready to publish."""

    #: The NodeResourceTopology.
    document: Mapping[str, Any]
    #: What the document does not show, a line each.
    left_out: tuple[str, ...] = ()


def node_topology(
    rules: EffectivePolicy,
    ledger: Ledger,
    node: str,
    pods: Iterable[tuple[str, str]],
    kubelet: KubeletListing = NOT_LISTED,
) -> NodeTopology:
    """Return the topology of the node of a name in the cluster.

    `pods` are the namespaces and names of the pods that run on the node as pods of the cluster,
    `kubelet` is what the kubelet beside the agent lists.
    """
    zones = {node.id: node for node in rules.machine.nodes if node.id < ZONES}
    inventories = _inventories(rules, ledger, kubelet)
    resources = _Resources(rules, ledger, inventories)
    document = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": node},
        "attributes": _attributes(rules, pods),
        "zones": [
            {
                "name": _zone_name(id_),
                "type": "Node",
                "costs": [
                    {"name": _zone_name(other), "value": zone.distances[other]}
                    for other in zones
                    if other in zone.distances
                ],
                "resources": list(resources.of(zone)),
            }
            for id_, zone in zones.items()
        ],
    }
    return NodeTopology(document, tuple(_left_out(rules, inventories)))


def _zone_name(node: int) -> str:
    return f"node-{node}"


def _attributes(rules: EffectivePolicy, pods: Iterable[tuple[str, str]]) -> list[_Json]:
    topology, ids = rules.policy.topology, [node.id for node in rules.machine.nodes]
    values = {
        "topologyManagerPolicy": str(topology.policy),
        "topologyManagerScope": str(topology.scope),
        "topologyManagerMaxNUMANodes": str(max(_USUAL_NODES, max(ids, default=0) + 1)),
        "nodeTopologyPodsFingerprint": pod_fingerprint(pods),
        "nodeTopologyPodsFingerprintMethod": _METHOD,
    }
    return [{"name": name, "value": value} for name, value in values.items()]


def _left_out(rules: EffectivePolicy, inventories: Mapping[str, _Inventory]) -> Iterator[str]:
    """Yield what the object cannot show, a line each."""
    machine = rules.machine
    beyond = Mask.from_ids(node.id for node in machine.nodes if node.id >= ZONES)
    if beyond:
        yield (
            f"NUMA nodes {beyond} are not published: the scheduler reads nodes below {ZONES}, and "
            "places no pod there"
        )
    unknown = machine.unknown_memory - beyond
    if unknown:
        yield f"the memory of NUMA nodes {unknown} is not published: the host does not report it"
    for resource, inventory in inventories.items():
        devices = inventory.devices
        without_node = sum(not device.nodes for device in devices)
        # Where no device has a node, none belongs into a zone: nothing is missing.
        if 0 < without_node < len(devices):
            yield (
                f"{without_node} of {len(devices)} devices of {resource} are not published: "
                "their NUMA node is not known"
            )


class _Inventory(Struct, frozen=True):
    """The devices of a resource."""

    devices: tuple[PluginDevice, ...]
    #: The ids of the devices that containers have.
    allocated: frozenset[str]


def _inventories(
    rules: EffectivePolicy, ledger: Ledger, kubelet: KubeletListing
) -> dict[str, _Inventory]:
    """Return the inventory of each resource, sorted by resource.

    A resource that the agent offers itself has the agent's devices alone, not the kubelet's.
    """
    allocated = allocated_devices(ledger)
    own = {
        resource: _Inventory(devices, allocated.get(resource, frozenset()))
        for resource, devices in rules.policy.devices.items()
    }
    return dict(sorted({**_of_kubelet(ledger, kubelet), **own}.items()))


def _of_kubelet(ledger: Ledger, kubelet: KubeletListing) -> dict[str, _Inventory]:
    """Return the devices of the kubelet's plugins, nothing of a kubelet that lists none."""
    if kubelet == NOT_LISTED:
        return {}
    by_resource: dict[str, list[KubeletDevice]] = {}
    for device in kubelet_devices(ledger.allocations.values(), kubelet).values():
        by_resource.setdefault(device.device.resource, []).append(device)
    return {
        resource: _Inventory(
            tuple(PluginDevice(d.device.id, d.device.nodes, d.healthy) for d in devices),
            frozenset(d.device.id for d in devices if not d.free),
        )
        for resource, devices in by_resource.items()
    }


class _Resources:
    """The resources of the zones, from one ledger."""

    def __init__(
        self, rules: EffectivePolicy, ledger: Ledger, inventories: Mapping[str, _Inventory]
    ) -> None:
        self._rules = rules
        self._inventories = inventories
        self._free = rules.open_cpus - exclusive_cpus(ledger)
        # Under policy None no memory is charged to a node, and to a new node not yet.
        charge = {**initial_memory(rules.memory), **memory_charge(ledger)}
        self._free_memory = {
            kind: free_memory(rules.memory, charge, kind) for kind in rules.memory.types
        }

    def of(self, node: MachineNode) -> Iterator[_Json]:
        """Yield the resources of one zone: CPUs, memory, huge pages, devices."""
        cpus = self._rules.machine.cpus.cpus_in_nodes(Mask.of(node.id))
        yield _resource(
            CPU,
            Quantity.of(len(cpus)),
            Quantity.of(len(cpus & self._rules.assignable_cpus)),
            Quantity.of(len(cpus & self._free)),
        )
        yield from self._memory(node)
        yield from self._devices(node.id)

    def _memory(self, node: MachineNode) -> Iterator[_Json]:
        facts = self._rules.memory
        for kind, total in sorted(facts.total[node.id].items()):
            if kind == MEMORY and node.memory_bytes is None:
                continue
            amounts = (total, facts.allocatable[node.id][kind], self._free_memory[kind][node.id])
            yield _resource(kind, *map(Quantity.of_bytes, amounts))

    def _devices(self, node: int) -> Iterator[_Json]:
        cordoned = self._rules.policy.cordon.nodes
        for resource, inventory in self._inventories.items():
            devices = [device for device in inventory.devices if node in device.nodes]
            if not devices:
                continue
            healthy = [device for device in devices if device.healthy]
            usable = {device.id for device in healthy if not device.nodes <= cordoned}
            free = usable - inventory.allocated
            yield _resource(
                resource,
                Quantity.of(len(devices)),
                Quantity.of(len(healthy)),
                Quantity.of(len(free)),
            )


def _resource(name: str, capacity: Quantity, allocatable: Quantity, available: Quantity) -> _Json:
    return {
        "name": name,
        "capacity": str(capacity),
        "allocatable": str(allocatable),
        "available": str(available),
    }
