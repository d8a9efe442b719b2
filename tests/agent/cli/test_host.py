from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent.api.topology import topology_view
from agent.cli.errors import ExitCode
from sysfs.described import regular_host, with_memory_only_nodes, with_offline, write_tree
from sysfs.discover import discover
from sysfs.mask import Mask
from tests.sysfs.hosts import with_isolated

if TYPE_CHECKING:
    from collections.abc import Callable

    from sysfs.host import Host
    from tests.agent.cli.shell import Command


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.fixture
def shown(run: Command, tmp_path: Path) -> Callable[..., str]:
    def topology(host: Host, *options: str) -> str:
        shutil.rmtree(tmp_path / "host", ignore_errors=True)
        code, out, _ = run("topology", "--root", write_tree(host, tmp_path / "host"), *options)
        assert code == ExitCode.OK
        return out

    return topology


def test_json_is_the_view_of_the_host(shown: Callable[..., str]) -> None:
    host = regular_host(hugepages=[(2 << 20, 4)])
    assert json.loads(shown(host, "--output", "json")) == topology_view(host)


def test_the_picture_shows_packages_nodes_caches_cores_and_memory(
    shown: Callable[..., str],
) -> None:
    host = with_memory_only_nodes(
        regular_host(packages=2, cores_per_node=2, memory_bytes=3 << 30, hugepages=[(2 << 20, 8)]),
        [64 << 30],
    )
    # Not a terminal: no line is wrapped or padded, however narrow $COLUMNS is.
    assert shown(host).splitlines() == [
        (
            "8 CPUs (8 online), 2 packages, 3 nodes, 1 memory-only node, 2 L3 caches, "
            "4 cores x 2 threads, 70 GiB of memory"
        ),
        "package 0, node 0, L3 0  CPUs 0-1,4-5",
        "  memory class  dram",
        "  memory        3 GiB",
        "  hugepages-2Mi 16 MiB",
        "  cpu    0  1",
        "         4  5",
        "package 1, node 1, L3 2  CPUs 2-3,6-7",
        "  memory class  dram",
        "  memory        3 GiB",
        "  hugepages-2Mi 16 MiB",
        "  cpu    2  3",
        "         6  7",
        "node 2  no CPUs; nearest CPUs: nodes 0-1 (distance 28)",
        "  memory class  unknown",
        "  memory        64 GiB",
        "distances",
        "            0  1  2",
        "  node   0 10 21 28",
        "  node   1 21 10 28",
        "  node   2 28 28 10",
    ]


def test_offline_and_isolated_cpus_are_marked(shown: Callable[..., str]) -> None:
    host = with_isolated(regular_host(packages=1, cores_per_node=3), Mask.of(1, 4))
    output = shown(with_offline(host, Mask.of(5)))
    assert "  cpu    0  1* 2\n         3  4*\n" in output
    assert "offline, node 0  CPUs 5\n" in output
    assert "isolated (*)  CPUs 1,4\n" in output


def test_a_large_host_fits_a_screen_unless_every_node_is_asked_for(
    shown: Callable[..., str],
) -> None:
    output = shown(regular_host(4, 16, 4, 2, uncores_per_node=2))
    assert len(output.splitlines()) < 24
    assert "16 nodes 16-31  CPUs 64-127,320-383: each 16 GiB, 2 L3, 4 cores x 2 threads" in output
    assert "nodes 16-31: 10 to itself, 12 to 16-31, 21 to 0-15,32-63" in output
    host = regular_host(2, 9, 14, 2)
    output = shown(host, "--full")
    lines = [f"node {each.id}, L3 {each.cpus.lowest}  CPUs {each.cpus}\n" for each in host.nodes]
    assert [line for line in lines if line not in output] == []


def test_a_tree_that_is_missing_or_damaged_is_one_line(run: Command, tmp_path: Path) -> None:
    for command in (["topology"], ["capture", tmp_path / "host.tar.gz"]):
        code, _, err = run(*command, "--root", tmp_path)
        assert (code, err.count("\n")) == (ExitCode.BAD_INPUT, 1)
        assert err.startswith(f"numawarden: error: {tmp_path}/sys/devices/system/cpu/online: ")
    assert not (tmp_path / "host.tar.gz").exists()
    write_tree(regular_host(), tmp_path)
    (tmp_path / "sys/devices/system/node/node0/cpulist").write_text("0-x")
    code, _, err = run("topology", "--root", tmp_path)
    assert (code, "node0/cpulist: found '0-x'" in err) == (ExitCode.BAD_INPUT, True)


def test_an_odd_file_is_a_warning_on_standard_error_and_in_the_json(
    run: Command, tmp_path: Path
) -> None:
    write_tree(regular_host(), tmp_path)
    (tmp_path / "sys/devices/system/node/node0/meminfo").write_text("none")
    code, out, err = run("topology", "--root", tmp_path, "--output", "json")
    (warning,) = json.loads(out)["warnings"]
    assert (code, err) == (ExitCode.OK, f"numawarden: warning: {warning}\n")
    assert "node0/meminfo: found 'none'" in warning
    assert "\n  memory        size unknown\n" in run("topology", "--root", tmp_path)[1]


def test_json_of_another_root_needs_no_pyroute2(tmp_path: Path) -> None:
    write_tree(regular_host(), tmp_path)
    script = (
        "import sys; from agent.cli.main import run_command;"
        f"run_command(['topology', '--root', {str(tmp_path)!r}, '--output', 'json']);"
        "print('pyroute2' in sys.modules, file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stderr == "False\n"


def test_a_capture_of_this_host_shows_the_same_host(run: Command, tmp_path: Path) -> None:
    assert run("capture", tmp_path / "host.tar.gz")[0] == ExitCode.OK
    subprocess.run(["tar", "-xzf", tmp_path / "host.tar.gz", "-C", tmp_path], check=True)
    code, out, _ = run("topology", "--output", "json")
    assert code == ExitCode.OK
    assert json.loads(out) == topology_view(discover(Path("/")))
    again, now = discover(tmp_path), discover(Path("/"))
    assert (again.cpus, again.nodes) == (now.cpus, now.nodes)
    assert {each.address for each in again.devices} == {each.address for each in now.devices}


def test_a_file_that_is_there_or_cannot_be_written_is_one_line(
    run: Command, tmp_path: Path
) -> None:
    root = write_tree(regular_host(), tmp_path / "host")
    missing, there = tmp_path / "missing" / "host.tar.gz", tmp_path / "host.tar.gz"
    there.write_bytes(b"of another day")
    for file, said in (
        (missing, f"{missing}: No such file or directory"),
        (there, f"{there} exists; remove it, or name another file"),
    ):
        code, _, err = run("capture", file, "--root", root)
        assert (code, err.count("\n"), said in err) == (ExitCode.BAD_INPUT, 1, True)
    assert there.read_bytes() == b"of another day"


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
