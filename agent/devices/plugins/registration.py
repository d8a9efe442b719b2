"""What a plugin says when it registers: its resource, and the file name of its socket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError
from msgspec import Struct

from agent.devices.plugins.limits import LONGEST_REGISTRATION
from agent.pods.identity import extended_resource_fault
from agent.rpc.calls import CallError
from agent.rpc.device_plugin import KUBELET_SOCKET, V1BETA1, VERSION
from agent.rpc.socket_files import LONGEST_SOCKET
from agent.yaml import shown

if TYPE_CHECKING:
    from pathlib import Path

#: Go's gRPC answers with this code where a method returns an error without one, as the kubelet's.
UNKNOWN: Final = "UNKNOWN"
INVALID: Final = "INVALID_ARGUMENT"


class Registrant(Struct, frozen=True):
    """A resource and the socket of its plugin."""

    resource: str
    socket: Path


def read_registration(raw: bytes, directory: Path) -> Registrant:
    """Return who registers; raises `CallError` with the kubelet's words where it has some.

    The options of a RegisterRequest are ignored, as by the kubelet: those that the plugin answers
    to GetDevicePluginOptions count.
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
