"""The commands that speak to the agent, against a real one."""

from __future__ import annotations

import json
import re
import threading
from typing import TYPE_CHECKING

import pytest

from agent.cli.errors import ExitCode
from tests.agent.cli.shell import Shell, in_background
from tests.agent.reconcile.pods import unenforced
from tests.agent.server.support import OTHER_UID, PATIENCE, UID, manifest

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from agent.server.events import Watcher
    from tests.agent.server.support import Running


@pytest.mark.usefixtures("agent")
def test_a_pod_is_admitted_listed_shown_and_removed(shell: Shell) -> None:
    code, out, err = shell.run("admit", shell.file(manifest(containers=2)))
    assert (code, err) == (ExitCode.OK, "")
    assert out.splitlines() == [
        f"admitted shop/web (uid {UID})",
        "  c0  CPUs 1,9 (its own)",
        "  c1  CPUs 2,10 (its own)",
        (
            f"  start     podman --cgroup-manager=cgroupfs run --name c0 "
            f"--cgroup-parent=/kubepods/pod{UID} --cpuset-cpus=1,9 IMAGE"
        ),
    ]
    code, out, _ = shell.run("list")
    assert code == ExitCode.OK
    assert out.splitlines()[0] == (
        "shop/web  Guaranteed  0 of 2 containers found (starting)  from api"
    )
    code, out, _ = shell.run("show", "shop/web")
    assert code == ExitCode.OK
    assert f"kernel    /kubepods/pod{UID}" in out
    assert "cpuset.cpus 1-2,9-10, effective 1-2,9-10" in out
    assert "c0: Guaranteed with a whole number of CPUs (2)" in out
    assert "merged: " in out
    assert all(len(line) <= 80 for line in out.splitlines() if line.split()[:1] != ["start"])
    code, out, _ = shell.run("remove", "web")
    assert (code, out) == (ExitCode.OK, f"removed shop/web (uid {UID})\n")
    assert shell.run("list") == (ExitCode.OK, "no pods are admitted\n", "")


@pytest.mark.usefixtures("agent")
def test_several_pods_are_admitted_listed_and_removed_by_one_command(shell: Shell) -> None:
    web = shell.file(manifest())
    other = shell.file(
        manifest("other", OTHER_UID).replace(b"namespace: shop", b"namespace: lab"), "other.yaml"
    )
    too_large = shell.file(manifest("huge", OTHER_UID[:-1] + "9", cpu="400"), "huge.yaml")
    code, out, _ = shell.run("admit", web, too_large, other, "-o", "name")
    assert (code, out) == (ExitCode.REJECTED, "shop/web\nshop/huge\nlab/other\n")
    for chosen in (("-n", "lab"), ("other",), (OTHER_UID, "lab/other")):
        assert shell.run("list", *chosen, "-o", "name") == (ExitCode.OK, "lab/other\n", "")
    assert "huge" in shell.run("list", "huge")[1]
    assert shell.run("list", "web", "nothing")[0] == ExitCode.NOT_FOUND
    code, out, _ = shell.run("remove", "web", "nothing")
    assert (code, out) == (ExitCode.NOT_FOUND, "")
    code, out, _ = shell.run("remove", "web", UID, "other", "-o", "yaml")
    assert (code, out.count("\n---\n")) == (ExitCode.OK, 1)
    assert shell.run("list", "-o", "name") == (ExitCode.OK, "", "")


@pytest.mark.usefixtures("agent")
def test_the_arguments_of_a_container_are_one_line_for_a_shell(shell: Shell) -> None:
    shell.run("admit", shell.file(manifest(containers=2)))
    parent = f"--cgroup-parent=/kubepods/pod{UID}"
    asked = ("show", "web", "--arguments", "podman")
    expected = f"{parent} --cpuset-cpus=2,10\n"
    assert shell.run(*asked, "--container", "c1") == (ExitCode.OK, expected, "")
    code, out, err = shell.run(*asked)
    assert (code, out) == (ExitCode.USAGE, "")
    assert "--container: c0, c1" in err
    code, out, err = shell.run(*asked, "--container", "c2")
    assert (code, out) == (ExitCode.NOT_FOUND, "")
    assert "no container is called 'c2'; known: c0, c1" in err
    code, _, err = shell.run("show", "web", "--arguments", "systemd-run", "--container", "c1")
    assert (code, "is not a slice" in err) == (ExitCode.BAD_INPUT, True)
    for wrong in (("--container", "c1"), ("--arguments", "podman", "--output", "json")):
        code, out, _ = shell.run("show", "web", *wrong)
        assert (code, out) == (ExitCode.USAGE, "")


