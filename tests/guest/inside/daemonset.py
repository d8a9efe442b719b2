"""The pod of deploy/kubernetes as podman runs it: its rights, its namespaces and its mounts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.guest.inside.agent import CONFIG
from tests.guest.inside.commands import run as command

if TYPE_CHECKING:
    from collections.abc import Iterator

MANIFEST: Final = Path("/job/deploy/kubernetes/base/daemonset.yaml")
#: The system's Python has no YAML, the agent's has.
_AS_JSON: Final = "import json, sys, yaml; print(json.dumps(yaml.safe_load(open(sys.argv[1]))))"


def pod_of(manifest: Path, python: Path) -> dict[str, Any]:
    """Return the specification of a DaemonSet's pod; `python` is one that can read YAML."""
    daemonset = json.loads(command(python, "-c", _AS_JSON, manifest))
    found: dict[str, Any] = daemonset["spec"]["template"]["spec"]
    return found


def make_what_a_kubelet_makes(pod: dict[str, Any]) -> None:
    """Make the directories and files of the host that a pod mounts, where they are missing."""
    for volume in pod["volumes"]:
        host = volume.get("hostPath")
        if host is None:
            continue
        path = Path(host["path"])
        if host["type"] == "File":
            path.touch()
        else:
            path.mkdir(parents=True, exist_ok=True)


def options(pod: dict[str, Any]) -> Iterator[str]:
    """Yield podman's options for the one container of a pod.

    Namespaces that are not the host's and the filter of system calls are podman's own defaults, as
    they are a runtime's.
    """
    (container,) = pod["containers"]
    security = container["securityContext"]
    yield f"--user={security['runAsUser']}:{security['runAsGroup']}"
    yield from (f"--cap-drop={name}" for name in security["capabilities"]["drop"])
    yield from (f"--cap-add={name}" for name in security["capabilities"]["add"])
    if security["privileged"]:
        yield "--privileged"
    if not security["allowPrivilegeEscalation"]:
        yield "--security-opt=no-new-privileges"
    if security["readOnlyRootFilesystem"]:
        yield from ("--read-only", "--read-only-tmpfs=false")
    yield from (f"--{name}=host" for name in ("network", "pid", "ipc") if pod.get(_host(name)))
    yield f"--memory={container['resources']['limits']['memory'].removesuffix('i')}"
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    for mount in container["volumeMounts"]:
        host = volumes[mount["name"]].get("hostPath", {"path": CONFIG})
        mode = "ro" if mount.get("readOnly") else "rw"
        yield f"--volume={host['path']}:{mount['mountPath']}:{mode}"


def _host(namespace: str) -> str:
    return {"network": "hostNetwork", "pid": "hostPID", "ipc": "hostIPC"}[namespace]
