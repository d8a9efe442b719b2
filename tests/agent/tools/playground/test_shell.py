"""The playground as its user has it: a command in place of the shell, with the real agent."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from agent.cli.errors import ExitCode
from agent.config.load import load_config_file
from agent.tools.playground import WELCOME, EmulatedHost, Playground, PlaygroundError
from agent.tools.playground import main as playground_verbs
from tests.agent.server.support import PATIENCE

PROGRAM = str(Path(sys.executable).with_name("numawarden"))


def playground(script: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [PROGRAM, "playground", *options, "--", "sh", "-c", script]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )


def eventually(command: str) -> str:
    """Return a script that runs a command until it succeeds, at most for a minute."""
    return f"timeout 60 sh -c 'until {command} 2>/dev/null; do sleep 0.1; done'"


def suggested() -> list[str]:
    """Return the commands of the welcome text."""
    lines = (line for line in WELCOME.splitlines() if line.startswith("  "))
    return [re.split(r" {3,}", line.strip())[0] for line in lines]


#: The exit codes of the suggested commands that are not to succeed.
FAILING = {
    "numawarden admit pods/too-large.yaml": ExitCode.REJECTED,
    # Whether the agent is faster is open, so the last command of this line may say both.
    "echo 0 > $(cgroup-of mixed)/cpuset.cpus; numawarden check --cgroups": None,
}


def test_every_suggested_command_does_what_it_says() -> None:
    steps = [f"({command}); echo === $?" for command in suggested()]
    done = playground("\n".join(steps))
    assert done.returncode == 0, done.stderr
    *parts, rest = re.split(r"=== (\d+)\n", done.stdout)
    assert rest == ""
    printed = zip(parts[::2], map(int, parts[1::2]), strict=True)
    outputs = dict(zip(suggested(), printed, strict=True))
    for command, (_, code) in outputs.items():
        expected = FAILING.get(command, ExitCode.OK)
        assert expected is None or code == expected, (command, done.stdout, done.stderr)
    said = {command: output for command, (output, _) in outputs.items()}
    assert "32 CPUs" in said["numawarden map"]
    assert said["start-containers mixed"].count("mkdir") == 3
    assert "each was tried" in said["numawarden admit pods/too-large.yaml"]
    assert "default/mixed" in said["crash-agent; numawarden list"]
    assert said["agent-log"].count(" ready ") == 2
    assert " drift found " in said["agent-log"]


@pytest.mark.parametrize(("host", "cpus"), [("two-sockets", 32), ("epyc", 128), ("gb200", 144)])
def test_each_host_has_room_for_the_pods_and_ends_with_the_command(host: str, cpus: int) -> None:
    done = playground(
        "for pod in mixed guaranteed shared; do numawarden admit pods/$pod.yaml || exit; done\n"
        "start-containers mixed; numawarden list; numawarden map; numawarden topology\n"
        'echo; echo "$PLAYGROUND"; exit 7',
        "--host",
        host,
    )
    assert done.returncode == 7, done.stdout + done.stderr
    assert "default/mixed  Guaranteed  enforced" in done.stdout
    assert done.stdout.count(f"{cpus} CPUs (") == 2
    folder = done.stdout.splitlines()[-1]
    assert folder.startswith(os.sep)
    assert not Path(folder).exists()


def test_an_agent_that_cannot_start_is_tried_again_until_its_configuration_is_mended() -> None:
    done = playground(
        "cp pod.yaml good; echo nonsense > pod.yaml; kill $(cat agent.pid)\n"
        f"{eventually('grep -q mapping agent.log')}; cp good pod.yaml\n"
        "restart-agent && numawarden status && cat agent.log"
    )
    assert done.returncode == 0, done.stderr
    assert "expected a mapping" in done.stdout
    assert "process" in done.stdout


def test_an_agent_that_cannot_start_at_all_is_said_with_its_log(tmp_path: Path) -> None:
    host = EmulatedHost(tmp_path)
    said = f"(?s)its log:\n.*:{host.port}: Address already in use"
    taken = socket.create_server(("127.0.0.1", host.port))
    with taken, pytest.raises(PlaygroundError, match=said):
        Playground(host, "pod")
    assert not (tmp_path / "notify.sock").exists()


def test_an_agent_that_cannot_be_run_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = EmulatedHost(tmp_path)
    last = ["sh", "-c", f"touch {tmp_path}/started; exec sleep 1000"]
    agents = [["true"], ["/no such file"], last]
    monkeypatch.setattr(host, "launch", lambda *_: subprocess.Popen(agents.pop(0)))
    monkeypatch.setattr("agent.tools.playground.RESTART_SECONDS", 0.0)
    with Playground(host, "pod") as made:
        assert made.run(["sh", "-c", eventually("test -e started")]) == 0
    assert "cannot be started: [Errno 2] No such file" in (tmp_path / "agent.log").read_text()


@pytest.mark.parametrize(("end", "fails"), [("exit 3", True), ("kill -9 $$", False)])
def test_an_agent_that_ends_by_itself_has_failed_and_one_that_is_killed_has_not(
    end: str, *, fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = EmulatedHost(tmp_path)
    monkeypatch.setattr(host, "launch", lambda *_: subprocess.Popen(["sh", "-c", end]))
    expected = pytest.raises(PlaygroundError, match="exit code 3") if fails else nullcontext()
    with expected, host.agent("pod") as agent:
        agent.wait(PATIENCE)


def test_the_directory_of_a_host_may_have_any_name(tmp_path: Path) -> None:
    folder = tmp_path / 'a: b #c "d" é'
    folder.mkdir()
    config = EmulatedHost(folder, cgroup_root="/x: y").configure("pod")
    read = load_config_file(config)
    assert read.agent.state_directory == folder / "state"
    assert read.cgroup_root == "/x: y"


def test_a_pod_without_a_cgroup_is_said(tmp_path: Path) -> None:
    with pytest.raises(PlaygroundError, match="pod u1 has no cgroup now; see `numawarden check`"):
        EmulatedHost(tmp_path).start_containers("u1")


def test_an_agent_that_was_ended_is_waited_for_until_the_next_one_has_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = object()
    answers = iter([(1, compared), (1, compared), (2, None), (2, compared)])

    def status() -> SimpleNamespace:
        started, last = next(answers)
        return SimpleNamespace(pid=os.getpid(), started=started, last_reconcile=last)

    monkeypatch.setattr("agent.tools.playground._client", lambda _: SimpleNamespace(status=status))
    monkeypatch.setattr("os.kill", lambda *_: None)
    monkeypatch.setattr("agent.tools.playground.sleep", lambda _: None)
    monkeypatch.setenv("PLAYGROUND", str(tmp_path))
    assert playground_verbs(["crash-agent"]) == 0
    assert not list(answers)


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (
            ("--", "sh", "-c", "start-containers"),
            1,
            "start-containers: give the pod: start-containers POD",
        ),
        (
            ("--", "sh", "-c", "cgroup-of none"),
            1,
            "cgroup-of: no pod 'none' is admitted; admitted: none",
        ),
        (
            ("--", sys.executable, "-m", "agent.tools.playground"),
            1,
            "playground: give one of the verbs start-containers, cgroup-of, ",
        ),
        (
            ("--", sys.executable, "-m", "agent.tools.playground", "dance"),
            1,
            "dance: give one of the verbs start-containers, ",
        ),
        (
            ("--", "env", "-u", "PLAYGROUND", "agent-log"),
            1,
            "agent-log: PLAYGROUND is not set; run this in `numawarden playground`",
        ),
        (
            ("--", "sh", "-c", "rm agent.log; agent-log"),
            1,
            "agent-log: [Errno 2] No such file or directory: ",
        ),
        (
            ("--host", "cray-1", "--", "true"),
            ExitCode.ENVIRONMENT,
            "numawarden: error: cray-1 is neither a capture nor one of two-",
        ),
        (
            ("--", "no-such-command"),
            ExitCode.ENVIRONMENT,
            "numawarden: error: cannot run no-such-command: No such file",
        ),
    ],
)
def test_what_cannot_be_is_one_line(options: tuple[str, ...], code: int, said: str) -> None:
    command = [PROGRAM, "playground", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (code, 1)
    assert done.stderr.startswith(said)


def started(stack: ExitStack, end: str) -> tuple[subprocess.Popen[str], Path, int]:
    """Run a playground until its command ends; return it, its directory, and its agent's pid."""
    command = [PROGRAM, "playground", "--", "sh", "-c", f"cat agent.pid; pwd; exec {end}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    stack.enter_context(process)
    assert process.stdout is not None
    pid, folder = (process.stdout.readline().strip() for _ in range(2))
    return process, Path(folder), int(pid)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_agent_and_removes_the_directory(number: signal.Signals) -> None:
    with ExitStack() as stack:
        process, folder, pid = started(stack, "sleep 1000")
        process.send_signal(number)
        assert process.wait() == 128 + number
    assert not folder.exists()
    assert not Path(f"/proc/{pid}").exists()


def test_the_agent_of_a_playground_that_is_killed_ends() -> None:
    with ExitStack() as stack:
        process, folder, pid = started(stack, "setpriv --pdeathsig KILL sleep 1000")
        agent = os.pidfd_open(pid)
        process.kill()
        ended, _, _ = select.select([agent], [], [], PATIENCE)
    os.close(agent)
    shutil.rmtree(folder)
    assert ended


def test_what_runs_on_the_machines_own_cpus_is_not_blamed_on_pods() -> None:
    asked = "numawarden interference guaranteed --for 1ms", "numawarden interference --cpus 0"
    for command in asked:
        done = playground(command)
        assert "the CPUs of this machine are not those of the emulated host" in done.stderr
        assert (done.returncode, done.stdout) == (ExitCode.ENVIRONMENT, "")


def test_a_command_in_a_pod_is_not_run_on_the_machines_own_cgroups() -> None:
    done = playground("numawarden run --near eth0 -- true; numawarden run -- true")
    near, run = done.stderr.splitlines()
    assert "no interface of a device is called 'eth0'; known: none" in near
    assert "are plain files, which confine no process: run and attach need the agent" in run
    assert (done.returncode, done.stdout) == (ExitCode.ENVIRONMENT, "")
