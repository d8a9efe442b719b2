"""The part of `k8s.io.api.core.v1` that a pod is read from, as declared messages.

Field numbers are those of `generated.proto` in k8s.io/api (v1.36). Messages have more fields, which
are passed over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from agent.kubelet.errors import UnreadablePodError
from agent.kubelet.reported_pods import ReportedPod, ReportedPods, checked_uid, is_terminal
from agent.rpc.messages import MAP, Messages

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.rpc.messages import Message
    from agent.yaml import Plain

CORE_V1: Final = Messages(
    "k8s.io.api.core.v1",
    {
        "PodList": {"items": (2, "repeated bytes")},
        "Pod": {
            "metadata": (1, "ObjectMeta"),
            "spec": (2, "PodSpec"),
            "status": (3, "PodStatus"),
        },
        "ObjectMeta": {
            "name": (1, "string"),
            "namespace": (3, "string"),
            "uid": (5, "string"),
            "deletionTimestamp": (9, "Time"),
            "annotations": (12, MAP),
        },
        "Time": {"seconds": (1, "int64")},
        "PodSpec": {
            "containers": (2, "repeated Container"),
            "initContainers": (20, "repeated Container"),
            "overhead": (32, "repeated Amount"),
            "resources": (40, "ResourceRequirements"),
        },
        "Container": {
            "name": (1, "string"),
            "resources": (8, "ResourceRequirements"),
            "restartPolicy": (24, "string"),
        },
        "ResourceRequirements": {
            "limits": (1, "repeated Amount"),
            "requests": (2, "repeated Amount"),
        },
        # An entry of a map of quantities, as it stands on the wire.
        "Amount": {"key": (1, "string"), "value": (2, "Quantity")},
        "Quantity": {"string": (1, "string")},
        "PodStatus": {
            "phase": (1, "string"),
            "containerStatuses": (8, "repeated ContainerStatus"),
            "initContainerStatuses": (10, "repeated ContainerStatus"),
        },
        "ContainerStatus": {"state": (2, "ContainerState")},
        "ContainerState": {"running": (2, "ContainerStateRunning")},
        "ContainerStateRunning": {},
    },
)


def read_message(data: bytes) -> ReportedPod:
    """Return one v1.Pod in protobuf; raises `UnreadablePodError`."""
    try:
        pod = CORE_V1["Pod"].FromString(data)
    except DecodeError as error:
        raise UnreadablePodError(f"it is not a pod ({error})") from error
    status = pod.status
    return ReportedPod(
        uid=checked_uid(pod.metadata.uid),
        name=pod.metadata.name,
        namespace=pod.metadata.namespace,
        specification=_specification(pod),
        terminal=is_terminal(status.phase),
        deleting=pod.metadata.HasField("deletionTimestamp"),
        running=any(
            each.state.HasField("running")
            for each in (*status.containerStatuses, *status.initContainerStatuses)
        ),
    )


def read_messages(pods: Iterable[bytes]) -> ReportedPods:
    """Return the pods of an answer; one that cannot be read does not affect the others."""
    read, unreadable = list[ReportedPod](), list[UnreadablePodError]()
    for data in pods:
        try:
            read.append(read_message(data))
        except UnreadablePodError as error:
            unreadable.append(error)
    return ReportedPods(tuple(read), tuple(unreadable))


def _specification(pod: Message) -> Plain:
    """Return what a manifest of the pod would say; a field with its default is left out."""
    metadata, spec = pod.metadata, pod.spec
    stated: dict[str, Plain] = {
        "containers": [_container(each) for each in spec.containers],
        "initContainers": [_container(each) for each in spec.initContainers],
        "overhead": _amounts(spec.overhead),
    }
    if spec.HasField("resources"):
        stated["resources"] = _resources(spec.resources)
    named: dict[str, Plain] = {
        key: text for key in ("uid", "name", "namespace") if (text := getattr(metadata, key))
    }
    named["annotations"] = dict(metadata.annotations)
    return {"metadata": named, "spec": stated}


def _container(container: Message) -> Plain:
    stated: dict[str, Plain] = {
        "name": container.name,
        "resources": _resources(container.resources),
    }
    if container.restartPolicy:
        stated["restartPolicy"] = container.restartPolicy
    return stated


def _resources(resources: Message) -> Plain:
    return {"requests": _amounts(resources.requests), "limits": _amounts(resources.limits)}


def _amounts(amounts: Iterable[Message]) -> dict[str, Plain]:
    return {each.key: each.value.string for each in amounts}
