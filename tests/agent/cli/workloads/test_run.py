"""`numawarden run` against a real agent: 16 CPUs on two nodes, CPU 0 reserved."""

from __future__ import annotations

import errno
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from agent.api.documents.moves import MoveRequest
from agent.cli.errors import ExitCode
from agent.cli.workloads import NOT_EXECUTABLE, NOT_FOUND
from agent.managers.cpu.manager import exclusive_cpus
from agent.managers.numa_policy import NumaMode, NumaPolicy
from agent.pods.model import MOVE
from sysfs.mask import Mask
from tests.agent.cli.workloads.hosts import PID
from tests.agent.server.support import UID, manifest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.cli.workloads.hosts import CommandHost

TRUE = shutil.which("true") or ""


def test_a_command_is_confined_before_its_first_instruction(host: CommandHost) -> None:
    code, out, err = host.run("run", "--cpus", "2", "--memory", "1Gi", "--", "true", "--cpus", "9")
    assert code == ExitCode.OK
    (started,) = host.started
    assert (started.program, started.arguments) == (TRUE, ("true", "--cpus", "9"))
    assert (started.cpus, started.nodes) == (Mask.of(1, 9), Mask.of(0))
    assert out == "", "standard output is the command's"
    assert "main  CPUs 1,9 (its own), 1Gi of memory on node 0" in err


def test_it_is_not_started_on_cpus_that_another_pod_could_not_leave(
    host: CommandHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, client = host.world.kernel, host.agent.client
    annotation = f"  annotations: {{{MOVE}: cpus}}\nspec:\n".encode()
    assert client.admit(manifest().replace(b"spec:\n", annotation, 1)).admitted
    cgroup = client.pod(UID).kernel[0].cgroup.strip("/")
    kernel.spawn(cgroup, 7)
    write = kernel.write

    def failing(path: str, file: str, value: str) -> None:
        if path == cgroup and file == "cpuset.cpus":
            raise OSError(errno.EBUSY, "busy", path)
        write(path, file, value)

    monkeypatch.setattr(kernel, "write", failing)
    asked = MoveRequest(cpus="1,9", new_cpus="2,10", nodes="0", new_nodes="0")
    assert client.move(UID, asked).admitted
    assert kernel.allowed(7)[0] == Mask.of(1, 9)
    code, _, err = host.run("run", "--cpus", "2", "true")
    assert (code, host.started) == (ExitCode.NOT_ENFORCED, [])
    assert "the pod was not enforced and is removed" in err
    assert "shop/web" in err
    assert [pod.uid for pod in host.pods] == [UID]


def test_its_memory_is_interleaved_where_that_is_asked(host: CommandHost) -> None:
    assert host.run("run", "true")[0] == ExitCode.OK
    assert host.run("run", "--interleave", "--name", "even", "true")[0] == ExitCode.OK
    first, second = host.started
    assert first.policy is None
    assert second.policy == NumaPolicy(NumaMode.INTERLEAVE, Mask.parse("0-1"))
    shown = host.run("show", "even")[1]
    assert "\n  memory    interleaved over the nodes that a container may use\n" in shown


def test_it_is_not_started_where_the_kernel_has_no_numa_policies(host: CommandHost) -> None:
    host.no_policies = OSError(errno.ENOSYS, "Function not implemented")
    code, _, err = host.run("run", "--interleave", "true")
    assert code == ExitCode.NOT_ENFORCED
    assert "the kernel does not set the NUMA policy interleave: Function not implemented" in err
    assert (host.started, host.pods) == ([], ())


def test_its_environment_says_what_it_got(
    host: CommandHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in {each for each in os.environ if each.startswith("NUMAWARDEN_")}:
        if name != "NUMAWARDEN_SOCKET":
            monkeypatch.delenv(name)  # as those that choose what the tests run
    monkeypatch.setenv("NUMAWARDEN_CPUS", "of the command around this one")
    monkeypatch.setenv("HOME", "/home/one")
    host.run("run", "--cpus", "2", "--memory", "1Gi", "--name", "one", "true")
    (started,), (pod,) = host.started, host.pods
    assert "\n  ends      with its last process\n" in host.run("show", "one")[1]
    own = {name: text for name, text in started.environment.items() if name[:10] == "NUMAWARDEN"}
    assert own == {
        "NUMAWARDEN_SOCKET": str(host.world.socket),
        "NUMAWARDEN_POD": "default/one",
        "NUMAWARDEN_POD_UID": pod.uid,
        "NUMAWARDEN_CPUS": "1,9",
        "NUMAWARDEN_MEMORY_NODES": "0",
    }
    assert started.environment["HOME"] == "/home/one"


def test_its_memory_is_limited_and_all_of_it_is_free_when_its_last_process_ends(
    host: CommandHost,
) -> None:
    host.run("run", "--cpus", "2", "--memory", "1Gi", "true")
    (pod,) = host.pods
    cgroup = host.agent.client.pod(pod.uid).kernel[0].cgroup.strip("/")
    assert host.world.kernel.read(cgroup, "memory.max").strip() == str(1 << 30)
    host.end_pods()
    assert [pod.uid for pod in host.pods] == [pod.uid]
    host.world.kernel.exit(PID)
    host.end_pods()
    assert host.pods == ()
    assert not host.world.kernel.exists(cgroup)


def test_a_command_has_cpus_of_its_own_unless_it_is_shared(host: CommandHost) -> None:
    host.run("run", "--cpus", "2", "true")
    (started,) = host.started
    assert (started.cpus, started.nodes) == (Mask.of(1, 9), Mask.of(0, 1))
    assert started.environment["NUMAWARDEN_MEMORY_NODES"] == ""


def test_a_shared_command_may_ask_for_a_part_of_a_cpu(host: CommandHost) -> None:
    assert host.run("run", "--shared", "--cpus", "0.5", "true")[0] == ExitCode.OK
    assert host.started[0].cpus == Mask.parse("0-15")
    assert exclusive_cpus(host.agent.controller.state.ledger) == Mask.of()


@pytest.mark.parametrize("node", [0, 1])
def test_a_command_runs_near_an_interface(
    host: CommandHost, monkeypatch: pytest.MonkeyPatch, node: int
) -> None:
    monkeypatch.setattr("agent.cli.workloads.node_of_interface", lambda *_: node)
    code, _, _ = host.run("run", "--cpus", "2", "--memory", "1Gi", "--near", "eth0", "true")
    assert code == ExitCode.OK
    assert host.started[0].nodes == Mask.of(node)


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (
            ("--near", "no-such-interface"),
            ExitCode.USAGE,
            "--near: no interface of a device is called 'no-such-interface'",
        ),
        (("--cpus", "99", "--memory", "1Gi"), ExitCode.REJECTED, "OutOfcpu"),
        (("--cpus", "1", "--require", "whole-cores"), ExitCode.REJECTED, "RequirementNotMet"),
    ],
)
def test_a_rejected_command_is_not_started(
    host: CommandHost, options: tuple[str, ...], code: ExitCode, said: str
) -> None:
    found, out, err = host.run("run", *options, "true")
    assert (found, out, host.started, host.pods) == (code, "", [], ())
    assert said in err


