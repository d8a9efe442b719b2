from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from agent.cli.errors import ExitCode
from agent.managers.versions import KubernetesVersion
from agent.state.store import Store
from agent.tools.kubelet_state.files import KubeletState, encode_files
from agent.tools.kubelet_state.memory import MemoryState
from sysfs.described import regular_host, write_tree
from tests.agent.tools.kubelet_state.machines import cpu_state

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.cli.shell import Command

#: As a kubelet of this machine and configuration wrote them.
CPU = (
    b'{"policyName":"static","defaultCpuSet":"0,4-8,11-15","entries":{"u1":{"a":"1,9"},'
    b'"u2":{"b":"2,10","c":"3"}},"checksum":234496751}'
)
MEMORY = b'{"policyName":"None","machineState":{},"checksum":4236770233}'
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web", "namespace": "shop", "uid": "u1"},
    "spec": {"containers": [{"name": "a", "resources": {"limits": {"cpu": "2", "memory": "1Gi"}}}]},
}


class Host:
    """A machine, a kubelet's directory and a configuration, with the agent's state directory."""

    def __init__(self, path: Path, command: Command) -> None:
        self.command = command
        self.root = write_tree(regular_host(cores_per_node=4, threads=2), path / "host")
        self.kubelet, self.state = path / "kubelet", path / "state"
        self.kubelet.mkdir()
        self.state.mkdir(mode=0o700)
        self.config = path / "config.yaml"
        self.config.write_text(
            f"cpuManagerPolicy: static\nreservedSystemCPUs: '0'\n"
            f"agent: {{stateDirectory: {self.state}, sysfsRoot: {self.root}}}\n"
        )

    def write(self, cpu: bytes = CPU, memory: bytes = MEMORY) -> None:
        (self.kubelet / "cpu_manager_state").write_bytes(cpu)
        (self.kubelet / "memory_manager_state").write_bytes(memory)

    def files(self) -> tuple[bytes, ...]:
        names = ("cpu_manager_state", "memory_manager_state")
        return tuple((self.kubelet / name).read_bytes() for name in names)

    def run(self, command: str, *options: object) -> tuple[int, str, str]:
        files = ["--config", self.config, "--kubelet", self.kubelet]
        return self.command("state", command, *files, *options)


@pytest.fixture
def host(tmp_path: Path, run: Command) -> Host:
    return Host(tmp_path, run)


def test_budgets_move_from_a_kubelet_v1_37_and_back_in_the_formats_that_were_there(
    host: Host,
) -> None:
    cpu = cpu_state("0,4-8,12-15", {"u1": {"a": "1,9"}, "u2": {"b": "2"}}, {"u2": "2-3,10-11"})
    found = KubeletState(cpu, MemoryState("None"))
    files = encode_files(found, pod_level=True, release=KubernetesVersion.V1_37)
    host.write(*files.values())
    code, _, err = host.run("import")
    assert (code, "PodLevelResourceManagers" in err) == (ExitCode.BAD_INPUT, True)
    gate = "featureGates: {PodLevelResourceManagers: true}\n"
    host.config.write_text(host.config.read_text() + gate)
    assert host.run("import")[0] == ExitCode.OK
    code, out, _ = host.run("export", "--force")
    assert code == ExitCode.OK
    assert "cpu_manager_state: written for kubelet v1.37" in out
    assert host.files() == tuple(files.values())
    for same in ("1.36", "v1.36"):
        assert host.run("export", "--force", "--for", same)[0] == ExitCode.OK
        assert host.files() == tuple(encode_files(found, pod_level=True).values())
    assert host.run("export", "--force", "--for", "1.38")[0] == ExitCode.OK
    assert host.files() == tuple(files.values())


def test_manifests_complete_what_is_imported(host: Host, tmp_path: Path) -> None:
    host.write()
    pods = tmp_path / "pods.json"
    pods.write_text(json.dumps({"kind": "List", "items": [POD]}))
    code, out, _ = host.run("import", "--pods", pods)
    assert (code, "asked for: 1 pods (u2)" in out) == (ExitCode.OK, True)
    with Store(host.state) as store:
        saved = store.load().state
    assert saved is not None
    names = [(g.namespace, g.name) for g in saved.ledger.allocations.values()]
    assert names == [("shop", "web"), ("", "")]


@pytest.mark.parametrize("command", ["import", "export"])
def test_nothing_is_moved_beside_a_running_agent(host: Host, command: str) -> None:
    host.write()
    with Store(host.state):
        code, _, err = host.run(command)
    assert (code, err.count("\n")) == (ExitCode.ENVIRONMENT, 1)
    assert err.startswith("numawarden: error: the agent is running (process ")
