from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.cli.exit_codes import ExitCode
from agent.cli.main import run_command
from sysfs.host import Cpu, Host, HugePages, Node
from sysfs.mask import Mask
from sysfs.tree import write_tree

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30

CONFIG = """\
cpuManagerPolicy: static
cpuManagerPolicyOptions: {full-pcpus-only: "true"}
systemReserved: {cpu: "1"}
memoryManagerPolicy: Static
topologyManagerPolicy: restricted
topologyManagerScope: pod
featureGates: {NodeSwap: true}
agent: {devices: {example.com/gpu: [{id: a}, {id: b, healthy: false}]}}
"""


def _cpu(number: int) -> Cpu:
    package = number // 2
    return Cpu(number, online=True, isolated=False, core=number, cluster=None, die=package * 2,
               package=package, node=package, uncore=package * 2)  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    distances = {0: 10, 1: 20}, {0: 20, 1: 10}
    nodes = tuple(
        Node(i, Mask.of(2 * i, 2 * i + 1), 4 * GIB, (HugePages(2 << 20, 0),), distances[i])
        for i in range(2)
    )
    return write_tree(Host(tuple(map(_cpu, range(4))), nodes), tmp_path / "host")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return path


def test_a_good_file_is_shown_with_what_follows_from_it(
    root: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["config", "check", str(file), "--root", str(root)]) == ExitCode.OK
    assert capsys.readouterr().out.splitlines() == [
        f"{file}: no mistakes",
        "  CPU manager       static, options full-pcpus-only=true",
        "  reserved CPUs     0 (derived from systemReserved and kubeReserved)",
        "  memory manager    Static",
        "  reserved memory   node 0: memory 50Mi (derived)",
        "  reserved memory   node 1: memory 50Mi (derived)",
        "  topology manager  restricted, scope pod",
        "  cgroups           cgroupfs driver below /",
        "  manifests         none, pods come over the socket alone",
        "  devices           example.com/gpu: 2, 1 healthy",
        "  note: featureGates.NodeSwap changes nothing here",
    ]


def test_a_setting_is_laid_over_the_file(
    root: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["config", "check", str(file), "--root", str(root)]
    settings = ["--set", "reservedSystemCPUs=3", "--set", "cgroupDriver=systemd"]
    assert run_command([*arguments, *settings]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "reserved CPUs     3 (as listed)" in out
    assert "systemd driver" in out


def test_the_host_is_that_of_the_file_unless_told(
    root: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["config", "check", str(file), "--set", f"agent.sysfsRoot={root}"]
    assert run_command(arguments) == ExitCode.OK
    assert "node 1: memory 50Mi" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("cgroupDriver=x", 'cgroupDriver: "x" is not one of systemd, cgroupfs'),
        ("systemReserved.cpu=5", "reserve 5 CPUs, this host has 4"),
    ],
)
def test_mistakes_are_told_on_standard_error_with_their_exit_code(
    root: Path, file: Path, setting: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["config", "check", str(file), "--root", str(root), "--set", setting]
    assert run_command(arguments) == ExitCode.BAD_INPUT
    captured = capsys.readouterr()
    assert not captured.out
    assert words in captured.err
    assert "Traceback" not in captured.err


def test_a_file_that_is_not_there_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["config", "check", str(tmp_path / "none.yaml")]) == ExitCode.USAGE
    assert "does not exist" in capsys.readouterr().err
