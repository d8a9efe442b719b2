"""A host's NUMA nodes as a NodeResourceTopology, which the topology-aware scheduler reads.

The object is of topology.node.k8s.io/v1alpha2 (noderesourcetopology-api). What the scheduler
(kubernetes-sigs/scheduler-plugins, NodeResourceTopologyMatch) makes of it: zones of type `Node`
that are called `node-<id>`, with an id below 64; of a resource what is `available`; the costs; and
the attributes of the whole object. As with other publishers, only what is allocated exclusively is
not available: containers of the shared pool take no CPU away from a zone. Devices that plugins of
the kubelet beside the agent offer are in the zones as far as the kubelet lists them.

Server-side apply creates the object or changes what is the agent's in it. The apply is not forced:
where another program (a topology updater of NFD, a second agent of the same node name) owns the
fields, the server answers with a conflict, and the agent says so and changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import quote

from msgspec import Struct

from agent.cluster.api_server import APPLY, ApiResource, ApiServerError, Outcome
from agent.cluster.fingerprint import pod_fingerprint
from agent.managers.cpu.manager import shared_pool
from agent.managers.device.kubelet import NOT_LISTED, kubelet_devices
from agent.managers.device.manager import allocated_devices
from agent.managers.memory.state import free_memory, initial_memory, memory_charge
from agent.managers.policy import PluginDevice
from agent.pods.model import CPU, MEMORY
from agent.pods.quantity import Quantity
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.cluster.api_server import ApiServer
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

#: Who owns the fields that the agent applies.
FIELD_MANAGER: Final = "numawarden"
#: An unchanged object is applied again after so many seconds, in case it was deleted or changed.
REFRESH_SECONDS: Final = 600.0
_FIRST_RETRY_SECONDS: Final = 10.0
_LAST_RETRY_SECONDS: Final = 300.0

NODE_TOPOLOGIES: Final = ApiResource(
    path=f"/apis/{API_VERSION}/noderesourcetopologies",
    rule="noderesourcetopologies of topology.node.k8s.io",
    verbs="get, create, patch and delete",
    missing="install the CustomResourceDefinition noderesourcetopologies.topology.node.k8s.io "
    "(manifests/noderesourcetopology/crd.yaml of kubernetes-sigs/scheduler-plugins), or set "
    "agent.kubernetes.publishTopology to false",
)


class NodeTopology(Struct, frozen=True):
    """The object to publish, and what is not in it, a line each."""

    document: Mapping[str, Any]
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
    machine = rules.machine
    shown = [each for each in machine.nodes if each.id < ZONES]
    names = {each.id: f"node-{each.id}" for each in shown}
    inventories = _inventories(rules, ledger, kubelet)
    resources = _Resources(rules, ledger, inventories)
    document = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": node},
        "attributes": _attributes(rules, pods),
        "zones": [
            {
                "name": names[each.id],
                "type": "Node",
                "costs": [
                    {"name": names[other], "value": each.distances[other]}
                    for other in names
                    if other in each.distances
                ],
                "resources": list(resources.of(each)),
            }
            for each in shown
        ],
    }
    return NodeTopology(document, tuple(_left_out(rules, inventories)))


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


class _Inventory(Struct, frozen=True):
    """The devices of a resource, and the ids of those that containers have."""

    devices: tuple[PluginDevice, ...]
    allocated: frozenset[str]


def _inventories(
    rules: EffectivePolicy, ledger: Ledger, kubelet: KubeletListing
) -> dict[str, _Inventory]:
    """Return the inventory of each resource, in their order.

    Of a resource that the agent offers itself the kubelet's devices are left out.
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
    found: dict[str, list[KubeletDevice]] = {}
    for each in kubelet_devices(ledger.allocations.values(), kubelet).values():
        found.setdefault(each.device.resource, []).append(each)
    return {
        resource: _Inventory(
            tuple(PluginDevice(d.device.id, d.device.nodes, d.healthy) for d in devices),
            frozenset(d.device.id for d in devices if not d.free),
        )
        for resource, devices in found.items()
    }


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
        nowhere, known = (
            sum(not device.nodes for device in inventory.devices),
            len(inventory.devices),
        )
        if nowhere and nowhere < known:
            yield (
                f"{nowhere} of {known} devices of {resource} are not published: their NUMA node is "
                "not known"
            )


