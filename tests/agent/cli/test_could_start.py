"""`config check` finds whatever keeps `agent` from starting, and changes nothing.

The same configurations are given to both: what one rejects the other rejects, in the same words.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Final

import pytest

from agent.cli import could_start as environment
from agent.cli.could_start import obstacles
from agent.clock import SystemClock
from agent.cluster.plugs import PLUGS
from agent.config.load import load_config_file
from agent.server.errors import StartError
from agent.server.plugs import Fakes
from agent.server.service_manager import ServiceManager
from agent.server.wiring import Wiring
from agent.state.checkpoint import StateDirectoryError
from cgroupfs.emulated.kernel import EmulatedKernel
from sysfs.mask import Mask
from tests.agent.server.support import make_world

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agent.cli.could_start import Obstacle

CONFIG: Final = """\
cpuManagerPolicy: static
topologyManagerPolicy: best-effort
reservedSystemCPUs: "0"
cgroupDriver: cgroupfs
{more}
agent:
  stateDirectory: {directory}/state
  socketPath: {directory}/run/agent.sock
  sysfsRoot: {directory}/host
  cgroupMount: {directory}/cgroup
  metrics: {metrics}
  {agent}
"""


class Place:
    """A directory in which an agent would start, and what is wrong there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.more, self.agent, self.metrics = "", "", "{port: 0}"
        (directory / "run").mkdir(mode=0o755)

    def file(self) -> Path:
        text = CONFIG.format(**vars(self))
        path = self.directory / "config.yaml"
        path.write_text(text)
        path.chmod(0o644)
        return path


@pytest.fixture
def place(tmp_path: Path) -> Place:
    make_world(tmp_path)
    return Place(tmp_path)


def found_at(file: Path, *, kernel: bool = False) -> list[Obstacle]:
    return list(obstacles(load_config_file(file), file, kernel=kernel))


def file_as_state(place: Place) -> None:
    (place.directory / "state").rmdir()
    (place.directory / "state").write_text("")


def no_certificate(place: Place) -> None:
    files = f"tlsCertificate: {place.directory}/x.pem, tlsKey: {place.directory}/y.pem"
    place.metrics = f"{{port: 0, {files}}}"


def two_managers(place: Place) -> None:
    directory = place.directory / "kubelet"
    directory.mkdir()
    (directory / "cpu_manager_state").write_text('{"policyName":"static"}')
    place.agent = f"kubelet: {{enabled: true, directory: {directory}}}"


STATE, SOCKET = "agent.stateDirectory", "agent.socketPath"
OBSTACLES: Final[dict[str, tuple[Callable[[Place], object], str]]] = {
    "state directory is missing": (lambda p: (p.directory / "state").rmdir(), STATE),
    "state directory is open": (lambda p: (p.directory / "state").chmod(0o777), STATE),
    "state directory is a file": (file_as_state, STATE),
    "state of another user": (lambda p: os.chown(p.directory / "state", 12345, -1), STATE),
    "socket directory is missing": (lambda p: (p.directory / "run").rmdir(), SOCKET),
    "socket directory is open": (lambda p: (p.directory / "run").chmod(0o777), SOCKET),
    "a file at the socket's path": (
        lambda p: (p.directory / "run/agent.sock").write_text(""),
        SOCKET,
    ),
    "socket group is missing": (
        lambda p: setattr(p, "agent", "socketGroup: nosuchgroup"),
        "agent.socketGroup",
    ),
    "certificate is missing": (no_certificate, "agent.metrics"),
    "address of another host": (
        lambda p: setattr(p, "metrics", "{port: 0, address: 192.0.2.1}"),
        "agent.metrics",
    ),
    "the kubelet's CPU manager is on": (two_managers, "agent.kubelet"),
}


def start(file: Path) -> str:
    """Return why an agent does not start with a configuration, "" if it does."""
    try:
        with Wiring(
            load_config_file(file), ServiceManager.of({}), SystemClock(), PLUGS, emulated()
        ):
            return ""
    except (StartError, StateDirectoryError) as error:
        return str(error)


def emulated() -> Fakes:
    return Fakes(tree=EmulatedKernel(Mask.parse("0-15"), Mask.of(0, 1)), live=False)


