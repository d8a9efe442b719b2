"""What plugins answer to calls: options, a preference, what a container gets."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError
from msgspec import Struct

from agent.devices.plugins.device_list import AnswerError
from agent.devices.plugins.limits import LONGEST_ANSWER
from agent.managers.allocations.delivery import Delivery, DeviceNode, Mount
from agent.parsing.document import shown
from agent.rpc.device_plugin import V1BETA1

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sized

    from agent.rpc.messages import Message

#: The most mounts, device nodes, variables, annotations and CDI names of one container, each.
MOST_ENTRIES: Final = 1024
#: PATH_MAX of Linux, less the NUL.
LONGEST_PATH: Final = 4095
#: MAX_ARG_STRLEN of Linux (execve(2)) for `NAME=value`, less the NUL.
LONGEST_VARIABLE: Final = (128 << 10) - 1
_LONGEST_NAME: Final = 253
_VARIABLE: Final = re.compile(r"[!-<>-~]+", re.ASCII)
_PERMISSIONS: Final = frozenset("rwm")
#: `vendor.com/class=name`, as the Container Device Interface has it.
_CDI: Final = re.compile(
    r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?"
    r"/[A-Za-z](?:[A-Za-z0-9_-]*[A-Za-z0-9])?"
    r"=[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?",
    re.ASCII,
)


class PluginOptions(Struct, frozen=True):
    """Which optional methods a plugin has (DevicePluginOptions)."""

    preferred_allocation: bool = False
    pre_start: bool = False


def decoded(raw: bytes, name: str) -> Message:
    """Return an answer as the named message; raises `AnswerError`."""
    if len(raw) > LONGEST_ANSWER:
        raise AnswerError(f"the {name} has {len(raw)} bytes, {LONGEST_ANSWER} are allowed")
    try:
        return V1BETA1[name].FromString(raw)
    except DecodeError as error:
        raise AnswerError(f"the answer cannot be decoded as {name}") from error


def read_options(raw: bytes) -> PluginOptions:
    """Return the options of a plugin; raises `AnswerError`."""
    options = decoded(raw, "DevicePluginOptions")
    return PluginOptions(
        preferred_allocation=options.get_preferred_allocation_available,
        pre_start=options.pre_start_required,
    )


def read_preference(
    raw: bytes, available: frozenset[str], required: frozenset[str], size: int
) -> tuple[str, ...]:
    """Return the preferred ids, () where the plugin has no preference; raises `AnswerError`.

    The kubelet takes those ids that are available and fills up with others. An answer that does not
    fit the question shows that the plugin does not know the devices, so nothing of it is used here.
    """
    responses = decoded(raw, "PreferredAllocationResponse").container_responses
    if len(responses) > 1:
        raise AnswerError(f"{len(responses)} containers are answered, 1 was asked for")
    ids: tuple[str, ...] = tuple(responses[0].deviceIDs) if responses else ()
    if not ids:
        return ()
    if len(ids) != size or len(set(ids)) != size:
        raise AnswerError(f"{len(set(ids))} devices are preferred, {size} were asked for")
    if unknown := sorted(set(ids) - available):
        raise AnswerError(f"device {shown(unknown[0])} is preferred, but not available")
    if missing := sorted(required.difference(ids)):
        raise AnswerError(f"device {shown(missing[0])} has to be among the preferred devices")
    return ids


def read_delivery(raw: bytes) -> Delivery:
    """Return what the one container of an AllocateResponse gets; raises `AnswerError`.

    The values end up in the configuration of a container that root starts, so what no plugin means
    is rejected: relative paths, `..`, control characters in paths and names, unknown permissions.
    """
    responses = decoded(raw, "AllocateResponse").container_responses
    if len(responses) != 1:
        raise AnswerError(f"{len(responses)} containers are answered, 1 was asked for")
    [found] = responses
    return Delivery(
        environment=MappingProxyType(dict(_variables(found.envs))),
        mounts=tuple(_mounts(found)),
        device_nodes=tuple(_device_nodes(found)),
        annotations=MappingProxyType(dict(_annotations(found.annotations))),
        cdi_devices=tuple(_cdi_devices(found)),
    )


def _bounded(entries: Sized, what: str) -> None:
    if len(entries) > MOST_ENTRIES:
        raise AnswerError(f"there are {len(entries)} {what}, {MOST_ENTRIES} are allowed")


def _variables(envs: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    _bounded(envs, "environment variables")
    for name, value in sorted(envs.items()):
        if not _VARIABLE.fullmatch(name):
            raise AnswerError(
                f"{shown(name)} is not the name of an environment variable; visible ASCII "
                "characters other than = are"
            )
        if "\0" in value or len(name) + 1 + len(value.encode()) > LONGEST_VARIABLE:
            raise AnswerError(
                f"environment variable {shown(name)} has a NUL or more than {LONGEST_VARIABLE} "
                "bytes"
            )
        yield name, value


def _annotations(annotations: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    _bounded(annotations, "annotations")
    for name, value in sorted(annotations.items()):
        if not name or not name.isprintable() or len(name) > 2 * _LONGEST_NAME:
            raise AnswerError(
                f"{shown(name)} is not the name of an annotation; 1 to {2 * _LONGEST_NAME} "
                "printable characters are"
            )
        if "\0" in value:
            raise AnswerError(f"annotation {shown(name)} has a NUL")
        yield name, value


def _mounts(found: Message) -> Iterator[Mount]:
    _bounded(found.mounts, "mounts")
    for mount in found.mounts:
        yield Mount(
            _path(mount.container_path, "container path of a mount"),
            _path(mount.host_path, "host path of a mount"),
            mount.read_only,
        )


def _device_nodes(found: Message) -> Iterator[DeviceNode]:
    _bounded(found.devices, "device nodes")
    for node in found.devices:
        permissions: str = node.permissions
        if not permissions or set(permissions) - _PERMISSIONS or len(permissions) > len("rwm"):
            raise AnswerError(
                f"{shown(permissions)} are not permissions of a device node; one or more of the "
                "letters r, w and m are"
            )
        yield DeviceNode(
            _path(node.container_path, "container path of a device node"),
            _path(node.host_path, "host path of a device node"),
            permissions,
        )


def _cdi_devices(found: Message) -> Iterator[str]:
    _bounded(found.cdi_devices, "CDI devices")
    for device in found.cdi_devices:
        name: str = device.name
        if len(name) > 2 * _LONGEST_NAME or not _CDI.fullmatch(name):
            raise AnswerError(
                f"{shown(name)} is not the name of a CDI device; one such as "
                "vendor.com/class=name is"
            )
        yield name


def _path(text: str, what: str) -> str:
    parts = PurePosixPath(text).parts
    sound = text.startswith("/") and text.isprintable() and ".." not in parts
    if not sound or len(text.encode()) > LONGEST_PATH:
        raise AnswerError(
            f"{shown(text)} is not a {what}; an absolute path without .. and control characters "
            f"of at most {LONGEST_PATH} bytes is"
        )
    return text
