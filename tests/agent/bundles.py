"""Files of runtimes as they were seen on a host: containerd 1.7.24, runc 1.1.15, crun 1.21."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from tests.agent.reconcile.pods import UID

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ID: Final = "8785a2cfe7a1f303ed60558aabc6853bf79cb900823a4d8d7bc2e4ff566b9470"
OTHER_ID: Final = "9bd6df26688e134dcbda3f251694bf7b0bedddb1b9aa9803a3a206c11b78b464"

TASKS: Final = "run/containerd/io.containerd.runtime.v2.task/k8s.io"
STATES: Final = "run/containerd/runc/k8s.io"
CRIO: Final = "run/containers/storage/overlay-containers"


def cri(container: str | None, uid: str = UID, name: str = "shop") -> dict[str, str]:
    """Return containerd's annotations of a container, or of a sandbox (None)."""
    annotations = {
        "io.kubernetes.cri.container-type": "sandbox" if container is None else "container",
        "io.kubernetes.cri.sandbox-id": OTHER_ID,
        "io.kubernetes.cri.sandbox-name": name,
        "io.kubernetes.cri.sandbox-namespace": "default",
        "io.kubernetes.cri.sandbox-uid": uid,
    }
    if container is not None:
        annotations["io.kubernetes.cri.container-name"] = container
        annotations["io.kubernetes.cri.image-name"] = "guest.invalid/busybox:1"
    return annotations


def crio(container: str | None, uid: str = UID) -> dict[str, str]:
    """Return CRI-O's annotations of a container, or of a sandbox (None)."""
    return {
        "io.container.manager": "cri-o",
        "io.kubernetes.container.name": "POD" if container is None else container,
        "io.kubernetes.cri-o.ContainerType": "sandbox" if container is None else "container",
        "io.kubernetes.pod.name": "shop",
        "io.kubernetes.pod.namespace": "default",
        "io.kubernetes.pod.uid": uid,
    }


def write(file: Path, content: object) -> Path:
    """Write a JSON file with the directories above it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content))
    file.chmod(0o644)
    return file


def bundle(
    root: Path,
    annotations: dict[str, str],
    cpu: dict[str, object] | None = None,
    *,
    id_: str = ID,
    place: str = TASKS,
    inside: str = "",
) -> Path:
    """Write a bundle's configuration."""
    resources = {"memory": {}, "cpu": cpu or {"shares": 1024}}
    spec = {
        "ociVersion": "1.1.0",
        "process": {"args": ["/bin/sh"], "env": ["A=1"]},
        "annotations": annotations,
        "linux": {"resources": resources, "cgroupsPath": f"x.slice:cri-containerd:{id_}"},
    }
    return write(root / place / id_ / inside / "config.json", spec)


def runc_state(root: Path, cgroups: Mapping[str, object], *, states: str = STATES) -> Path:
    """Write runc's state of a container."""
    written: dict[str, object] = {
        "name": ID,
        "scope_prefix": "cri-containerd",
        "memory": 0,
        "cpu_shares": 1024,
        "cpu_quota": 0,
        "cpu_period": 0,
        "cpuset_cpus": "",
        "cpuset_mems": "",
        "Systemd": True,
    }
    state = {
        "id": ID,
        "config": {"rootfs": "/", "cgroups": {**written, **cgroups}},
        "rootless": False,
    }
    return write(root / states / ID / "state.json", state)
