"""What a container gets with devices of the host: variables, device nodes, PCI addresses."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from agent.config.devices import variable_part
from agent.devices.host_selection import is_vfio
from agent.managers.delivery import Delivery, DeviceNode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sysfs.devices import DeviceFunction

_VFIO_CONTAINER: Final = "/dev/vfio/vfio"
_INFINIBAND: Final = "/dev/infiniband/"
_UIO: Final = "uio"


def deliver(resource: str, functions: Iterable[DeviceFunction]) -> Delivery:
    """Return what a container gets with devices of a resource, in their order.

    Empty variables are left out:

    - `PCIDEVICE_<RESOURCE>`: their PCI addresses;
    - `PCIDEVICE_<RESOURCE>_INFO`: their device nodes by address, in the form of the SR-IOV network
      device plugin;
    - `NETDEVICE_<RESOURCE>`: their interfaces in the host's network namespace.
    """
    functions = tuple(functions)
    variable = variable_part(resource)
    addresses = tuple(each.place.address for each in functions if each.place.address)
    interfaces = [name for each in functions for name in each.interfaces]
    environment = {
        f"PCIDEVICE_{variable}": ",".join(addresses),
        f"PCIDEVICE_{variable}_INFO": _info(functions),
        f"NETDEVICE_{variable}": ",".join(interfaces),
    }
    nodes = dict.fromkeys(node for each in functions for node in _nodes(each))
    return Delivery(
        environment=MappingProxyType({name: text for name, text in environment.items() if text}),
        device_nodes=tuple(DeviceNode(node, node, "rw") for node in nodes),
        pci_addresses=addresses,
    )


def _nodes(function: DeviceFunction) -> Iterator[str]:
    """Yield the device nodes of vfio for a device with such a driver, else those of its driver."""
    if not is_vfio(function):
        yield from function.nodes
        return
    prefix = "" if function.isolated else "noiommu-"
    yield _VFIO_CONTAINER
    yield f"/dev/vfio/{prefix}{function.iommu_group}"
    yield from function.vfio_nodes


def _info(functions: Iterable[DeviceFunction]) -> str:
    """Return the nodes of the devices by PCI address as JSON, "" without any address."""
    devices = {}
    for function in functions:
        if not (address := function.place.address):
            continue
        device = {"generic": {"deviceID": address}}
        nodes = tuple(_nodes(function))
        if is_vfio(function):
            device["vfio"] = {"dev-mount": nodes[1], "mount": nodes[0]}
        for name in nodes:
            kind = name.rpartition("/")[2].rstrip("0123456789")
            if name.startswith(_INFINIBAND):
                device.setdefault("rdma", {})[kind] = name
            elif kind == _UIO:
                device[_UIO] = {"mount": name}
        devices[address] = device
    return json.dumps(devices, separators=(",", ":"), sort_keys=True) if devices else ""
