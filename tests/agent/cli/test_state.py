from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from agent.cli.errors import ExitCode
from agent.cli.main import run_command
from agent.managers.versions import KubernetesVersion
from agent.state.store import Store
from agent.tools.kubelet_state.files import KubeletState, encode_files
from agent.tools.kubelet_state.memory import MemoryState
from sysfs.described import regular_host, write_tree
from tests.agent.tools.kubelet_state.machines import cpu_state

if TYPE_CHECKING:
    from pathlib import Path

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

    def __init__(self, path: Path) -> None:
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

    def run(self, command: str, *options: str) -> int:
        files = ["--config", str(self.config), "--kubelet", str(self.kubelet)]
        return run_command(["state", command, *files, *options])


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_host_moves_from_the_kubelet_and_back(
    host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    host.write()
    assert host.run("import") == ExitCode.OK
    assert capsys.readouterr().out.splitlines() == [
        "2 pods taken over",
        "  exclusive CPUs  1-3,9-10",
        "  shared pool     0,4-8,11-15",
        "note: known by uid alone until they are asked for: 2 pods (u1, u2)",
    ]
    host.write(b"", b"")
    assert host.run("export", "--force") == ExitCode.OK
    assert (host.kubelet / "cpu_manager_state").read_bytes() == CPU
    assert (host.kubelet / "memory_manager_state").read_bytes() == MEMORY


def test_budgets_move_from_a_kubelet_v1_37_and_back_in_the_formats_that_were_there(
    host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    gate = "featureGates: {PodLevelResourceManagers: true}\n"
    host.config.write_text(host.config.read_text() + gate)
    cpu = cpu_state("0,4-8,12-15", {"u1": {"a": "1,9"}, "u2": {"b": "2"}}, {"u2": "2-3,10-11"})
    found = KubeletState(cpu, MemoryState("None"))
    files = encode_files(found, pod_level=True, release=KubernetesVersion.V1_37)
    host.write(*files.values())
    assert host.run("import") == ExitCode.OK
    capsys.readouterr()
    assert host.run("export", "--force") == ExitCode.OK
    assert "cpu_manager_state: written for kubelet v1.37" in capsys.readouterr().out
    assert (host.kubelet / "cpu_manager_state").read_bytes() == files["cpu_manager_state"]
    assert (host.kubelet / "memory_manager_state").read_bytes() == files["memory_manager_state"]
    assert host.run("export", "--force", "--for", "1.36") == ExitCode.OK
    older = encode_files(found, pod_level=True)
    assert (host.kubelet / "cpu_manager_state").read_bytes() == older["cpu_manager_state"]


def test_without_the_gate_budgets_of_a_kubelet_v1_37_are_not_passed_over(
    host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    cpu = cpu_state("0,4-8,12-15", {"u1": {"a": "1,9"}, "u2": {"b": "2"}}, {"u2": "2-3,10-11"})
    found = KubeletState(cpu, MemoryState("None"))
    host.write(*encode_files(found, pod_level=True, release=KubernetesVersion.V1_37).values())
    assert host.run("import") == ExitCode.BAD_INPUT
    assert "PodLevelResourceManagers" in capsys.readouterr().err


def test_manifests_complete_what_is_imported(
    host: Host, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host.write()
    pods = tmp_path / "pods.json"
    pods.write_text(json.dumps({"kind": "List", "items": [POD]}))
    assert host.run("import", "--pods", str(pods)) == ExitCode.OK
    assert "asked for: 1 pods (u2)" in capsys.readouterr().out
    with Store(host.state) as store:
        saved = store.load().state
    assert saved is not None
    assert [(g.namespace, g.name) for g in saved.ledger.allocations.values()] == [
        ("shop", "web"),
        ("", ""),
    ]


def test_what_is_rejected_changes_nothing(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.write(CPU.replace(b"0,4-8", b"0,4-7"))
    assert host.run("import") == ExitCode.BAD_INPUT
    error = capsys.readouterr().err
    assert "cpu_manager_state: $.checksum: says 234496751, the content has" in error
    assert not (host.state / "checkpoint.json").exists()
    host.write(CPU.replace(b'"checksum":234496751', b'"checksum":0').replace(b"0,4-8", b"0,4-7"))
    assert host.run("import") == ExitCode.BAD_INPUT
    assert "CPUs 8 are online but neither shared nor allocated" in capsys.readouterr().err
    assert not (host.state / "checkpoint.json").exists()


def test_pods_of_the_agent_are_replaced_only_by_force(
    host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    host.write()
    assert host.run("import") == ExitCode.OK
    assert host.run("import") == ExitCode.BAD_INPUT
    assert "has 2 pods already; --force replaces them" in capsys.readouterr().err
    assert host.run("import", "--force") == ExitCode.OK


def test_files_of_the_kubelet_are_replaced_only_by_force(
    host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    host.write()
    assert host.run("import") == ExitCode.OK
    assert host.run("export") == ExitCode.BAD_INPUT
    assert "--force replaces what the kubelet left" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["import", "export"])
def test_a_running_agent_is_reported_in_a_line(
    host: Host, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    host.write()
    with Store(host.state):
        assert host.run(command) == ExitCode.ENVIRONMENT
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("numawarden: error: the agent is running (process ")


def test_without_a_state_there_is_nothing_to_export(
    host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    assert host.run("export") == ExitCode.BAD_INPUT
    assert "there is no state to export" in capsys.readouterr().err


def test_a_directory_without_the_files_is_named(
    host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    assert host.run("import") == ExitCode.BAD_INPUT
    assert str(host.kubelet) in capsys.readouterr().err


def test_the_file_of_the_device_manager_is_neither_read_nor_written(host: Host) -> None:
    file = host.kubelet / "device-plugins" / "kubelet_internal_checkpoint"
    host.write()
    file.parent.mkdir()
    file.write_bytes(b"damaged")
    assert host.run("import") == ExitCode.OK
    assert host.run("export", "--force") == ExitCode.OK
    assert file.read_bytes() == b"damaged"
