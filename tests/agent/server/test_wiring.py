from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from agent.cli.errors import ExitCode, exit_code_of, lines_of
from agent.clock import SystemClock
from agent.cluster.plugs import PLUGS
from agent.config.agent import MetricsConfig
from agent.config.model import CgroupDriver, ConfigError
from agent.reconcile.report import EnforcementStartError
from agent.server.errors import StartError
from agent.server.host_reader import most_processes
from agent.server.plugs import Fakes
from agent.server.wiring import Wiring
from agent.state.checkpoint import StateDirectoryLockedError
from cgroupfs.errors import TreeLockedError
from sysfs.files import SysfsError
from sysfs.mask import Mask
from systemd.units import BusUnavailableError
from tests.agent.server.support import RecordingManager

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.agent.server.support import World


def assemble(world: World, *, emulated: bool = True, systemd: object = None) -> Wiring:
    tree = world.kernel if emulated else None
    fakes = Fakes(tree=tree, systemd=systemd, live=False)  # type: ignore[arg-type]
    return Wiring(world.config, RecordingManager(), SystemClock(), PLUGS, fakes)


def set_agent(world: World, **changes: object) -> None:
    agent = replace(world.config.agent, **changes)
    set_config(world, agent=agent)


def set_config(world: World, **changes: object) -> None:
    world.config = replace(world.config, **changes)


def rejected(world: World, kind: type[Exception], code: ExitCode, *, emulated: bool = True) -> str:
    """Return the one line that a start is rejected with; nothing may stay open or locked."""
    with pytest.raises(kind) as error:
        assemble(world, emulated=emulated)
    (line,) = lines_of(error.value)
    assert exit_code_of(error.value) is code
    assert not world.socket.exists() or world.socket.is_file() or world.socket.is_dir()
    return line


def test_a_second_agent_on_the_same_cgroup_tree_is_rejected_whatever_else_it_has(
    world: World, tmp_path: Path
) -> None:
    with assemble(world):
        assert world.socket.is_socket()
        with pytest.raises(StateDirectoryLockedError, match="in use by process"):
            assemble(world)
        (tmp_path / "other").mkdir(mode=0o700)
        places = {"state_directory": tmp_path / "other", "socket_path": tmp_path / "other.sock"}
        set_agent(world, **places)
        world.config = replace(world.config, cgroup_root="/elsewhere")
        before = world.kernel.children("")
        line = rejected(world, TreeLockedError, ExitCode.ENVIRONMENT)
        assert "belongs to another agent" in line
        assert world.kernel.children("") == before
    with assemble(world):
        pass


def test_a_port_in_use_is_said_and_the_socket_is_removed(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        set_agent(world, metrics=MetricsConfig(port=port))
        line = rejected(world, StartError, ExitCode.ENVIRONMENT)
    assert f"metrics listener 127.0.0.1:{port}: Address already in use" in line


#: What keeps an agent from starting, by what it says; more in tests/agent/cli/test_could_start.py.
OBSTACLES: Final[dict[str, tuple[type[Exception], Callable[[World], object]]]] = {
    "cgroup: no such directory": (EnforcementStartError, lambda _: None),
    "nowhere/sys/devices/system/cpu": (
        SysfsError,
        lambda world: set_agent(world, sysfs_root=world.directory / "nowhere"),
    ),
    "reservedSystemCPUs": (
        ConfigError,
        lambda world: set_config(world, reserved_system_cpus=Mask.of(99)),
    ),
}


@pytest.mark.parametrize("said", OBSTACLES)
def test_what_keeps_it_from_starting_is_said_in_one_line(world: World, said: str) -> None:
    kind, obstruct = OBSTACLES[said]
    obstruct(world)
    code = ExitCode.BAD_INPUT if kind in (SysfsError, ConfigError) else ExitCode.ENVIRONMENT
    emulated = kind is not EnforcementStartError
    assert said in rejected(world, kind, code, emulated=emulated)


class NoBus:
    """A system bus that does not answer."""

    def active_state(self, unit: str) -> object:
        raise BusUnavailableError("unix:path=/nowhere", f"no such socket, asked for {unit}")


def test_a_systemd_that_does_not_answer_is_said(world: World) -> None:
    world.config = replace(world.config, cgroup_driver=CgroupDriver.SYSTEMD)
    with pytest.raises(EnforcementStartError, match="cgroupDriver systemd") as error:
        assemble(world, systemd=NoBus())
    assert len(lines_of(error.value)) == 1
    assert not world.socket.exists()


def test_an_odd_optional_file_of_the_host_is_a_warning_and_the_agent_starts(world: World) -> None:
    cache = "sys/devices/system/cpu/cpu0/cache/index3/level"
    (world.config.agent.sysfs_root / cache).write_text("three\n")
    with capture_logs() as log, assemble(world):
        pass
    (warning,) = [entry for entry in log if entry["event"] == "unexpected host data"]
    assert f"{cache}: found 'three'" in warning["why"]


@pytest.mark.parametrize(
    ("pid_max", "threads_max", "most"),
    [("4194304\n", "255000\n", 255000), ("32768\n", None, 32768), ("unlimited", "", 0)],
)  # fmt: skip
def test_the_kernel_allows_so_many_processes_as_the_lower_of_its_bounds(
    tmp_path: Path, pid_max: str | None, threads_max: str | None, most: int
) -> None:
    (tmp_path / "sys/kernel").mkdir(parents=True)
    for name, text in (("pid_max", pid_max), ("threads-max", threads_max)):
        if text is not None:
            (tmp_path / "sys/kernel" / name).write_text(text)
    assert most_processes(tmp_path) == most
