from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from agent.cli.errors import ExitCode, exit_code_of, lines_of
from agent.clock import SystemClock
from agent.config.model import CgroupDriver, ConfigError, MetricsConfig
from agent.managers.machine import Machine
from agent.reconcile.report import EnforcementStartError
from agent.server.errors import StartError
from agent.server.state import situate
from agent.server.wiring import Fakes, Wiring
from agent.state.checkpoint import StateDirectoryError, StateDirectoryLockedError
from cgroupfs.errors import TreeLockedError
from sysfs.described import with_offline
from sysfs.files import SysfsError
from sysfs.mask import Mask
from systemd.units import BusUnavailableError
from tests.agent.server.support import RecordingManager, two_packages

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.server.support import World


def assemble(world: World, *, emulated: bool = True, systemd: object = None) -> Wiring:
    tree = world.kernel if emulated else None
    fakes = Fakes(tree=tree, systemd=systemd, live=False)  # type: ignore[arg-type]
    return Wiring(world.config, RecordingManager(), SystemClock(), fakes)


def set_agent(world: World, **changes: object) -> None:
    agent = replace(world.config.agent, **changes)
    world.config = replace(world.config, agent=agent)


def rejected(world: World, kind: type[Exception], code: ExitCode, *, emulated: bool = True) -> str:
    """Return the one line that a start is rejected with; nothing may stay open or locked."""
    with pytest.raises(kind) as error:
        assemble(world, emulated=emulated)
    (line,) = lines_of(error.value)
    assert exit_code_of(error.value) is code
    assert not world.socket.exists() or world.socket.is_file() or world.socket.is_dir()
    return line


def test_what_was_opened_is_closed_and_can_be_opened_again(world: World) -> None:
    for _ in range(2):
        with assemble(world):
            assert world.socket.is_socket()
        assert not world.socket.exists()


def test_a_second_agent_on_the_same_state_is_rejected(world: World) -> None:
    with assemble(world), pytest.raises(StateDirectoryLockedError, match="in use by process"):
        assemble(world)


def test_a_second_agent_on_the_same_cgroup_tree_is_rejected_whatever_else_it_has(
    world: World, tmp_path: Path
) -> None:
    with assemble(world):
        first = world.config
        (tmp_path / "other").mkdir(mode=0o700)
        places = {"state_directory": tmp_path / "other", "socket_path": tmp_path / "other.sock"}
        set_agent(world, **places)
        world.config = replace(world.config, cgroup_root="/elsewhere")
        before = world.kernel.children("")
        line = rejected(world, TreeLockedError, ExitCode.ENVIRONMENT)
        assert "belongs to another agent" in line
        assert world.kernel.children("") == before
    with assemble(world):
        world.config = first
        rejected(world, TreeLockedError, ExitCode.ENVIRONMENT)
    with assemble(world):
        pass


def test_a_socket_in_use_is_said(world: World) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(world.socket))
        other.listen()
        with pytest.raises(StartError, match=r"agent\.sock: in use; stop the agent"):
            assemble(world)
    world.socket.unlink()
    with assemble(world):
        pass


def test_a_port_in_use_is_said_and_the_socket_is_removed(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        set_agent(world, metrics=MetricsConfig(port=port))
        line = rejected(world, StartError, ExitCode.ENVIRONMENT)
    assert f"metrics listener 127.0.0.1:{port}: Address already in use" in line


def test_a_missing_state_directory_is_said(world: World, tmp_path: Path) -> None:
    set_agent(world, state_directory=tmp_path / "none")
    line = rejected(world, StateDirectoryError, ExitCode.ENVIRONMENT)
    assert "does not exist; create it: install -d -m 0700" in line


def test_a_state_directory_open_to_others_is_said(world: World) -> None:
    world.config.agent.state_directory.chmod(0o770)
    assert "can be written by others" in rejected(world, StateDirectoryError, ExitCode.ENVIRONMENT)


def test_a_directory_without_a_cgroup_tree_is_reported(world: World, tmp_path: Path) -> None:
    (tmp_path / "cgroup").mkdir()
    line = rejected(world, EnforcementStartError, ExitCode.ENVIRONMENT, emulated=False)
    assert f"cgroup v2 at {tmp_path}/cgroup: it is not a cgroup2 file system" in line


def test_a_missing_cgroup_mount_is_said(world: World) -> None:
    line = rejected(world, EnforcementStartError, ExitCode.ENVIRONMENT, emulated=False)
    assert "cgroup v2 at " in line
    assert "cgroup: no such directory" in line


def test_a_host_tree_that_describes_no_host_is_said(world: World, tmp_path: Path) -> None:
    set_agent(world, sysfs_root=tmp_path / "nowhere")
    assert "nowhere/sys/devices/system/cpu" in rejected(world, SysfsError, ExitCode.BAD_INPUT)


def test_an_unknown_socket_group_is_said(world: World) -> None:
    set_agent(world, socket_group="no-such-group")
    line = rejected(world, StartError, ExitCode.ENVIRONMENT)
    assert "there is no group 'no-such-group'" in line


def test_a_bad_certificate_is_said(world: World, certificate: Path) -> None:
    set_agent(world, metrics=MetricsConfig(tls_certificate=world.directory, tls_key=certificate))
    assert "TLS certificate" in rejected(world, StartError, ExitCode.ENVIRONMENT)


def test_a_configuration_that_does_not_fit_the_host_is_said(world: World) -> None:
    world.config = replace(world.config, reserved_system_cpus=Mask.of(99))
    assert "99" in rejected(world, ConfigError, ExitCode.BAD_INPUT)


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


def test_a_configuration_that_fits_no_longer_leaves_the_policy_as_it_was(world: World) -> None:
    host = two_packages()
    config = replace(world.config, reserved_system_cpus=Mask.of(0))
    before = situate(config, host)
    gone = replace(with_offline(host, Mask.of(1)))
    unfit = replace(config, reserved_system_cpus=Mask.of(99))
    with pytest.raises(ConfigError):
        situate(unfit, gone)
    after = situate(unfit, gone, before)
    assert after.rules.policy is before.rules.policy
    assert after.rules.machine == Machine.of(gone)
    assert 1 not in after.rules.assignable_cpus


def test_an_odd_optional_file_of_the_host_is_a_warning_and_the_agent_starts(world: World) -> None:
    cache = "sys/devices/system/cpu/cpu0/cache/index3/level"
    (world.config.agent.sysfs_root / cache).write_text("three\n")
    with capture_logs() as log, assemble(world):
        pass
    (warning,) = [entry for entry in log if entry["event"] == "unexpected host data"]
    assert f"{cache}: found 'three'" in warning["why"]
