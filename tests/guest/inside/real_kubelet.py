"""A real kubelet in the guest, beside an API server on the host, whose scheduler binds the pods.

`make guest-kubelet` brings its program on a disk. Pods use the host's network, for the guest has no
other; everything else of them is as a user gives it to the API server.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.guest.inside import containerd
from tests.guest.inside.api_server import CONTROL_PLANE, POD, ApiServer, ApiServerRejectedError
from tests.guest.inside.commands import run
from tests.guest.inside.kubelet import DIRECTORY, SERVICE, UNIT, Kubelet, collect_journal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.guest.inside.guest import Guest

#: Where the disk with the programs is mounted; its serial, as the host gives it.
PROGRAMS: Final = Path("/opt/kubernetes")
SERIAL: Final = "kubernetes"
CONFIG: Final = DIRECTORY / "config.yaml"
KUBECONFIG: Final = DIRECTORY / "kubeconfig"
#: The node's name, to which its token belongs, and its address in QEMU's user network.
NODE: Final = "guest"
ADDRESS: Final = "10.0.2.15"
GATEWAY: Final = "10.0.2.2"

SERVICE_TEXT: Final = """\
[Unit]
Description=kubelet
After=containerd.service
[Service]
ExecStart={program} --config={config} --kubeconfig={kubeconfig} --hostname-override={node} \\
    --node-ip={address}
KillMode=process
"""
#: Stock, but for a guest's limits: no registry, no firewall, little disk, a slow runtime.
CONFIGURATION: Final[Mapping[str, object]] = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": True}},
    "authorization": {"mode": "Webhook"},
    "cgroupDriver": "systemd",
    "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
    "cpuManagerPolicy": "none",
    "memoryManagerPolicy": "None",
    "topologyManagerPolicy": "none",
    "featureGates": {"PodsAPI": True},
    "systemReserved": {"cpu": "2", "memory": "412Mi"},
    "evictionHard": {"memory.available": "100Mi"},
    "makeIPTablesUtilChains": False,
    "failSwapOn": False,
    "resolvConf": "",
    "runtimeRequestTimeout": "5m",
}
#: What every pod has besides its manifest.
SPEC: Final[Mapping[str, object]] = {
    "hostNetwork": True,
    "automountServiceAccountToken": False,
    "enableServiceLinks": False,
    "terminationGracePeriodSeconds": 1,
    "tolerations": [{"operator": "Exists"}],
}


class RealKubelet(Kubelet):
    """The program that the user named, with the managers of its configuration."""

    def __init__(self, guest: Guest, **config: object) -> None:
        super().__init__()
        self._guest = guest
        self._put: dict[str, Mapping[str, Any]] = {}
        _mount()
        _join_network()
        self.api = ApiServer(guest)
        DIRECTORY.mkdir(mode=0o750, exist_ok=True)
        shutil.copy(guest.job / CONTROL_PLANE / "node.kubeconfig", KUBECONFIG)
        self.configure(**config)
        text = SERVICE_TEXT.format(
            program=PROGRAMS / "kubelet",
            config=CONFIG,
            kubeconfig=KUBECONFIG,
            node=NODE,
            address=ADDRESS,
        )
        UNIT.write_text(text)
        run("systemctl", "daemon-reload")
        guest.at_end(self._collect)

    @staticmethod
    def is_here(guest: Guest) -> bool:
        """Return whether the guest has a real kubelet."""
        return (guest.job / CONTROL_PLANE).is_dir()

    def configure(self, **config: object) -> None:
        """Write its configuration, with some keys changed (YAML includes JSON)."""
        CONFIG.write_text(json.dumps({**CONFIGURATION, **config}, indent=1))

    def start(self, *habits: str) -> None:
        del habits  # it has its own
        run("systemctl", "start", SERVICE)

    def put(self, pod: Mapping[str, Any]) -> str:
        metadata = {name: value for name, value in pod["metadata"].items() if name != "uid"}
        name, spec = metadata["name"], {**pod["spec"], **SPEC}
        if name in self._put:
            self._resize(name, spec)
        else:
            made = self.api.create(POD, {**pod, "metadata": metadata, "spec": spec})
            self._uids[name] = made["metadata"]["uid"]
        self._put[name] = spec
        return self._uids[name]

    def _resize(self, name: str, spec: Mapping[str, Any]) -> None:
        """Ask for an in-place resize, of the pod's own resources and its containers'."""
        containers = [
            {"name": each["name"], "resources": each["resources"]}
            for each in spec["containers"]
            if "resources" in each
        ]
        resized: dict[str, object] = {"containers": containers}
        if "resources" in spec:
            resized["resources"] = spec["resources"]
        self.api.patch(f"{POD}/{name}/resize", {"spec": resized})

    def debug(self, name: str, container: Mapping[str, Any]) -> None:
        added = {"spec": {"ephemeralContainers": [container]}}
        self.api.patch(f"{POD}/{name}/ephemeralcontainers", added)

    def remove(self, name: str) -> None:
        del self._put[name]
        self.api.delete(f"{POD}/{name}")

    def state(self) -> dict[str, Any]:
        return {pod["metadata"]["uid"]: pod["status"] for pod in self.api.pods()}

    def errors(self, name: str) -> list[str]:
        return [
            f"{event['reason']}: {event['message']}"
            for event in self.api.events(name)
            if event["type"] == "Warning"
        ]

    def sandboxes(self, name: str) -> int:
        return len(_of_runtime(name, "sandbox"))

    def creations(self, name: str) -> int:
        found = self.containers(self.uid(name)).values()
        restarts: int = sum(each["restartCount"] for each in found)
        return len(_of_runtime(name, "container")) + restarts

    def is_resized(self, name: str) -> bool:
        """Return whether the kubelet says of each container that it has what the spec requests.

        Of the pod it says so by having no condition of a resize. The limit of CPUs in a
        container's status stays the former one where the container has no quota.
        """
        try:
            status = self.api.get(f"{POD}/{name}")["status"]
        except ApiServerRejectedError:
            return False
        if any(each["type"].startswith("PodResize") for each in status.get("conditions", ())):
            return False
        found = {each["name"]: each.get("resources", {}) for each in status["containerStatuses"]}
        return all(
            found[each["name"]].get("requests") == each["resources"]["requests"]
            for each in self._put[name]["containers"]
            if "resources" in each
        )

    def resize_errors(self, name: str) -> list[str]:
        conditions = self.api.get(f"{POD}/{name}")["status"].get("conditions", ())
        return [
            each.get("message", "") for each in conditions if each["type"].startswith("PodResize")
        ]

    def rejected_sandboxes(self) -> list[str]:
        listed = self.api.get("/api/v1/namespaces/default/events")["items"]
        return [
            event["message"]
            for event in listed
            if event["reason"] == "FailedCreatePodSandBox" and "NRI" in event["message"]
        ]

    def _collect(self) -> None:
        collect_journal(self._guest)
        try:
            listed = {kind: self.api.get(f"/api/v1/{kind}")["items"] for kind in ("pods", "events")}
        except (OSError, ApiServerRejectedError) as error:
            self._guest.log("api-server.txt", f"no answer: {error}\n")
            return
        for kind, items in listed.items():
            self._guest.log(f"{kind}-of-api-server.json", json.dumps(items, indent=1))


def _of_runtime(pod: str, kind: str) -> list[str]:
    """Return the ids of the sandboxes or containers that containerd has of a pod."""
    labels = f'labels."io.kubernetes.pod.name"=={pod},labels."io.cri-containerd.kind"=={kind}'
    return run("ctr", "--namespace=k8s.io", "containers", "ls", "-q", labels).split()


def _mount() -> None:
    """Mount the disk with the programs; containerd is started from there if there is one."""
    for serial in Path("/sys/block").glob("vd*/serial"):
        if serial.read_text().strip() == SERIAL:
            PROGRAMS.mkdir()
            run("mount", "-o", "ro", f"/dev/{serial.parent.name}", PROGRAMS)
    if (PROGRAMS / "containerd").exists():
        containerd.use(PROGRAMS)


def _join_network() -> None:
    """Bring up the interface of QEMU's user network."""
    run("modprobe", "virtio_net")
    [name] = (
        link.parent.parent.name
        for link in Path("/sys/class/net").glob("*/device/driver")
        if link.resolve().name == "virtio_net"
    )
    for words in (
        f"addr add {ADDRESS}/24 dev {name}",
        f"link set {name} up",
        f"route add default via {GATEWAY}",
    ):
        run("busybox", "ip", *words.split())
