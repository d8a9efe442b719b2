from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from agent.cli.main import run_command
from sysfs.described.shapes import regular_host
from sysfs.described.tree import write_tree
from sysfs.discover import discover

if TYPE_CHECKING:
    from pathlib import Path


def test_a_capture_of_another_root_shows_the_same_host(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, file = write_tree(regular_host(), tmp_path / "host"), tmp_path / "host.tar.gz"
    assert run_command(["capture", str(file), "--root", str(root)]) == 0
    assert capsys.readouterr().out.startswith(f"{file}: ")
    (tmp_path / "again").mkdir()
    subprocess.run(["tar", "-xzf", file, "-C", tmp_path / "again"], check=True)
    assert discover(tmp_path / "again") == regular_host()


def test_a_capture_of_this_host_shows_the_same_host(tmp_path: Path) -> None:
    file = tmp_path / "host.tar.gz"
    assert run_command(["capture", str(file)]) == 0
    subprocess.run(["tar", "-xzf", file, "-C", tmp_path], check=True)
    again, now = discover(tmp_path), discover(tmp_path.__class__("/"))
    assert (again.cpus, again.nodes) == (now.cpus, now.nodes)
    assert {device.address for device in again.devices} == {d.address for d in now.devices}


def test_a_file_that_cannot_be_written_is_one_line_and_exit_code_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_tree(regular_host(), tmp_path / "host")
    file = tmp_path / "missing" / "host.tar.gz"
    assert run_command(["capture", str(file), "--root", str(root)]) == 3
    error = capsys.readouterr().err
    assert error.startswith("numawarden: error: ")
    assert f"{file}: No such file or directory" in error
    assert error.count("\n") == 1


def test_a_root_without_a_tree_is_exit_code_3_and_no_file(tmp_path: Path) -> None:
    file = tmp_path / "host.tar.gz"
    assert run_command(["capture", str(file), "--root", str(tmp_path)]) == 3
    assert not file.exists()


def test_a_capture_needs_the_name_of_a_file(tmp_path: Path) -> None:
    assert run_command(["capture"]) == 2
    assert run_command(["capture", str(tmp_path)]) == 2


def test_a_dash_is_standard_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, file = write_tree(regular_host(), tmp_path / "host"), tmp_path / "host.tar.gz"
    monkeypatch.chdir(tmp_path)
    command = ["-m", "agent.cli.main", "capture", "-", "--root", str(root)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    ran = subprocess.run([sys.executable, *command], capture_output=True, check=True)
    assert run_command(["capture", str(file), "--root", str(root)]) == 0
    assert ran.stdout == file.read_bytes()
    assert ran.stderr.startswith(b"standard output: ")
    assert not (tmp_path / "-").exists()


@pytest.mark.parametrize("name", ["/dev/full", "/dev/null", "/dev/stdout"])
def test_a_device_is_rejected_in_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    monkeypatch.setattr("pathlib.Path.replace", lambda *_: pytest.fail("it was replaced"))
    root = write_tree(regular_host(), tmp_path / "host")
    assert run_command(["capture", name, "--root", str(root)]) == 3
    assert capsys.readouterr().err.startswith(f"numawarden: error: {name}: it is ")
