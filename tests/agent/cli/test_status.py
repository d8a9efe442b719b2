from __future__ import annotations

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
