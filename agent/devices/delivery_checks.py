"""Checks of what a provider delivered, before it is saved, written and given to a container.

A provider of devices is another program, and what it answers becomes files, mounts and arguments
of commands. The kubelet hands the values on unread.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from agent.devices.cdi import qualified_name_fault
from agent.devices.provider import DeviceError
from agent.yaml import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.managers.allocations.delivery import Delivery

#: Bytes that all texts of one answer may have together; they are kept in the checkpoint.
LARGEST: Final = 1 << 20
#: MAX_ARG_STRLEN of the kernel: bytes of one `NAME=value` with its zero (execve(2)).
_LARGEST_VARIABLE: Final = 1 << 17
#: PATH_MAX of the kernel, with its zero.
_LONGEST_PATH: Final = 4096

#: Control characters, what ends a line elsewhere, and halves of characters that UTF-8 cannot have.
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
    return tuple(_faults(delivery))


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


def _faults(delivery: Delivery) -> Iterator[str]:
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
            found = shown(node.permissions)
            yield f"the permissions {found} of {shown(node.container_path)} are not of r, w and m"
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
    """Yield what is wrong with a path in the container; its root itself cannot be replaced."""
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
