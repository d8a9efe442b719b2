"""One verdict: whatever is wrong shows in it, by a line with what to do and by the exit code."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from agent.api.documents.status import ConfigurationDocument
from agent.cli.check import LEAST_SPACE
from agent.cli.errors import ExitCode
from agent.config.document import config_keys
from agent.config.load import load_config_file
from agent.reconcile.tasks import Task
from agent.server.pod_records import STARTING_SECONDS
from sysfs.mask import Mask
from tests.agent.cli.shell import Shell, in_background
from tests.agent.server.support import UID, manifest
from tests.agent.server.test_agreement import FullDisk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.agent.server.support import Running, World

POD = f"kubepods/pod{UID}"
CONFIG: Final = "cpuManagerPolicy: static\nreservedSystemCPUs: '0'\n"


class Watched(Shell):
    """A shell beside an agent with a pod, started with a configuration file."""

    agent: Running
    file_of_agent: Path


@pytest.fixture
def shell(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Watched]:
    world.manifest_directory()
    file = tmp_path / "config.yaml"
    file.write_text(CONFIG)
    with in_background(world) as agent:
        shell = Watched(world, tmp_path, capsys)
        shell.agent, shell.file_of_agent = agent, file
        keys = config_keys(load_config_file(file))
        agent.controller.state.start.configuration = ConfigurationDocument(
            file=str(file), settings=(), keys=keys
        )
        assert shell.run("admit", shell.file(manifest()))[0] == ExitCode.OK
        world.kernel.mkdir(f"{POD}/c0")
        world.kernel.spawn(f"{POD}/c0", 4711)
        world.client().reconcile()
        yield shell


def difference(shell: Watched) -> None:
    shell.world.kernel.write(POD, "cpuset.cpus", "0-15")


def condition(shell: Watched) -> None:
    found = "not all cgroups are watched; raise it"
    shell.agent.controller.state.observed.conditions["inotify"] = found


def intruder(shell: Watched) -> None:
    task = Task(815, "irqd", Mask.parse("8-9"), "system.slice/irqd.service", 3)
    shell.world.tasks.append(task)


def ended(shell: Watched) -> None:
    shell.world.kernel.exit(4711)
    shell.world.client().reconcile()
    shell.world.clock.advance(STARTING_SECONDS)
    shell.world.client().reconcile()


def full(shell: Watched) -> None:
    store = shell.agent.controller.steps.store
    store._files = FullDisk()
    assert shell.run("admit", shell.file(manifest("db", None)))[0] == ExitCode.AGENT_FAILED


def nearly_full(shell: Watched) -> None:
    shell.agent.controller.state.observed.free_bytes = LEAST_SPACE - 1


def changed(shell: Watched) -> None:
    shell.file_of_agent.write_text(CONFIG + "topologyManagerPolicy: restricted\n")


def mistaken(shell: Watched) -> None:
    shell.file_of_agent.write_text(CONFIG + "topologyManagerPolicy: strict\n")


@pytest.mark.parametrize(
    ("spoil", "expected", "said"),
    [
        (difference, ExitCode.NOT_ENFORCED, "shows 0-15 instead of 1,9"),
        (intruder, ExitCode.NOT_ENFORCED, "process 815 (irqd) may run on CPUs 9"),
        (condition, ExitCode.REJECTED, "not all cgroups are watched; raise it"),
        (
            ended,
            ExitCode.NOT_ENFORCED,
            "pod shop/web: not found in its cgroup: c0; they ended, or run outside of the pod on",
        ),
        (full, ExitCode.ENVIRONMENT, "free space on that file system"),
        (nearly_full, ExitCode.ENVIRONMENT, "free space on that file system"),
        (
            changed,
            ExitCode.BAD_INPUT,
            "topologyManagerPolicy is restricted in the file and none in the running agent",
        ),
        (mistaken, ExitCode.BAD_INPUT, '"strict" is not one of'),
        (
            lambda shell: shell.file_of_agent.unlink(),
            ExitCode.BAD_INPUT,
            "restore or correct the file",
        ),
    ],
)
def test_what_is_wrong_is_a_line_and_an_exit_code(
    shell: Watched, spoil: Callable[[Watched], None], expected: ExitCode, said: str
) -> None:
    assert shell.run("check", "--quiet") == (ExitCode.OK, "", "")
    spoil(shell)
    code, out, err = shell.run("check")
    assert (code, err) == (expected, "")
    first, *lines = out.splitlines()
    assert first.startswith("numawarden NOT OK: ")
    assert any(line.startswith("  NOT OK") and said in line for line in lines)
    assert shell.run("check", "-q") == (expected, "", "")
    code, out, _ = shell.run("check", "--output", "json")
    document = json.loads(out)
    assert (document["ok"], document["code"], code) == (False, expected, expected)
    wrong = [each for each in document["checks"] if not each["ok"]]
    assert any(said in each["message"] for each in wrong)
    assert all("\n" not in each["message"] for each in document["checks"])


def test_what_to_do_about_the_containers_of_many_pods_is_said_once(shell: Watched) -> None:
    for number in range(3):
        shell.run("admit", shell.file(manifest(f"p{number}", f"u-{number}", cpu="500m")))
    shell.world.clock.advance(STARTING_SECONDS)
    shell.world.client().reconcile()
    lines = re.findall("NOT OK  containers +(.*)", shell.run("check")[1])
    *pods, remedy = lines
    assert pods == [f"pod shop/p{number}: not started in its cgroup: c0" for number in range(3)]
    assert remedy.startswith("start them in the pod, as 'numawarden show POD' says, or remove the")


def test_of_several_the_gravest_decides_and_all_are_listed(shell: Watched) -> None:
    for spoil in (condition, changed, nearly_full, difference):
        spoil(shell)
    code, out, _ = shell.run("check")
    assert code == ExitCode.NOT_ENFORCED
    assert out.splitlines()[0] == "numawarden NOT OK: condition, disk, configuration, cgroups"


@pytest.mark.parametrize("spoil", [changed, mistaken])
def test_the_status_says_that_a_restart_would_change_something(
    shell: Watched, spoil: Callable[[Watched], None]
) -> None:
    assert "  file  " not in shell.run("status")[1]
    spoil(shell)
    code, out, _ = shell.run("status")
    checked = re.findall("NOT OK  configuration   (.*)", shell.run("check")[1])
    assert (code, re.findall("  file       (.*)", out)) == (ExitCode.OK, checked)


def test_what_changes_no_key_of_the_running_agent_is_well(shell: Watched) -> None:
    shell.file_of_agent.write_text(f"# a comment\n{CONFIG}")
    assert shell.run("check")[0] == ExitCode.OK
    setting = "topologyManagerPolicy=restricted"
    state = shell.agent.controller.state.start
    assert state.configuration is not None
    keys = config_keys(load_config_file(shell.file_of_agent, [setting]))
    state.configuration = replace(state.configuration, settings=(setting,), keys=keys)
    assert shell.run("check")[0] == ExitCode.OK


def test_an_agent_that_does_not_answer_is_unreachable(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = Shell(world, tmp_path, capsys)
    code, out, err = shell.run("check")
    assert (code, err) == (ExitCode.UNREACHABLE, "")
    assert out.splitlines()[0] == "numawarden NOT OK: agent"
    assert shell.run("check", "--quiet") == (ExitCode.UNREACHABLE, "", "")
    code, out, _ = shell.run("check", "--output", "json")
    assert json.loads(out)["code"] == ExitCode.UNREACHABLE


def test_a_full_disk_is_one_sentence_with_type_and_reason_behind(shell: Watched) -> None:
    full(shell)
    _, out, _ = shell.run("check")
    assert out.count("writing failed: No space left on device") == 1
    assert re.search(
        r"NOT OK  condition .* free space on that .* \(CheckpointSaved: NotSaved\)$",
        out,
        re.MULTILINE,
    )
    assert "NOT OK  agent           not ready, 1 pod with 1 container: a condition below" in out
    _, out, _ = shell.run("status")
    assert out.count("writing failed: No space left on device") == 1


def test_of_many_intruding_tasks_the_first_are_listed(shell: Watched) -> None:
    for pid in range(2000, 2017):
        shell.world.tasks.append(Task(pid, "irqd", Mask.parse("9"), "system.slice/irqd.service", 1))
    code, out, _ = shell.run("check")
    assert code == ExitCode.NOT_ENFORCED
    assert out.count("process 20") == 16
    assert "and 1 more; see 'numawarden check --cgroups'" in out
    del shell.world.tasks[-1]
    assert "more; see" not in shell.run("check")[1]