def test_a_command_that_the_kernel_does_not_confine_is_not_started(host: CommandHost) -> None:
    host.meddle = lambda: host.world.kernel.write("session", "cgroup.procs", str(PID))
    code, _, err = host.run("run", "--cpus", "2", "--memory", "1Gi", "true")
    assert (code, host.started, host.pods) == (ExitCode.NOT_ENFORCED, [], ())
    assert "the kernel would let it run on CPUs 0-15 instead of 1,9" in err


@pytest.mark.parametrize("number", [errno.ENOEXEC, errno.EACCES])
def test_a_program_that_cannot_be_executed_leaves_nothing_behind(
    host: CommandHost, number: int
) -> None:
    host.fails = OSError(number, os.strerror(number), TRUE)
    code, _, err = host.run("run", "true")
    assert (code, host.pods) == (NOT_EXECUTABLE, ())
    assert f"{TRUE}: {os.strerror(number)}" in err


def test_nothing_is_admitted_for_a_program_that_does_not_exist(
    host: CommandHost, tmp_path: Path
) -> None:
    assert host.run("run", "no-such-program")[0] == NOT_FOUND
    (tmp_path / "text").write_text("")
    assert host.run("run", str(tmp_path / "text"))[0] == NOT_EXECUTABLE
    assert host.pods == ()


def test_a_process_that_may_not_make_cgroups_is_advised_to_be_root(
    host: CommandHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    denied = PermissionError(errno.EACCES, "Permission denied", "cgroup.procs")

    def reject(*_: object) -> str:
        raise denied

    monkeypatch.setattr("agent.tools.run.enter", reject)
    code, _, err = host.run("run", "true")
    assert (code, host.pods) == (ExitCode.ENVIRONMENT, ())
    assert "run as root" in err
