"""Resources in words: NUMA nodes, amounts, memory, hints, and what comes with devices.

Every text about pods uses these words, so one amount looks the same wherever it stands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.cli.lines import labelled
from agent.pods.quantity import Quantity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.api.documents.explanations import HintDocument
    from agent.api.documents.pods import DeliveryDocument, MemoryDocument
    from agent.managers.delivery import DeviceNode, Mount


def nodes_text(nodes: str | None) -> str:
    """Return a list of NUMA nodes with its noun; None is any node."""
    if nodes is None:
        return "any node"
    return f"node {nodes}" if nodes.isdigit() else f"nodes {nodes}"


def amount_text(resource: str, amount: int) -> str:
    """Return an amount as a manifest states it: `8Gi`, or `8G` where that is shorter."""
    if resource != "memory" and not resource.startswith("hugepages-"):
        return str(amount)
    text = min(str(Quantity.of_bytes(amount)), str(Quantity.of(amount)), key=len)
    return f"{text} bytes" if text.isdecimal() and amount else text


def memory_text(memory: MemoryDocument) -> str:
    """Return an amount of memory with its type and nodes."""
    amount = amount_text(memory.type, memory.bytes)
    return f"{amount} of {memory.type} on {nodes_text(memory.nodes)}"


def hint_text(hint: HintDocument) -> str:
    """Return the nodes of a topology hint, and whether they are preferred."""
    return f"{nodes_text(hint.nodes)} ({'preferred' if hint.preferred else 'not preferred'})"


def kubelet_device_lines(devices: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Yield a line for each resource of which the kubelet gave a container devices.

    `devices` are the NUMA nodes ("": not known) by id by resource.
    """
    for resource, nodes_by_id in devices.items():
        ids = (f"{id_} ({nodes_text(on)})" if on else id_ for id_, on in nodes_by_id.items())
        yield f"{resource}: {', '.join(ids)}, given by the kubelet"


def kubelet_container_lines(
    containers: Mapping[str, Mapping[str, Mapping[str, str]]],
) -> Iterator[str]:
    """Yield the lines of `kubelet_device_lines` for each container, with its name."""
    for name, devices in containers.items():
        yield from labelled(f"{name} has ", kubelet_device_lines(devices))


def delivery_summary(delivery: DeliveryDocument | None) -> Iterator[str]:
    """Yield the CDI device of a container, or how many variables, mounts and nodes it gets."""
    if delivery is None:
        return
    if delivery.cdi_device:
        yield f"CDI: {delivery.cdi_device}"
    else:
        counts = (
            (len(delivery.environment), "environment variables"),
            (len(delivery.mounts), "mounts"),
            (len(delivery.device_nodes), "device nodes"),
        )
        summary = ", ".join(f"{noun}: {count}" for count, noun in counts if count)
        if summary:
            yield summary
    if delivery.cdi_devices:
        yield f"CDI of the provider: {', '.join(delivery.cdi_devices)}"
    if delivery.pci_addresses:
        yield f"PCI: {', '.join(delivery.pci_addresses)}"


def delivery_lines(delivery: DeliveryDocument | None) -> Iterator[str]:
    """Yield everything that a container gets with its devices, under labels of nine letters."""
    if delivery is None:
        return
    if delivery.cdi_device:
        yield f"CDI       {delivery.cdi_device}"
    for name in delivery.cdi_devices:
        yield f"CDI       {name} (of the provider)"
    for address in delivery.pci_addresses:
        yield f"PCI       {address}"
    for name, value in delivery.environment.items():
        yield f"variable  {name}={value}"
    for node in delivery.device_nodes:
        yield f"node      {_paths(node)} ({node.permissions})"
    for mount in delivery.mounts:
        yield f"mount     {_paths(mount)} ({'read-only' if mount.read_only else 'read-write'})"
    for name, value in delivery.annotations.items():
        yield f"annotated {name}={value}"


def _paths(item: DeviceNode | Mount) -> str:
    if item.host_path == item.container_path:
        return item.container_path
    return f"{item.container_path} from {item.host_path}"
