"""`numawarden doctor`: a line for each check, and an exit code for errors alone."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from agent.cli import doctor
from agent.cli.errors import ExitCode
from tests.agent.tools.doctor import hosts
from tests.agent.tools.doctor.hosts import FakeHost

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.cli.shell import Command


class Examined:
    """A host, the command, and what it printed."""

    def __init__(self, directory: Path, command: Command) -> None:
        self.host = FakeHost(directory / "host")
        # Nothing listens there, and to ask takes its time.
        self.host.remove("/run/containerd/containerd.sock")
        self.host.socket("/run/crio/crio.sock")
        self.file = directory / "config.yaml"
        self._command = command

    def run(self, *options: str) -> tuple[int, str]:
        self.file.write_text(self.host.agent)
        root = ("--root", self.host.root)
        return self._command("doctor", "--config", self.file, *root, *options)[:2]


@pytest.fixture
def examined(tmp_path: Path, run: Command) -> Examined:
    return Examined(tmp_path, run)


def test_warnings_leave_the_exit_code_at_0(examined: Examined) -> None:
    # Nothing answers for a kubelet that runs, which would be an error.
    examined.host.stop_kubelet()
    examined.host.add(hosts.CONFIG, "topologyManagerPolicy: restricted\n")
    code, out = examined.run()
    assert (code, "ERROR" in out) == (ExitCode.OK, False)
    assert re.search(
        r"^warning  kubelet topology manager  topologyManagerPolicy is .*\n"
        rf" +-> write `topologyManagerPolicy: none` in {hosts.CONFIG}$",
        out,
        re.MULTILINE,
    )


def test_an_error_is_exit_code_1_and_stands_out_in_text_and_document(examined: Examined) -> None:
    examined.host.add(hosts.CONFIG, "cpuManagerPolicy: static\n")
    code, out = examined.run()
    assert code == ExitCode.REJECTED
    assert "ERROR    kubelet CPU manager       now none (" in out
    assert "from the kubelet's next start on two managers of cpusets on one host" in out
    code, text = examined.run("-o", "json")
    document = json.loads(text)
    assert (code, document["ok"]) == (ExitCode.REJECTED, False)
    by_name = {one["check"]: one for one in document["checks"]}
    assert by_name["kubelet CPU manager"]["verdict"] == "error"
    assert by_name["kubelet CPU manager"]["change"].startswith("write `cpuManagerPolicy: none`")
    assert by_name["cgroup v2"]["verdict"] == "ok"


def test_names_from_files_of_others_cannot_write_to_the_terminal(examined: Examined) -> None:
    examined.host.process(hosts.PID, "kubelet", "--config", "/etc/\x1b[2Jx")
    assert "\x1b" not in examined.run()[1]


def test_a_setting_of_the_command_line_counts(examined: Examined) -> None:
    code, out = examined.run("--set", "agent.kubelet.enabled=false")
    assert code == ExitCode.REJECTED
    assert "agent.kubelet.enabled is false and a kubelet runs" in out
    examined.host.agent = "agent: {kubelet: {ignored: true}}\n"
    code, out = examined.run()
    assert code == ExitCode.OK
    assert "warning  beside the kubelet        a kubelet runs" in out


def test_a_host_without_kubelet_and_runtime_is_well_with_the_defaults_too(
    examined: Examined, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = examined.host
    host.stop_kubelet()
    for path in (hosts.CONFIG, "/run/crio/crio.sock"):
        host.remove(path)
    monkeypatch.setattr(doctor, "CONFIG_FILE", examined.file)
    code, out, _ = run("doctor", "--root", host.root)
    assert code == ExitCode.OK
    assert f"warning  configuration             {examined.file} does not exist" in out
    host.agent = "cpuManagerPolicy: static\nreservedSystemCPUs: '0'\n"
    code, out = examined.run()
    assert (code, "container runtime" in out) == (ExitCode.OK, False)
    assert "ok       beside the kubelet        agent.kubelet.enabled is false and no kubelet" in out
    host.write("/sys/fs/cgroup/cgroup.controllers", "cpu memory\n")
    assert examined.run()[0] == ExitCode.REJECTED
    host.agent = "cgroupDriver: other\n"
    assert examined.run()[0] == ExitCode.BAD_INPUT
