"""`status`, and `check --cgroups`: the kernel beside the ledger, cgroup by cgroup."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from agent.cli.errors import ExitCode
from agent.reconcile.tasks import Task
from sysfs.mask import Mask
from tests.agent.cli.shell import Shell, in_background
from tests.agent.server.support import UID, manifest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.agent.server.support import World

POD = f"kubepods/pod{UID}"
ALL = Mask.parse("0-15")


@pytest.fixture
def shell(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    """Run a pod that holds CPUs 1 and 9."""
    with in_background(world):
        shell = Shell(world, tmp_path, capsys)
        assert shell.run("admit", shell.file(manifest()))[0] == ExitCode.OK
        world.kernel.mkdir(f"{POD}/c0")
        world.kernel.spawn(f"{POD}/c0", 4711)
        world.tasks.append(Task(4711, "app", Mask.of(1, 9), f"{POD}/c0"))
        # A comparison settles the new cgroup.
        world.client().reconcile()
        yield shell


def test_an_ancestor_that_lost_a_controller_is_named(shell: Shell) -> None:
    shell.world.kernel.write(POD, "cgroup.subtree_control", "-cpu")
    code, out, _ = shell.run("check", "--cgroups")
    assert code == ExitCode.NOT_ENFORCED
    assert f"DIFFERS   /{POD} does not pass on cpu" in out


def test_a_task_that_was_put_on_a_pods_cpus_is_intruding(shell: Shell) -> None:
    shell.world.tasks.append(Task(815, "irqd", Mask.parse("8-9"), "system.slice/irqd.service", 3))
    code, out, _ = shell.run("check", "--cgroups")
    assert code == ExitCode.NOT_ENFORCED
    assert (
        "INTRUDES  process 815 (irqd, 3 threads in /system.slice/irqd.service) may run on CPUs 9 "
        f"of {UID}; its affinity is 8-9"
    ) in out


def test_tasks_that_are_not_confined_are_counted_and_are_no_difference(shell: Shell) -> None:
    shell.world.tasks += [
        Task(1, "init", ALL, "init.scope"),
        Task(9, "kworker/u32:0", ALL, None, 1, kernel=True),
        Task(10, "ksoftirqd/9", Mask.of(9), None, 1, kernel=True),
        Task(11, "elsewhere", Mask.parse("2-3"), "system.slice/x.service"),
    ]
    code, out, _ = shell.run("check", "--cgroups")
    assert code == ExitCode.OK
    assert "note: 1 threads may run on every CPU, exclusive ones too (init, ...)" in out
    assert "note: 1 kernel threads are not bound to one CPU" in out
    assert "elsewhere" not in out


def test_programs_get_a_document(shell: Shell) -> None:
    shell.world.tasks.append(Task(815, "irqd", Mask.of(9), "user.slice"))
    code, out, _ = shell.run("check", "--cgroups", "--output", "json")
    answer = json.loads(out)["verification"]
    assert (code, answer["agrees"]) == (ExitCode.NOT_ENFORCED, False)
    assert [(task["pid"], task["cpus"], task["pods"]) for task in answer["intruding"]] == [
        (815, "9", [UID])
    ]
    assert [each["role"] for each in answer["cgroups"]] == ["pod", "container"]
    assert all("cpuset" in above["enabled"] for above in answer["ancestors"])


def test_a_status_does_not_say_that_the_kernel_agrees_beside_a_pod_that_is_not_enforced(
    shell: Shell,
) -> None:
    agrees = "the kernel agrees with the ledger"
    code, out, _ = shell.run("status")
    assert (code, agrees in out, "CONDITION" in out) == (ExitCode.OK, True, False)
    shell.world.kernel.set_online(ALL - Mask.of(1))
    for _ in range(2):  # a difference that lasts is no longer found
        shell.world.client().reconcile()
        code, out, _ = shell.run("status")
        assert (code, agrees in out) == (ExitCode.REJECTED, False)
        assert re.search(
            r"^  CONDITION  pod .* is not enforced: .* \(Enforced: CPUOffline, ", out, re.MULTILINE
        )
        assert "not as it should be, see CONDITION" in out
    shell.world.kernel.set_online(ALL)
    shell.world.client().reconcile()
    assert agrees in shell.run("status")[1]


def test_a_status_of_an_agent_that_cannot_admit_begins_with_why(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world.manifest_directory().rmdir()
    with in_background(world):
        code, out, _ = Shell(world, tmp_path, capsys).run("status")
    assert code == ExitCode.REJECTED
    first, second, *others = out.splitlines()
    assert "NOT READY" in first
    assert second.startswith("  not ready  the source manifests has not been read yet: manifest ")
    assert any(" (SourceRead: DirectoryMissing, since " in line for line in others)


@pytest.mark.parametrize(
    ("content", "least"),
    [
        (manifest().replace(b"name: c0", b"name: C_0"), 1),
        (manifest().replace(b"'2'", b"'-2'").replace(b"name: c0", b"name: C_0"), 2),
        (b"metadata:\n  name: [\n", 1),
        (b"apiVersion: v1\nkind: List\n", 1),
    ],
    ids=["one", "several", "no YAML", "no pod"],
)
def test_a_mistake_in_the_manifest_directory_has_its_line_in_the_status(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, least: int
) -> None:
    file = world.manifest_directory() / "a.yaml"
    file.write_bytes(content)
    with in_background(world):
        _, out, _ = Shell(world, tmp_path, capsys).run("status")
    found = re.search(rf"^  manifest   {file}.*\n(?: {{15}}.*\n)*", out, re.MULTILINE)
    assert found is not None
    assert len(re.findall(r"\bline \d+:", found[0])) >= least
    assert not re.search(rf"^ *:|{file}.*{file}", out, re.MULTILINE)
