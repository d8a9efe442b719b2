"""`numawarden isolation` shows what the agent changed of the host, and gives it back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from agent.cli import isolation as command
from agent.cli.errors import ExitCode
from agent.cli.options import CONFIG_FILE
from agent.isolation.originals import Originals, running_boot
from agent.state.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.cli.shell import Command

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


def test_what_was_changed_is_shown_and_restored(run: Command, config: Path) -> None:
    _, out, _ = run("isolation", "status", "--config", config)
    assert out.splitlines()[1].split() == [IRQ, "0-7", "0-1"]
    for count in (1, 0):
        code, out, _ = run("isolation", "restore", "--config", config)
        assert (code, f"{count} settings restored" in out) == (ExitCode.OK, True)
        assert (config.parent / IRQ).read_text() == "0-7\n"


@pytest.mark.parametrize("name", ["status", "restore"])
def test_without_a_file_the_services_is_read(run: Command, name: str) -> None:
    help_ = " ".join(run("isolation", name, "--help")[1].split())
    assert f"[default: {CONFIG_FILE}]" in help_


def test_beside_a_running_agent_nothing_is_restored(run: Command, config: Path) -> None:
    with Store(config.parent / "state"):
        code, _, err = run("isolation", "restore", "--config", config)
    assert (code, "the agent runs" in err) == (ExitCode.ENVIRONMENT, True)
    assert (config.parent / IRQ).read_text() == "0-1\n"


def test_what_cannot_be_restored_is_named_and_kept(run: Command, config: Path) -> None:
    (config.parent / IRQ).unlink()
    (config.parent / IRQ).mkdir()
    code, _, err = run("isolation", "restore", "--config", config)
    assert (code, f"not restored: {IRQ}: Is a directory" in err) == (ExitCode.ENVIRONMENT, True)
