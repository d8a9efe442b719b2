"""The pod of deploy/kubernetes as podman runs it: its rights, its namespaces and its mounts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.guest.inside.agent import CONFIG
from tests.guest.inside.commands import run as command

if TYPE_CHECKING:
    from collections.abc import Iterator

BASE: Final = Path("/job/deploy/kubernetes/base")
#: State files of a kubelet whose managers are off.
_STATES: Final = {
    "cpu_manager_state": {"policyName": "none", "defaultCpuSet": "", "checksum": 1353318690},
    "memory_manager_state": {"policyName": "None", "machineState": {}, "checksum": 4047896898},
}
#: The system's Python has no YAML, the agent's has.
_AS_JSON: Final = "import json, sys, yaml; print(json.dumps(yaml.safe_load(open(sys.argv[1]))))"


def loaded(name: str, python: Path) -> dict[str, Any]:
    """Return a file of the base; `python` is one that can read YAML."""
    found: dict[str, Any] = json.loads(command(python, "-c", _AS_JSON, BASE / name))
    return found


def pod_of(daemonset: dict[str, Any]) -> dict[str, Any]:
    """Return the specification of a DaemonSet's pod."""
    found: dict[str, Any] = daemonset["spec"]["template"]["spec"]
    return found


def write_what_a_kubelet_writes(pod: dict[str, Any]) -> None:
    """Make what a pod mounts and no program of the guest makes: directories, files of managers."""
    for volume in pod["volumes"]:
        host = volume.get("hostPath", {"type": ""})
        if host["type"] == "File":
            Path(host["path"]).write_text(json.dumps(_STATES[Path(host["path"]).name]))
        elif host["type"]:
            Path(host["path"]).mkdir(parents=True, exist_ok=True)


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
        mode += ",rslave" if mount.get("mountPropagation") == "HostToContainer" else ""
        yield f"--volume={host['path']}:{mount['mountPath']}:{mode}"


def _host(namespace: str) -> str:
    return {"network": "hostNetwork", "pid": "hostPID", "ipc": "hostIPC"}[namespace]
