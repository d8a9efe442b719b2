"""An embedded host with the real agent on it: processes, cgroups and what changes in them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from agent.api.client import AgentClient
from sysfs.described.shapes import regular_host
from sysfs.described.tree import write_tree

if TYPE_CHECKING:
    from collections.abc import Iterator

_CONFIG: Final = """\
cpuManagerPolicy: static
memoryManagerPolicy: Static
topologyManagerPolicy: restricted
topologyManagerScope: {scope}
reservedSystemCPUs: "0,16"
systemReserved: {{cpu: "2", memory: 2Gi}}
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
  logging: {{format: console, level: warning}}
"""
#: The files that an allocation decides; the others follow from them.
_FILES: Final = ("cpuset.cpus", "cpuset.cpus.effective", "cpuset.mems", "cpu.max")
_PATIENCE: Final = 30.0


class DemoError(Exception):
    """The demonstration did not go as described."""


class EmbeddedHost:
    """A two-socket machine in a directory: 16 cores, 32 threads, 16 GiB on each of two nodes."""

    def __init__(self, folder: Path, cgroup_root: str = "/") -> None:
        self.folder = folder
        self.cgroup_root = cgroup_root
        self.sysfs = folder / "host"
        self.cgroups = folder / "cgroup"
        for name in ("host", "cgroup", "state"):
            (folder / name).mkdir(mode=0o700)
        write_tree(regular_host(cores_per_node=8, hugepages=[(2 << 20, 512)]), self.sysfs)
        self.port = _free_port()
        self._before: dict[Path, str] = {}

    @contextmanager
    def agent(self, scope: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run the agent with a topology scope, ready when yielded, and end it with SIGTERM."""
        config = self.folder / f"{scope}.yaml"
        config.touch(mode=0o600)
        root, folder = self.cgroup_root, self.folder
        config.write_text(_CONFIG.format(scope=scope, root=root, folder=folder, port=self.port))
        with self.started(config) as agent:
            yield agent

    @contextmanager
    def started(self, config: Path, log: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
        """Run the agent with a configuration, as `agent` does; its log goes to a file if given."""
        with ExitStack() as stack:
            file = None if log is None else stack.enter_context(log.open("wb"))
            yield stack.enter_context(self._started(config, file))

    @contextmanager
    def _started(self, config: Path, log: IO[bytes] | None) -> Iterator[subprocess.Popen[bytes]]:
        ready = self.folder / "notify.sock"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            ready.unlink(missing_ok=True)
            notify.bind(str(ready))
            notify.settimeout(_PATIENCE)
            command = [_numawarden(), "agent", "--config", str(config), "--emulate-cgroups"]
            with subprocess.Popen(
                command, env=self._environment(NOTIFY_SOCKET=str(ready)), stderr=log
            ) as agent:
                try:
                    while b"READY=1" not in notify.recv(4096):
                        pass
                    yield agent
                finally:
                    agent.terminate()
                    code = agent.wait(_PATIENCE)
        if code:
            raise DemoError(f"the agent ended with exit code {code}")

    def command(self, *arguments: str, expect: int = 0) -> str:
        """Run one `numawarden` command, show it with its output, and return the output."""
        shown = " ".join(arguments).replace(str(self.folder), "$DEMO")
        print(f"$ numawarden {shown}", flush=True)
        done = subprocess.run(
            [_numawarden(), *arguments],
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        print(done.stdout, flush=True)
        if done.returncode != expect:
            raise DemoError(f"numawarden {shown}: exit code {done.returncode}, expected {expect}")
        return done.stdout

    def client(self) -> AgentClient:
        """Return a client of the agent."""
        return AgentClient(self.folder / "agent.sock", timeout=_PATIENCE)

    def manifest(self, example: Path, name: str) -> Path:
        """Return an example manifest, under another name if one is asked for."""
        copy = self.folder / f"{name}.yaml"
        original = f"name: {example.stem}\n"
        copy.write_text(example.read_text().replace(original, f"name: {name}\n", 1))
        return copy

    def start_containers(self, pod: str) -> None:
        """Make the cgroups of a pod's containers, as a runtime does, and bind them."""
        for container in self._pod(pod)["containers"]:
            cgroup = self._cgroup(pod) / container["name"]
            cgroup.mkdir()
            path = "/" + str(cgroup.relative_to(self.cgroups))
            self._run("bind", pod, container["name"], "--cgroup", path)

    def snapshot(self) -> None:
        """Remember what every cgroup file says."""
        self._before = self._contents()

    def show_changes(self) -> None:
        """Show the files that say something else than when they were last remembered."""
        for file, text in sorted(self._contents().items()):
            if self._before.get(file) != text:
                print(f"  {file.relative_to(self.cgroups)} = {text}", flush=True)

    def show_files(self, pod: str) -> None:
        """Show the cgroup files of a pod and its containers."""
        below = next(path for path in self.cgroups.rglob("pod*") if (path / "database").is_dir())
        for file, text in sorted(self._contents().items()):
            if below in file.parents:
                print(f"  {pod}: {file.relative_to(below)} = {text}", flush=True)

    def show_metrics(self, names: tuple[str, ...]) -> None:
        """Show the named counters that have counted anything."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        for line in lines:
            if line.startswith(names) and not line.endswith(" 0.0"):
                print(f"  {line}", flush=True)

    def _pod(self, name: str) -> dict[str, list[dict[str, str]]]:
        pod: dict[str, list[dict[str, str]]] = json.loads(
            self._run("show", name, "--output", "json")
        )
        return pod

    def _cgroup(self, pod: str) -> Path:
        uid = str(self._pod(pod)["uid"])
        return next(path for path in self.cgroups.rglob("pod*") if path.name == f"pod{uid}")

    def _contents(self) -> dict[Path, str]:
        return {
            file: file.read_text().strip() for name in _FILES for file in self.cgroups.rglob(name)
        }

    def _run(self, *arguments: str) -> str:
        command = [_numawarden(), *arguments]
        environment = self._environment()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise DemoError(f"numawarden {' '.join(arguments)}: {done.stderr}")
        return done.stdout

    def _environment(self, **more: str) -> dict[str, str]:
        own = {"NUMAWARDEN_SOCKET": str(self.folder / "agent.sock"), "COLUMNS": "100"}
        return {**os.environ, **own, **more}


def _numawarden() -> str:
    return str(Path(sys.executable).with_name("numawarden"))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
