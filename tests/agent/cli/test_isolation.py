"""`numawarden isolation` shows what the agent changed of the host, and gives it back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from agent.cli import isolation as command
from agent.cli.errors import ExitCode
from agent.cli.main import run_command
from agent.isolation.originals import Originals, running_boot
from agent.state.store import Store

if TYPE_CHECKING:
    from pathlib import Path

IRQ: Final = "proc/irq/5/smp_affinity_list"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Return the configuration of a host of which an agent changed one interrupt."""
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "proc/irq/5").mkdir(parents=True)
    (tmp_path / IRQ).write_text("0-1\n")
    Originals(tmp_path / "state", running_boot(command._PROC)).save({IRQ: "0-7\n"})
    file = tmp_path / "config.yaml"
    file.write_text(f"agent: {{stateDirectory: {tmp_path}/state, sysfsRoot: {tmp_path}}}\n")
    return file


def run(name: str, config: Path) -> int:
    return run_command(["isolation", name, "--config", str(config)])


def test_what_was_changed_is_shown_and_restored(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("status", config) == ExitCode.OK
    assert capsys.readouterr().out.splitlines()[1].split() == [IRQ, "0-7", "0-1"]
    assert run("restore", config) == ExitCode.OK
    assert (config.parent / IRQ).read_text() == "0-7\n"
    assert "1 settings restored" in capsys.readouterr().out
    assert run("restore", config) == ExitCode.OK
    assert "0 settings restored" in capsys.readouterr().out


def test_beside_a_running_agent_nothing_is_restored(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store(config.parent / "state"):
        assert run("restore", config) == ExitCode.ENVIRONMENT
    assert "the agent runs" in capsys.readouterr().err
    assert (config.parent / IRQ).read_text() == "0-1\n"


def test_what_cannot_be_restored_is_named_and_kept(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (config.parent / IRQ).unlink()
    (config.parent / IRQ).mkdir()
    assert run("restore", config) == ExitCode.ENVIRONMENT
    assert f"not restored: {IRQ}: Is a directory" in capsys.readouterr().err
