from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agent.cli.errors import ExitCode
from agent.cli.main import run_command
from tests.agent.server.support import OTHER_UID, manifest
from tests.agent.tools.replay.texts import HEAD, admitting, text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.agent.cli.shell import Shell
    from tests.agent.server.support import Running

EXAMPLES = Path(__file__).parents[3] / "deploy/examples/replay"
MEMORY = HEAD.replace(
    "restricted,", "single-numa-node, memoryManagerPolicy: Static, systemReserved: {memory: 2Gi},"
)


def file_of(folder: Path, *steps: str, head: str = HEAD) -> str:
    file = folder / "sequence.yaml"
    file.write_text(text(*steps, head=head))
    return str(file)


def lines(capsys: pytest.CaptureFixture[str], arguments: Sequence[str]) -> list[dict[str, Any]]:
    run_command(["replay", *arguments, "--output", "jsonl"])
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


class TestExitCode:
    def test_it_is_0_when_every_pod_is_admitted(self, tmp_path: Path) -> None:
        assert run_command(["replay", file_of(tmp_path, admitting("a"))]) == ExitCode.OK

    def test_it_is_1_when_any_is_rejected(self, tmp_path: Path) -> None:
        file = file_of(tmp_path, admitting("a", 99), admitting("b"))
        assert run_command(["replay", file]) == ExitCode.REJECTED

    def test_it_is_3_when_a_file_is_wrong(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = file_of(tmp_path, "remove: a", "admit: b")
        assert run_command(["replay", file]) == ExitCode.BAD_INPUT
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.splitlines()[0] == (
            f"numawarden: error: {file}: 2 mistakes in this sequence"
        )
        assert "steps[0].remove" in captured.err

    def test_it_is_2_without_a_file(self) -> None:
        assert run_command(["replay"]) == ExitCode.USAGE


class TestText:
    def test_it_says_what_came_of_each_step_and_what_is_free(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        steps = (admitting("a"), "start: {pod: a, container: main}", "remove: a", "restart:")
        file = file_of(tmp_path, *steps, head=MEMORY)
        run_command(["replay", file])
        assert capsys.readouterr().out.splitlines() == [
            file,
            "",
            "step 0: admitted default/a (uid uid-a)",
            "  main  CPUs 1,9 (its own), 1Gi of memory on node 0",
            "  shared pool 0,2-8,10-15",
            "  free        node 0: 5 CPUs, 13.95 GiB; node 1: 8 CPUs, 14.95 GiB",
            "",
            "step 1: started container main of default/a",
            "  shared pool 0,2-8,10-15",
            "  free        node 0: 5 CPUs, 13.95 GiB; node 1: 8 CPUs, 14.95 GiB",
            "",
            "step 2: removed default/a",
            "  shared pool 0-15",
            "  free        node 0: 7 CPUs, 14.95 GiB; node 1: 8 CPUs, 14.95 GiB",
            "",
            "step 3: restart",
            "  shared pool 0-15",
            "  free        node 0: 7 CPUs, 14.95 GiB; node 1: 8 CPUs, 14.95 GiB",
        ]

    def test_a_rejection_is_explained(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        head = HEAD.replace("restricted", "single-numa-node")
        run_command(["replay", file_of(tmp_path, admitting("a", 9), head=head)])
        out = capsys.readouterr().out
        assert "step 0: rejected default/a (uid uid-a)" in out
        assert "TopologyAffinityError: container main cannot be aligned" in out
        assert "asked: 9 of cpu" in out
        assert "remedy" not in out
        assert "nodes 0-1 (preferred)" in out


class TestJsonLines:
    def test_an_admission_shows_everything_that_was_decided(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = file_of(tmp_path, admitting("a"), head=MEMORY)
        (line,) = lines(capsys, [file])
        assert (line["file"], line["sequence"], line["step"]) == (file, file, 0)
        assert (line["op"], line["pod"], line["uid"]) == ("admit", "default/a", "uid-a")
        assert (line["admitted"], line["reason"], line["message"]) == (True, None, None)
        assert line["allocation"] == {
            "qos": "Guaranteed",
            "cpus": None,
            "memory": [],
            "quotaDisabled": True,
            "cpuMax": "max 100000",
            "containers": [
                {
                    "name": "main",
                    "kind": "app",
                    "isolation": "container",
                    "cpus": "1,9",
                    "effectiveCpus": "1,9",
                    "memory": [{"type": "memory", "bytes": 1 << 30, "nodes": "0"}],
                    "mems": "0",
                    "devices": {},
                    "kubeletDevices": {},
                    "hint": {"nodes": "0", "preferred": True},
                    "quotaDisabled": True,
                    "cpuMax": "max 100000",
                }
            ],
        }
        assert line["sharedPool"] == "0,2-8,10-15"
        assert line["memory"]["0"]["memory"]["reserved"] == 1 << 30
        assert line["counters"]["kubelet_cpu_manager_pinning_requests_total"] == 1
        assert line["counters"][
            'kubelet_container_aligned_compute_resources_count{scope="container",boundary="numa_node"}'
        ] == 1  # fmt: skip
        assert line["explanation"]["eligibility"][0]["exclusiveCpus"] == 2

    def test_a_rejection_has_reason_message_and_what_is_free(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        head = HEAD.replace("restricted", "single-numa-node")
        (line,) = lines(capsys, [file_of(tmp_path, admitting("a", 9), head=head)])
        assert (line["admitted"], line["reason"]) == (False, "TopologyAffinityError")
        assert line["allocation"] is None
        assert line["rejection"]["free"] == {"0": 7, "1": 8}
        assert line["message"] == line["rejection"]["message"]

    def test_a_pod_without_room_has_what_the_node_lacks(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = file_of(tmp_path, admitting("a"), admitting("b", 99))
        line = lines(capsys, [file])[1]
        assert line["reason"] == "OutOfcpu"
        assert line["rejection"]["shortages"] == [
            {"resource": "cpu", "asked": 99000, "allocatable": 15000, "requested": 2000}
        ]

    def test_a_step_that_decides_nothing_has_the_state_alone(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        line = lines(capsys, [file_of(tmp_path, admitting("a"), "remove: a")])[1]
        assert (line["op"], line["admitted"], line["counters"]) == ("remove", None, {})
        assert line["sharedPool"] == "0-15"

    def test_files_are_replayed_one_after_the_other(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        other = tmp_path / "other.yaml"
        other.write_text(text(admitting("b", 99)))
        own = file_of(tmp_path, admitting("a"))
        assert [line["file"] for line in lines(capsys, [str(other), own])] == [str(other), own]


@pytest.mark.parametrize(
    ("name", "admitted"),
    [
        ("two-sockets", [True, True, False, None]),
        ("how-many-fit", [True] * 5 + [False]),
        ("restart", [True, None, None, True, None]),
        ("uneven-host", [True]),
        ("scopes", [*[True, None] * 6, None, *[True, None] * 4, False, False]),
    ],
)
def test_the_examples_show_what_they_say(
    capsys: pytest.CaptureFixture[str], name: str, admitted: list[bool | None]
) -> None:
    found = lines(capsys, [str(EXAMPLES / f"{name}.yaml")])
    assert [line["admitted"] for line in found] == admitted


def test_every_example_is_tried() -> None:
    assert {file.stem for file in EXAMPLES.iterdir()} == {
        "two-sockets",
        "how-many-fit",
        "restart",
        "uneven-host",
        "scopes",
    }


class TestFromLive:
    def test_a_pod_is_decided_on_what_the_agent_has(self, agent: Running, shell: Shell) -> None:
        agent.client.admit(manifest(cpu="6"))
        before = agent.client.pods()
        other = shell.file(manifest("other", OTHER_UID, cpu="2"))
        code, out, err = shell.run("replay", "--from-live", other)
        assert (code, err) == (ExitCode.OK, "")
        assert agent.client.pods() == before
        decided = agent.client.admit(manifest("other", OTHER_UID, cpu="2"), dry_run=True)
        assert decided.pod is not None
        assert f"CPUs {decided.pod.containers[0].cpus} (its own)" in out

    def test_a_rejection_is_exit_code_1(self, agent: Running, shell: Shell) -> None:
        agent.client.admit(manifest(cpu="6"))
        file = shell.file(manifest("other", OTHER_UID, cpu="12"))
        assert shell.run("replay", "--from-live", file)[0] == ExitCode.REJECTED

    def test_a_pod_that_is_admitted_keeps_its_allocation(
        self, agent: Running, shell: Shell
    ) -> None:
        agent.client.admit(manifest())
        code, out, _ = shell.run("replay", "--from-live", shell.file(manifest()))
        assert code == ExitCode.OK
        assert "as before" in out

    @pytest.mark.usefixtures("agent")
    def test_a_setting_that_does_not_fit_is_exit_code_3(self, shell: Shell) -> None:
        arguments = ("replay", "--from-live", "--set", "reservedSystemCPUs=99")
        code, out, err = shell.run(*arguments, shell.file(manifest()))
        assert (code, out) == (ExitCode.BAD_INPUT, "")
        assert "reservedSystemCPUs" in err

    def test_settings_need_an_agent(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        arguments = ["replay", "--set", "maxPods=1", file_of(tmp_path, admitting("a"))]
        assert run_command(arguments) == ExitCode.USAGE
        assert "it needs --from-live" in capsys.readouterr().err
