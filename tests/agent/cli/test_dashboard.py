from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import HTTPError

import pytest
from msgspec.structs import replace

from agent.cli import lab
from agent.cli.errors import ExitCode
from agent.config.agent import HistoryConfig
from tests.agent.cli.shell import in_background
from tests.agent.server.support import PATIENCE, UID, manifest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.agent.cli.shell import Shell
    from tests.agent.server.support import Running, World

ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)/#([\w-]+)")


@contextmanager
def started(world: World, *options: str) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """Run the command; give the process, the page without a fragment, and the token."""
    program = str(Path(sys.executable).with_name("numawarden"))
    command = [program, "dashboard", "--socket", str(world.socket), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = ADDRESS.search(process.stdout.readline())
            assert found is not None
            yield process, f"http://127.0.0.1:{found[1]}", found[2]
        finally:
            process.kill()


def fetched(url: str, token: str = "") -> tuple[int, bytes]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310  # our own address
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=PATIENCE) as answer:
            return answer.status, answer.read()
    except HTTPError as error:
        with error:
            return error.code, error.read()


@pytest.mark.usefixtures("agent")
def test_the_printed_address_has_the_page_and_a_token_of_its_own_until_a_signal(
    world: World,
) -> None:
    with (
        started(world, "--no-open") as (process, page, token),
        started(world, "--no-open") as (second, _, other),
    ):
        assert fetched(f"{page}/")[0] == 200
        assert token != other
        for wrong in ("", other):
            assert fetched(f"{page}/v1/status", wrong)[0] == 401
        status, body = fetched(f"{page}/v1/status", token)
        assert (status, json.loads(body)["pid"]) == (200, os.getpid())
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == ExitCode.OK
        second.send_signal(signal.SIGINT)
        assert second.wait(PATIENCE) == ExitCode.INTERRUPTED


def test_a_port_in_use_is_named_with_a_remedy(shell: Shell, agent: Running) -> None:
    code, _, err = shell.run("dashboard", "--no-open", "--port", str(agent.port))
    assert code == ExitCode.ENVIRONMENT
    assert f"port {agent.port} of 127.0.0.1: Address already in use; name another one" in err


def test_a_browsers_command_line_has_a_private_file_and_no_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[Path] = []

    def browse(address: str) -> bool:
        assert "secret" not in address
        file = Path(address.removeprefix("file://"))
        assert "http://127.0.0.1:1/#secret" in file.read_text()
        assert file.stat().st_mode & 0o077 == 0
        assert file.parent.stat().st_mode & 0o077 == 0
        opened.append(file)
        return True

    monkeypatch.setattr("webbrowser.open", browse)
    with lab._opened("http://127.0.0.1:1/#secret", open_it=True):
        assert len(opened) == 1
    assert not opened[0].exists()


@pytest.mark.parametrize(
    ("environment", "expected"),
    [({}, False), ({"DISPLAY": ":0"}, True), ({"WAYLAND_DISPLAY": "w"}, True)],
)
def test_a_browser_is_opened_where_there_is_a_display(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], *, expected: bool
) -> None:
    monkeypatch.setattr(os, "environ", environment)
    assert lab._has_display() is expected


def test_a_saved_page_is_a_file_of_its_owner_with_what_the_agent_answers(
    agent: Running, shell: Shell, tmp_path: Path
) -> None:
    agent.client.admit(manifest())
    file = tmp_path / "saved.html"
    code, out, err = shell.run("dashboard", "--save", str(file))
    assert (code, err) == (ExitCode.OK, "")
    said = re.fullmatch(rf"{file}: the dashboard of .+, saved (\d{{4}}-\S+ \S+Z)\n", out)
    assert said is not None
    assert file.stat().st_mode & 0o777 == 0o600
    page = file.read_text()
    assert f"saved {said[1]}</p>" in page
    data = re.search(r'id="saved">(.*?)</script>', page)
    assert data is not None
    saved = json.loads(data[1])
    assert [pod["uid"] for pod in saved["pods"]] == [UID]
    assert saved["status"]["pid"] == agent.client.status().pid
    assert "PodAdmitted" in {entry["type"] for entry in saved["history"]["entries"]}


def test_without_a_history_a_page_is_saved_as_well(
    world: World, shell: Shell, tmp_path: Path
) -> None:
    settings = replace(world.config.agent, history=HistoryConfig(max_bytes=0))
    world.config = replace(world.config, agent=settings)
    file = tmp_path / "saved.html"
    with in_background(world):
        assert shell.run("dashboard", "--save", str(file))[0] == ExitCode.OK
    assert '"history":null}' in file.read_text()


def test_a_page_that_cannot_be_saved_is_one_line_and_no_file(shell: Shell, tmp_path: Path) -> None:
    there, none = tmp_path / "saved.html", tmp_path / "none" / "saved.html"
    assert shell.run("dashboard", "--save", str(there))[0] == ExitCode.UNREACHABLE
    assert not there.exists()
    there.write_text("mine")
    with in_background(shell.world):
        code, out, err = shell.run("dashboard", "--save", str(there))
        assert (code, out) == (ExitCode.BAD_INPUT, "")
        assert f"{there} exists; remove it, or name another file" in err
        code, _, err = shell.run("dashboard", "--save", str(none))
    assert code == ExitCode.ENVIRONMENT
    assert f"{none} cannot be written: No such file or directory; name another file" in err
    assert there.read_text() == "mine"
