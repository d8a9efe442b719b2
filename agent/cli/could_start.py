"""Whether the agent could start here with a configuration, found out without starting it.

Every path, name and address that the agent opens is opened or looked at by the same functions, and
nothing is changed. An agent may be running with the same configuration: what it has is not taken.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.cluster.kubernetes.access import (
    AccessError,
    access_problems,
    api_access,
    with_credentials_of_unit,
)
from agent.cluster.plugs import PLUGS, ROOT
from agent.files import risk_above, risk_of
from agent.reconcile.drivers import SliceCgroups
from agent.reconcile.report import EnforcementStartError
from agent.reconcile.start_checks import make_layout, open_tree
from agent.server.errors import StartError
from agent.server.sockets import (
    Address,
    check_socket_path,
    group_id,
    is_served,
    open_tcp,
    tls_context,
)
from agent.sources.manifests import check_directory as check_manifests
from agent.sources.source import ManifestDirectoryError
from agent.state.checkpoint import StateDirectoryError
from agent.state.store import check_directory as check_state
from cgroupfs.names import Driver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from agent.config.cluster import KubernetesConfig
    from agent.config.model import Config


#: Directories that systemd makes when it starts the unit (deploy/numawarden.service).
_OF_THE_UNIT: Final = ("/var/lib/numawarden", "/run/numawarden")


class Obstacle(Struct, frozen=True):
    """Something that keeps the agent from starting with a configuration, or from doing its work.

    `key` is the key of the configuration, `found` one line with what to do. `certain` is False
    where it may be otherwise for the agent: this process has another user, or the unit makes the
    directory.
    """

    key: str
    found: str
    certain: bool = True

    def __str__(self) -> str:
        return f"{self.key}: {self.found}"


def obstacles(config: Config, file: Path, *, kernel: bool) -> Iterator[Obstacle]:
    """Yield what keeps the agent from starting here, or from reading its manifests.

    `file` is that of the configuration. With `kernel` the cgroup tree and systemd of this host are
    looked at, too. Another user than root cannot see for sure what the agent as root could do.
    """
    agent, root = config.agent, os.geteuid() == 0
    checks: list[tuple[str, Callable[[], object], bool]] = [
        ("agent.stateDirectory", lambda: check_state(agent.state_directory), root),
        ("agent.socketPath", lambda: _check_socket(agent.socket_path), root),
        ("agent.metrics", lambda: _check_metrics(config), True),
    ]
    if agent.socket_group is not None:
        group = agent.socket_group
        checks.append(("agent.socketGroup", lambda: group_id(group), True))
    if (directory := config.static_pod_path) is not None:
        checks.append(("staticPodPath", lambda: check_manifests(directory), root))
    if (socket := agent.pod_resources.socket) is not None and socket.parent.exists():
        checks.append(("agent.podResources.socket", lambda: _check_socket(socket), root))
    if kernel:
        checks += [
            ("agent.cgroupMount", lambda: open_tree(agent.cgroup_mount), root),
            ("cgroupDriver", lambda: _check_driver(config), True),
        ]
    checks.append(("agent.kubelet", lambda: PLUGS.check(config, ROOT if kernel else None), True))
    yield from _risk_of_file(file)
    if agent.kubernetes.enabled:
        yield from _publishing_obstacles(agent.kubernetes, root=root)
    for key, check, certain in checks:
        try:
            check()
        except (StartError, StateDirectoryError, ManifestDirectoryError) as error:
            yield Obstacle(key, str(error), certain and not _is_made_by_unit(error))
        except EnforcementStartError as error:
            yield Obstacle(key, str(error), certain)


def _is_made_by_unit(error: Exception) -> bool:
    """Return whether an error is that a directory of the unit is not there yet."""
    if not isinstance(error, StateDirectoryError | _SocketDirectoryError):
        return False
    return str(error.directory) in _OF_THE_UNIT and not error.directory.exists()


def _risk_of_file(file: Path) -> Iterator[Obstacle]:
    """Yield that other users can change the configuration: the agent does not read it then.

    The file may be a draft that is still to be installed.
    """
    risk = risk_above(file) or risk_of(file, file.stat())
    if risk is not None:
        found = f"{risk}, so the agent does not start with this file; {risk.remedy}"
        yield Obstacle(str(file), found, certain=False)


def _publishing_obstacles(config: KubernetesConfig, *, root: bool) -> Iterator[Obstacle]:
    """Yield that no API server is known, or that a file for asking it is missing.

    What is not configured is part of the agent's environment, as unit or pod, which this process
    may not have.
    """
    try:
        access = api_access(config, with_credentials_of_unit(os.environ))
    except AccessError as error:
        yield Obstacle(f"agent.kubernetes.{error.key}", error.advice, certain=False)
        return
    for problem in access_problems(access):
        file = {"tokenFile": config.token_file, "caFile": config.ca_file}[problem.key]
        certain = root and file is not None
        yield Obstacle(f"agent.kubernetes.{problem.key}", problem.advice, certain=certain)


class _SocketDirectoryError(StartError):
    """The directory of a socket cannot be used."""

    def __init__(self, directory: Path, found: str, remedy: str) -> None:
        super().__init__(f"directory {directory}", found, remedy)
        self.directory = directory


def _check_socket(path: Path) -> None:
    """Raise `StartError` unless a socket could be made at a path, or an agent has made one."""
    if not path.parent.exists():
        by_hand = f"create it: install -d -m 0755 {path.parent}"
        of_unit = "numawarden.service makes it when it starts; start the agent by that unit"
        remedy = of_unit if str(path.parent) in _OF_THE_UNIT else by_hand
        raise _SocketDirectoryError(path.parent, "does not exist", remedy)
    check_socket_path(path)
    if path.exists() and not stat.S_ISSOCK(path.lstat().st_mode):
        raise StartError(f"socket {path}", "a file of that name exists", "name another path")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        remedy = "let the agent's user write there, or name another path"
        raise StartError(f"socket {path}", f"{path.parent} is not writable", remedy)


def _check_metrics(config: Config) -> None:
    """Raise `StartError` unless the metrics listener could be opened, or an agent has opened it."""
    metrics = config.agent.metrics
    address = Address(metrics.address, metrics.port, metrics.tls_certificate, metrics.tls_key)
    tls_context(address)
    if is_served(config.agent.socket_path):
        # The agent that answers may have the port; any other one shows whether the address exists.
        address = Address(metrics.address, 0)
    open_tcp(address).close()


def _check_driver(config: Config) -> None:
    """Raise `EnforcementStartError` where the systemd driver finds no systemd.

    A cgroup tree that cannot be opened is an obstacle of its own, and nothing is asked of systemd.
    """
    layout = make_layout(config.cgroup_driver, config.cgroup_root)
    if layout.driver is not Driver.SYSTEMD:
        return
    from systemd.bus import SystemBus  # noqa: PLC0415  # as the agent imports it

    try:
        tree = open_tree(config.agent.cgroup_mount)
    except EnforcementStartError:
        return
    bus = SystemBus()
    try:
        SliceCgroups(tree, bus).check()
    finally:
        bus.close()
