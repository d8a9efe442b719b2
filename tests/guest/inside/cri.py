"""A client of the Container Runtime Interface (runtime.v1), for what the scenarios call.

No client is packaged for the guest, so the messages are declared here, at run time: only fields
that are used, with the numbers of the CRI's api.proto. Unknown fields are ignored on both sides.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

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
_ON_HOST: Final = {"security_context": {"namespace_options": {"network": HOST_NETWORK}}}
#: ContainerState.CONTAINER_EXITED.
EXITED: Final = 2

#: The fields of each message in the words of the api.proto; `map` is one of strings.
MESSAGES: Final = {
    "PodSandboxMetadata": "string name = 1; string uid = 2; string namespace = 3",
    "NamespaceOption": "int64 network = 1",
    "LinuxSandboxSecurityContext": "NamespaceOption namespace_options = 1",
    "LinuxPodSandboxConfig": "string cgroup_parent = 1; "
    "LinuxSandboxSecurityContext security_context = 2",
    "PodSandboxConfig": "PodSandboxMetadata metadata = 1; string log_directory = 3; "
    "map labels = 6; LinuxPodSandboxConfig linux = 8",
    "LinuxContainerResources": "int64 cpu_period = 1; int64 cpu_quota = 2; int64 cpu_shares = 3; "
    "int64 memory_limit_in_bytes = 4; string cpuset_cpus = 6; string cpuset_mems = 7",
    "LinuxContainerSecurityContext": "NamespaceOption namespace_options = 3",
    "LinuxContainerConfig": "LinuxContainerResources resources = 1; "
    "LinuxContainerSecurityContext security_context = 2",
    "ContainerMetadata": "string name = 1",
    "ImageSpec": "string image = 1",
    "ContainerConfig": "ContainerMetadata metadata = 1; ImageSpec image = 2; "
    "repeated string command = 3; map labels = 9; string log_path = 11; "
    "LinuxContainerConfig linux = 15; repeated CDIDevice CDI_devices = 17",
    "CDIDevice": "string name = 1",
    "RunPodSandboxRequest": "PodSandboxConfig config = 1; string runtime_handler = 2",
    "RunPodSandboxResponse": "string pod_sandbox_id = 1",
    "PodSandboxRequest": "string pod_sandbox_id = 1",
    "CreateContainerRequest": "string pod_sandbox_id = 1; ContainerConfig config = 2; "
    "PodSandboxConfig sandbox_config = 3",
    "CreateContainerResponse": "string container_id = 1",
    "ContainerRequest": "string container_id = 1",
    "StopContainerRequest": "string container_id = 1; int64 timeout = 2",
    "ContainerStatusRequest": "string container_id = 1; bool verbose = 2",
    "ContainerStatus": "int64 state = 3",
    "ContainerStatusResponse": "ContainerStatus status = 1; map info = 2",
    "UpdateContainerResourcesRequest": "string container_id = 1; LinuxContainerResources linux = 2",
    "Empty": "",
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
SCALARS: Final = {
    "string": FIELD.TYPE_STRING, "int64": FIELD.TYPE_INT64, "bool": FIELD.TYPE_BOOL,
}  # fmt: skip


def _declare() -> descriptor_pb2.FileDescriptorProto:
    """Return the declared messages as a file of a private descriptor pool."""
    file = descriptor_pb2.FileDescriptorProto(name="cri.proto", package=PACKAGE, syntax="proto3")
    for name, declared in MESSAGES.items():
        message = file.message_type.add(name=name)
        for each in filter(None, declared.split("; ")):
            *repeated, kind, field_name, _, number = each.split()
            label = FIELD.LABEL_REPEATED if repeated else FIELD.LABEL_OPTIONAL
            field = message.field.add(name=field_name, number=int(number), label=label)
            if kind == "map":
                _declare_map(message, field)
            elif kind in SCALARS:
                field.type = SCALARS[kind]
            else:
                field.type, field.type_name = FIELD.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
    return file


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
            "linux": {"cgroup_parent": cgroup_parent, **_ON_HOST},
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
        labels = {"io.kubernetes.container.name": name}
        config = _config(name, image, command) | {"labels": labels}
        config["linux"] |= {"resources": resources}
        return self._started(sandbox, config)

    def output_of(
        self, sandbox: Sandbox, image: str, command: Sequence[str], cdi_devices: Sequence[str]
    ) -> list[str]:
        """Run a container with CDI devices to its end; return the lines of its output."""
        config = _config("once", image, command)
        config["CDI_devices"] = [{"name": name} for name in cdi_devices]
        container = self._started(sandbox, config)
        ask = partial(self.call, "ContainerStatus", container_id=container)
        wait_until(lambda: ask().status.state == EXITED)
        log = Path(str(sandbox.config["log_directory"]), "once.log").read_text()
        return [line.split(" ", 3)[3] for line in log.splitlines()]

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


def _config(name: str, image: str, command: Sequence[str]) -> dict[str, Any]:
    """Return the configuration of a container on the host's network."""
    return {
        "metadata": {"name": name},
        "image": {"image": image},
        "command": list(command),
        "log_path": f"{name}.log",
        "linux": dict(_ON_HOST),
    }
