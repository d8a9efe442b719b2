"""A client of the Container Runtime Interface (runtime.v1), for what the scenarios call.

No client is packaged for the guest, so the messages are declared here, at run time: only fields
that are used, with the numbers of the CRI's api.proto. Unknown fields are ignored on both sides.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import grpc  # type: ignore[import-untyped,import-not-found,unused-ignore] # only the guest has it
from google.protobuf import (  # type: ignore[import-untyped,import-not-found,unused-ignore] # as above
    descriptor_pb2,
    descriptor_pool,
    message_factory,
)

from tests.guest.inside.checks import STUCK, wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PACKAGE: Final = "runtime.v1"
SERVICE: Final = f"/{PACKAGE}.RuntimeService"
CONTAINERD: Final = "unix:///run/containerd/containerd.sock"

#: NamespaceMode.NODE: the host's network, so that no network plugin is needed.
HOST_NETWORK: Final = 2
#: ContainerState.CONTAINER_EXITED.
EXITED: Final = 2

#: message -> field -> (number, type); a list is a repeated field, a dict a map of strings.
MESSAGES: Final[Mapping[str, Mapping[str, tuple[int, object]]]] = {
    "PodSandboxMetadata": {"name": (1, str), "uid": (2, str), "namespace": (3, str)},
    "NamespaceOption": {"network": (1, int)},
    "LinuxSandboxSecurityContext": {"namespace_options": (1, "NamespaceOption")},
    "LinuxPodSandboxConfig": {
        "cgroup_parent": (1, str),
        "security_context": (2, "LinuxSandboxSecurityContext"),
    },
    "PodSandboxConfig": {
        "metadata": (1, "PodSandboxMetadata"),
        "log_directory": (3, str),
        "labels": (6, dict),
        "annotations": (7, dict),
        "linux": (8, "LinuxPodSandboxConfig"),
    },
    "LinuxContainerResources": {
        "cpu_period": (1, int),
        "cpu_quota": (2, int),
        "cpu_shares": (3, int),
        "memory_limit_in_bytes": (4, int),
        "cpuset_cpus": (6, str),
        "cpuset_mems": (7, str),
    },
    "LinuxContainerSecurityContext": {"namespace_options": (3, "NamespaceOption")},
    "LinuxContainerConfig": {
        "resources": (1, "LinuxContainerResources"),
        "security_context": (2, "LinuxContainerSecurityContext"),
    },
    "ContainerMetadata": {"name": (1, str)},
    "ImageSpec": {"image": (1, str)},
    "ContainerConfig": {
        "metadata": (1, "ContainerMetadata"),
        "image": (2, "ImageSpec"),
        "command": (3, [str]),
        "args": (4, [str]),
        "labels": (9, dict),
        "log_path": (11, str),
        "linux": (15, "LinuxContainerConfig"),
        "CDI_devices": (17, ["CDIDevice"]),
    },
    "CDIDevice": {"name": (1, str)},
    "RunPodSandboxRequest": {"config": (1, "PodSandboxConfig"), "runtime_handler": (2, str)},
    "RunPodSandboxResponse": {"pod_sandbox_id": (1, str)},
    "PodSandboxRequest": {"pod_sandbox_id": (1, str)},
    "CreateContainerRequest": {
        "pod_sandbox_id": (1, str),
        "config": (2, "ContainerConfig"),
        "sandbox_config": (3, "PodSandboxConfig"),
    },
    "CreateContainerResponse": {"container_id": (1, str)},
    "ContainerRequest": {"container_id": (1, str)},
    "StopContainerRequest": {"container_id": (1, str), "timeout": (2, int)},
    "ContainerStatusRequest": {"container_id": (1, str), "verbose": (2, bool)},
    "ContainerStatus": {"state": (3, int)},
    "ContainerStatusResponse": {"status": (1, "ContainerStatus"), "info": (2, dict)},
    "UpdateContainerResourcesRequest": {
        "container_id": (1, str),
        "linux": (2, "LinuxContainerResources"),
    },
    "Empty": {},
}

#: call -> (request, response)
CALLS: Final = {
    "RunPodSandbox": ("RunPodSandboxRequest", "RunPodSandboxResponse"),
    "StopPodSandbox": ("PodSandboxRequest", "Empty"),
    "RemovePodSandbox": ("PodSandboxRequest", "Empty"),
    "CreateContainer": ("CreateContainerRequest", "CreateContainerResponse"),
    "StartContainer": ("ContainerRequest", "Empty"),
    "StopContainer": ("StopContainerRequest", "Empty"),
    "RemoveContainer": ("ContainerRequest", "Empty"),
    "ContainerStatus": ("ContainerStatusRequest", "ContainerStatusResponse"),
    "UpdateContainerResources": ("UpdateContainerResourcesRequest", "Empty"),
}

FIELD: Final = descriptor_pb2.FieldDescriptorProto
SCALARS: Final = {str: FIELD.TYPE_STRING, int: FIELD.TYPE_INT64, bool: FIELD.TYPE_BOOL}


def _declare() -> descriptor_pb2.FileDescriptorProto:
    """Return the declared messages as a file of a private descriptor pool."""
    file = descriptor_pb2.FileDescriptorProto(name="cri.proto", package=PACKAGE, syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            _declare_field(message, field, number, kind)
    return file


def _declare_field(
    message: descriptor_pb2.DescriptorProto, name: str, number: int, kind: object
) -> None:
    field = message.field.add(name=name, number=number, label=FIELD.LABEL_OPTIONAL)
    if isinstance(kind, list):
        field.label = FIELD.LABEL_REPEATED
        (kind,) = kind
    if kind is dict:
        _declare_map(message, field)
    elif isinstance(kind, str):
        field.type, field.type_name = FIELD.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
    else:
        field.type = SCALARS[cast("type", kind)]


def _declare_map(
    message: descriptor_pb2.DescriptorProto, field: descriptor_pb2.FieldDescriptorProto
) -> None:
    """Make a field a map of strings: a repeated message of key and value, marked as an entry."""
    entry = message.nested_type.add(name=f"{field.name.title().replace('_', '')}Entry")
    entry.options.map_entry = True
    for number, name in enumerate(("key", "value"), start=1):
        entry.field.add(
            name=name, number=number, label=FIELD.LABEL_OPTIONAL, type=FIELD.TYPE_STRING
        )
    field.label, field.type = FIELD.LABEL_REPEATED, FIELD.TYPE_MESSAGE
    field.type_name = f".{PACKAGE}.{message.name}.{entry.name}"


def _classes() -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_declare())
    factory = message_factory.MessageFactory(pool)
    return {
        name: factory.GetPrototype(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in MESSAGES
    }


CLASSES: Final = _classes()


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A pod in the runtime: its id and the configuration it was made with."""

    id: str
    config: dict[str, object]


