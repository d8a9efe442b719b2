"""What `golden/` does not show of the commands for pods: other places, restarts, an agent gone."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import pytest

from agent.api.client import AgentError
from agent.cli.errors import ExitCode
from agent.cli.output import yaml_of
from agent.reconcile.report import EnforcementReport
from tests.agent.cli.shell import Shell, in_background
from tests.agent.reconcile.pods import unenforced
from tests.agent.server.support import OTHER_UID, PATIENCE, UID, manifest

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from agent.server.events import Watcher
    from tests.agent.server.support import Running


@pytest.mark.usefixtures("agent")
def test_json_is_the_document_of_the_api(shell: Shell) -> None:
    file = shell.file(manifest())

    def document(*arguments: str) -> dict[str, object]:
        found: dict[str, object] = json.loads(shell.run(*arguments, "-o", "json")[1])
        return found

    admitted = document("admit", file)["pod"]
    assert isinstance(admitted, dict)
    assert admitted["exclusiveCpus"] == "1,9"
    assert document("show", UID)["kernel"]
    assert document("status")["sharedPool"] == "0,2-8,10-15"
    assert document("map")["pods"]
    assert document("check", "--cgroups")["ok"] is True
    assert document("fit", "--cpus", "4", "--count")["count"] == 3
    assert document("history", "-n", "1")["more"] is True
    assert document("remove", UID)["enforcement"] == {
        "enforced": True, "differences": [], "notes": [],
    }  # fmt: skip
    shell.run("admit", shell.file(manifest("big", OTHER_UID, cpu="64")))
    rejected = document("show", "big")
    assert (rejected["phase"], rejected["reason"]) == ("Failed", "OutOfcpu")


@pytest.mark.usefixtures("agent")
def test_the_status_lists_the_latest_pods_that_failed_and_counts_the_others(shell: Shell) -> None:
    for number in range(7):
        shell.run("admit", shell.file(manifest(f"big{number}", f"u-{number}", cpu="64")))
    _, out, _ = shell.run("status")
    failed = [line.split()[1] for line in out.splitlines() if line.startswith("  failed ")]
    assert failed == [*(f"shop/big{number}:" for number in (6, 5, 4, 3, 2)), "and"]
    assert "  failed     and 2 before\n" in out


def test_the_reasons_of_a_pod_are_shown_after_a_restart(shell: Shell) -> None:
    with in_background(shell.world):
        shell.run("admit", shell.file(manifest(cpu="1500m")))
        before = shell.run("show", "web")[1]
    with in_background(shell.world):
        _, out, _ = shell.run("show", "web")
    reason = "  c0: its cpu request 1500m is not a positive whole number\n"
    assert f"\nwhy\n{reason}\nslow\n" in out
    assert reason in before


@pytest.mark.usefixtures("agent")
def test_a_directory_stands_for_its_manifests_in_the_order_of_their_names(
    shell: Shell, tmp_path: Path
) -> None:
    directory = tmp_path / "pods"
    (directory / "d.yaml").mkdir(parents=True)
    names = ("c.json", "a.yml", "b.yaml")
    other = (".hidden.yaml", "e.yaml~", "f.dpkg-old.yaml", "README.md", "d.yaml/g.yaml")
    for number, name in enumerate((*names, *other)):
        uid = f"{UID[:-1]}{number}"
        (directory / name).write_bytes(manifest(f"pod{number}", uid, cpu="500m"))
    last = shell.file(manifest("last", OTHER_UID, cpu="500m"))
    code, out, _ = shell.run("admit", str(directory), last, "-o", "name")
    assert code == ExitCode.OK
    assert out.split() == ["shop/pod1", "shop/pod2", "shop/pod0", "shop/last"]


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize("command", ["admit", "diff"])
def test_a_file_that_is_wrong_is_reported_and_keeps_no_later_one_out(
    shell: Shell, tmp_path: Path, command: str
) -> None:
    half = shell.file(manifest()[:40], "a.yaml")
    gone, huge = str(tmp_path / "b.yaml"), shell.file(manifest("huge", "huge", cpu="64"), "c.yaml")
    good = shell.file(manifest(cpu="500m"), "d.yaml")
    code, out, err = shell.run(command, half, gone, huge, good)
    assert (code, "shop/web" in out, "OutOfcpu" in out) == (ExitCode.BAD_INPUT, True, True)
    assert [line.split(":")[2].strip() for line in err.splitlines()] == [half, gone]
    assert shell.run(command, huge, half)[0] == ExitCode.REJECTED


def test_an_error_that_is_not_of_one_file_says_how_many_were_not_tried(shell: Shell) -> None:
    files = [shell.file(manifest(), f"{name}.yaml") for name in "abc"]
    code, _, err = shell.run("admit", *files)
    assert code == ExitCode.UNREACHABLE
    assert err.splitlines()[1:] == [f"  not tried: 2 manifests after {files[0]}"]


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize("form", [yaml_of, json.dumps])
def test_a_list_of_kubectl_stands_for_its_pods(shell: Shell, form: Callable[[object], str]) -> None:
    pod = {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
    whole = {"apiVersion": "v1", "kind": "Pod", **pod, "metadata": {"name": "b"}}
    items = [pod, {"kind": "Service"}, "odd", whole]
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    content = form(json.loads(listed)).encode()
    file = shell.file(content, "list.yaml")
    code, out, err = shell.run("admit", file, "-o", "name")
    assert (code, out.split()) == (ExitCode.BAD_INPUT, ["default/a", "default/b"])
    assert [line.split(": ")[2] for line in err.splitlines()] == [
        f"{file}, items[{wrong}]" for wrong in (1, 2)
    ]
    alone = shell.file(form(whole).encode())
    assert shell.run("diff", alone)[0] == ExitCode.OK
    heads = [line for line in shell.run("fit", file)[1].splitlines() if "items" in line]
    assert heads == [f"{file}, items[{pod}]" for pod in (0, 3)]


def test_what_a_list_has_is_read_as_it_is_alone(shell: Shell) -> None:
    head = b"kind: List\nitems:\n- spec: {}\n  a: "
    for content, found in (
        (head + b"010", ": line 4: "),
        (b"kind: List", ": the list has no items"),
    ):
        file = shell.file(content)
        code, _, err = shell.run("admit", file)
        assert (code, f"{file}{found}" in err) == (ExitCode.BAD_INPUT, True)


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize("command", ["admit", "diff"])
def test_nothing_is_admitted_beside_a_directory_that_has_no_manifest_to_read(
    shell: Shell, tmp_path: Path, command: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "pod.txt").write_bytes(manifest())
    code, out, err = shell.run(command, shell.file(manifest()), str(tmp_path / "empty"))
    assert (code, out) == (ExitCode.BAD_INPUT, "")
    assert err == (
        f"numawarden: error: {tmp_path}/empty: no file of this directory has a name that ends in "
        ".yaml, .yml, .json; name a manifest, or a directory with manifests\n"
    )
    (tmp_path / "empty" / "pod.yaml").symlink_to(tmp_path / "gone")
    code, _, err = shell.run(command, str(tmp_path / "empty"))
    assert (code, f"{tmp_path}/empty/pod.yaml: No such file" in err) == (ExitCode.BAD_INPUT, True)
    assert shell.run("list")[1] == "no pods are admitted\n"


@pytest.mark.usefixtures("agent")
def test_a_pod_is_not_removed_by_its_file(shell: Shell) -> None:
    code, _, err = shell.run("remove", shell.file(manifest()), "--timeout", "5s")
    assert (code, "is admitted, and a pod is not named by its file; see" in err) == (6, True)


@pytest.mark.usefixtures("agent")
def test_what_stays_of_removed_pods_is_said_once(shell: Shell) -> None:
    for number, uid in enumerate((UID, OTHER_UID)):
        shell.run("admit", shell.file(manifest(f"p{number}", uid)))
        shell.world.kernel.mkdir(f"kubepods/pod{uid}/c0")
        shell.world.kernel.spawn(f"kubepods/pod{uid}/c0", 4711 + number)
    _, out, _ = shell.run("remove", "p0", "p1")
    notes = [line for line in out.splitlines() if line.startswith("  note: ")]
    assert len(notes) == len(set(notes)) == 4


@pytest.mark.usefixtures("agent")
def test_the_name_of_a_file_controls_no_terminal(shell: Shell) -> None:
    _, out, _ = shell.run("diff", shell.file(manifest(), "\x1b[2J.yaml"))
    assert out.splitlines()[1].endswith("/\\x1b[2J.yaml)")


@pytest.mark.usefixtures("agent")
def test_a_manifest_may_come_from_standard_input(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "-").mkdir()  # is not what - names
    monkeypatch.chdir(tmp_path)
    wrong = "numawarden: error: standard input: line "
    for content, code, said in (
        (manifest(), ExitCode.OK, ""),
        (b"kind: [", ExitCode.BAD_INPUT, wrong),
    ):
        (tmp_path / "in").write_bytes(content)
        with (tmp_path / "in").open() as stream:
            monkeypatch.setattr("sys.stdin", stream)
            found, _, err = shell.run("admit", "-")
        assert (found, err[: len(wrong)]) == (code, said)


def test_a_pod_that_is_not_enforced_has_an_exit_code_of_its_own(
    shell: Shell, agent: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reject(*_: object, **__: object) -> EnforcementReport:
        return EnforcementReport(differences=(unenforced("cpuset.cpus: Permission denied", UID),))

    monkeypatch.setattr(agent.controller.steps.kernel, "enforce", reject)
    code, out, _ = shell.run("admit", shell.file(manifest()))
    assert code == ExitCode.NOT_ENFORCED
    assert "  not enforced: cpuset.cpus: Permission denied" in out
    assert "NOT ENFORCED" in shell.run("list")[1]
    assert shell.run("show", "web")[0] == ExitCode.NOT_ENFORCED
    assert (
        "  CONDITION  pod shop/web is not enforced: cpuset.cpus: Permission denied "
        "(Enforced: Unknown, since " in shell.run("status")[1]
    )


def test_watching_prints_a_line_for_each_event_until_the_agent_ends(
    shell: Shell, agent: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = threading.Event()
    watch = agent.controller.events.watch

    def noticed() -> AbstractContextManager[Watcher]:
        watched.set()
        return watch()

    def act() -> None:
        assert watched.wait(PATIENCE)
        agent.client.admit(manifest())
        agent.client.remove(UID)
        agent.life.get_loop().call_soon_threadsafe(agent.service.stop)

    monkeypatch.setattr(agent.controller.events, "watch", noticed)
    acting = threading.Thread(target=act)
    acting.start()
    code, out, err = shell.run("watch")
    acting.join()
    assert code == ExitCode.UNREACHABLE
    assert err.startswith("numawarden: error: the agent ended; see 'systemctl status numawarden'")
    *lines, last = [line.split()[1:] for line in out.splitlines()]
    has = ["shop/web", "exclusive", "CPUs"]
    took = ["enforced", "after", "0", "ms"]
    assert lines == [["PodAdmitted", *has, "1,9;", *took], ["PodRemoved", *has, "1,9"]]
    assert last[0] == "AgentStopped"


@pytest.mark.usefixtures("agent")
def test_fit_answers_for_one_more_pod_where_the_manifests_own_is_admitted(shell: Shell) -> None:
    file = shell.file(manifest(cpu="8"))
    shell.run("admit", file)
    code, out, _ = shell.run("fit", file)
    assert (code, "admit the pod again" in out) == (ExitCode.REJECTED, False)
    for advice in ("request 7 of cpu in container c0 instead of 8", "end pod shop/web"):
        assert f"    {advice}\n" in out


def test_fit_says_whether_a_pod_could_be_resized_and_resizes_none(
    agent: Running, shell: Shell
) -> None:
    shell.run("admit", shell.file(manifest(cpu="2")))
    had = agent.client.pod(UID).exclusive_cpus
    asked = ("web", "--cpus", "4")
    code, out, _ = shell.run("fit", "--resize", *asked)
    assert (code, out.splitlines()[0]) == (ExitCode.OK, f"would resize shop/web (uid {UID})")
    assert out == shell.run("resize", *asked, "--dry-run")[1]
    code, out, _ = shell.run("fit", "--resize", "web", "-c", "c0", "--cpus", "99")
    assert (code, out.splitlines()[0]) == (
        ExitCode.REJECTED,
        f"would not resize shop/web (uid {UID})",
    )
    assert agent.client.pod(UID).exclusive_cpus == had
    code, _, err = shell.run("fit", "--resize", "web", "--cpus", "4", "--count")
    assert code == ExitCode.USAGE
    assert "--resize takes --cpus and --memory alone" in err


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize("end", [b"---\n", b"---", b"...\n", b"---\n# nothing\n"])
def test_an_empty_end_of_a_manifest_is_not_a_second_document(shell: Shell, end: bytes) -> None:
    assert shell.run("admit", "--dry-run", shell.file(manifest() + end))[0] == ExitCode.OK


@pytest.mark.parametrize("most", ["0", "1001", "x", "%C2%B2", "9" * 40])
def test_the_query_of_fit_has_a_bound(agent: Running, most: str) -> None:
    with pytest.raises(AgentError, match="most is a whole number from 1 to 1000"):
        agent.client._request("POST", f"/v1/fit?most={most}", manifest())


@pytest.mark.parametrize("command", ["list", "status", "watch", "show x", "dashboard --no-open"])
def test_without_an_agent_it_says_so_in_a_line(shell: Shell, command: str) -> None:
    code, out, err = shell.run(*command.split())
    assert (code, out) == (ExitCode.UNREACHABLE, "")
    assert err.startswith(f"numawarden: error: cannot reach the agent at {shell.world.socket}: ")
    assert err.count("\n") == 1
