"""docs/moving-a-node.md: its commands are run, in their order, on the files of a node."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import yaml

from agent.managers.cpu.manager import exclusive_cpus
from agent.state.store import peek
from sysfs.described import regular_host, write_tree
from tests.docs.hosts import ROOT

PAGE: Final = (ROOT / "docs/moving-a-node.md").read_text()
TO_AGENT, BACK = PAGE.split("## Back to the kubelet")
_SH: Final = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: As a kubelet of the host below writes it, with exclusive CPUs of two pods.
CPU: Final = (
    b'{"policyName":"static","defaultCpuSet":"0,4-8,11-15","entries":{"u1":{"a":"1,9"},'
    b'"u2":{"b":"2,10","c":"3"}},"checksum":234496751}'
)
MEMORY: Final = b'{"policyName":"None","machineState":{},"checksum":4236770233}'
DEVICES: Final = (
    b'{"Data":{"PodDeviceEntries":[{"PodUID":"u1","ContainerName":"a","ResourceName":"x.org/gpu",'
    b'"DeviceIDs":{"0":["g0"]},"AllocResp":""}],"RegisteredDevices":{"x.org/gpu":["g0"]}},'
    b'"Checksum":3311440873}'
)
KUBELET: Final = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: systemd
cpuManagerPolicy: static
cpuManagerPolicyOptions: {full-pcpus-only: "false"}
topologyManagerPolicy: restricted
reservedSystemCPUs: "0"
staticPodPath: /etc/kubernetes/manifests
"""
LIMITS: Final = {"cpu": "2", "memory": "1Gi", "x.org/gpu": "1"}
POD: Final = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web", "namespace": "shop", "uid": "u1"},
    "spec": {"containers": [{"name": "a", "resources": {"limits": LIMITS}}]},
}
_PROGRAM: Final = """\
#!/bin/sh
command=$1
shift
case "$command" in doctor) set -- --root {root} "$@" ;; esac
exec {numawarden} "$command" "$@"
"""
_KUBECTL: Final = "#!/bin/sh\ncat {root}/pods\n"
#: The slices that systemd lists.
SLICES: Final = ("kubepods-burstable.slice", "kubepods-podu1.slice")
_SYSTEMCTL: Final = """\
#!/bin/sh
case "$1" in
list-units) printf '%s loaded active active a slice\\n' {slices} ;;
*) echo "$@" >> {root}/units ;;
esac
"""


class Node:
    """A node's files below a directory, and a shell that takes them for the host's."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.kubelet = root / "var/lib/kubelet"
        self.state = root / "var/lib/numawarden"
        self.config = root / "etc/numawarden/config.yaml"
        for path in (self.kubelet / "device-plugins", self.config.parent, root / "bin"):
            path.mkdir(parents=True)
        self.state.mkdir(mode=0o700)
        write_tree(regular_host(cores_per_node=4, threads=2), root)
        (self.kubelet / "cpu_manager_state").write_bytes(CPU)
        (self.kubelet / "memory_manager_state").write_bytes(MEMORY)
        self.devices = self.kubelet / "device-plugins/kubelet_internal_checkpoint"
        self.devices.write_bytes(DEVICES)
        (self.kubelet / "config.yaml").write_text(KUBELET)
        (root / "pods").write_text(json.dumps({"kind": "List", "items": [POD]}))
        numawarden = Path(sys.executable).with_name("numawarden")
        for name, text in (
            ("numawarden", _PROGRAM),
            ("kubectl", _KUBECTL),
            ("systemctl", _SYSTEMCTL),
        ):
            program = root / "bin" / name
            program.write_text(
                text.format(root=root, numawarden=numawarden, slices=" ".join(SLICES))
            )
            program.chmod(0o755)

    def run(self, commands: str) -> subprocess.CompletedProcess[str]:
        """Run the commands of a block, with the paths of this node."""
        for path in ("/var/lib/kubelet", "/etc/numawarden"):
            commands = commands.replace(path, f"{self.root}{path}")
        environment = {**os.environ, "NODE": "n", "PATH": f"{self.root}/bin:{os.environ['PATH']}"}
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands],
            cwd=self.root,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def configure(self) -> None:
        """Name this node's places in the agent's configuration."""
        config = yaml.safe_load(self.config.read_text())
        config["agent"]["stateDirectory"] = str(self.state)
        config["agent"]["sysfsRoot"] = str(self.root)
        self.config.write_text(yaml.safe_dump(config))

    def turn_off(self) -> None:
        """Edit the kubelet's configuration as the page says."""
        file = self.kubelet / "config.yaml"
        config = yaml.safe_load(file.read_text())
        for line in re.findall(r"^(\w+): (\w+) +# and no (\w+)(?:,.*)?$", TO_AGENT, re.MULTILINE):
            key, value, options = line
            config[key] = value
            config.pop(options, None)
        file.write_text(yaml.safe_dump(config))

    def doctor(self) -> dict[str, str]:
        """Return the verdicts of `numawarden doctor` by check."""
        done = self.run("numawarden doctor --config /etc/numawarden/config.yaml -o json")
        return {one["check"]: one["verdict"] for one in json.loads(done.stdout)["checks"]}


def test_the_page_moves_a_node_and_back_and_no_cpu_is_decided_again(tmp_path: Path) -> None:
    node = Node(tmp_path)
    configure, take_over, start = _SH.findall(TO_AGENT)
    assert node.run(configure).returncode == 0
    config = yaml.safe_load(node.config.read_text())
    assert config["agent"]["kubelet"]["enabled"] is True
    assert not config["staticPodPath"]
    node.configure()
    assert node.doctor()["kubelet CPU manager"] == "error"
    done = node.run(take_over)
    assert done.returncode == 0, done.stderr
    saved = peek(node.state)
    assert saved is not None
    assert str(exclusive_cpus(saved.ledger)) == "1-3,9-10"
    assert [one.name for one in saved.ledger.allocations.values()] == ["web", ""]
    containers = [one for pod in saved.ledger.allocations.values() for one in pod.containers]
    assert [one.devices for one in containers if one.devices] == []
    node.turn_off()
    assert node.doctor()["kubelet CPU manager"] == "error"
    remove, doctor, *units = start.splitlines()
    assert node.run(remove).returncode == 0
    assert "ERROR    kubelet" not in node.run(doctor).stdout
    verdicts = node.doctor()
    for name in ("kubelet CPU manager", "kubelet memory manager", "kubelet topology manager"):
        assert verdicts[name] == "ok"
    assert {verdicts["manifest directory"], verdicts["reserved CPUs"]} == {"ok"}
    assert node.run("\n".join(units)).returncode == 0

    back, widen = _SH.findall(BACK)
    done = node.run(back)
    assert done.returncode == 0, done.stderr
    assert (node.kubelet / "cpu_manager_state").read_bytes() == CPU
    assert (node.kubelet / "memory_manager_state").read_bytes() == MEMORY
    assert (node.kubelet / "config.yaml").read_text() == KUBELET
    assert node.devices.read_bytes() == DEVICES
    assert (node.root / "units").read_text().splitlines() == [
        "stop kubelet",
        "enable --now numawarden",
        "start kubelet",
        "stop kubelet",
        "disable --now numawarden",
        "start kubelet",
    ]
    assert node.run(widen).returncode == 0
    online = Path("/sys/devices/system/cpu/online").read_text().strip()
    assert (node.root / "units").read_text().splitlines()[-len(SLICES) :] == [
        f"set-property --runtime {name} AllowedCPUs={online}" for name in SLICES
    ]
