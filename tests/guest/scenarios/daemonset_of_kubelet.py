"""The DaemonSet of deploy/kubernetes, its pod run by a real kubelet from the project's image.

A DaemonSet's controller is not there: the pod is made of its template, on the one node.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.guest.inside import containerd, oci
from tests.guest.inside.beside import environment_of, own, pod
from tests.guest.inside.commands import run as command
from tests.guest.inside.kubelet import container
from tests.guest.inside.real_kubelet import NODE, RealKubelet
from tests.guest.scenarios.cluster_reports import TOPOLOGIES

if TYPE_CHECKING:
    from tests.guest.inside.api_server import ApiServer
    from tests.guest.inside.checks import Checks
    from tests.guest.inside.guest import Guest

NAMESPACE: Final = "numawarden"
NAME: Final = "numawarden-of-guest"
PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
DAEMONSET: Final = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/numawarden"
#: Where the image's root is mounted in the guest, and what the image runs.
ROOT: Final = Path("/opt/numawarden")
ENTRYPOINT: Final = ["/opt/numawarden/bin/numawarden"]
#: Larger than an emulated start takes.
PROBE_FAILURES: Final = 1000
MIXED: Final = pod("mixed", 21, own("worker", 2), container("logs"), cpus=3)


def run(guest: Guest) -> None:
    """Run the agent's pod, a mixed pod beside it, and replace the agent's pod."""
    checks = guest.checks
    kubelet = RealKubelet(guest)
    containerd.start(guest, "systemd", nri=True)
    api = kubelet.api
    template = api.get(DAEMONSET)["spec"]["template"]
    reference = template["spec"]["containers"][0]["image"]
    config = {"Entrypoint": ENTRYPOINT, "Env": ["PATH=/usr/sbin:/usr/bin"]}
    archive = oci.write_image(guest.work / "agent.tar", reference, ROOT, config)
    command("ctr", "--namespace=k8s.io", "images", "import", "--local", archive)
    archive.unlink()
    kubelet.start()
    guest.at_end(lambda: guest.log("agent-pod.json", str(api.get(PODS))))
    guest.at_end(lambda: guest.log("agent.log", _log()))
    _create(checks, api, template)
    uid = _runs(checks, kubelet)
    _check(checks, kubelet, uid, "beside the DaemonSet's pod")
    given = environment_of(kubelet.cgroup(uid, "worker"))
    checks.check("the process can read its CPUs", "NUMAWARDEN_CPUS" in given, given)

    def available() -> list[str]:
        listed = api.get(TOPOLOGIES)["items"]
        zones = [zone for each in listed for zone in each["zones"]]
        return sorted(
            each["available"]
            for zone in zones
            for each in zone["resources"]
            if each["name"] == "cpu"
        )

    checks.eventually("its topology is published", lambda: len(available()), 2)
    api.delete(f"{PODS}/{NAME}")
    checks.eventually("its pod is gone", lambda: len(api.get(PODS)["items"]), 0)
    _check(checks, kubelet, uid, "without the agent")
    _create(checks, api, template)
    _check(checks, kubelet, uid, "beside another pod of the DaemonSet")
    kubelet.remove("mixed")
    checks.eventually("a deleted pod is gone", lambda: kubelet.phase(uid), "")


def _create(checks: Checks, api: ApiServer, template: dict[str, Any]) -> None:
    """Make the pod as the controller does, and wait until it is ready."""
    spec = {**template["spec"], "nodeName": NODE}
    (agent,) = spec["containers"]
    # The service `kubernetes` has no address here, for that takes a network of pods.
    agent = {**agent, "args": [*agent["args"], f"--set=agent.kubernetes.server={api.url}"]}
    probe = {**agent["startupProbe"], "failureThreshold": PROBE_FAILURES}
    spec["containers"] = [{**agent, "startupProbe": probe}]
    metadata = {"name": NAME, "labels": template["metadata"]["labels"]}
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    api.create(PODS, made)

    def ready() -> str:
        conditions = api.get(f"{PODS}/{NAME}")["status"].get("conditions", ())
        return "".join(each["status"] for each in conditions if each["type"] == "Ready")

    checks.eventually("the agent's pod is ready", ready, "True", NAME)


def _runs(checks: Checks, kubelet: RealKubelet) -> str:
    uid = kubelet.put(MIXED)
    checks.eventually("a mixed pod runs", lambda: kubelet.phase(uid), "Running")
    return uid


def _check(checks: Checks, kubelet: RealKubelet, uid: str, when: str) -> None:
    """Compare the sets of the mixed pod with what its manifest asks for."""

    def sizes() -> tuple[int, int, bool]:
        worker, logs = (kubelet.cgroup(uid, name).cpus for name in ("worker", "logs"))
        return len(worker), len(logs), kubelet.pod_cgroup(uid).cpus == worker | logs

    checks.eventually(f"{when}: two CPUs of its own, and one of the rest", sizes, (2, 1, True))


def _log() -> str:
    """Return what the agent said in its pods."""
    logs = sorted(Path("/var/log/pods").glob(f"{NAMESPACE}_*/agent/*.log"))
    return "\n".join(file.read_text(errors="replace") for file in logs)
