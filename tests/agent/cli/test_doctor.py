"""`numawarden doctor`: a line for each check, and an exit code for errors alone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from agent.cli import doctor
from agent.cli.errors import ExitCode
from agent.cli.main import run_command
from tests.agent.tools.doctor import hosts
from tests.agent.tools.doctor.hosts import FakeHost

if TYPE_CHECKING:
    from pathlib import Path


class Examined:
    """A host, the command, and what it printed."""

    def __init__(self, directory: Path, captured: pytest.CaptureFixture[str]) -> None:
        self.host = FakeHost(directory / "host")
        # Nothing listens there, and to ask takes its time.
        self.host.remove("/run/containerd/containerd.sock")
        self.host.socket("/run/crio/crio.sock")
        self.file = directory / "config.yaml"
        self._captured = captured

    def run(self, *options: str) -> tuple[int, str]:
        self.file.write_text(self.host.agent)
        command = ["doctor", "--config", str(self.file), "--root", str(self.host.root)]
        code = run_command([*command, *options])
        return code, self._captured.readouterr().out


@pytest.fixture
def examined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Examined:
    return Examined(tmp_path, capsys)


def test_warnings_leave_the_exit_code_at_0(examined: Examined) -> None:
    # Nothing answers for a kubelet that runs, which would be an error.
    examined.host.stop_kubelet()
    examined.host.add(hosts.CONFIG, "topologyManagerPolicy: restricted\n")
    code, out = examined.run()
    assert code == ExitCode.OK
    lines = out.splitlines()
    (number,) = (n for n, line in enumerate(lines) if "topology manager" in line)
    assert lines[number].startswith("warning  kubelet topology manager  topologyManagerPolicy is")
    assert lines[number + 1].strip() == (
        f"-> write `topologyManagerPolicy: none` in {hosts.CONFIG}"
    )
    assert "ERROR" not in out


def test_an_error_is_exit_code_1_and_stands_out(examined: Examined) -> None:
    examined.host.add(hosts.CONFIG, "cpuManagerPolicy: static\n")
    code, out = examined.run()
    assert code == ExitCode.REJECTED
    assert "ERROR    kubelet CPU manager       now none (" in out
    assert "from the kubelet's next start on two managers of cpusets on one host" in out


def test_the_document_has_every_check(examined: Examined) -> None:
    examined.host.add(hosts.CONFIG, "cpuManagerPolicy: static\n")
    code, out = examined.run("-o", "json")
    document = json.loads(out)
    assert (code, document["ok"]) == (ExitCode.REJECTED, False)
    by_name = {one["check"]: one for one in document["checks"]}
    assert by_name["kubelet CPU manager"]["verdict"] == "error"
    assert by_name["kubelet CPU manager"]["change"].startswith("write `cpuManagerPolicy: none`")
    assert by_name["cgroup v2"]["verdict"] == "ok"


def test_names_from_files_of_others_cannot_write_to_the_terminal(examined: Examined) -> None:
    examined.host.process(hosts.PID, "kubelet", "--config", "/etc/\x1b[2Jx")
    _, out = examined.run()
    assert "\x1b" not in out


def test_a_setting_of_the_command_line_counts(examined: Examined) -> None:
    code, out = examined.run("--set", "agent.kubelet.enabled=false")
    assert code == ExitCode.REJECTED
    assert "agent.kubelet.enabled is false and a kubelet runs" in out


def test_a_host_without_kubelet_and_runtime_is_well(examined: Examined) -> None:
    host = examined.host
    host.stop_kubelet()
    for path in (hosts.CONFIG, "/run/crio/crio.sock"):
        host.remove(path)
    host.agent = "cpuManagerPolicy: static\nreservedSystemCPUs: '0'\n"
    code, out = examined.run()
    assert code == ExitCode.OK
    assert "ok       beside the kubelet        agent.kubelet.enabled is false and no kubelet" in out
    assert "runtime" not in out
    host.write("/sys/fs/cgroup/cgroup.controllers", "cpu memory\n")
    assert examined.run()[0] == ExitCode.REJECTED


def test_a_kubelet_that_is_meant_to_be_there_is_a_warning(examined: Examined) -> None:
    examined.host.agent = "agent: {kubelet: {ignored: true}}\n"
    code, out = examined.run()
    assert code == ExitCode.OK
    assert "warning  beside the kubelet        a kubelet runs" in out


def test_without_a_configuration_the_defaults_are_looked_at(
    examined: Examined, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    host = examined.host
    host.stop_kubelet()
    host.remove(hosts.CONFIG)
    monkeypatch.setattr(doctor, "CONFIG_FILE", examined.file)
    assert run_command(["doctor", "--root", str(host.root)]) == ExitCode.OK
    out = capsys.readouterr().out
    assert f"warning  configuration             {examined.file} does not exist" in out


def test_a_configuration_with_mistakes_is_bad_input(examined: Examined) -> None:
    examined.host.agent = "cgroupDriver: other\n"
    assert examined.run()[0] == ExitCode.BAD_INPUT
