"""Where runtimes put the bundles and states of a pod's containers, and what they write there."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from cgroupfs.names import Runtime


class RuntimeKeys(Struct, frozen=True):
    """The annotations by which a runtime names a container and its pod."""

    kind: str
    container: str
    uid: str
    name: str
    namespace: str


class RuntimeDirectory(Struct, frozen=True):
    """One runtime's directories, below the root of the host.

    A bundle is `bundles`/ID/`inside`config.json, the state of runc `states`/ID/state.json.
    """

    runtime: str
    bundles: str
    inside: str
    states: str
    keys: RuntimeKeys


#: containerd pkg/cri/annotations; older versions write no uid.
_CRI: Final = RuntimeKeys(
    kind="io.kubernetes.cri.container-type",
    container="io.kubernetes.cri.container-name",
    uid="io.kubernetes.cri.sandbox-uid",
    name="io.kubernetes.cri.sandbox-name",
    namespace="io.kubernetes.cri.sandbox-namespace",
)
#: CRI-O pkg/annotations, and the kubelet's labels, which CRI-O makes annotations too.
_CRIO: Final = RuntimeKeys(
    kind="io.kubernetes.cri-o.ContainerType",
    container="io.kubernetes.container.name",
    uid="io.kubernetes.pod.uid",
    name="io.kubernetes.pod.name",
    namespace="io.kubernetes.pod.namespace",
)
_TASKS: Final = "io.containerd.runtime.v2.task/k8s.io"
#: Of containerd's shim for runc, wherever containerd itself keeps its own state.
_RUNC_OF_CONTAINERD: Final = "run/containerd/runc/k8s.io"

#: containerd by itself, as K3s and RKE2 run it, as k0s does.
_CONTAINERD: Final = tuple(
    RuntimeDirectory("containerd", f"{state}/{_TASKS}", "", _RUNC_OF_CONTAINERD, _CRI)
    for state in ("run/containerd", "run/k3s/containerd", "run/k0s/containerd")
)
_CRIO_PLACE: Final = RuntimeDirectory(
    "CRI-O", "run/containers/storage/overlay-containers", "userdata/", "run/runc", _CRIO
)

#: The directories to read, by the runtime that a cgroup's name shows. Any runtime may use a plain
#: name.
PLACES: Final = {
    Runtime.CONTAINERD: _CONTAINERD,
    Runtime.CRIO: (_CRIO_PLACE,),
    Runtime.PLAIN: (*_CONTAINERD, _CRIO_PLACE),
}
