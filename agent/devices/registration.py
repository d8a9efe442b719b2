"""Who registers: the resource and the socket of a device plugin, read from what it sends.

In: the bytes of a RegisterRequest (over `kubelet.sock`) or of a PluginInfo (asked over the plugin's
own socket). Out: a `Registrant`, or `CallError` with the kubelet's words where it has some.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError
from msgspec import Struct

from agent.devices.plugin_limits import LONGEST_REGISTRATION, MOST_RESOURCES
from agent.pods.model import extended_resource_fault
from agent.rpc.calls import CallError
from agent.rpc.device_plugins import KUBELET_SOCKET, PLUGIN_REGISTRATION, V1BETA1, VERSION
from agent.rpc.sockets import LONGEST_SOCKET
from agent.yaml import shown

if TYPE_CHECKING:
    from agent.rpc.messages import Message

#: The longest PluginInfo in bytes.
_LONGEST_INFO: Final = 4096
#: Go's gRPC answers with this code where a method returns an error without a code, as the
#: kubelet's methods do.
UNKNOWN: Final = "UNKNOWN"
INVALID: Final = "INVALID_ARGUMENT"
#: The most registrations at a time, of each of the two ways. It is this high because a plugin that
#: does not serve its socket yet may take its whole deadline, and others must not wait for it.
REGISTERING: Final = MOST_RESOURCES


class Registrant(Struct, frozen=True):
    """A resource and the socket of its plugin."""

    resource: str
    socket: Path


def read_registration(raw: bytes, directory: Path) -> Registrant:
    """Return who registers; raises `CallError` with the kubelet's words where it has some.

    The options of a RegisterRequest are ignored, as by the kubelet; the plugin is asked for them
    (GetDevicePluginOptions).
    """
    if len(raw) > LONGEST_REGISTRATION:
        raise CallError(INVALID, f"the RegisterRequest has more than {LONGEST_REGISTRATION} bytes")
    try:
        request = V1BETA1["RegisterRequest"].FromString(raw)
    except DecodeError as error:
        raise CallError(INVALID, "the request is not a RegisterRequest") from error
    if request.version != VERSION:
        raise CallError(
            UNKNOWN,
            f"requested API version {shown(request.version)} is not supported by kubelet. "
            f'Supported version is ["{VERSION}"]',
        )
    resource: str = request.resource_name
    fault = extended_resource_fault(resource)
    if fault is not None:
        raise CallError(UNKNOWN, f"the ResourceName {shown(resource)} is invalid: {fault}")
    return Registrant(resource, directory / _endpoint(request.endpoint, directory))


def _endpoint(name: str, directory: Path) -> str:
    if not name or "/" in name or name in (".", "..", KUBELET_SOCKET) or not name.isprintable():
        raise CallError(
            INVALID,
            f"endpoint {shown(name)} is not the file name of a plugin's socket in {directory}",
        )
    length = len(str(directory / name).encode())
    if length > LONGEST_SOCKET:
        raise CallError(
            INVALID,
            f"the path of endpoint {shown(name)} has {length} bytes, a socket's has at most "
            f"{LONGEST_SOCKET}",
        )
    return name


def read_plugin_info(raw: bytes) -> Message:
    """Return the answer of a plugin to GetInfo; raises `CallError`."""
    if len(raw) > _LONGEST_INFO:
        raise CallError(INVALID, f"its PluginInfo has more than {_LONGEST_INFO} bytes")
    try:
        return PLUGIN_REGISTRATION["PluginInfo"].FromString(raw)
    except DecodeError as error:
        raise CallError(INVALID, "its answer is not a PluginInfo") from error


def registrant_of(info: Message, path: Path) -> Registrant:
    """Return who a plugin with a socket at `path` is; raises `CallError`.

    Without an endpoint the plugin serves devices on the socket with which it registers.
    """
    versions = tuple(info.supported_versions)
    if VERSION not in versions:
        raise CallError(
            INVALID,
            f"manager version, {VERSION}, is not among plugin supported versions "
            f"[{' '.join(shown(each) for each in versions)}]",
        )
    fault = extended_resource_fault(info.name)
    if fault is not None:
        raise CallError(
            INVALID,
            f"invalid name of device plugin socket: the ResourceName {shown(info.name)} is "
            f"invalid: {fault}",
        )
    endpoint = info.endpoint or str(path)
    if not (endpoint.startswith("/") and endpoint.isprintable()):
        raise CallError(INVALID, f"endpoint {shown(endpoint)} is not an absolute path")
    if len(os.fsencode(endpoint)) > LONGEST_SOCKET:
        raise CallError(
            INVALID,
            f"endpoint {shown(endpoint)} has more than the {LONGEST_SOCKET} bytes of a socket's "
            "path",
        )
    return Registrant(info.name, Path(endpoint))
