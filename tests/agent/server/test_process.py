"""The agent as a process: started by a service manager, asked to stop, killed and started again."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from agent.api.client import AgentClient
from agent.cli.errors import ExitCode
from tests.agent.server.support import PATIENCE, UID, manifest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONFIG = """\
cpuManagerPolicy: static
reservedSystemCPUs: "0"
agent:
  stateDirectory: {directory}/state
  cdiDirectory: {directory}/cdi
  socketPath: {directory}/agent.sock
  sysfsRoot: {root}
  cgroupMount: {directory}/cgroup
  metrics: {{port: 0}}
"""


@dataclass
class Process:
    """A started agent, and the socket on which it reports its state."""

    child: subprocess.Popen[str]
    notified: socket.socket

    def wait_for(self, state: str) -> str:
        """Read notifications until one says `state`; return the whole of it."""
        while True:
            text = self.notified.recv(4096).decode()
            if state in text.split("\n"):
                return text

    def end(self, number: signal.Signals) -> tuple[int, list[dict[str, object]]]:
        """Send a signal; return the exit code and the log."""
        self.child.send_signal(number)
        _, log = self.child.communicate(timeout=PATIENCE)
        return self.child.returncode, [json.loads(line) for line in log.splitlines()]


@pytest.fixture
def place(tmp_path: Path, host_root: Path) -> Path:
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "cgroup").mkdir()
    (tmp_path / "config.yaml").touch(mode=0o600)
    (tmp_path / "config.yaml").write_text(CONFIG.format(directory=tmp_path, root=host_root))
    return tmp_path


@contextmanager
def listening(place: Path) -> Iterator[tuple[socket.socket, dict[str, str]]]:
    """Listen as a service manager; also return the environment of the service."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        (place / "notify").unlink(missing_ok=True)
        notified.bind(str(place / "notify"))
        notified.settimeout(PATIENCE)
        yield (
            notified,
            {**os.environ, "NOTIFY_SOCKET": str(place / "notify"), "WATCHDOG_USEC": "20000"},
        )


@contextmanager
def started(place: Path, *arguments: str) -> Iterator[Process]:
    with listening(place) as (notified, environment):
        command = [sys.executable, "-m", "agent.cli.main", "agent", "--emulate-cgroups"]
        child = subprocess.Popen(
            [*command, "--config", str(place / "config.yaml"), *arguments],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield Process(child, notified)
        finally:
            child.kill()
            child.communicate()


def test_it_informs_the_service_manager_that_it_is_ready_alive_and_stopping(place: Path) -> None:
    with started(place) as process:
        assert "STATUS=0 pods, 0 exclusive CPUs" in process.wait_for("READY=1")
        process.wait_for("WATCHDOG=1")
        process.wait_for("WATCHDOG=1")
        code, log = process.end(signal.SIGTERM)
        process.wait_for("STOPPING=1")
    assert code == ExitCode.OK
    # The host is this machine, whose files may be odd.
    messages = [e["message"] for e in log if e["message"] != "unexpected host data"]
    assert messages == ["starting", "ready", "stopped, workloads left unchanged"]
    assert not (place / "agent.sock").exists()


def test_a_hangup_has_it_look_at_everything_again(place: Path) -> None:
    manifests = place / "manifests"
    manifests.mkdir(mode=0o755)
    gate = ("--set", "featureGates={NodeSwap: true}")
    with started(place, "--set", f"staticPodPath={manifests}", *gate) as process:
        process.wait_for("READY=1")
        process.child.send_signal(signal.SIGHUP)
        (manifests / "web.yaml").write_bytes(manifest())
        process.wait_for("STATUS=1 pods, 2 exclusive CPUs, shared pool 0,2-8,10-15")
        code, log = process.end(signal.SIGINT)
    assert code == ExitCode.OK
    assert "resync requested" in [entry["message"] for entry in log]
    (note,) = [e["note"] for e in log if e["message"] == "feature gate changes nothing"]
    assert note == "featureGates.NodeSwap changes nothing here"


@pytest.mark.parametrize(
    ("added", "level", "said", "detail"),
    [
        ("", "info", "the configuration file has not changed", {}),
        ("maxPods: 7\n", "warning", "a restart applies what changed", {"keys": ["maxPods"]}),
        ("maxPods: x\n", "warning", "the agent would not start again", {}),
    ],
)
def test_a_hangup_says_what_became_of_the_configuration(
    place: Path, added: str, level: str, said: str, detail: dict[str, object]
) -> None:
    with started(place) as process:
        process.wait_for("READY=1")
        with (place / "config.yaml").open("a") as file:
            file.write(added)
        process.child.send_signal(signal.SIGHUP)
        stderr = process.child.stderr
        assert stderr is not None
        entry = next(
            found for line in stderr if "configuration" in (found := json.loads(line))["message"]
        )
        assert said in entry["message"]
        assert {**entry, "level": level, **detail} == entry


def test_one_that_was_killed_leaves_everything_and_the_next_picks_it_up(place: Path) -> None:
    client = AgentClient(place / "agent.sock", timeout=PATIENCE)
    with started(place) as process:
        process.wait_for("READY=1")
        answer = client.admit(manifest())
        assert answer.pod is not None
        process.end(signal.SIGKILL)
    cpus = place / "cgroup" / "kubepods" / f"pod{UID}" / "cpuset.cpus"
    assert cpus.read_text().strip() == answer.pod.exclusive_cpus == "1,9"
    with started(place) as process:
        assert "STATUS=1 pods, 2 exclusive CPUs" in process.wait_for("READY=1")
        (pod,) = client.pods()
        assert pod.exclusive_cpus == "1,9"
        process.end(signal.SIGTERM)
    assert cpus.read_text().strip() == "1,9"


def test_every_line_of_an_admission_has_its_id_and_no_manifest_is_logged(place: Path) -> None:
    client = AgentClient(place / "agent.sock", timeout=PATIENCE)
    secret = manifest().replace(
        b"image: example.org/app", b"image: a\n    env: [{name: P, value: hunter2}]"
    )
    with started(place, "--set", "agent.logging.level=debug") as process:
        process.wait_for("READY=1")
        client.admit(secret)
        client.remove(UID)
        _, log = process.end(signal.SIGTERM)
    admitted, removed = (entry for entry in log if "operation" in entry)
    assert admitted["message"] == "pod admitted"
    assert admitted["pod"] == "shop/web"
    assert admitted["operation"] != removed["operation"]
    assert "hunter2" not in json.dumps(log)


def test_what_keeps_it_from_starting_is_one_line_and_an_exit_code(place: Path) -> None:
    (place / "state").chmod(0o777)
    with started(place) as process:
        _, log = process.child.communicate(timeout=PATIENCE)
    assert process.child.returncode == ExitCode.ENVIRONMENT
    assert "Traceback" not in log
    assert log.splitlines()[-1].startswith("numawarden: error: state directory")
