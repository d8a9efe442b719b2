"""What users of a cluster see of the agent, and the kubelet's other lists of pods.

Everything but the agent is Kubernetes' own: kubelet, API server and scheduler.
"""

from __future__ import annotations

import json
import re
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.guest.inside import containerd, kernel
from tests.guest.inside.agent import CONFIG, PROGRAM, SERVICE
from tests.guest.inside.api_server import CONTROL_PLANE, ApiServerRejectedError
from tests.guest.inside.beside import Node, own, pod
from tests.guest.inside.commands import attempt
from tests.guest.inside.commands import run as command
from tests.guest.inside.kubelet import DIRECTORY, amounts, container
from tests.guest.inside.real_kubelet import GATEWAY, NODE, RealKubelet

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from tests.guest.inside.guest import Guest

TOPOLOGIES: Final = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"
EXCLUSIVE: Final = "numawarden.dev/exclusive"
WIDGET: Final = "example.com/widget"
PLUGIN: Final = "tests/guest/inside/plugin_process.py"
POD_RESOURCES: Final = Path("/run/numawarden/pod-resources/kubelet.sock")
#: As docs/node-topology.md has it.
DROP_IN: Final = """\
[Service]
LoadCredential=kubernetes-token:/etc/numawarden/kubernetes-token
LoadCredential=kubernetes-ca:/etc/kubernetes/pki/ca.crt
IPAddressAllow={gateway}
"""
#: What the doctor is to say of files that have been changed since kubelet and runtime started.
TAKEN: Final = {"gate PodsAPI", "cgroup driver", "NRI"}
#: CPUs that pods may have exclusively, of each NUMA node (`BASE` reserves one of each).
FREE: Final = 7


def run(guest: Guest) -> None:
    """Look at rejections, Events and the topology; take the Pods API and the endpoint away."""
    node = started(guest)
    kubelet = node.kubelet
    assert isinstance(kubelet, RealKubelet)
    _topology(node, kubelet)
    _opted_in(node, kubelet)
    _event(node, kubelet)
    _device(guest, node)
    _doctor(guest, node, kubelet)
    _other_lists(guest, node, kubelet)
    _unpublished(node, kubelet)


def started(guest: Guest) -> Node:
    """Return a node whose agent has a service account's credentials."""
    files = guest.job / CONTROL_PLANE
    server = (files / "server").read_text().strip()
    for target, name in (
        ("/etc/numawarden/kubernetes-token", "agent.token"),
        ("/etc/kubernetes/pki/ca.crt", "ca.crt"),
    ):
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        Path(target).write_text((files / name).read_text())
    drop_in = Path(f"/etc/systemd/system/{SERVICE}.d/kubernetes.conf")
    drop_in.parent.mkdir(parents=True)
    drop_in.write_text(DROP_IN.format(gateway=GATEWAY))
    kubernetes = {"publishTopology": True, "events": True, "server": server, "nodeName": NODE}
    return Node.started(
        guest,
        {"kubernetes": kubernetes, "podResources": {"socket": str(POD_RESOURCES)}},
    )


def _zones(kubelet: RealKubelet) -> dict[str, dict[str, str]]:
    """Return what each zone has available, by resource; nothing where nothing is published."""
    try:
        found = kubelet.api.get(f"{TOPOLOGIES}/{NODE}")
    except ApiServerRejectedError:
        return {}
    return {
        zone["name"]: {each["name"]: each["available"] for each in zone["resources"]}
        for zone in found["zones"]
    }


def _free(kubelet: RealKubelet) -> dict[str, int]:
    return {name: int(resources["cpu"]) for name, resources in _zones(kubelet).items()}


def _topology(node: Node, kubelet: RealKubelet) -> None:
    """Read what the agent publishes, before and after a pod."""
    checks = node.checks
    empty = {"node-0": FREE, "node-1": FREE}
    checks.eventually("each zone has its free CPUs", lambda: _free(kubelet), empty)
    large = pod("large", 1, own("app", 5))
    node.runs(large)
    checks.eventually(
        "without a pod's CPUs", lambda: sorted(_free(kubelet).values()), [FREE - 5, FREE]
    )
    second = pod("second", 2, own("app", 5))
    node.runs(second)
    checks.eventually(
        "without both pods'", lambda: sorted(_free(kubelet).values()), [FREE - 5, FREE - 5]
    )


def opted(name: str, number: int, cpus: int) -> dict[str, Any]:
    """Return a pod that the kubelet rejects where the agent does."""
    limits = amounts(cpus) | {EXCLUSIVE: "1"}
    return pod(name, number, container("app", limits))


