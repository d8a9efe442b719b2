from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from agent.api.topology import topology_view
from agent.cli.errors import ExitCode
from sysfs.described import regular_host, write_tree
from sysfs.discover import discover

if TYPE_CHECKING:
    import pytest

    from tests.agent.cli.shell import Command


def test_json_is_the_view_of_a_host_and_of_another_root_needs_no_pyroute2(tmp_path: Path) -> None:
    host = regular_host(hugepages=[(2 << 20, 4)])
    write_tree(host, tmp_path)
    script = (
        "import sys; from agent.cli.main import run_command;"
        f"run_command(['topology', '--root', {str(tmp_path)!r}, '--output', 'json']);"
        "print('pyroute2' in sys.modules, file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stderr == "False\n"
    assert json.loads(ran.stdout) == topology_view(host)


def test_a_capture_of_this_host_shows_the_same_host(run: Command, tmp_path: Path) -> None:
    assert run("capture", tmp_path / "host.tar.gz")[0] == ExitCode.OK
    subprocess.run(["tar", "-xzf", tmp_path / "host.tar.gz", "-C", tmp_path], check=True)
    code, out, _ = run("topology", "--output", "json")
    assert code == ExitCode.OK
    assert json.loads(out) == topology_view(discover(Path("/")))
    again, now = discover(tmp_path), discover(Path("/"))
    assert (again.cpus, again.nodes) == (now.cpus, now.nodes)
    assert {each.address for each in again.devices} == {each.address for each in now.devices}


def test_a_dash_is_standard_output(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, file = write_tree(regular_host(), tmp_path / "host"), tmp_path / "host.tar.gz"
    monkeypatch.chdir(tmp_path)
    command = ["-m", "agent.cli.main", "capture", "-", "--root", str(root)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    ran = subprocess.run([sys.executable, *command], capture_output=True, check=True)
    assert run("capture", file, "--root", root)[0] == ExitCode.OK
    assert ran.stdout == file.read_bytes()
    assert ran.stderr.startswith(b"standard output: ")
    assert not (tmp_path / "-").exists()
