from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from agent.cli.errors import ExitCode
from agent.server import process as service

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.cli.shell import Command


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "config.yaml"
    file.write_text("cgroupDriver: cgroupfs\n")
    return file


def test_what_the_host_rejects_is_not_bad_input_so_that_systemd_tries_again(
    run: Command, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rejected(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files", "/sys/fs/cgroup/kubepods")

    monkeypatch.setattr(service, "run", rejected)
    said = "numawarden: error: /sys/fs/cgroup/kubepods: Too many open files\n"
    assert run("agent", "--config", config) == (ExitCode.ENVIRONMENT, "", said)


def test_a_wrong_configuration_is_bad_input_which_a_restart_does_not_mend(
    run: Command, config: Path
) -> None:
    config.write_text("cgroupDriver: none\n")
    assert run("agent", "--config", config)[0] == ExitCode.BAD_INPUT
    os.mkfifo(config.with_name("pipe"), 0o600)
    code, _, err = run("agent", "--config", config.with_name("pipe"))
    assert (code, "pipe: it is not a regular file" in err) == (ExitCode.BAD_INPUT, True)


def test_a_configuration_that_others_could_replace_is_rejected(
    run: Command, config: Path, tmp_path: Path
) -> None:
    tmp_path.chmod(0o777)
    said = (
        f"numawarden: error: configuration {config}: {tmp_path} can be written by others (mode "
        f"0777), who could make the agent do anything; close it: chmod go-w {tmp_path}\n"
    )
    assert run("agent", "--config", config) == (ExitCode.ENVIRONMENT, "", said)


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_the_directory_of_the_kubelets_plugins_is_made_as_a_kubelet_makes_it(
    run: Command, config: Path, monkeypatch: pytest.MonkeyPatch, umask: int
) -> None:
    monkeypatch.setattr(service, "run", None)  # the agent does not start
    kubelet = config.with_name("lib") / "kubelet"
    agent = f"agent: {{kubelet: {{enabled: true, directory: {kubelet}}}}}\n"
    config.write_text(f"cgroupDriver: systemd\n{agent}")
    before = os.umask(umask)
    try:
        for _ in range(2):
            assert run("agent", "--config", config, "--make-directories")[0] == ExitCode.OK
    finally:
        os.umask(before)
    modes = {path.stat().st_mode & 0o777 for path in (kubelet, kubelet / "device-plugins")}
    assert modes == {0o750}


@pytest.mark.parametrize("setting", ["enabled: false", 'enabled: true, exclusiveResource: ""'])
def test_a_host_gets_no_directory_of_a_kubelet_without_need(
    run: Command, config: Path, setting: str
) -> None:
    text = f"agent: {{kubelet: {{{setting}, directory: {config.parent}/kubelet}}}}\n"
    config.write_text(f"cgroupDriver: systemd\n{text}")
    assert run("agent", "--config", config, "--make-directories")[0] == ExitCode.OK
    assert list(config.parent.iterdir()) == [config]
