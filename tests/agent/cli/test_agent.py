from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from agent.cli.errors import ExitCode
from agent.cli.main import run_command
from agent.server import process as service

if TYPE_CHECKING:
    from pathlib import Path


def test_what_the_host_rejects_is_not_bad_input_so_that_systemd_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("cgroupDriver: cgroupfs\n")

    def rejected(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files", "/sys/fs/cgroup/kubepods")

    monkeypatch.setattr(service, "run", rejected)
    assert run_command(["agent", "--config", str(config)]) == ExitCode.ENVIRONMENT
    said = capsys.readouterr().err
    assert said == "numawarden: error: /sys/fs/cgroup/kubepods: Too many open files\n"


def test_a_wrong_configuration_is_bad_input_which_a_restart_does_not_mend(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("cgroupDriver: none\n")
    assert run_command(["agent", "--config", str(config)]) == ExitCode.BAD_INPUT


def test_a_configuration_that_others_could_replace_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("cgroupDriver: cgroupfs\n")
    tmp_path.chmod(0o777)
    assert run_command(["agent", "--config", str(config)]) == ExitCode.ENVIRONMENT
    assert capsys.readouterr().err == (
        f"numawarden: error: configuration {config}: {tmp_path} can be written by others (mode "
        f"0777), who could make the agent do anything; close it: chmod go-w {tmp_path}\n"
    )


def test_a_configuration_that_is_a_pipe_is_rejected_without_waiting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    assert run_command(["agent", "--config", str(tmp_path / "pipe")]) == ExitCode.BAD_INPUT
    assert "pipe: it is not a regular file" in capsys.readouterr().err


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_the_directory_of_the_kubelets_plugins_is_made_as_a_kubelet_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: int
) -> None:
    monkeypatch.setattr(service, "run", None)  # the agent does not start
    kubelet = tmp_path / "lib/kubelet"
    config = tmp_path / "config.yaml"
    config.write_text(
        f"cgroupDriver: systemd\nagent: {{kubelet: {{enabled: true, directory: {kubelet}}}}}\n"
    )
    before = os.umask(umask)
    try:
        for _ in range(2):
            arguments = ["agent", "--config", str(config), "--make-directories"]
            assert run_command(arguments) == ExitCode.OK
    finally:
        os.umask(before)
    made = {path: path.stat().st_mode & 0o777 for path in (kubelet, kubelet / "device-plugins")}
    assert set(made.values()) == {0o750}


@pytest.mark.parametrize("setting", ["enabled: false", 'enabled: true, exclusiveResource: ""'])
def test_a_host_gets_no_directory_of_a_kubelet_without_need(tmp_path: Path, setting: str) -> None:
    config = tmp_path / "config.yaml"
    text = f"agent: {{kubelet: {{{setting}, directory: {tmp_path}/kubelet}}}}\n"
    config.write_text(f"cgroupDriver: systemd\n{text}")
    assert run_command(["agent", "--config", str(config), "--make-directories"]) == ExitCode.OK
    assert list(tmp_path.iterdir()) == [config]