def _opted_in(node: Node, kubelet: RealKubelet) -> None:
    """Run a pod that opted in, and one that there is no room for."""
    checks = node.checks
    uid = node.runs(opted("fits", 3, 2))
    checks.equal("a pod that opted in has its CPUs", len(node.cpus(uid, "app")), 2)
    kubelet.put(opted("fits", 3, 3))
    checks.eventually(
        "a resize of them has the agent's Event",
        lambda: "ResizeRejected" in {each["reason"] for each in kubelet.api.events("fits")},
        expected=True,
    )
    checks.equal("and changes nothing", len(node.cpus(uid, "app")), 2)
    node.is_gone(opted("fits", 3, 2))  # else the scheduler would have no room for the next
    rejected = kubelet.put(opted("rejected", 4, 3))
    checks.eventually("one without room has failed", lambda: kubelet.phase(rejected), "Failed")
    status = kubelet.state()[rejected]
    checks.equal("for the kubelet's reason", status["reason"], "UnexpectedAdmissionError")
    said = status["message"]
    checks.check("and in the agent's words", "TopologyAffinityError: " in said, said)
    checks.equal("it has no cgroup", _has_cgroup(kubelet, rejected), expected=False)
    kubelet.remove("rejected")


def _has_cgroup(kubelet: RealKubelet, uid: str) -> bool:
    try:
        kubelet.pod_cgroup(uid)
    except FileNotFoundError:
        return False
    return True


def _event(node: Node, kubelet: RealKubelet) -> None:
    """Have a pod wait that did not opt in; it has the agent's Event and the kubelet's."""
    checks = node.checks
    waiting = pod("waiting", 5, own("app", 3))
    uid = kubelet.put(waiting)

    def why() -> str:
        return kubelet.waits_for(uid, "app").partition(":")[0]

    checks.eventually("without room another pod waits", why, "CreateContainerError")

    def reasons() -> set[str]:
        events = kubelet.api.events("waiting")
        ours = {
            each["reason"] for each in events if each["source"].get("component") == "numawarden"
        }
        return ours | {each["reportingComponent"] for each in events if each["reason"] in ours}

    checks.eventually(
        "with an Event of the agent", reasons, {"TopologyAffinityError", "numawarden"}
    )
    kubelet.remove("waiting")
    node.is_gone(pod("second", 2))
    checks.eventually(
        "what is free is published", lambda: sorted(_free(kubelet).values()), [FREE - 5, FREE]
    )
    node.is_gone(pod("large", 1))


