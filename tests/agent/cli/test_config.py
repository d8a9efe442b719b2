"""What `golden/` does not show of `numawarden config`."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

import pytest

from agent.cli.config import check as command
from agent.cli.errors import ExitCode
from agent.cli.options import CONFIG_FILE
from agent.config.load import load_config_file
from agent.config.model import Config
from cgroupfs.emulated.directory import DirectoryTree
from cgroupfs.tree import KernelTree
from sysfs.described import regular_host, write_tree
from sysfs.mask import Mask
from tests.fakes.resctrl import FakeResctrl

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.cli.shell import Command


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_tree(regular_host(2, 1, 2, 1, memory_bytes=4 << 30), tmp_path / "host")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text("cpuManagerPolicy: static\nsystemReserved: {cpu: '1'}\n")
    return path


def test_what_pods_cannot_have_of_this_host_is_said(
    run: Command, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = regular_host(cores_per_node=8, threads=1)
    (file.parent / "cgroup").mkdir()
    kernel = DirectoryTree(file.parent / "cgroup", host.online, Mask.of(0))
    kernel.mkdir("ovs.slice")
    kernel.write("", "cgroup.subtree_control", "+cpuset")
    kernel.write("ovs.slice", "cpuset.cpus", "4-7")
    kernel.write("ovs.slice", "cpuset.cpus.partition", "root")
    monkeypatch.setattr("agent.cli.config.discover", lambda _, **__: host)
    opened = partial(KernelTree, require_kernel=False)
    monkeypatch.setattr("agent.cli.config.KernelTree", opened)
    file.write_text("cpuManagerPolicy: static\nreservedSystemCPUs: 0,4-7\n")
    code, out, _ = run("config", "check", file, f"--set=agent.cgroupMount={kernel.root}")
    assert code == ExitCode.OK
    assert out.splitlines()[1].startswith("  host              12 CPUs on 2 NUMA nodes")
    assert out.splitlines()[2] == "  withheld          CPUs 4-7 belong to the partition /ovs.slice"


def test_a_configuration_may_come_from_standard_input(
    run: Command, root: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for line, code, said in (("", ExitCode.OK, ": no mistakes"), ("a: 1\n", 3, ": line 3: a: ")):
        file.write_text(file.read_text() + line)
        with file.open() as stream:
            monkeypatch.setattr("sys.stdin", stream)
            found, out, err = run("config", "check", "-", "--root", root)
        assert (found, f"standard input{said}" in out + err) == (code, True)


def test_the_file_of_the_service_is_checked_unless_another_is_named(
    run: Command, file: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("cpuManagerPolcy: static\n")
    [named] = (each for each in command.params if each.name == "file")
    assert named.default == CONFIG_FILE
    monkeypatch.setattr(named, "default", file)
    code, _, err = run("config", "check", "--root", root)
    assert code == ExitCode.BAD_INPUT
    assert f"{file}: line 1: cpuManagerPolcy: unknown key" in err


def test_the_host_is_that_of_the_file_unless_another_is_named(
    run: Command, root: Path, file: Path
) -> None:
    code, out, _ = run("config", "check", file, "--set", f"agent.sysfsRoot={root}")
    assert code == ExitCode.OK
    assert "4 CPUs on 2 NUMA nodes" in out


def test_the_defaults_are_shown_as_a_file_that_has_them(run: Command, tmp_path: Path) -> None:
    code, shown, _ = run("config", "show", "--defaults")
    assert code == ExitCode.OK
    assert "\ncgroupDriver: cgroupfs\n" in shown
    file = tmp_path / "shown.yaml"
    file.write_text(shown)
    assert load_config_file(file) == Config()
    assert "\nmaxPods: 7\n" in run("config", "show", "--defaults", "--set", "maxPods=7")[1]


def test_a_file_is_shown_with_the_keys_that_it_leaves_out(
    run: Command, file: Path, tmp_path: Path
) -> None:
    setting = "agent.metrics.port=9"
    code, shown, _ = run("config", "show", file, "--set", setting)
    assert code == ExitCode.OK
    assert "\ncpuManagerPolicy: static\n" in shown
    assert "\nmaxPods: 110\n" in shown
    (tmp_path / "shown.yaml").write_text(shown)
    assert load_config_file(tmp_path / "shown.yaml") == load_config_file(file, [setting])


def test_the_schema_is_printed_as_json(run: Command) -> None:
    schema = json.loads(run("config", "schema")[1])
    assert schema["properties"]["maxPods"]["default"] == 110


def test_classes_of_caches_are_checked_against_the_hosts_resctrl(
    run: Command, root: Path, file: Path
) -> None:
    classes = "{isolation: {resctrl: {classes: {a: {L3: '0xf000'}, b: {}, c: {}, d: {}}}}}"
    file.write_text(f"{file.read_text()}agent: {classes}\n")
    code, out, _ = run("config", "check", file, "--root", root)
    assert code == ExitCode.OK
    assert "no class has an effect: the kernel or the processor" in out
    FakeResctrl(root, set())
    code, _, err = run("config", "check", file, "--root", root)
    assert code == ExitCode.BAD_INPUT
    assert "there are 4 classes, and this processor has control groups for 3" in err
    assert "agent.isolation.resctrl.classes.a.L3: cache 0: the cache has 0xfff" in err
