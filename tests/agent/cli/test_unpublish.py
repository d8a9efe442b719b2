"""`numawarden unpublish` removes the node's topology, and nothing that the agent did not make."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.cli.errors import ExitCode
from tests.fakes.api_server import TOKEN, Failure, api_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.agent.cli.shell import Command
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


def test_the_object_of_the_node_is_removed(fake: FakeApiServer, file: Path, run: Command) -> None:
    fake.topologies = {"worker-1": OURS, "worker-2": OURS}
    removed = "removed the NodeResourceTopology of node worker-1\n"
    assert run("unpublish", "--config", file) == (ExitCode.OK, removed, "")
    assert fake.topologies == {"worker-2": OURS}
    none = "no NodeResourceTopology of node worker-1\n"
    assert run("unpublish", "--config", file) == (ExitCode.OK, none, "")


def test_the_object_of_another_program_stays(fake: FakeApiServer, file: Path, run: Command) -> None:
    fake.topologies = {"worker-1": THEIRS}
    code, out, _ = run("unpublish", "--config", file)
    assert (code, "of another program, left as it is" in out) == (ExitCode.OK, True)
    assert fake.topologies == {"worker-1": THEIRS}


def test_an_object_that_was_published_before_can_be_removed(
    fake: FakeApiServer, file: Path, run: Command
) -> None:
    fake.topologies = {"worker-1": OURS}
    off = ("unpublish", "--config", file, "--set", "agent.kubernetes.publishTopology=false")
    assert run(*off, "--if-configured")[0] == ExitCode.OK
    assert fake.requests == []
    assert run(*off)[0] == ExitCode.OK
    assert fake.topologies == {}


def test_what_prevents_the_removal_is_one_line(
    fake: FakeApiServer, file: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.always = Failure(403, "no")
    code, _, err = run("unpublish", "--config", file)
    assert (code, err.count("\n")) == (ExitCode.ENVIRONMENT, 1)
    assert err.startswith(f"numawarden: error: GET {fake.url}/apis/")
    assert "allow the agent's service account the verbs" in err
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    code, _, err = run("unpublish", "--config", file, "--set", "agent.kubernetes.server=")
    assert (code, "agent.kubernetes.server: not set" in err) == (ExitCode.ENVIRONMENT, True)
