"""`numawarden unpublish` removes the node's topology, and nothing that the agent did not make."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.cli.errors import ExitCode
from agent.cli.main import run_command
from tests.fakes.api_server import TOKEN, Failure, api_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fakes.api_server import FakeApiServer

OURS = {"metadata": {"uid": "u", "managedFields": [{"manager": "numawarden"}]}}
THEIRS = {"metadata": {"uid": "u", "managedFields": [{"manager": "nfd"}]}}


@pytest.fixture
def fake(certificate: Path) -> Iterator[FakeApiServer]:
    with api_server(certificate) as fake:
        yield fake


@pytest.fixture
def file(fake: FakeApiServer, certificate: Path, tmp_path: Path) -> Path:
    (tmp_path / "token").write_text(TOKEN)
    file = tmp_path / "config.yaml"
    file.write_text(
        "agent:\n  kubernetes:\n    publishTopology: true\n    nodeName: worker-1\n"
        f"    server: {fake.url}\n    tokenFile: {tmp_path}/token\n    caFile: {certificate}\n"
    )
    return file


def unpublish(file: Path, *more: str) -> int:
    return run_command(["unpublish", "--config", str(file), *more])


def test_the_object_of_the_node_is_removed(
    fake: FakeApiServer, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.topologies = {"worker-1": OURS, "worker-2": OURS}
    assert unpublish(file) == ExitCode.OK
    assert fake.topologies == {"worker-2": OURS}
    assert capsys.readouterr().out == "removed the NodeResourceTopology of node worker-1\n"
    assert unpublish(file) == ExitCode.OK
    assert capsys.readouterr().out == "no NodeResourceTopology of node worker-1\n"


def test_the_object_of_another_program_stays(
    fake: FakeApiServer, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.topologies = {"worker-1": THEIRS}
    assert unpublish(file) == ExitCode.OK
    assert fake.topologies == {"worker-1": THEIRS}
    assert "of another program, left as it is" in capsys.readouterr().out


def test_an_object_that_was_published_before_can_be_removed(
    fake: FakeApiServer, file: Path
) -> None:
    fake.topologies = {"worker-1": OURS}
    off = ("--set", "agent.kubernetes.publishTopology=false")
    assert unpublish(file, *off, "--if-configured") == ExitCode.OK
    assert fake.requests == []
    assert unpublish(file, *off) == ExitCode.OK
    assert fake.topologies == {}


def test_what_prevents_the_removal_is_one_line(
    fake: FakeApiServer, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.always = Failure(403, "no")
    assert unpublish(file) == ExitCode.ENVIRONMENT
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"numawarden: error: GET {fake.url}/apis/")
    assert "allow the agent's service account the verbs" in line


def test_without_a_server_the_key_is_named(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert unpublish(file, "--set", "agent.kubernetes.server=") == ExitCode.ENVIRONMENT
    assert "agent.kubernetes.server: not set" in capsys.readouterr().err