#: runc and systemd replace the filter of devices of a new scope at the same time, and runc does not
#: find the one that it is about to replace (the kind of opencontainers/runc#3604).
LOST_RACE: Final = "BPF_CGROUP_DEVICE, BPF_F_ALLOW_MULTI): can't attach program: no such file"
#: How often a container is created at most.
ATTEMPTS: Final = 3


class Runtime:
    """A container runtime behind its CRI socket."""

    def __init__(self, address: str = CONTAINERD) -> None:
        # Without an authority of its own, grpcio sends the socket's path, which Go's HTTP/2
        # server rejects.
        self._channel = grpc.insecure_channel(
            address, options=[("grpc.default_authority", "localhost")]
        )

    def call(self, name: str, timeout: float = STUCK, /, **fields: object) -> Any:  # noqa: ANN401 - declared at run time
        """Call the runtime; raises `grpc.RpcError` with the runtime's message."""
        request, response = CALLS[name]
        method = self._channel.unary_unary(
            f"{SERVICE}/{name}",
            request_serializer=CLASSES[request].SerializeToString,
            response_deserializer=CLASSES[response].FromString,
        )
        return method(CLASSES[request](**fields), timeout=timeout, wait_for_ready=True)

    def run_sandbox(self, name: str, uid: str, cgroup_parent: str, handler: str = "") -> Sandbox:
        """Run a pod's sandbox on the host's network, below a cgroup (slice name or path).

        `handler` is the OCI runtime by the name in the runtime's configuration, "" its default.
        """
        config: dict[str, object] = {
            "metadata": {"name": name, "uid": uid, "namespace": "default"},
            "labels": {
                "io.kubernetes.pod.name": name,
                "io.kubernetes.pod.namespace": "default",
                "io.kubernetes.pod.uid": uid,
            },
            "log_directory": f"/var/log/pods/{uid}",
            "linux": {
                "cgroup_parent": cgroup_parent,
                "security_context": {"namespace_options": {"network": HOST_NETWORK}},
            },
        }
        answer = self.call("RunPodSandbox", config=config, runtime_handler=handler)
        return Sandbox(answer.pod_sandbox_id, config)

    def start_container(
        self,
        sandbox: Sandbox,
        name: str,
        image: str,
        command: Sequence[str],
        **resources: int | str,
    ) -> str:
        """Create and start a container; `resources` are LinuxContainerResources' fields."""
        config = {
            "metadata": {"name": name},
            "image": {"image": image},
            "command": list(command),
            "labels": {"io.kubernetes.container.name": name},
            "log_path": f"{name}.log",
            "linux": {
                "resources": resources,
                "security_context": {"namespace_options": {"network": HOST_NETWORK}},
            },
        }
        return self._started(sandbox, config)

    def output_of(
        self, sandbox: Sandbox, image: str, command: Sequence[str], cdi_devices: Sequence[str]
    ) -> list[str]:
        """Run a container with CDI devices to its end; return the lines of its output."""
        config = {
            "metadata": {"name": "once"},
            "image": {"image": image},
            "command": list(command),
            "log_path": "once.log",
            "CDI_devices": [{"name": name} for name in cdi_devices],
            "linux": {"security_context": {"namespace_options": {"network": HOST_NETWORK}}},
        }
        container = self._started(sandbox, config)
        wait_until(lambda: self._state_of(container) == EXITED)
        log = Path(str(sandbox.config["log_directory"]), "once.log").read_text()
        return [line.split(" ", 3)[3] for line in log.splitlines()]

    def _state_of(self, container: str) -> int:
        state: int = self.call("ContainerStatus", container_id=container).status.state
        return state

    def _started(self, sandbox: Sandbox, config: Mapping[str, object]) -> str:
        """Create and start a container; what lost runc's race is created again, as by a kubelet."""
        for attempt in itertools.count(1):
            container: str = self.call(
                "CreateContainer",
                pod_sandbox_id=sandbox.id,
                config=config,
                sandbox_config=sandbox.config,
            ).container_id
            try:
                self.call("StartContainer", container_id=container)
            except grpc.RpcError as error:
                if LOST_RACE not in error.details() or attempt == ATTEMPTS:
                    raise
                print(f"created again: {error.details()}", flush=True)
                self.call("RemoveContainer", container_id=container)
            else:
                return container
        raise AssertionError  # the last attempt returns or raises

    def update(self, container: str, **resources: int | str) -> None:
        """Update a container's resources, as a kubelet's resize does."""
        self.call("UpdateContainerResources", container_id=container, linux=resources)

    def pid_of(self, container: str) -> int:
        """Return the first process of a running container."""
        status = self.call("ContainerStatus", container_id=container, verbose=True)
        pid: int = json.loads(status.info["info"])["pid"]
        return pid

    def stop_container(self, container: str) -> None:
        """Kill and remove a container."""
        self.call("StopContainer", container_id=container, timeout=0)
        self.call("RemoveContainer", container_id=container)

    def remove_sandbox(self, sandbox: Sandbox) -> None:
        """Stop and remove a pod's sandbox with all its containers."""
        self.call("StopPodSandbox", pod_sandbox_id=sandbox.id)
        self.call("RemovePodSandbox", pod_sandbox_id=sandbox.id)
