from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from deploy.slurm import task

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SCOPE = "/system.slice/slurmstepd.scope"
FIRST = f"{SCOPE}/job_7/step_0/user/task_0"
BATCH = f"{SCOPE}/job_7/step_batch/user/task_0"
OWNER = 1000


class Node:
    """A compute node: processes in cgroups, and an agent with the pods of jobs 7 and 8."""

    def __init__(self, directory: Path) -> None:
        self.proc, self.cgroups = directory / "proc", directory / "cgroup"
        self.bound: dict[str, str] = {}
        self.calls: list[tuple[str, ...]] = []

    def process(
        self, pid: int, cgroup: str, uids: str = f"{OWNER}\t{OWNER}\t{OWNER}\t{OWNER}"
    ) -> None:
        own = self.proc / str(pid)
        own.mkdir(parents=True)
        (own / "cgroup").write_text(f"1:name=x:/none\n0::{cgroup}\n")
        cpus = "Cpus_allowed_list:\t1,17\nMems_allowed_list:\t0\n"
        (own / "status").write_text(f"Name:\tUid:\t0\nUid:\t{uids}\n{cpus}")
        inside = self.cgroups / cgroup.lstrip("/")
        inside.mkdir(parents=True, exist_ok=True)
        (inside / "cgroup.procs").write_text(f"{pid}\n")

    def ends(self, cgroup: str) -> None:
        (self.cgroups / cgroup.lstrip("/") / "cgroup.procs").write_text("")

    def numawarden(self, *arguments: str) -> str:
        self.calls.append(arguments)
        command, pod, *rest = arguments
        if command == "show":
            kernel = f'[{{"cgroup": "{self.bound[pod]}"}}]' if pod in self.bound else "[]"
            return f'{{"containers": [{{"kernel": {kernel}}}]}}'
        self.bound[pod] = rest[-1]
        return ""


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    made = Node(tmp_path)
    monkeypatch.setattr(task, "PROC", made.proc)
    monkeypatch.setattr(task, "CGROUPS", made.cgroups)
    monkeypatch.setattr(task, "LOCK", tmp_path / "lock")
    monkeypatch.setattr(task, "numawarden", made.numawarden)
    return made


@contextmanager
def living() -> Iterator[int]:
    """Give the id of a process that lives."""
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as process:
        yield process.pid


@pytest.mark.parametrize(
    "cgroup", [FIRST, BATCH, "/system.slice/node1_slurmstepd.scope/job_7/step_3/user/task_12"]
)
def test_a_task_is_bound_to_the_pod_of_its_job_by_its_path(node: Node, cgroup: str) -> None:
    with living() as pid:
        node.process(pid, cgroup)
        lines = list(task.bind(pid, OWNER))
    assert node.calls[-1] == ("bind", "slurm-7", "main", "--cgroup", cgroup)
    assert lines == [
        "export NUMAWARDEN_POD_UID=slurm-7",
        "export NUMAWARDEN_CPUS=1,17",
        "export NUMAWARDEN_MEMORY_NODES=0",
    ]


@pytest.mark.parametrize(
    "uids", ["1001\t1001\t1001\t1001", "1000\t0\t0\t0", "1001\t1000\t1000\t1000", ""]
)
def test_a_process_of_another_user_is_not_bound(node: Node, uids: str) -> None:
    with living() as pid:
        node.process(pid, FIRST, uids)
        with pytest.raises(task.NotBoundError, match="is not user 1000's"):
            list(task.bind(pid, OWNER))
    assert node.calls == []


@pytest.mark.parametrize(
    "cgroup",
    [
        f"/user.slice/user-1000.slice/user@1000.service{FIRST}",
        f"{SCOPE}/job_7/step_extern/user/task_special",
        f"{SCOPE}/job_7/step_0/slurm",
        f"{FIRST}/own",
        f"{SCOPE}/job_7 8/step_0/user/task_0",
        f"{SCOPE}/../job_7/step_0/user/task_0",
        "/",
        "",
    ],
)
def test_a_process_in_no_task_of_slurm_is_not_bound(node: Node, cgroup: str) -> None:
    with living() as pid:
        node.process(pid, cgroup)
        with pytest.raises(task.NotBoundError, match="not in that of a Slurm task"):
            list(task.bind(pid, OWNER))
    assert node.calls == []


def test_a_task_that_runs_keeps_its_binding_until_it_ends(node: Node) -> None:
    with living() as first, living() as second:
        node.process(first, FIRST)
        node.process(second, BATCH)
        list(task.bind(first, OWNER))
        with pytest.raises(task.NotBoundError, match=f"is bound to {FIRST}, where processes run"):
            list(task.bind(second, OWNER))
        assert node.bound == {"slurm-7": FIRST}
        list(task.bind(first, OWNER))
        node.ends(FIRST)
        list(task.bind(second, OWNER))
    assert node.bound == {"slurm-7": BATCH}


def test_a_process_that_ended_is_not_looked_up_by_its_id(node: Node) -> None:
    with living() as pid:
        node.process(pid, FIRST)
        os.kill(pid, 9)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(task.NotBoundError, match="has ended"):
            list(task.bind(pid, OWNER))
    assert node.calls == []


@pytest.mark.parametrize("arguments", [[], ["1", "2"], ["self"], ["1/../2"], ["-1"], ["1 2"]])
def test_only_the_id_of_a_process_is_an_argument(
    node: Node, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert task.main(arguments) == 1
    assert capsys.readouterr() == ("", "numawarden: not bound: name the id of a task's process\n")
    assert node.calls == []


def test_the_owner_is_the_user_that_sudo_names(
    node: Node, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with living() as pid:
        node.process(pid, FIRST)
        monkeypatch.setenv("SUDO_UID", "1001")
        assert task.main([str(pid)]) == 1
        assert "is not user 1001's" in capsys.readouterr().err
        monkeypatch.setenv("SUDO_UID", str(OWNER))
        assert task.main([str(pid)]) == 0
        assert "export NUMAWARDEN_CPUS=1,17\n" in capsys.readouterr().out
