"""The systemd unit leaves the agent what it needs, and no more."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from agent.config.agent import AgentConfig
from agent.server.listener import STOP_SECONDS
from systemd.bus import PATIENCE_SECONDS

UNIT = Path(__file__).resolve().parents[3] / "deploy" / "numawarden.service"
MIB = 1 << 20


@pytest.fixture
def settings() -> dict[str, str]:
    lines = (line for line in UNIT.read_text().splitlines() if re.match(r"\w+=", line))
    return dict(line.split("=", 1) for line in lines)


def size(text: str) -> int:
    return int(text.removesuffix("M")) * MIB


def test_what_is_bounded_is_more_than_was_measured(settings: dict[str, str]) -> None:
    # What has begun waits for the bus at most, and answers that are under way for the listeners.
    assert max(PATIENCE_SECONDS, 2 * STOP_SECONDS) < 10 < int(settings["TimeoutStopSec"])
    assert 1.5 * 303 * MIB < size(settings["MemoryHigh"]) < size(settings["MemoryMax"])
    assert int(settings["LimitNOFILE"]) > 2 * 329
    assert 2 < int(settings["TasksMax"]) <= 64


def test_the_agent_is_ready_before_a_kubelet_starts_which_it_does_not_need(
    settings: dict[str, str],
) -> None:
    assert "kubelet.service" in settings["Before"].split()
    assert settings["Type"] == "notify"
    others = ("Requires", "Requisite", "Wants", "BindsTo", "PartOf", "After", "Conflicts")
    assert not [key for key in others if "kubelet" in settings.get(key, "")]


def test_the_socket_of_the_plugin_can_be_made_where_the_kubelet_looks_for_it() -> None:
    directory = AgentConfig().kubelet.plugin_directory
    writable = [
        path.removeprefix("-")
        for line in UNIT.read_text().splitlines()
        if line.startswith("ReadWritePaths=")
        for path in line.partition("=")[2].split()
    ]
    assert str(directory) in writable


@pytest.mark.parametrize(
    ("written", "there", "made"),
    [
        ("agent: {kubelet: {enabled: true}}", False, True),
        ("agent: {kubelet: {enabled: true}}", True, False),
        ("cgroupDriver: systemd", False, False),
        (None, False, False),
    ],
    ids=["missing", "there", "no-kubelet", "no-configuration"],
)
def test_that_directory_is_made_before_the_start_by_the_agents_own_program(
    settings: dict[str, str], tmp_path: Path, written: str | None, *, there: bool, made: bool
) -> None:
    """Outside of the sandbox ("+"), without Python where it can be; the agent says failures."""
    start = settings["ExecStart"]
    command = settings["ExecStartPre"]
    assert command.startswith("-+")
    assert f"{start} --make-directories" in command
    program, _, rest = start.partition(" ")
    config = rest.partition("--config ")[2]
    if written is not None:
        (tmp_path / "config.yaml").write_text(written)
    (tmp_path / "numawarden").write_text('#!/bin/sh\necho "$@" >> "${0%/*}/runs"\n')
    (tmp_path / "numawarden").chmod(0o755)
    directory = tmp_path / "device-plugins"
    if there:
        directory.mkdir()
    moved = {
        program: str(tmp_path / "numawarden"),
        config: str(tmp_path / "config.yaml"),
        str(AgentConfig().kubelet.plugin_directory): str(directory),
    }
    for former, new in moved.items():
        command = command.replace(former, new)
    subprocess.run(shlex.split(command.removeprefix("-+")), check=True, timeout=60)
    runs = tmp_path / "runs"
    assert runs.exists() == made
    if made:
        assert runs.read_text() == f"agent --config {tmp_path}/config.yaml --make-directories\n"


@pytest.mark.parametrize("real", ["/run/cdi", "/run/numawarden-pods"])
def test_files_for_containers_can_be_written_and_their_directory_is_made_at_boot(
    real: str, settings: dict[str, str]
) -> None:
    directory = AgentConfig().cdi_directory
    assert directory is not None
    assert f"/run/{directory.relative_to('/var/run')}" == "/run/cdi"  # the file system's link
    assert not Path(real).is_relative_to(f"/run/{settings['RuntimeDirectory']}")  # goes with a stop
    assert f"ReadWritePaths=-{real}" in UNIT.read_text().splitlines()
    made = [line.split() for line in UNIT.with_name("tmpfiles.conf").read_text().splitlines()]
    assert ["d", str(real), "0755", "root", "root", "-"] in made


def test_the_state_directory_is_there_before_the_first_start(settings: dict[str, str]) -> None:
    made = [line.split() for line in UNIT.with_name("tmpfiles.conf").read_text().splitlines()]
    directory = f"/var/lib/{settings['StateDirectory']}"
    assert directory == str(AgentConfig().state_directory)
    assert ["d", directory, settings["StateDirectoryMode"], "root", "root", "-"] in made
