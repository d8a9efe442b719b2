"""The environment that says to a command which resources are its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.api.environment import allocation_variables
from agent.pods.identity import full_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.api.delivery import DeliveryDocument
    from agent.api.documents import ContainerDocument, PodDocument


def environment(
    pod: PodDocument, container: ContainerDocument, inherited: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of a command: what it inherits, its devices', and its allocation.

    Variables of the allocation of another command, from inside which this one was started, are
    left out.
    """
    own = allocation_variables(full_name(pod), pod.uid, container.cpus, container.mems or "")
    delivered = {} if container.delivery is None else container.delivery.environment
    return {**inherited, **delivered, **own}


def not_given(delivery: DeliveryDocument | None) -> str:
    """Return what of a container's devices a process of the host cannot get, "" for nothing.

    It sees the host's device nodes and files at their own places, and no others.
    """
    if delivery is None:
        return ""
    if delivery.cdi_devices:
        return f"the CDI device {delivery.cdi_devices[0]}"
    for node in delivery.device_nodes:
        if node.container_path != node.host_path:
            return f"the device node {node.host_path} as {node.container_path}"
    for mount in delivery.mounts:
        if mount.container_path != mount.host_path:
            return f"the mount of {mount.host_path} at {mount.container_path}"
    return ""
