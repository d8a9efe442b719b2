"""gRPC over Unix sockets: messages, calls with a deadline, services that answer, and socket files.

`Messages` makes message classes from declarations in Python, in a pool of descriptors of their own.
Generated modules demand a runtime at least as new as their generator, and those of packages with
names such as `v1` collide in the default pool with the modules of other programs. Declarations
have neither problem, and are the part of a .proto file that matters on the wire: names, numbers,
types. Two APIs of the kubelet are declared here, which several folders speak: that of device
plugins (`v1beta1`), and podresources (`v1`) with the messages of KEP-5526 for pods.
"""

from __future__ import annotations

import asyncio
import stat
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import grpc
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from grpc import aio

from agent.progress import EndedError, cancelled_here, moved, uncancelled

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
    from pathlib import Path

    from google.protobuf.descriptor_pb2 import DescriptorProto


#: The fields of a message by name: (number, type). A type is a scalar (`string`, `bool`, ...), the
#: name of another message, either of them after "repeated ", or `MAP` of strings to strings.
Fields: TypeAlias = "Mapping[str, tuple[int, str]]"
#: A message class and a message. They are made at run time, so that no type checker knows fields.
MessageClass: TypeAlias = Any
Message: TypeAlias = Any

MAP: Final = "map<string, string>"
_REPEATED: Final = "repeated "
_SCALARS: Final = {
    name: getattr(FieldDescriptorProto, f"TYPE_{name.upper()}")
    for name in ("bool", "bytes", "int32", "int64", "string", "uint32", "uint64")
}


class RawMessage:
    """Stands in for a message class: what arrives stays bytes.

    So a message is decoded only if it is used and not too long, and damaged ones are found here.
    """

    @staticmethod
    def FromString(data: bytes) -> bytes:  # noqa: N802  # the name that protobuf's classes have
        """Return the bytes."""
        return data


class Messages:
    """The message classes of one package; `package` is "" or the name in the .proto file.

    Raises `TypeError` (of protobuf) if a declaration names a message that does not exist.
    """

    def __init__(self, package: str, declared: Mapping[str, Fields]) -> None:
        file = FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
        for name, fields in declared.items():
            _declare(file.message_type.add(name=name), package, fields)
        pool = DescriptorPool()
        pool.Add(file)
        self._classes = {
            name: GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
            for name in declared
        }

    def __getitem__(self, name: str) -> MessageClass:
        """Return the class of the named message; raises `KeyError`."""
        return self._classes[name]


def _declare(message: DescriptorProto, package: str, fields: Fields) -> None:
    for name, (number, declared) in fields.items():
        field = message.field.add(name=name, number=number)
        field.label = FieldDescriptorProto.LABEL_OPTIONAL
        kind = declared.removeprefix(_REPEATED)
        if kind != declared:
            field.label = FieldDescriptorProto.LABEL_REPEATED
        if declared == MAP:
            field.label = FieldDescriptorProto.LABEL_REPEATED
            field.type = FieldDescriptorProto.TYPE_MESSAGE
            field.type_name = f".{package}.{message.name}.{_entry_of(message, name)}"
        elif kind in _SCALARS:
            field.type = _SCALARS[kind]
        else:
            field.type = FieldDescriptorProto.TYPE_MESSAGE
            field.type_name = f".{package}.{kind}"


def _entry_of(message: DescriptorProto, field: str) -> str:
    """Declare the message of one entry of a map, as protoc names it, and return its name."""
    name = "".join(word.capitalize() for word in field.split("_")) + "Entry"
    entry = message.nested_type.add(name=name)
    entry.options.map_entry = True
    for number, part in enumerate(("key", "value"), 1):
        entry.field.add(
            name=part,
            number=number,
            label=FieldDescriptorProto.LABEL_OPTIONAL,
            type=FieldDescriptorProto.TYPE_STRING,
        )
    return name


#: The longest message in bytes in either direction; the kubelet's limit is 16 MiB.
LONGEST_MESSAGE: Final = 16 << 20
_LIMITS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "grpc.max_receive_message_length": LONGEST_MESSAGE,
        "grpc.max_send_message_length": LONGEST_MESSAGE,
    }
)
_CLIENT: Final = (
    *_LIMITS.items(),
    # By default the authority is the escaped path of the socket, which strict servers reject.
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
    # A plugin that registers again is dialled again; the channel itself need not wait for long.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # A new client dials at once, also after another one of this process has failed.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_reconnect_backoff_ms", 1000),
)