@pytest.mark.usefixtures("agent")
def test_json_is_the_document_of_the_api(shell: Shell) -> None:
    _, out, _ = shell.run("admit", shell.file(manifest()), "--output", "json")
    assert json.loads(out)["pod"]["exclusiveCpus"] == "1,9"
    _, out, _ = shell.run("list", "--output", "json")
    assert [pod["uid"] for pod in json.loads(out)["pods"]] == [UID]
    _, out, _ = shell.run("show", UID, "--output", "json")
    assert json.loads(out)["kernel"][0]["cpusEffective"] == "1,9"
    _, out, _ = shell.run("status", "--output", "json")
    assert json.loads(out)["sharedPool"] == "0,2-8,10-15"
    _, out, _ = shell.run("remove", UID, "--output", "json")
    assert json.loads(out)["enforcement"]["enforced"] is True


@pytest.mark.usefixtures("agent")
def test_a_rejected_pod_is_explained_and_can_be_asked_about(shell: Shell) -> None:
    code, out, _ = shell.run("admit", shell.file(manifest("big", OTHER_UID, cpu="64")))
    assert code == ExitCode.REJECTED
    assert out.startswith(f"rejected shop/big (uid {OTHER_UID})\n")
    assert "OutOfcpu: the node has no room for the pod: 64 of cpu asked, 15 free" in out
    first, *rest = out.splitlines()
    phase = "  phase: Failed since 2023-11-14 22:30:00Z, from api"
    for name in (OTHER_UID, "big", "shop/big"):
        code, shown, _ = shell.run("show", name)
        assert (code, shown.splitlines()) == (ExitCode.REJECTED, [first, phase, *rest])
    code, shown, _ = shell.run("show", "big", "--output", "json")
    status = json.loads(shown)
    assert (code, status["phase"]) == (ExitCode.REJECTED, "Failed")
    assert status["reason"] == status["rejection"]["reason"]
    assert status["explanation"]["eligibility"]


@pytest.mark.usefixtures("agent")
def test_an_invalid_pod_can_be_asked_about_by_what_it_says_of_itself(shell: Shell) -> None:
    bad = manifest().replace(b"'2'", b"'-2'").replace(b"name: c0", b"name: C_0")
    shell.run("admit", shell.file(bad))
    nameless = bad.replace(f"  uid: {UID}\n".encode(), b"").replace(b"name: web", b"name: db")
    shell.run("admit", shell.file(nameless))
    code, out, _ = shell.run("show", UID)
    assert code == ExitCode.BAD_INPUT
    assert out.startswith(f"invalid shop/web (uid {UID})\n  phase: Failed since ")
    assert "\n  InvalidManifest: 3 mistakes in the manifest\n" in out
    assert "\n    line 9: spec.containers[0].name: " in out
    code, out, _ = shell.run("show", "shop/db")
    assert code == ExitCode.BAD_INPUT
    assert out.startswith("invalid shop/db\n")
    assert shell.run("show", "/")[0] == ExitCode.NOT_FOUND
    _, out, _ = shell.run("status")
    assert "  failed     shop/db: InvalidManifest, 2023-11-14 22:30:00Z\n" in out


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
        code, out, _ = shell.run("show", "web")
        assert code == ExitCode.OK
        reason = "  c0: its cpu request 1500m is not a positive whole number\n"
        assert out.endswith(f"\nwhy\n{reason}")
        assert reason in before
        _, listed, _ = shell.run("show", "web", "--output", "json")
    assert json.loads(listed)["containers"][0]["why"] == reason.strip().removeprefix("c0: ")


@pytest.mark.usefixtures("agent")
def test_a_dry_run_only_says_what_would_be(shell: Shell) -> None:
    code, out, _ = shell.run("admit", "--dry-run", shell.file(manifest()))
    assert code == ExitCode.OK
    assert out.startswith("would admit shop/web")
    code, out, _ = shell.run("admit", "--dry-run", shell.file(manifest(cpu="64")))
    assert code == ExitCode.REJECTED
    assert out.startswith("would reject shop/web")
    assert shell.run("list")[1] == "no pods are admitted\n"


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
    assert (code, out.split()) == (
        ExitCode.OK,
        ["shop/pod1", "shop/pod2", "shop/pod0", "shop/last"],
    )


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize("command", ["admit", "diff"])
def test_nothing_is_admitted_beside_a_directory_without_a_manifest(
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
    assert shell.run("list")[1] == "no pods are admitted\n"


@pytest.mark.usefixtures("agent")
def test_a_manifest_of_a_directory_that_cannot_be_read_is_named(
    shell: Shell, tmp_path: Path
) -> None:
    (tmp_path / "pod.yaml").symlink_to(tmp_path / "gone")
    code, _, err = shell.run("admit", str(tmp_path))
    assert (code, f"{tmp_path}/pod.yaml: No such file" in err) == (ExitCode.BAD_INPUT, True)


@pytest.mark.usefixtures("agent")
def test_a_pod_that_is_not_admitted_differs_from_nothing(shell: Shell) -> None:
    file = shell.file(manifest())
    code, out, err = shell.run("diff", file)
    assert (code, err) == (ExitCode.REJECTED, "")
    assert out.splitlines() == [
        "--- /dev/null",
        f"+++ shop/web ({file})",
        "@@ -0,0 +1,8 @@",
        "+shop/web",
        f"+  uid       {UID}",
        "+  QoS       Guaranteed",
        "+",
        "+c0 (app container, isolation container)",
        "+  CPUs      1,9 (its own)",
        "+  memory    not pinned",
        "+  quota     none, its CPUs are its own",
    ]
    assert shell.run("list")[1] == "no pods are admitted\n"


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize("uid", [UID, None], ids=["uid", "no uid"])
def test_an_admitted_pod_does_not_differ_from_its_manifest(shell: Shell, uid: str | None) -> None:
    """Nor would `admit --replace` change anything, though other CPUs are free now."""
    first = manifest("first", OTHER_UID)
    shell.run("admit", shell.file(first, "first.yaml"))
    file = shell.file(manifest("web", uid, containers=2))
    shell.run("admit", file)
    shell.run("remove", "first")
    assert shell.run("diff", file) == (ExitCode.OK, "", "")
    before = shell.run("list")
    assert ", as before" in shell.run("admit", "--replace", file)[1]
    assert shell.run("list") == before


@pytest.mark.usefixtures("agent")
def test_a_diff_is_what_a_replacement_changes(shell: Shell) -> None:
    shell.run("admit", shell.file(manifest("web", None, containers=2)))
    larger = shell.file(manifest("web", None, cpu="4", containers=2), "larger.yaml")
    before = shell.run("show", "web")[1]
    code, out, _ = shell.run("diff", larger)
    assert (code, shell.run("show", "web")[1]) == (ExitCode.REJECTED, before)
    same = ["   memory    not pinned", "   quota     none, its CPUs are its own"]
    head, uid, *lines = re.split(r"\n-  uid       (?:\w+)\n(\+  uid       \w+)\n", out)
    assert head.splitlines() == [
        "--- shop/web", f"+++ shop/web ({larger})", "@@ -1,13 +1,13 @@", " shop/web",
    ]  # fmt: skip
    assert "".join(lines).splitlines() == [
        "   QoS       Guaranteed",
        " ",
        " c0 (app container, isolation container)",
        "-  CPUs      1,9 (its own)",
        "+  CPUs      1-2,9-10 (its own)",
        *same,
        " ",
        " c1 (app container, isolation container)",
        "-  CPUs      2,10 (its own)",
        "+  CPUs      4-5,12-13 (its own)",
        *same,
    ]
    shell.run("admit", "--replace", larger)
    after = shell.run("show", "web")[1].splitlines()
    given = {line[1:] for line in (uid, *lines[0].splitlines()) if line[0] == "+"}
    assert given <= set(after)
    assert shell.run("diff", larger) == (ExitCode.OK, "", "")


@pytest.mark.usefixtures("agent")
def test_a_pod_that_would_be_rejected_has_no_diff_but_the_reason(shell: Shell) -> None:
    shell.run("admit", shell.file(manifest("web", None)))
    too_large = shell.file(manifest("web", None, cpu="64"))
    same = shell.file(manifest("web", None), "same.yaml")
    code, out, _ = shell.run("diff", too_large, same)
    assert code == ExitCode.REJECTED
    assert out.startswith("would reject shop/web (uid ")
    assert "OutOfcpu: " in out
    assert "the pod would be admitted now with one of these changes" in out
    assert out == shell.run("admit", "--dry-run", "--replace", too_large)[1]


@pytest.mark.usefixtures("agent")
def test_the_name_of_a_file_controls_no_terminal(shell: Shell) -> None:
    _, out, _ = shell.run("diff", shell.file(manifest(), "\x1b[2J.yaml"))
    assert out.splitlines()[1].endswith("/\\x1b[2J.yaml)")


@pytest.mark.usefixtures("agent")
def test_a_mistake_in_a_manifest_has_no_diff(shell: Shell) -> None:
    code, out, err = shell.run("diff", shell.file(b"kind: ["))
    assert (code, out, err.count("\n")) == (ExitCode.BAD_INPUT, "", 1)


@pytest.mark.usefixtures("agent")
def test_a_manifest_may_come_from_standard_input(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "-").mkdir()  # is not what - names
    monkeypatch.chdir(tmp_path)
    with (tmp_path / "in").open("w+b") as binary:
        binary.write(manifest())
        binary.seek(0)

        class Standard:
            buffer = binary

        monkeypatch.setattr("sys.stdin", Standard())
        assert shell.run("admit", "-")[0] == ExitCode.OK


@pytest.mark.usefixtures("agent")
def test_a_single_mistake_is_one_line(shell: Shell) -> None:
    code, _, err = shell.run("admit", shell.file(b"kind: ["))
    assert code == ExitCode.BAD_INPUT
    assert err.count("\n") == 1


@pytest.mark.usefixtures("agent")
def test_what_is_not_there_is_not_found(shell: Shell) -> None:
    for arguments in (
        ("remove", "x"),
        ("show", "x"),
        ("bind", "x", "c", "--pid", "1"),
        ("unbind", "x", "c"),
    ):
        code, _, err = shell.run(*arguments)
        assert code == ExitCode.NOT_FOUND
        assert err == "numawarden: error: no pod 'x' is admitted; see 'numawarden list'\n"


@pytest.mark.usefixtures("agent")
def test_a_name_that_means_two_pods_is_not_guessed(shell: Shell) -> None:
    shell.run("admit", shell.file(manifest()))
    elsewhere = manifest("web", OTHER_UID).replace(b"namespace: shop", b"namespace: lab")
    assert shell.run("admit", shell.file(elsewhere))[0] == ExitCode.OK
    code, _, err = shell.run("remove", "web")
    assert code == ExitCode.BAD_INPUT
    assert UID in err
    assert OTHER_UID in err
    assert shell.run("remove", UID)[0] == ExitCode.OK


@pytest.mark.usefixtures("agent")
def test_a_container_is_bound_to_its_cgroup(shell: Shell) -> None:
    shell.world.kernel.mkdir("batch.scope")
    shell.run("admit", shell.file(manifest()))
    code, out, _ = shell.run("bind", "web", "c0", "--cgroup", "/batch.scope")
    assert (code, out) == (ExitCode.OK, "bound c0 of web to /batch.scope\n")
    assert shell.world.cpus_of("batch.scope") == "1,9"
    code, _, err = shell.run("bind", "web", "zz", "--cgroup", "/batch.scope")
    assert code == ExitCode.NOT_FOUND
    assert "its containers are c0" in err
    code, _, err = shell.run("bind", "web", "c0", "--cgroup", "/none")
    assert code == ExitCode.BAD_INPUT
    assert "there is no such cgroup" in err


@pytest.mark.usefixtures("agent")
def test_a_binding_is_given_up(shell: Shell) -> None:
    shell.world.kernel.mkdir("batch.scope")
    shell.run("admit", shell.file(manifest()))
    code, _, err = shell.run("unbind", "web", "c0")
    assert code == ExitCode.NOT_FOUND
    assert re.fullmatch(
        "numawarden: error: container 'c0' of pod shop/web is not bound to a cgroup; "
        r"see 'numawarden show' for its cgroups \(operation [0-9a-f]{12}\)\n",
        err,
    )
    shell.world.kernel.spawn("batch.scope", 4711)
    shell.run("bind", "web", "c0", "--cgroup", "/batch.scope")
    code, out, _ = shell.run("unbind", "web", "c0")
    assert (code, out) == (ExitCode.OK, "unbound c0 of web from /batch.scope\n")
    assert shell.world.cpus_of("batch.scope") == "0,2-8,10-15"
    assert shell.run("unbind", "web", "zz")[0] == ExitCode.NOT_FOUND


def test_a_pod_that_is_not_enforced_has_an_exit_code_of_its_own(
    shell: Shell, agent: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agent.reconcile.report import EnforcementReport  # noqa: PLC0415

    def reject(*_: object) -> EnforcementReport:
        return EnforcementReport(differences=(unenforced("cpuset.cpus: Permission denied", UID),))

    monkeypatch.setattr(agent.controller.steps.kernel, "admitted", reject)
    code, out, _ = shell.run("admit", shell.file(manifest()))
    assert code == ExitCode.NOT_ENFORCED
    assert "  not enforced: cpuset.cpus: Permission denied" in out
    code, out, _ = shell.run("list")
    assert "NOT ENFORCED" in out
    assert shell.run("show", "web")[0] == ExitCode.NOT_ENFORCED
    _, out, _ = shell.run("status")
    assert (
        "  CONDITION  pod shop/web is not enforced: cpuset.cpus: Permission denied "
        "(Enforced: Unknown, since " in out
    )


def test_processes_that_outlive_their_pod_are_named(shell: Shell, agent: Running) -> None:
    shell.run("admit", shell.file(manifest()))
    cgroup = f"kubepods/pod{UID}/c0"
    agent.world.kernel.mkdir(cgroup)
    agent.world.kernel.spawn(cgroup, 4711)
    code, out, _ = shell.run("remove", "web")
    assert code == ExitCode.OK
    assert "note: " in out
    assert "4711" in out
    assert agent.world.kernel.procs(cgroup) == (4711,)


@pytest.mark.usefixtures("agent")
def test_the_status_shows_policies_and_allocations(shell: Shell) -> None:
    shell.run("admit", shell.file(manifest()))
    code, out, err = shell.run("status")
    assert (code, err) == (ExitCode.OK, "")
    assert "CPU static, memory None, topology best-effort (scope container)" in out
    assert "  exclusive  1,9" in out
    assert "  pods       1 with 1 container\n" in out
    assert "the kernel agrees with the ledger" in out
    assert all(len(line) <= 80 for line in out.splitlines())


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
    has = ["exclusive", "CPUs", "1,9"]
    assert lines == [["PodAdmitted", "shop/web", *has], ["PodRemoved", "shop/web", *has]]
    assert last[0] == "AgentStopped"


@pytest.mark.parametrize(
    "arguments", [("list",), ("status",), ("watch",), ("show", "x"), ("remove", "x")]
)
def test_without_an_agent_it_says_so_in_a_line(shell: Shell, arguments: tuple[str, ...]) -> None:
    code, out, err = shell.run(*arguments)
    assert (code, out) == (ExitCode.UNREACHABLE, "")
    assert err.startswith(f"numawarden: error: cannot reach the agent at {shell.world.socket}: ")
    assert err.count("\n") == 1


def test_a_file_that_is_not_there_is_named(shell: Shell) -> None:
    code, _, err = shell.run("admit", "/no/such/pod.yaml")
    assert code == ExitCode.BAD_INPUT
    assert err == "numawarden: error: /no/such/pod.yaml: No such file or directory\n"


@pytest.mark.usefixtures("agent")
def test_a_pod_that_would_not_get_what_is_required_is_rejected(shell: Shell) -> None:
    file = shell.file(manifest(cpu="3"))
    code, out, _ = shell.run("admit", file, "--require", "exclusive,whole-cores")
    assert code == ExitCode.REJECTED
    assert "RequirementNotMet: the pod would not get what it requires: c0 is not whole-cores" in out
    assert "request 2 of cpu in container c0 instead of 3" in out
    code, out, _ = shell.run("admit", file, "--require", "exclusive")
    assert code == ExitCode.OK
    lacking = "c0 is not whole-cores: not its own on the same cores: CPU 0"
    assert f"  {lacking}" in out.splitlines()
    _, out, _ = shell.run("list")
    assert f"  {lacking}" in out.splitlines()
    _, out, _ = shell.run("show", UID)
    assert f"  verdict   {lacking}" in out.splitlines()


@pytest.mark.usefixtures("agent")
def test_a_quality_that_does_not_exist_is_rejected_with_those_that_do(shell: Shell) -> None:
    code, _, err = shell.run("admit", shell.file(manifest()), "--require", "fast")
    assert code != ExitCode.OK
    assert "'fast', which is not one of exclusive, aligned, whole-cores, near-device" in err


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize("form", ["text", "json", "name"])
def test_what_of_a_manifest_has_no_effect_is_said_on_standard_error(
    shell: Shell, form: str
) -> None:
    text = manifest().replace(b"spec:", b"spec:\n  numaPolicy: strict\n  affinity: {a: b}", 1)
    code, out, err = shell.run("admit", "--dry-run", "-o", form, shell.file(text))
    assert code == ExitCode.OK
    assert err.splitlines() == [
        "numawarden: warning: spec.numaPolicy is ignored: a Pod has no such field",
        "numawarden: warning: ignored, as they have no meaning here: spec.affinity",
    ]
    assert "numaPolicy" not in out or form == "json"
