from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from agent.api.map import topology_view
from agent.cli.errors import ExitCode
from agent.cli.main import run_command
from sysfs.described import regular_host, with_memory_only_nodes, with_offline, write_tree
from sysfs.discover import discover
from sysfs.mask import Mask
from tests.sysfs.hosts import with_isolated

if TYPE_CHECKING:
    from pathlib import Path

    from sysfs.host import Host


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")


def _shown(host: Host, root: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    write_tree(host, root)
    assert run_command(["topology", "--root", str(root), *options]) == 0
    return capsys.readouterr().out


def test_json_is_the_view_of_the_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host = regular_host(hugepages=[(2 << 20, 4)])
    output = _shown(host, tmp_path, capsys, "--output", "json")
    assert json.loads(output) == topology_view(host)


def test_the_picture_shows_packages_nodes_caches_cores_and_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host = with_memory_only_nodes(
        regular_host(packages=2, cores_per_node=2, memory_bytes=3 << 30, hugepages=[(2 << 20, 8)]),
        [64 << 30],
    )
    # Not a terminal: no line is wrapped or padded, however narrow $COLUMNS is.
    assert _shown(host, tmp_path, capsys) == (
        "8 CPUs (8 online), 2 packages, 3 nodes, 1 memory-only node, 2 L3 caches, "
        "4 cores x 2 threads, 70 GiB of memory\n"
        "package 0, node 0, L3 0  CPUs 0-1,4-5\n"
        "  memory class  dram\n"
        "  memory        3 GiB\n"
        "  hugepages-2Mi 16 MiB\n"
        "  cpu    0  1\n"
        "         4  5\n"
        "package 1, node 1, L3 2  CPUs 2-3,6-7\n"
        "  memory class  dram\n"
        "  memory        3 GiB\n"
        "  hugepages-2Mi 16 MiB\n"
        "  cpu    2  3\n"
        "         6  7\n"
        "node 2  no CPUs; nearest CPUs: nodes 0-1 (distance 28)\n"
        "  memory class  unknown\n"
        "  memory        64 GiB\n"
        "distances\n"
        "            0  1  2\n"
        "  node   0 10 21 28\n"
        "  node   1 21 10 28\n"
        "  node   2 28 28 10\n"
    )


def test_offline_and_isolated_cpus_are_marked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host = with_isolated(regular_host(packages=1, cores_per_node=3), Mask.of(1, 4))
    output = _shown(with_offline(host, Mask.of(5)), tmp_path, capsys)
    assert "  cpu    0  1* 2\n         3  4*\n" in output
    assert "offline, node 0  CPUs 5\n" in output
    assert "isolated (*)  CPUs 1,4\n" in output


def test_a_host_of_64_nodes_fits_a_screen_of_80_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host = regular_host(4, 16, 4, 2, uncores_per_node=2)
    output = _shown(host, tmp_path, capsys)
    assert len(output.splitlines()) < 24
    assert "16 nodes 16-31  CPUs 64-127,320-383: each 16 GiB, 2 L3, 4 cores x 2 threads" in output
    assert "nodes 16-31: 10 to itself, 12 to 16-31, 21 to 0-15,32-63" in output


def test_a_directory_without_a_tree_is_one_line_and_exit_code_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["topology", "--root", str(tmp_path)]) == 3
    error = capsys.readouterr().err
    assert error.startswith(f"numawarden: error: {tmp_path}/sys/devices/system/cpu/online: ")
    assert error.count("\n") == 1


def test_a_damaged_file_is_named_with_exit_code_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tree(regular_host(), tmp_path)
    (tmp_path / "sys/devices/system/node/node0/cpulist").write_text("0-x")
    assert run_command(["topology", "--root", str(tmp_path)]) == 3
    assert "node0/cpulist: found '0-x'" in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--root", "/nonexistent"], ["--output", "xml"], ["extra"]])
def test_a_wrong_command_line_is_exit_code_2(options: list[str]) -> None:
    assert run_command(["topology", *options]) == 2


def test_this_host_can_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["topology", "--output", "json"]) == 0
    view = json.loads(capsys.readouterr().out)
    assert view["totals"]["online"] == sum(cpu["online"] for cpu in view["cpus"]) > 0


def test_json_of_another_root_needs_no_pyroute2(tmp_path: Path) -> None:
    write_tree(regular_host(), tmp_path)
    script = (
        "import sys; from agent.cli.main import run_command;"
        f"run_command(['topology', '--root', {str(tmp_path)!r}, '--output', 'json']);"
        "print('pyroute2' in sys.modules, file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stderr == "False\n"


def test_an_odd_file_is_a_warning_on_standard_error_and_in_the_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tree(regular_host(), tmp_path)
    (tmp_path / "sys/devices/system/node/node0/meminfo").write_text("none")
    assert run_command(["topology", "--root", str(tmp_path), "--output", "json"]) == 0
    shown = capsys.readouterr()
    (warning,) = json.loads(shown.out)["warnings"]
    assert shown.err == f"numawarden: warning: {warning}\n"
    assert "node0/meminfo: found 'none'" in warning
    assert run_command(["topology", "--root", str(tmp_path)]) == 0
    assert "\n  memory        size unknown\n" in capsys.readouterr().out


def test_full_shows_every_node_of_a_large_host(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host = regular_host(2, 9, 14, 2)
    assert "9 nodes 0-8  CPUs 0-125,252-377: each" in _shown(host, tmp_path / "one", capsys)
    output = _shown(host, tmp_path / "two", capsys, "--full")
    assert all(
        f"node {node.id}, L3 {node.cpus.lowest}  CPUs {node.cpus}\n" in output
        for node in host.nodes
    )


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


def test_a_capture_overwrites_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "host.tar.gz"
    file.write_bytes(b"of another day")
    assert run_command(["capture", str(file)]) == ExitCode.BAD_INPUT
    assert f"{file} exists; remove it, or name another file" in capsys.readouterr().err
    assert file.read_bytes() == b"of another day"