def everything(directory: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return all files below a directory, with what is in them."""
    return {
        str(path): (
            status.st_mode,
            status.st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in sorted(directory.rglob("*"))
        if "host" not in path.parts
        for status in [path.lstat()]
    }


def test_what_is_well_has_no_obstacle_and_starts(place: Place) -> None:
    file = place.file()
    before = everything(place.directory)
    assert found_at(file) == []
    assert everything(place.directory) == before
    assert start(file) == ""


@pytest.mark.parametrize("name", OBSTACLES)
def test_what_keeps_the_agent_from_starting_is_found(place: Place, name: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("for another user than root the check is not certain")
    spoil, key = OBSTACLES[name]
    spoil(place)
    file = place.file()
    before = everything(place.directory)
    (found,) = found_at(file)
    assert (found.key, found.certain) == (key, True)
    assert everything(place.directory) == before
    why = start(file)
    assert why
    # In the agent's words, but where they depend on what it made by then.
    if key != "agent.socketPath":
        assert found.found == why


def test_a_manifest_directory_is_looked_at_as_it_is_read(place: Place) -> None:
    place.more = f"staticPodPath: {place.directory}/manifests"
    file = place.file()
    (found,) = found_at(file)
    assert found.key == "staticPodPath"
    assert "does not exist; create it" in found.found
    (place.directory / "manifests").mkdir(mode=0o755)
    assert found_at(file) == []


def test_a_configuration_that_others_can_change_is_noted(place: Place) -> None:
    file = place.file()
    file.chmod(0o666)
    (found,) = found_at(file)
    assert (found.key, found.certain) == (str(file), False)
    assert "can be written by others" in found.found


def test_directories_that_the_unit_makes_do_not_count(place: Place) -> None:
    file = place.file()
    settings = ["agent.stateDirectory=/var/lib/numawarden", "agent.socketPath=/run/numawarden/a"]
    found = list(obstacles(load_config_file(file, settings), file, kernel=False))
    assert not [
        obstacle for obstacle in found if "does not exist" in str(obstacle) and obstacle.certain
    ]


def test_an_agent_that_runs_already_does_not_count(place: Place) -> None:
    """Its socket is there and served, its port is taken and its state directory is locked."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        place.metrics = f"{{port: {taken.getsockname()[1]}}}"
        file = place.file()
        (found,) = found_at(file)
        assert found.key == "agent.metrics"
    with Wiring(load_config_file(file), ServiceManager.of({}), SystemClock(), PLUGS, emulated()):
        assert found_at(file) == []


def test_a_directory_without_a_cgroup_tree_is_an_obstacle(place: Place) -> None:
    file = place.file()
    (place.directory / "cgroup").mkdir()
    (found,) = found_at(file, kernel=True)
    assert found.key == "agent.cgroupMount"


def publishing(place: Place, **keys: str) -> Path:
    """Configure an agent that publishes its topology, with some more keys; return the file."""
    text = ", ".join(f"{key}: {value}" for key, value in keys.items())
    place.agent = f"kubernetes: {{publishTopology: true, {text}}}"
    return place.file()


def test_missing_files_for_the_api_server_are_found(place: Place) -> None:
    gone, root = f"{place.directory}/gone", os.geteuid() == 0
    file = publishing(place, server="https://10.0.0.1", tokenFile=gone, caFile=gone)
    token, ca = found_at(file)
    assert (token.key, token.certain) == ("agent.kubernetes.tokenFile", root)
    assert f"{gone}: No such file or directory; name a file with the token" in token.found
    assert (ca.key, ca.certain) == ("agent.kubernetes.caFile", root)
    # The files may come later: the agent starts, and says so in its status.
    assert start(file) == ""
    (place.directory / "gone").touch()
    assert found_at(file) == []


def test_what_is_of_the_agents_unit_or_pod_may_be_missing_here(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    file = publishing(place, server="https://10.0.0.1")
    found = found_at(file)
    assert [(each.key, each.certain) for each in found] == [
        ("agent.kubernetes.tokenFile", False),
        ("agent.kubernetes.caFile", False),
    ]
    file = publishing(place)
    (server,) = found_at(file)
    assert (server.key, server.certain) == ("agent.kubernetes.server", False)
    assert start(file) == f"agent.kubernetes.server: {server.found}"


def test_what_is_a_warning_beside_a_kubelet_is_not_printed_by_the_check(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """The log is the agent's: a command that makes the same checks writes none."""
    directory = place.directory / "kubelet"
    directory.mkdir()
    (directory / "config.yaml").write_text("topologyManagerPolicy: restricted\n")
    place.agent = f"kubelet: {{enabled: true, directory: {directory}}}"
    assert found_at(place.file()) == []
    assert capsys.readouterr() == ("", "")


def test_the_directory_that_the_unit_makes_is_not_to_be_made_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "_OF_THE_UNIT", (str(tmp_path / "run"),))
    with pytest.raises(StartError, match="service makes it when it starts"):
        environment._check_socket(tmp_path / "run" / "agent.sock")
    with pytest.raises(StartError, match="create it: install"):
        environment._check_socket(tmp_path / "other" / "agent.sock")
