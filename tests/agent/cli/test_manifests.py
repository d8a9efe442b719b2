"""Every mistake in a manifest is reported with the user's file and its line, whichever the way."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

import pytest

from agent.cli.errors import ExitCode
from agent.cli.main import run_command
from tests.agent.cli.shell import Shell, in_background
from tests.agent.server.support import manifest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.server.support import World

#: One mistake, several of them, a broken YAML text, a document of another kind: with their lines.
MISTAKEN = {
    "one": (manifest().replace(b"name: c0", b"name: C_0"), 1),
    "several": (manifest().replace(b"'2'", b"'-2'").replace(b"name: c0", b"name: C_0"), 2),
    "no YAML": (b"metadata:\n  name: [\n", 1),
    "no pod": (b"apiVersion: v1\nkind: List\n", 1),
}
COMMANDS = {
    "admit": ("admit",),
    "dry run": ("admit", "--dry-run"),
    "fit": ("fit",),
}


def placed(text: str) -> list[int]:
    return [int(line) for line in re.findall(r"\bline (\d+):", text)]


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
@pytest.mark.parametrize(("content", "least"), MISTAKEN.values(), ids=MISTAKEN)
def test_a_mistake_is_reported_with_file_and_line(
    shell: Shell, command: tuple[str, ...], content: bytes, least: int
) -> None:
    file = shell.file(content, "wrong.yaml")
    code, out, err = shell.run(*command, file)
    assert (code, out) == (ExitCode.BAD_INPUT, "")
    assert err.startswith(f"numawarden: error: {file}: ")
    assert len(placed(err)) >= least


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_mistake_on_standard_input_is_reported_as_such(
    shell: Shell, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(MISTAKEN["one"][0]))
    monkeypatch.setattr("sys.stdin", stream)
    code, _, err = shell.run(*command, "-")
    assert code == ExitCode.BAD_INPUT
    assert err.startswith("numawarden: error: standard input: line ")


@pytest.mark.usefixtures("agent")
def test_a_mistake_in_an_option_names_the_options(shell: Shell) -> None:
    code, _, err = shell.run("fit", "--cpus", "2", "--memory", "much")
    assert code == ExitCode.BAD_INPUT
    assert err.startswith("numawarden: error: the pod of the options: ")
    code, _, err = shell.run("fit", "--cpus", "many")
    assert code == ExitCode.USAGE
    assert "--cpus" in err


def test_a_mistake_in_the_manifest_directory_has_its_line_in_the_status(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = world.manifest_directory()
    files = {name: directory / f"{name.replace(' ', '-')}.yaml" for name in MISTAKEN}
    for name, (content, _) in MISTAKEN.items():
        files[name].write_bytes(content)
    with in_background(world):
        _, out, _ = Shell(world, tmp_path, capsys).run("status")
    lines = out.splitlines()
    for name, (_, least) in MISTAKEN.items():
        file = str(files[name])
        start = next(n for n, line in enumerate(lines) if line.startswith(f"  manifest   {file}"))
        own = [lines[start]]
        for line in lines[start + 1 :]:
            if not line.startswith("               "):
                break
            own.append(line)
        assert len(placed("\n".join(own))) >= least
        assert not [line for line in lines if line.count(file) > 1]
        assert not [line for line in lines if line.strip().startswith(":")]


PLAIN = manifest()
#: What is given, and what the one line says of it.
MESSAGES = {
    "a list": (b"apiVersion: v1\nkind: PodList\nitems: []\n", "each in a manifest of its own"),
    "a template": (
        b"apiVersion: v1\nkind: ReplicationController\nmetadata: {name: x}\nspec: {}\n",
        "such as that of its template",
    ),
    "compressed": (b"\x1f\x8b\x08rest", "compressed with gzip; unpack it first"),
    "two documents": (PLAIN + b"---\na: 1\n", "a second document begins here"),
    "a generated name": (
        PLAIN.replace(b"name: web", b"generateName: web-"),
        "generateName is not used here",
    ),
}


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize(("content", "said"), MESSAGES.values(), ids=MESSAGES)
def test_a_mistake_says_what_to_give_instead(shell: Shell, content: bytes, said: str) -> None:
    code, _, err = shell.run("admit", "--dry-run", shell.file(content))
    assert (code, said in err, len(err.splitlines())) == (ExitCode.BAD_INPUT, True, 1)


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize("end", [b"---\n", b"---", b"...\n", b"---\n# nothing\n"])
def test_an_empty_end_of_a_manifest_is_not_a_second_document(shell: Shell, end: bytes) -> None:
    code, out, _ = shell.run("admit", "--dry-run", shell.file(PLAIN + end))
    assert (code, out.startswith("would admit shop/web")) == (ExitCode.OK, True)


@pytest.mark.usefixtures("agent")
def test_a_mistake_is_reported_once(shell: Shell) -> None:
    content = b"apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {containers: [a]}\n"
    _, _, err = shell.run("admit", shell.file(content))
    lines = err.splitlines()
    assert len(lines) == len(set(lines))


@pytest.mark.usefixtures("agent")
def test_a_conflict_has_no_empty_heading(shell: Shell) -> None:
    shell.run("admit", shell.file(PLAIN))
    code, out, _ = shell.run("admit", shell.file(manifest(cpu="4")))
    assert (code, "why" in out.splitlines()) == (ExitCode.REJECTED, False)


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize(
    ("cgroup", "said"),
    [("/", "the root of all cgroups"), ("/kubepods", "the cgroup of all pods")],
)
def test_cgroups_above_all_pods_are_named_as_such(shell: Shell, cgroup: str, said: str) -> None:
    shell.run("admit", shell.file(PLAIN))
    code, _, err = shell.run("bind", "web", "c0", "--cgroup", cgroup)
    assert (code, said in err) == (ExitCode.BAD_INPUT, True)


def test_a_directory_is_not_taken_for_a_stopped_agent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["status", "--socket", str(tmp_path)]) == ExitCode.UNREACHABLE
    assert "it is not a socket" in capsys.readouterr().err
