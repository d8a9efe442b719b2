"""A core/v1 Pod as protobuf, made from the same pod as JSON, as an API server stores it.

More fields than the agent reads: those of an ordinary pod of a cluster. Numbers are those of
Kubernetes' generated.proto.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from agent.rpc.messages import Messages

if TYPE_CHECKING:
    from collections.abc import Mapping

_STRINGS: Final = {"key": (1, "string"), "value": (2, "string")}

MESSAGES: Final = Messages(
    "core.v1",
    {
        "Pod": {"metadata": (1, "ObjectMeta"), "spec": (2, "PodSpec"), "status": (3, "PodStatus")},
        "Time": {"seconds": (1, "int64"), "nanos": (2, "int32")},
        "Label": _STRINGS,
        "ObjectMeta": {
            "name": (1, "string"),
            "generateName": (2, "string"),
            "namespace": (3, "string"),
            "uid": (5, "string"),
            "resourceVersion": (6, "string"),
            "generation": (7, "int64"),
            "creationTimestamp": (8, "Time"),
            "deletionTimestamp": (9, "Time"),
            "labels": (11, "repeated Label"),
            "annotations": (12, "repeated Label"),
            "ownerReferences": (13, "repeated OwnerReference"),
            "managedFields": (17, "repeated ManagedFields"),
        },
        "OwnerReference": {
            "kind": (1, "string"),
            "name": (3, "string"),
            "uid": (4, "string"),
            "apiVersion": (5, "string"),
            "controller": (6, "bool"),
        },
        "ManagedFields": {
            "manager": (1, "string"),
            "operation": (2, "string"),
            "apiVersion": (3, "string"),
        },
        "PodSpec": {
            "volumes": (1, "repeated Volume"),
            "containers": (2, "repeated Container"),
            "restartPolicy": (3, "string"),
            "terminationGracePeriodSeconds": (4, "int64"),
            "dnsPolicy": (6, "string"),
            "serviceAccountName": (8, "string"),
            "nodeName": (10, "string"),
            "hostNetwork": (11, "bool"),
            "schedulerName": (19, "string"),
            "initContainers": (20, "repeated Container"),
            "tolerations": (22, "repeated Toleration"),
            "priority": (25, "int32"),
            "overhead": (32, "repeated Amount"),
            "resources": (40, "Resources"),
        },
        "Volume": {"name": (1, "string")},
        "Toleration": {
            "key": (1, "string"),
            "operator": (2, "string"),
            "effect": (4, "string"),
            "tolerationSeconds": (5, "int64"),
        },
        "Container": {
            "name": (1, "string"),
            "image": (2, "string"),
            "command": (3, "repeated string"),
            "args": (4, "repeated string"),
            "env": (7, "repeated Variable"),
            "resources": (8, "Resources"),
            "volumeMounts": (9, "repeated VolumeMount"),
            "imagePullPolicy": (14, "string"),
            "restartPolicy": (24, "string"),
        },
        "Variable": {"name": (1, "string"), "value": (2, "string")},
        "VolumeMount": {"name": (1, "string"), "readOnly": (2, "bool"), "mountPath": (3, "string")},
        "Resources": {"limits": (1, "repeated Amount"), "requests": (2, "repeated Amount")},
        "Amount": {"key": (1, "string"), "value": (2, "Quantity")},
        "Quantity": {"string": (1, "string")},
        "PodStatus": {
            "phase": (1, "string"),
            "message": (3, "string"),
            "reason": (4, "string"),
            "containerStatuses": (8, "repeated ContainerStatus"),
            "qosClass": (9, "string"),
            "initContainerStatuses": (10, "repeated ContainerStatus"),
        },
        "ContainerStatus": {
            "name": (1, "string"),
            "state": (2, "ContainerState"),
            "ready": (4, "bool"),
            "restartCount": (5, "int32"),
            "containerID": (8, "string"),
        },
        "ContainerState": {
            "waiting": (1, "Waiting"),
            "running": (2, "Running"),
            "terminated": (3, "Terminated"),
        },
        "Waiting": {"reason": (1, "string"), "message": (2, "string")},
        "Running": {"startedAt": (1, "Time")},
        "Terminated": {"exitCode": (1, "int32"), "reason": (3, "string")},
    },
)

_STRING_MAPS: Final = ("labels", "annotations")
_AMOUNTS: Final = ("limits", "requests", "overhead")
_TIMES: Final = ("creationTimestamp", "deletionTimestamp", "startedAt")


def encoded(pod: Mapping[str, Any]) -> bytes:
    """Return the bytes of a pod; raises `ValueError` where it has a field that is not declared."""
    kinds = {name: value for name, value in pod.items() if name not in ("apiVersion", "kind")}
    data: bytes = MESSAGES["Pod"](**_fields(kinds)).SerializeToString()
    return data


def _fields(document: Mapping[str, Any]) -> dict[str, object]:
    return {name: _value(name, value) for name, value in document.items()}


def _value(name: str, value: Any) -> object:  # noqa: ANN401  # any JSON
    if name in _STRING_MAPS:
        return [{"key": key, "value": text} for key, text in value.items()]
    if name in _AMOUNTS:
        return [{"key": key, "value": {"string": str(text)}} for key, text in value.items()]
    if name in _TIMES:
        return {"seconds": int(datetime.fromisoformat(value).timestamp())}
    if isinstance(value, dict):
        return _fields(value)
    if isinstance(value, list):
        return [_fields(each) if isinstance(each, dict) else each for each in value]
    return value
