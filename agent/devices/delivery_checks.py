"""Whether a container can get what a provider of devices delivered for it.

In: a delivery. Out: the same delivery, or its faults. A provider is another program, and its answer
becomes files, mounts and arguments of commands, so it is checked before it is saved. (The kubelet
passes the values on unread.)
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from agent.devices.cdi import qualified_name_fault
from agent.devices.provider import DeviceError
from agent.yaml import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.managers.delivery import Delivery

#: The most bytes of all texts of one answer together: they are kept in the checkpoint.
LARGEST: Final = 1 << 20
#: The most bytes of one `NAME=value` with its zero (MAX_ARG_STRLEN of the kernel, execve(2)).
_LARGEST_VARIABLE: Final = 1 << 17
#: The most bytes of a path with its zero (PATH_MAX of the kernel).
_LONGEST_PATH: Final = 4096

#: Control characters, further ends of lines, and surrogates, which UTF-8 cannot have.
_CONTROLS: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_PERMISSIONS: Final = re.compile(r"[rwm]{1,3}")
#: The names that execve(2), a shell and a unit file agree on: visible ASCII characters but `=`.
_VARIABLE: Final = re.compile(r"[!-<>-~]+")
_PCI_ADDRESS: Final = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")


def checked(delivery: Delivery, provider: str, resource: str) -> Delivery:
    """Return a delivery that a container can get; raises `DeviceError` with its first fault."""
    size = sum(map(_size, _texts(delivery)))
    large = (f"its texts have {size} bytes, more than {LARGEST}",) if size > LARGEST else ()
    faults = large or delivery_faults(delivery)
    if not faults:
        return delivery
    more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
    raise DeviceError(
        f"{provider} delivered for {resource} what no container can get: {faults[0]}{more}",
        "the provider's answer has to be corrected; pods without this resource are admitted",
    )


def delivery_faults(delivery: Delivery) -> tuple[str, ...]:
    """Return what is wrong with a delivery, a line each; empty if a container can get it."""
    return tuple(_delivery_faults(delivery))


def _texts(delivery: Delivery) -> Iterator[str]:
    for pairs in (delivery.environment, delivery.annotations):
        for name, value in pairs.items():
            yield from (name, value)
    for mount in delivery.mounts:
        yield from (mount.host_path, mount.container_path)
    for node in delivery.device_nodes:
        yield from (node.host_path, node.container_path, node.permissions)
    yield from delivery.cdi_devices
    yield from delivery.pci_addresses


def _delivery_faults(delivery: Delivery) -> Iterator[str]:
    for what, pairs in (("variable", delivery.environment), ("annotation", delivery.annotations)):
        for name, value in pairs.items():
            yield from _pair_faults(f"the {what} {shown(name)}", name, value)
    for mount in delivery.mounts:
        yield from _path_faults("the mount from", mount.host_path)
        yield from _inside_faults("the mount at", mount.container_path)
    for node in delivery.device_nodes:
        yield from _path_faults("the device node from", node.host_path)
        yield from _inside_faults("the device node at", node.container_path)
        if not _PERMISSIONS.fullmatch(node.permissions):
            permissions, path = shown(node.permissions), shown(node.container_path)
            yield f"the permissions {permissions} of {path} are not of r, w and m"
    for name in delivery.cdi_devices:
        fault = qualified_name_fault(name)
        if fault is not None:
            yield f"{shown(name)}: {fault}"
    for address in delivery.pci_addresses:
        if not _PCI_ADDRESS.fullmatch(address):
            yield f"{shown(address)} is not a PCI address such as 0000:3b:02.1"


def _pair_faults(what: str, name: str, value: str) -> Iterator[str]:
    """Yield why a variable or an annotation cannot be given as `NAME=value` on one line."""
    if not _VARIABLE.fullmatch(name):
        yield f"{what} has a name that cannot be given; visible ASCII characters other than = can"
    if _has_controls(value):
        yield f"{what} has control characters"
    if _size(name) + _size(value) + 2 > _LARGEST_VARIABLE:
        yield f"{what} is longer than the kernel allows"


def _inside_faults(what: str, path: str) -> Iterator[str]:
    """Yield what is wrong with a path in the container, which must not be its root."""
    yield from _path_faults(what, path)
    if path.startswith("/") and not path.strip("/"):
        yield f"{what} {shown(path)} would replace all of the container"


def _path_faults(what: str, path: str) -> Iterator[str]:
    if not path.startswith("/"):
        yield f"{what} {shown(path)} is not at an absolute path"
    elif not {".", ".."}.isdisjoint(path.split("/")):
        yield f"{what} {shown(path)} leads through '.' or '..'"
    if not path.isprintable():
        yield f"{what} {shown(path)} has characters that cannot be printed"
    if _size(path) >= _LONGEST_PATH:
        yield f"{what} {shown(path)} is longer than the kernel allows"


def _size(text: str) -> int:
    return len(text.encode(errors="replace"))


def _has_controls(text: str) -> bool:
    return _CONTROLS.search(text) is not None
