"""Upgrade and rollback: the agent of the commit before and this one on the same state in turn.

`NUMAWARDEN_PREVIOUS` names another commit than the parent of HEAD. Sources that give the
checkpoint another version than that commit are compared with themselves: neither reads the other's.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from agent.api.client import AgentClient
from agent.api.documents.maintenance import CordonRequest
from agent.state.store import CHECKPOINT_NAME
from tests.agent.server.support import PATIENCE, manifest
from tests.agent.server.test_process import CONFIG, Process, listening

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parents[3]
PREVIOUS: Final = os.environ.get("NUMAWARDEN_PREVIOUS", "HEAD^")
#: What an agent needs to run from its sources.
SOURCES: Final = ("agent", "cgroupfs", "sysfs", "systemd")


@pytest.fixture(scope="session")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the sources of the commit before; skip where the history does not have it."""
    command = ["git", "-C", str(ROOT), "archive", PREVIOUS, *SOURCES]
    try:
        found = subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE)
    except FileNotFoundError:
        pytest.skip("git is not installed, so there is no commit before to run")
    if found.returncode:
        why = found.stderr.decode().strip()
        pytest.skip(f"{PREVIOUS} cannot be had from git (no history, or a shallow clone): {why}")
    place = tmp_path_factory.mktemp("previous")
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
        archive.extractall(place, filter="data")
    return place if _checkpoint_version(place) == _checkpoint_version(ROOT) else ROOT


def _checkpoint_version(sources: Path) -> list[str]:
    texts = "".join(file.read_text() for file in sorted((sources / "agent/state").glob("*.py")))
    return re.findall(r"^VERSION: Final = (\d+)", texts, re.MULTILINE)


@pytest.fixture
def place(tmp_path: Path, host_root: Path) -> Path:
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "cgroup").mkdir()
    (tmp_path / "config.yaml").touch(mode=0o600)
    text = CONFIG.format(directory=tmp_path, root=host_root)
    (tmp_path / "config.yaml").write_text(f"{text}memoryManagerPolicy: None\n")
    return tmp_path


@contextmanager
def release(sources: Path, place: Path) -> Iterator[tuple[AgentClient, Process]]:
    """Run the agent of some sources until the block ends."""
    command = [sys.executable, "-m", "agent.cli.main", "agent", "--emulate-cgroups"]
    with listening(place) as (notified, environment):
        child = subprocess.Popen(
            [*command, "--config", str(place / "config.yaml")],
            cwd=sources,
            env={**environment, "PYTHONPATH": str(sources)},
            stderr=subprocess.PIPE,
            text=True,
        )
        process = Process(child, notified)
        try:
            process.wait_for("READY=1")
            yield AgentClient(place / "agent.sock", timeout=PATIENCE), process
        finally:
            child.kill()
            child.communicate()


def uid_of(number: int) -> str:
    return f"{number}0000000-2222-3333-4444-555555555555"


def allocations(client: AgentClient) -> dict[str, dict[str, str | None]]:
    return {
        pod.uid: {container.name: container.cpus for container in pod.containers}
        for pod in client.pods()
    }


def settings(place: Path) -> dict[str, tuple[str, int]]:
    """Return every file of every cgroup of pods with its text and when it was written."""
    inside = (place / "cgroup/kubepods").glob("*/**/*")
    files = sorted(file for file in inside if file.is_file() and file.name != "cgroup.controllers")
    return {
        str(file.relative_to(place)): (file.read_text(), file.stat().st_mtime_ns) for file in files
    }


def saved_pods(place: Path) -> object:
    return json.loads((place / "state" / CHECKPOINT_NAME).read_bytes())["state"]["pods"]


def checkpoints(place: Path) -> list[str]:
    """Return the names of the checkpoint and of those that were set aside."""
    return [file.name for file in (place / "state").glob("checkpoint*")]


def test_the_sources_of_the_commit_before_are_those_that_run(previous: Path) -> None:
    for sources in (previous, ROOT):
        asked = [sys.executable, "-c", "import agent; print(agent.__file__)"]
        environment = {**os.environ, "PYTHONPATH": str(sources)}
        found = subprocess.run(
            asked, cwd=sources, env=environment, capture_output=True, text=True, check=True
        )
        assert Path(found.stdout.strip()) == sources / "agent" / "__init__.py"


@pytest.mark.parametrize("upgrade", [True, False], ids=["upgrade first", "rollback first"])
def test_pods_keep_their_allocations_and_nothing_is_written_again(
    previous: Path, place: Path, *, upgrade: bool
) -> None:
    turns = [previous, ROOT] if upgrade else [ROOT, previous]
    known: dict[str, dict[str, str | None]] = {}
    shown: dict[str, tuple[str, int]] = {}
    for number, sources in enumerate((*turns, *turns)):
        before = saved_pods(place) if number else []
        with release(sources, place) as (client, process):
            assert allocations(client) == known
            compared = client.reconcile()
            assert (dict(compared.found), compared.differences) == ({}, ())
            if number:
                now = settings(place)
                both = now.keys() & shown.keys()  # the other emulated kernel may have fewer files
                assert both
                assert {name: now[name] for name in both} == {name: shown[name] for name in both}
            answer = client.admit(manifest(f"web-{number}", uid_of(number + 1)))
            assert answer.admitted, answer.rejection
            client.reconcile()
            known, shown = allocations(client), settings(place)
            assert process.end(signal.SIGTERM)[0] == 0
        assert len(known) == number + 1
        after = saved_pods(place)
        assert isinstance(after, list)
        assert after[:number] == before
        assert checkpoints(place) == [CHECKPOINT_NAME]


def test_a_cordon_costs_no_release_the_checkpoint(previous: Path, place: Path) -> None:
    with release(ROOT, place) as (client, process):
        client.admit(manifest("web", uid_of(1)))
        client.cordon(CordonRequest(target="2-3", reason="DIMM"))
        known = allocations(client)
        assert process.end(signal.SIGTERM)[0] == 0
    for number, sources in enumerate((previous, ROOT)):
        with release(sources, place) as (client, process):
            assert allocations(client) == known
            assert client.admit(manifest(f"more-{number}", uid_of(number + 2))).admitted
            known = allocations(client)
            assert process.end(signal.SIGTERM)[0] == 0
        assert checkpoints(place) == [CHECKPOINT_NAME]