_BUSY: Final = "too many requests at a time"


class CallError(Exception):
    """A call failed; `code` is gRPC's name of the status, `message` what the server said."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code
        self.message = message


class SocketClient(Protocol):
    """What is asked of a `Client`, in whose place a test may have another."""

    async def call(
        self, method: str, request: Message, response: MessageClass, seconds: float
    ) -> Any:  # noqa: ANN401  # messages are made at run time
        """Return the response of a method; raises `CallError`, also after `seconds`."""

    def stream(
        self, method: str, request: Message, response: MessageClass
    ) -> AsyncGenerator[Any, None]:
        """Yield the responses of a method until the server ends; raises `CallError`."""

    async def close(self) -> None:
        """Close the connection and end all calls."""


class Client:
    """The client of one service on a socket; close it in the end."""

    def __init__(self, socket: Path, service: str) -> None:
        self._service = service
        self._channel = aio.insecure_channel(f"unix:{socket}", options=_CLIENT)

    async def call(
        self, method: str, request: Message, response: MessageClass, seconds: float
    ) -> Message:
        """Return the response of a method; raises `CallError`, also after `seconds`."""
        call = self._channel.unary_unary(
            f"/{self._service}/{method}", request_serializer=_serialized
        )
        try:
            raw = await uncancelled(call(request, timeout=seconds))
        except aio.AioRpcError as error:
            raise CallError(error.code().name, error.details() or "") from error
        except (EndedError, aio.UsageError) as error:  # during the call, before it
            raise _closed() from error
        finally:
            moved()
        return _decoded(response, raw)

    async def stream(
        self, method: str, request: Message, response: MessageClass
    ) -> AsyncGenerator[Message, None]:
        """Yield the responses of a method until the server ends; raises `CallError`."""
        method_call = self._channel.unary_stream(
            f"/{self._service}/{method}", request_serializer=_serialized
        )
        try:
            call = method_call(request)
        except aio.UsageError as error:
            raise _closed() from error
        try:
            async for raw in call:
                yield _decoded(response, raw)
        except aio.AioRpcError as error:
            raise CallError(error.code().name, error.details() or "") from error
        except asyncio.CancelledError as error:
            if cancelled_here():
                raise
            raise _closed() from error
        finally:
            call.cancel()

    async def close(self) -> None:
        """Close the connection and end all calls."""
        await self._channel.close()


#: Answers one request with a message, or with the bytes of one; raises `CallError` to answer with a
#: status.
Handler: TypeAlias = "Callable[[Message], Awaitable[Message | bytes]]"
#: Answers one request with messages until one of the two sides ends the call.
StreamHandler: TypeAlias = "Callable[[Message], AsyncIterator[Message | bytes]]"
_NO_STREAMS: Final[Mapping[str, tuple[MessageClass, StreamHandler]]] = MappingProxyType({})
_NO_SERVICES: Final[Mapping[str, Mapping[str, tuple[MessageClass, Handler]]]] = MappingProxyType({})


def server(
    socket: Path,
    service: str,
    methods: Mapping[str, tuple[MessageClass, Handler]],
    *,
    concurrent: int,
    streams: Mapping[str, tuple[MessageClass, StreamHandler]] = _NO_STREAMS,
    options: Mapping[str, int] = _LIMITS,
    also: Mapping[str, Mapping[str, tuple[MessageClass, Handler]]] = _NO_SERVICES,
) -> aio.Server:
    """Return a server on a Unix socket, to be started and stopped.

    `methods` are the class of the request and the handler by name, `streams` those that answer with
    any number of messages, `also` the methods of further services by name. More than `concurrent`
    requests of either kind at a time are rejected with RESOURCE_EXHAUSTED. `options` are gRPC's
    channel arguments beside the limits on messages, or in their place. Raises `RuntimeError` (of
    gRPC) if the socket cannot be bound.
    """
    made = aio.server(options=tuple({**_LIMITS, **options}.items()))
    # gRPC's own limit did not reject a second request beside one in progress (grpcio 1.85, tried).
    share = asyncio.Semaphore(concurrent)

    def answered(
        methods: Mapping[str, tuple[MessageClass, Handler]],
    ) -> dict[str, grpc.RpcMethodHandler]:
        return {
            name: grpc.unary_unary_rpc_method_handler(
                _answering(handler, share),
                request_deserializer=request.FromString,
                response_serializer=_serialized,
            )
            for name, (request, handler) in methods.items()
        }

    handlers = answered(methods)
    open_streams = asyncio.Semaphore(concurrent)
    handlers |= {
        name: grpc.unary_stream_rpc_method_handler(
            _streaming(handler, open_streams),
            request_deserializer=request.FromString,
            response_serializer=_serialized,
        )
        for name, (request, handler) in streams.items()
    }
    services = {service: handlers} | {name: answered(each) for name, each in also.items()}
    made.add_generic_rpc_handlers(
        tuple(grpc.method_handlers_generic_handler(*each) for each in services.items())
    )
    made.add_insecure_port(f"unix:{socket}")
    return made


def _closed() -> CallError:
    """Return the error for a call whose channel was closed: gRPC cancels it."""
    return CallError("UNAVAILABLE", "the connection was closed")


def _answering(
    handler: Handler, share: asyncio.Semaphore
) -> Callable[[Message, aio.ServicerContext], Awaitable[Message | bytes]]:
    async def answer(request: Message, context: aio.ServicerContext) -> Message | bytes:
        if share.locked():
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, _BUSY)
        try:
            async with share:
                return await handler(request)
        except CallError as error:
            return await context.abort(grpc.StatusCode[error.code], error.message)

    return answer


def _streaming(
    handler: StreamHandler, share: asyncio.Semaphore
) -> Callable[[Message, aio.ServicerContext], AsyncIterator[Message | bytes]]:
    async def answer(
        request: Message, context: aio.ServicerContext
    ) -> AsyncIterator[Message | bytes]:
        if share.locked():
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, _BUSY)
        try:
            async with share:
                async for message in handler(request):
                    yield message
        except CallError as error:
            await context.abort(grpc.StatusCode[error.code], error.message)

    return answer


def _decoded(response: MessageClass, raw: bytes) -> Message:
    """Return a response; gRPC itself would pass on None for bytes that are no message."""
    try:
        return response.FromString(raw)
    except DecodeError as error:
        raise CallError("INTERNAL", f"the response cannot be read: {error}") from error


def _serialized(message: Message | bytes) -> bytes:
    data: bytes = message if isinstance(message, bytes) else message.SerializeToString()
    return data


#: The version that a plugin names when it registers; the kubelet supports no other.
VERSION: Final = "v1beta1"

#: The messages of device plugins and of their registration.
V1BETA1: Final = Messages(
    VERSION,
    {
        "Empty": {},
        "DevicePluginOptions": {
            "pre_start_required": (1, "bool"),
            "get_preferred_allocation_available": (2, "bool"),
        },
        "RegisterRequest": {
            "version": (1, "string"),
            "endpoint": (2, "string"),
            "resource_name": (3, "string"),
            "options": (4, "DevicePluginOptions"),
        },
        "ListAndWatchResponse": {"devices": (1, "repeated Device")},
        "Device": {
            "ID": (1, "string"),
            "health": (2, "string"),
            "topology": (3, "TopologyInfo"),
        },
        "TopologyInfo": {"nodes": (1, "repeated NUMANode")},
        "NUMANode": {"ID": (1, "int64")},
        "PreferredAllocationRequest": {
            "container_requests": (1, "repeated ContainerPreferredAllocationRequest"),
        },
        "ContainerPreferredAllocationRequest": {
            "available_deviceIDs": (1, "repeated string"),
            "must_include_deviceIDs": (2, "repeated string"),
            "allocation_size": (3, "int32"),
        },
        "PreferredAllocationResponse": {
            "container_responses": (1, "repeated ContainerPreferredAllocationResponse"),
        },
        "ContainerPreferredAllocationResponse": {"deviceIDs": (1, "repeated string")},
        "AllocateRequest": {"container_requests": (1, "repeated ContainerAllocateRequest")},
        "ContainerAllocateRequest": {"devices_ids": (1, "repeated string")},
        "AllocateResponse": {"container_responses": (1, "repeated ContainerAllocateResponse")},
        "ContainerAllocateResponse": {
            "envs": (1, MAP),
            "mounts": (2, "repeated Mount"),
            "devices": (3, "repeated DeviceSpec"),
            "annotations": (4, MAP),
            "cdi_devices": (5, "repeated CDIDevice"),
        },
        "Mount": {
            "container_path": (1, "string"),
            "host_path": (2, "string"),
            "read_only": (3, "bool"),
        },
        "DeviceSpec": {
            "container_path": (1, "string"),
            "host_path": (2, "string"),
            "permissions": (3, "string"),
        },
        "CDIDevice": {"name": (1, "string")},
        "PreStartContainerRequest": {"devices_ids": (1, "repeated string")},
        "PreStartContainerResponse": {},
    },
)

#: `pluginregistration/v1`, which plugins serve in the directory of the kubelet's plugin watcher.
PLUGIN_REGISTRATION: Final = Messages(
    "pluginregistration",
    {
        "InfoRequest": {},
        "PluginInfo": {
            "type": (1, "string"),
            "name": (2, "string"),
            "endpoint": (3, "string"),
            "supported_versions": (4, "repeated string"),
        },
        "RegistrationStatus": {"plugin_registered": (1, "bool"), "error": (2, "string")},
        "RegistrationStatusResponse": {},
    },
)

#: The service of a plugin for the plugin watcher.
PLUGIN_WATCHER: Final = "pluginregistration.Registration"
#: The service of the kubelet, with which plugins register.
REGISTRATION: Final = "v1beta1.Registration"
#: The service of a plugin.
DEVICE_PLUGIN: Final = "v1beta1.DevicePlugin"
#: The socket of the kubelet in the directory of plugins; the name is fixed in most plugins.
KUBELET_SOCKET: Final = "kubelet.sock"


#: The messages of podresources, with those of KEP-5526 for pods.
V1: Final = Messages(
    "v1",
    {
        "ListPodResourcesRequest": {},
        "ListPodResourcesResponse": {"pod_resources": (1, "repeated PodResources")},
        "GetPodResourcesRequest": {
            "pod_name": (1, "string"),
            "pod_namespace": (2, "string"),
        },
        "GetPodResourcesResponse": {"pod_resources": (1, "PodResources")},
        "AllocatableResourcesRequest": {},
        "AllocatableResourcesResponse": {
            "devices": (1, "repeated ContainerDevices"),
            "cpu_ids": (2, "repeated int64"),
            "memory": (3, "repeated ContainerMemory"),
        },
        "PodResources": {
            "name": (1, "string"),
            "namespace": (2, "string"),
            "containers": (3, "repeated ContainerResources"),
            "cpu_ids": (4, "repeated int64"),
            "memory": (5, "repeated ContainerMemory"),
        },
        "ContainerResources": {
            "name": (1, "string"),
            "devices": (2, "repeated ContainerDevices"),
            "cpu_ids": (3, "repeated int64"),
            "memory": (4, "repeated ContainerMemory"),
            # DynamicResource as it stands on the wire: the agent passes on what the kubelet says.
            "dynamic_resources": (5, "repeated bytes"),
        },
        "ContainerMemory": {
            "memory_type": (1, "string"),
            "size": (2, "uint64"),
            "topology": (3, "TopologyInfo"),
        },
        "ContainerDevices": {
            "resource_name": (1, "string"),
            "device_ids": (2, "repeated string"),
            "topology": (3, "TopologyInfo"),
        },
        "TopologyInfo": {"nodes": (1, "repeated NUMANode")},
        "NUMANode": {"ID": (1, "int64")},
    },
)

POD_RESOURCES_LISTER: Final = "v1.PodResourcesLister"
#: The service of the API's first version, which has `List` only. Its messages are those of `v1`
#: with fewer fields, so that its clients read the same answer and skip what they do not know.
FIRST_LISTER: Final = "v1alpha1.PodResourcesLister"


#: The longest path of a socket in bytes (sun_path of unix(7), less the NUL).
LONGEST_SOCKET: Final = 107


def is_socket(path: Path) -> bool:
    """Return whether a path is a socket; raises `OSError` except for a path that is not there."""
    try:
        return stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def socket_file(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of a file, None if there is none.

    They are those of one socket as long as it is bound; an inode is used again soon afterwards.
    """
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def socket_stamp(path: Path) -> tuple[int, int, int] | None:
    """Return what changes whenever another socket takes a path, None if there is none.

    The inode alone does not: a file system gives the next socket that of the removed one.
    """
    try:
        status = path.lstat()
    except OSError:
        return None
    if not stat.S_ISSOCK(status.st_mode):
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns
