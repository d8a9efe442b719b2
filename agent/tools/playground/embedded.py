"""An embedded host with the real agent on it: sysfs, cgroups and state in one directory."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic
from typing import IO, TYPE_CHECKING, Final

from agent.api.client import AgentClient
from agent.api.documents import BindRequest
from agent.tools.playground.errors import PlaygroundError
from agent.tools.playground.hosts import NamedHost
from sysfs.described.shapes import regular_host
from sysfs.described.tree import write_tree

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sysfs.host import Host

#: JSON is YAML, which spares the names of folders and devices a syntax of their own.
_CONFIG: Final = """\
cpuManagerPolicy: static
memoryManagerPolicy: Static
topologyManagerPolicy: restricted
topologyManagerScope: {scope}
reservedSystemCPUs: "{reserved}"
systemReserved: {{cpu: "{cpus}", memory: 2Gi}}
featureGates: {{PodLevelResourceManagers: true}}
cgroupDriver: cgroupfs
cgroupRoot: {root}
agent:
  stateDirectory: {folder}/state
  cdiDirectory: {folder}/cdi
  socketPath: {folder}/agent.sock
  sysfsRoot: {folder}/host
  cgroupMount: {folder}/cgroup
  metrics: {{port: {port}}}
  logging: {{format: console, level: {level}}}
{devices}"""
#: How long an agent may take to start and to end, in seconds.
PATIENCE: Final = 30.0
#: The kernel's PID_MAX_LIMIT.
_PID_MAX: Final = 4 << 20
#: How often a starting agent is looked at, in seconds: one that ended says nothing.
_LOOK: Final = 0.2


class EmbeddedHost:
    """A host in a directory, without root: by default two sockets, 16 cores, 32 threads, 32 GiB."""

    def __init__(
        self, folder: Path, described: NamedHost | None = None, cgroup_root: str = "/"
    ) -> None:
        self.folder = folder
        self.cgroup_root = cgroup_root
        self.sysfs = folder / "host"
        self.cgroups = folder / "cgroup"
        self._notify = folder / "notify.sock"
        self._described = described or NamedHost(
            regular_host(cores_per_node=8, hugepages=[(2 << 20, 512)])
        )
        for name in ("host", "cgroup", "state"):
            (folder / name).mkdir(mode=0o700)
        write_tree(self._described.host, self.sysfs)
        self.port = _free_port()

    def configure(self, scope: str, level: str = "warning") -> Path:
        """Write a configuration with a topology scope and a log level; return its path."""
        config = self.folder / f"{scope}.yaml"
        config.touch(mode=0o600)
        reserved = _first_core(self._described.host)
        text = _CONFIG.format(
            scope=scope,
            reserved=",".join(map(str, reserved)),
            cpus=len(reserved),
            root=self.cgroup_root,
            folder=self.folder,
            port=self.port,
            level=level,
            devices=_devices(self._described.devices),
        )
        config.write_text(text)
        return config

    @contextmanager
    def agent(self, scope: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run the agent with a topology scope, ready when yielded, and end it with SIGTERM."""
        with self.started(self.configure(scope)) as agent:
            yield agent

    @contextmanager
    def started(self, config: Path, log: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
        """Run the agent with a configuration, as `agent` does; its log goes to a file if given.

        Raises `PlaygroundError` if the agent fails; one that was killed meanwhile did not fail.
        """
        with ExitStack() as stack:
            file = None if log is None else stack.enter_context(log.open("wb"))
            notify = stack.enter_context(self.notified())
            agent = stack.enter_context(self.launch(config, file, notify))
            try:
                yield agent
            finally:
                killed = agent.poll() is not None
                agent.terminate()
                code = agent.wait(PATIENCE)
        if code and not killed:
            raise PlaygroundError(f"the agent ended with exit code {code}")

    @contextmanager
    def notified(self) -> Iterator[socket.socket]:
        """Listen to what agents of this host say to their service manager."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.bind(str(self._notify))
            notify.settimeout(_LOOK)
            try:
                yield notify
            finally:
                self._notify.unlink()

    def launch(
        self, config: Path, log: IO[bytes] | None, notify: socket.socket
    ) -> subprocess.Popen[bytes]:
        """Start the agent and return its process once it is ready; raises `PlaygroundError`."""
        command = [numawarden(), "agent", "--config", str(config), "--emulate-cgroups"]
        agent = subprocess.Popen(  # noqa: S603  # the command of this very installation
            command,
            env=self.environment(NOTIFY_SOCKET=str(self._notify)),
            stderr=log,
            start_new_session=True,
        )
        try:
            _await_ready(agent, notify)
        except BaseException:
            agent.kill()
            agent.wait()
            raise
        return agent

    def client(self) -> AgentClient:
        """Return a client of the agent."""
        return AgentClient(self.folder / "agent.sock", timeout=PATIENCE)

    def start_containers(self, uid: str) -> list[Path]:
        """Do what a runtime does for the containers of a pod that have no cgroup yet.

        Makes a cgroup for each, with a process, and binds it; init containers, which have ended by
        then, have none. Returns the cgroups.
        """
        return start_containers(self.client(), self.cgroups, uid)

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of commands that ask this host's agent."""
        own = {
            "NUMAWARDEN_SOCKET": str(self.folder / "agent.sock"),
            "NUMAWARDEN_ROOT": str(self.sysfs),
            "NUMAWARDEN_CGROUP_MOUNT": str(self.cgroups),
            "COLUMNS": "100",
        }
        return {**os.environ, **own, **more}


def start_containers(client: AgentClient, cgroups: Path, uid: str) -> list[Path]:
    """Make, populate and bind a cgroup for each container of a pod that has none; return them."""
    pod = next(path for path in cgroups.rglob("pod*") if path.name == f"pod{uid}")
    started = []
    for container in next(each for each in client.pods() if each.uid == uid).containers:
        cgroup = pod / container.name
        if container.kind != "init" and not cgroup.exists():
            cgroup.mkdir()
            # No process of this machine has an id that high; the emulated kernel takes any.
            running = sum(len(file.read_text().split()) for file in cgroups.rglob("cgroup.procs"))
            (cgroup / "cgroup.procs").write_text(f"{_PID_MAX + 1 + running}\n")
            path = "/" + str(cgroup.relative_to(cgroups))
            client.bind(uid, container.name, BindRequest(cgroup=path))
            started.append(cgroup)
    return started


def numawarden() -> str:
    """Return the path of the command beside the Python that runs."""
    return str(Path(sys.executable).with_name("numawarden"))


def _await_ready(agent: subprocess.Popen[bytes], notify: socket.socket) -> None:
    deadline = monotonic() + PATIENCE
    while monotonic() < deadline:
        try:
            if b"READY=1" in notify.recv(4096):
                return
        except TimeoutError:
            if agent.poll() is not None:
                message = f"the agent did not start, exit code {agent.returncode}; see its log"
                raise PlaygroundError(message) from None
    raise PlaygroundError(f"the agent was not ready after {PATIENCE:.0f} s; see its log")


def _first_core(host: Host) -> tuple[int, ...]:
    """Return the CPUs of the core of the first CPU, which are reserved for the system."""
    online = [cpu for cpu in host.cpus if cpu.online]
    return tuple(cpu.id for cpu in online if cpu.core == online[0].core)


def _devices(devices: Mapping[str, Mapping[str, int]]) -> str:
    listed = {
        resource: [{"id": name, "numaNodes": [node]} for name, node in nodes.items()]
        for resource, nodes in devices.items()
    }
    return f"  devices: {json.dumps(listed)}\n" if listed else ""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