class _Resources:
    """The resources of the zones, from one ledger."""

    def __init__(
        self, rules: EffectivePolicy, ledger: Ledger, inventories: Mapping[str, _Inventory]
    ) -> None:
        self._rules = rules
        self._inventories = inventories
        self._free = shared_pool(rules, ledger) & rules.open_cpus
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
            here = [device for device in inventory.devices if node in device.nodes]
            if not here:
                continue
            healthy = [device for device in here if device.healthy]
            usable = {device.id for device in healthy if not device.nodes <= cordoned}
            free = usable - inventory.allocated
            yield _resource(
                resource,
                Quantity.of(len(here)),
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


class Retries:
    """When to try again: later after each failure, at once after a success; times in seconds."""

    def __init__(
        self, first: float = _FIRST_RETRY_SECONDS, last: float = _LAST_RETRY_SECONDS
    ) -> None:
        self._first = first
        self._last = last
        self._failures = 0
        self._not_before = float("-inf")

    def allow(self, now: float) -> bool:
        """Return whether the next attempt may be made."""
        return now >= self._not_before

    def failed(self, now: float) -> None:
        """Note a failed attempt."""
        # The bound keeps the power small; the wait has long been the longest by then.
        self._not_before = now + min(self._first * 2 ** min(self._failures, 16), self._last)
        self._failures += 1

    def succeeded(self) -> None:
        """Note that the last attempt succeeded."""
        self._failures, self._not_before = 0, float("-inf")


class TopologyPublisher:
    """Publishes the topology of one node; `error` is why the latest attempt failed, or None.

    Times are seconds of a clock that never runs backwards.
    """

    def __init__(self, server: ApiServer, node: str) -> None:
        self._server = server
        self._node = node
        self._published: Mapping[str, Any] | None = None
        self._refresh_at = float("-inf")
        self._retries = Retries()
        self.error: ApiServerError | None = None

    def due(self, document: Mapping[str, Any], now: float) -> bool:
        """Return whether a document is to be published now."""
        if not self._retries.allow(now):
            return False
        return self.error is not None or document != self._published or now >= self._refresh_at

    async def publish(self, document: Mapping[str, Any], now: float) -> Outcome:
        """Apply a document; what became of it is in `error`, too."""
        path = f"{_path(self._node)}?fieldManager={FIELD_MANAGER}&fieldValidation=Strict"
        try:
            await self._server.call("PATCH", NODE_TOPOLOGIES, path, document, APPLY)
        except ApiServerError as error:
            self.error = _advised(error, self._node)
            self._retries.failed(now)
            return error.outcome
        self.error = None
        self._published, self._refresh_at = document, now + REFRESH_SECONDS
        self._retries.succeeded()
        return Outcome.DONE


class Removal(Struct, frozen=True):
    """What became of the removal of a published object; `found` is one line."""

    removed: bool
    found: str


async def remove(server: ApiServer, node: str) -> Removal:
    """Remove the object of a node, unless it is not there or the agent did not make it.

    Raises `ApiServerError`.
    """
    path = _path(node)
    try:
        found = await server.call("GET", NODE_TOPOLOGIES, path)
    except ApiServerError as error:
        if error.outcome in (Outcome.NOT_FOUND, Outcome.NOT_SERVED):
            return Removal(removed=False, found=f"no NodeResourceTopology of node {node}")
        raise
    uid = _uid_of_ours(found)
    if uid is None:
        return Removal(
            removed=False,
            found=f"the NodeResourceTopology of node {node} is of another program, left as it is",
        )
    # Not one that another program made in its place meanwhile.
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
    try:
        await server.call("DELETE", NODE_TOPOLOGIES, path, options)
    except ApiServerError as error:
        if error.outcome is not Outcome.NOT_FOUND:
            raise
    return Removal(removed=True, found=f"removed the NodeResourceTopology of node {node}")


def _path(node: str) -> str:
    return f"/{quote(node, safe='')}"


def _uid_of_ours(found: Mapping[str, Any]) -> str | None:
    """Return the uid of an object that the agent applied, None for one of other programs alone."""
    metadata = found.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    owners = metadata.get("managedFields")
    ours = any(
        isinstance(owner, dict) and owner.get("manager") == FIELD_MANAGER
        for owner in (owners if isinstance(owners, list) else ())
    )
    uid = metadata.get("uid")
    return uid if ours and isinstance(uid, str) else None


def _advised(error: ApiServerError, node: str) -> ApiServerError:
    """Return an error of the apply with a remedy that knows what a conflict means here."""
    if error.outcome is not Outcome.CONFLICT:
        return error
    remedy = (
        "stop the program that publishes the topology of this node, too (such as NFD's topology "
        f"updater), then delete its object: kubectl delete noderesourcetopology {node}"
    )
    return ApiServerError(error.outcome, error.asked, error.found, remedy)
