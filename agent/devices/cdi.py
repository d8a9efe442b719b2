"""The CDI specification of a pod: what a runtime edits in the containers that got devices.

In: the deliveries of an allocation. Out: one `Specification` for the pod, with a device for each
container that has something to edit, or None. Rules and versions are those of CDI 0.8
(tags.cncf.io/container-device-interface, SPEC.md and its library). A device of CDI cannot name
devices of other specifications, and its annotations are for readers of the file: the CDI names and
annotations of a delivery are given to the container beside the specification.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.managers.allocation import PodAllocation
    from agent.managers.delivery import Delivery, DeviceNode, Mount

KIND: Final = "numawarden.dev/pod"
#: The versions of the specification that a runtime with CDI 0.8 reads, oldest first.
VERSIONS: Final = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0")
_EARLIEST, _HOST_PATH, _DOTTED_CLASS = "0.3.0", "0.5.0", "0.6.0"

#: What a uid almost always is: a UUID, or the 32 hexadecimal digits of a generated one.
_USUAL_UID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}")
_VENDOR_OR_CLASS: Final = re.compile(r"[A-Za-z](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?")
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.:]*[A-Za-z0-9])?")


class _Part(
    msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """A part of a specification; a runtime rejects fields that it does not know."""


class NodeEdit(_Part, frozen=True):
    """A device node. Without `host_path`, `path` is that on the host, too."""

    path: str
    host_path: str = ""
    permissions: str = ""


class MountEdit(_Part, frozen=True):
    """A mount, with options of mount(8)."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()


class ContainerEdits(_Part, frozen=True):
    """What a runtime changes in a container; `env` are texts `NAME=value`."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[NodeEdit, ...] = ()
    mounts: tuple[MountEdit, ...] = ()


class CdiDevice(_Part, frozen=True):
    """A device that a container can be given by its name."""

    name: str
    container_edits: ContainerEdits


class Specification(_Part, frozen=True):
    """The content of one file."""

    cdi_version: str
    kind: str
    devices: tuple[CdiDevice, ...]


def device_name(uid: str, container: str) -> str:
    """Return the name of a container's device: `<uid>-<container>`.

    It is `<uid>_<container>` if the uid is neither a UUID nor 32 hexadecimal digits. The devices of
    two pods could have one name otherwise (`a-b` with container `c`, `a` with container `b-c`), and
    a runtime gives none of two devices with one name.
    """
    return f"{uid}{'-' if _USUAL_UID.fullmatch(uid) else '_'}{container}"


def device_names(allocation: PodAllocation) -> dict[str, str]:
    """Return the fully qualified CDI name by container, of those that have a device."""
    return {
        container.name: f"{KIND}={device_name(allocation.uid, container.name)}"
        for container in allocation.delivered
        if _has_edits(container.delivery)
    }


def specification(allocation: PodAllocation) -> Specification | None:
    """Return the specification of a pod, None if its deliveries edit nothing.

    The version is the lowest that has all that is used: old runtimes read the file, too.
    """
    devices = tuple(
        CdiDevice(device_name(allocation.uid, container.name), _edits(container.delivery))
        for container in allocation.delivered
        if _has_edits(container.delivery)
    )
    if not devices:
        return None
    return Specification(_minimum_version(KIND, devices), KIND, devices)


def _has_edits(delivery: Delivery) -> bool:
    return bool(delivery.environment or delivery.mounts or delivery.device_nodes)


def _edits(delivery: Delivery) -> ContainerEdits:
    return ContainerEdits(
        env=tuple(f"{name}={value}" for name, value in delivery.environment.items()),
        device_nodes=tuple(_node(node) for node in delivery.device_nodes),
        mounts=tuple(_mount(mount) for mount in delivery.mounts),
    )


def _node(node: DeviceNode) -> NodeEdit:
    """Return a node; a path that is the same on the host is not repeated, for old runtimes."""
    host_path = "" if node.host_path == node.container_path else node.host_path
    return NodeEdit(node.container_path, host_path, node.permissions)


def _mount(mount: Mount) -> MountEdit:
    """Return a mount with the options that a kubelet's mounts get from a runtime."""
    options = ("rbind", "rprivate", "ro" if mount.read_only else "rw")
    return MountEdit(mount.host_path, mount.container_path, options)


def validate(spec: Specification) -> tuple[str, ...]:
    """Return what a runtime would reject in a specification, a line each; empty if it is valid."""
    return tuple(_faults(spec))


def qualified_name_fault(text: str) -> str | None:
    """Return why a text is not a fully qualified CDI name, None if it is `vendor/class=name`."""
    kind, _, name = text.partition("=")
    if _kind_fault(kind) is None and _NAME.fullmatch(name):
        return None
    return "a CDI device is named vendor/class=name, such as vendor.com/gpu=0"


def _faults(spec: Specification) -> Iterator[str]:
    fault = _kind_fault(spec.kind)
    if fault is not None:
        yield fault
    lowest = _minimum_version(spec.kind, spec.devices)
    if spec.cdi_version not in VERSIONS:
        yield f"version {spec.cdi_version!r} is not one of {', '.join(VERSIONS)}"
    elif VERSIONS.index(spec.cdi_version) < VERSIONS.index(lowest):
        yield f"version {spec.cdi_version} lacks what is used; {lowest} is the lowest that has it"
    if not spec.devices:
        yield "the list of devices is empty"
    names = [device.name for device in spec.devices]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"there are {names.count(name)} devices of the name {name!r}"
    for device in spec.devices:
        for fault in _device_faults(device):
            yield f"device {device.name!r}: {fault}"


def _device_faults(device: CdiDevice) -> Iterator[str]:
    edits = device.container_edits
    if not _NAME.fullmatch(device.name):
        yield "the name is not letters, digits and '_-.:' between letters or digits"
    if edits == ContainerEdits():
        yield "nothing is edited"
    for variable in edits.env:
        if variable.find("=") <= 0:
            yield f"the variable {variable!r} is not NAME=value"
    for node in edits.device_nodes:
        if not node.path:
            yield "a device node has no path"
        if node.permissions.strip("rwm"):
            yield f"the permissions {node.permissions!r} of {node.path!r} are not of r, w and m"
    for mount in edits.mounts:
        if not (mount.host_path and mount.container_path):
            yield "a mount has no path"


def _kind_fault(kind: str) -> str | None:
    vendor, _, name = kind.partition("/")
    if _VENDOR_OR_CLASS.fullmatch(vendor) and _VENDOR_OR_CLASS.fullmatch(name):
        return None
    return f"the kind {kind!r} is not vendor/class"


def _minimum_version(kind: str, devices: tuple[CdiDevice, ...]) -> str:
    """Return the lowest version that has all that is used (MinimumRequiredVersion)."""
    if "." in kind.partition("/")[2]:
        return _DOTTED_CLASS
    named_by_digit = any(device.name[:1].isdigit() for device in devices)
    nodes = (node for device in devices for node in device.container_edits.device_nodes)
    if named_by_digit or any(node.host_path for node in nodes):
        return _HOST_PATH
    return _EARLIEST