@contextmanager
def plugin(guest: Guest, *devices: str) -> Iterator[None]:
    """Serve devices to the kubelet from a process of its own."""
    python = Path(PROGRAM).with_name("python3")
    log = (guest.out / "plugin.log").open("ab")
    process = subprocess.Popen(
        [python, "-P", guest.job / PLUGIN, DIRECTORY / "device-plugins", WIDGET, *devices],
        stdout=log,
        stderr=log,
        env={"PYTHONPATH": str(guest.job)},
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()
        log.close()


def _device(guest: Guest, node: Node) -> None:
    """Have the kubelet give devices of node 1: the agent gives CPUs there."""
    checks, kubelet = node.checks, node.kubelet
    assert isinstance(kubelet, RealKubelet)
    with plugin(guest, "w0=1", "w1=1"):

        def allocatable() -> str:
            found = kubelet.api.get(f"/api/v1/nodes/{NODE}")["status"]["allocatable"]
            amount: str = found.get(WIDGET, "")
            return amount

        checks.eventually("the kubelet offers the plugin's devices", allocatable, "2")
        near = pod("near", 6, container("app", amounts(2) | {WIDGET: "1"}))
        uid = node.runs(near)
        given = node.cpus(uid, "app")
        second = kernel.ids(Path("/sys/devices/system/node/node1/cpulist").read_text())
        checks.check(
            "CPUs are near the kubelet's device", len(given) == 2 and given <= second, given
        )
        shown = command(
            *("env", f"PYTHONPATH={guest.job}", Path(PROGRAM).with_name("python3")),
            *("-P", guest.job / PLUGIN, "--list"),
            POD_RESOURCES,
        )
        [entry] = [each for each in json.loads(shown) if each["pod"] == "near"]
        checks.equal("podresources has the CPUs", frozenset(entry["cpus"]), given)
        checks.equal("and the device", len(entry["devices"].get(WIDGET, ())), 1, entry)
        node.is_gone(near)


@contextmanager
def _next_start(kubelet: RealKubelet) -> Iterator[None]:
    """Have files that break the node at the next start of kubelet and runtime, in this context."""
    text = containerd.CONFIG.read_text()
    kept = [line for line in text.splitlines() if not line.startswith("disabled_plugins")]
    kubelet.configure(featureGates={}, cgroupDriver="cgroupfs")
    # What an imported file says in NRI's own table would count more than this file.
    containerd.CONFIG.write_text(
        "\n".join(['disabled_plugins = ["io.containerd.nri.v1.nri"]', *kept])
    )
    try:
        yield
    finally:
        containerd.CONFIG.write_text(text)
        kubelet.configure()


def _doctor(guest: Guest, node: Node, kubelet: RealKubelet) -> None:
    """Have the doctor look at a node that is as the documents have it, and will not be so."""
    outcome = attempt(PROGRAM, "doctor")
    guest.log("doctor.txt", str(outcome))
    node.checks.equal("the doctor finds no error", outcome.status, 0, outcome)
    versions = re.findall(r"v1\.\d+\.\d+|containerd\S* \S+", outcome.stdout)
    node.checks.check("and names versions", versions, outcome)
    with _next_start(kubelet):
        outcome = attempt(PROGRAM, "doctor", "-o", "json")
    found = {one["check"]: one["found"] for one in json.loads(outcome.stdout)["checks"]}
    late = {name for name, text in found.items() if "now " in text and "next start" in text}
    node.checks.equal("it names what the next start takes away", late & TAKEN, TAKEN, found)
    outcome = attempt(PROGRAM, "config", "check", CONFIG)
    node.checks.check(
        "config check names the kubelet as the source of pods",
        outcome.status == 0 and "pods come over the socket alone" not in outcome.stdout,
        outcome,
    )


def _other_lists(guest: Guest, node: Node, kubelet: RealKubelet) -> None:
    """Take the Pods API away, then the endpoint.

    The endpoint lists whole pods. The file of kubelet v1.36 has no names or kinds of containers:
    its pods share, and nothing is decided for them.
    """
    endpoint: Mapping[str, object] = {
        "podsEndpoint": "https://127.0.0.1:10250/pods",
        "tokenFile": "/etc/numawarden/kubernetes-token",
        "verifyCertificate": False,
    }
    kept = node.runs(pod("kept", 7, own("app", 2)))
    _start_again(node, kubelet, endpoint)
    _has_cpus(node, "endpoint: the kubelet's pod is kept", kept)
    listed = pod("by-endpoint", 8, own("app", 2))
    _has_cpus(node, "endpoint: a new pod has its CPUs", node.runs(listed))
    node.is_gone(listed)
    _start_again(node, kubelet, {})
    _has_cpus(node, "file: the kubelet's pod is kept", kept)
    unknown = pod("by-file", 9, own("app", 2))
    uid = node.runs(unknown)
    taken = node.cpus(kept, "app")
    node.checks.eventually(
        "file: a new pod has no exclusive CPUs", lambda: node.cpus(uid, "app") & taken, frozenset()
    )
    found = node.cpus(uid, "app")
    node.checks.check("file: it shares the others", len(found) > 2 * FREE - 2, found)
    node.checks.eventually(
        "file: its Event says so",
        lambda: "RunsShared" in {each["reason"] for each in kubelet.api.events("by-file")},
        expected=True,
    )
    guest.log("status-by-file.json", json.dumps(node.agent.status(), indent=1))
    kubelet.remove("by-file")


def _start_again(node: Node, kubelet: RealKubelet, endpoint: Mapping[str, object]) -> None:
    """Start agent and kubelet again, without the Pods API, with an endpoint or without."""
    node.agent.stop()
    kubelet.stop()
    kubelet.configure(featureGates={})
    node.configure(**endpoint)
    node.agent.start()
    kubelet.start()


def _has_cpus(node: Node, name: str, uid: str) -> None:
    node.checks.eventually(name, lambda: len(node.cpus(uid, "app")), 2)


def _unpublished(node: Node, kubelet: RealKubelet) -> None:
    """Take the topology out of the cluster, as docs/node-topology.md has it."""
    kubernetes = node.agent_settings["kubernetes"]
    assert isinstance(kubernetes, dict)
    node.agent_settings["kubernetes"] = {**kubernetes, "publishTopology": False}
    node.configure()
    node.agent.restart()
    published = _zones(kubelet)
    node.checks.check("an agent that publishes no more leaves it", published, published)
    outcome = attempt(PROGRAM, "unpublish", "--config", CONFIG)
    node.checks.equal("unpublish succeeds", outcome.status, 0, outcome)
    node.checks.equal("it is gone", _zones(kubelet), {})
