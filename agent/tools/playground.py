"""The playground: an emulated host in a directory, the real agent on it, and a shell to ask it.

The directory has a described sysfs tree, cgroups and the agent's state. The shell has a command for
what a runtime, systemd or an accident does to a host: `python -m agent.tools.playground VERB`, with
the directory in `PLAYGROUND`.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import threading
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Final, Self

import click
from msgspec.structs import replace

from agent.api.client import AgentClient, AgentError, Unreachable
from agent.api.documents.admissions import BindRequest
from agent.pods.model import full_name
from agent.yaml import shown
from sysfs.described import regular_host, with_memory_only_nodes, write_tree
from sysfs.discover import discover
from sysfs.host import Device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sysfs.host import Host


class PlaygroundError(Exception):
    """The host, its directory or its agent cannot be had; the message says why."""


_GIB: Final = 1 << 30
_MIB: Final = 1 << 20
#: How much a capture may hold: those of the largest hosts have 20,000 small files.
_MOST_BYTES: Final = 256 * _MIB
_MOST_FILES: Final = 200_000


@dataclass(frozen=True, slots=True)
class NamedHost:
    """A host with its devices: the ids and NUMA nodes by the resource that pods ask for."""

    host: Host
    devices: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def two_sockets() -> NamedHost:
    """Return two packages, each with eight cores of two threads, 16 GiB, a NIC and a GPU."""
    host = regular_host(cores_per_node=8, hugepages=[(2 * _MIB, 512)])
    devices = tuple(
        Device(
            kind="pci",
            name=address,
            address=address,
            node=node.id,
            cpus=node.cpus,
            vendor=vendor,
            device=device,
            device_class=device_class,
        )
        for node in host.nodes
        for address, vendor, device, device_class in (
            (f"0000:{node.id + 1}1:00.0", "0x8086", "0x1592", "0x020000"),
            (f"0000:{node.id + 1}2:00.0", "0x10de", "0x20b5", "0x030200"),
        )
    )
    gpus = {f"gpu-{node.id}": node.id for node in host.nodes}
    return NamedHost(replace(host, devices=devices), {"example.com/gpu": gpus})


def epyc() -> NamedHost:
    """Return one package of 64 cores in four NUMA nodes, with an L3 cache for eight cores each."""
    return NamedHost(
        regular_host(
            packages=1,
            nodes_per_package=4,
            cores_per_node=16,
            memory_bytes=64 * _GIB,
            uncores_per_node=2,
        )
    )


def gb200() -> NamedHost:
    """Return two packages of 72 cores without SMT, and four nodes that have memory only."""
    host = regular_host(cores_per_node=72, threads=1, memory_bytes=480 * _GIB)
    gpus = {f"gpu-{number}": number // 2 for number in range(4)}
    return NamedHost(
        with_memory_only_nodes(host, [186 * _GIB] * len(gpus)), {"example.com/gpu": gpus}
    )


HOSTS: Final[Mapping[str, Callable[[], NamedHost]]] = {
    "two-sockets": two_sockets,
    "epyc": epyc,
    "gb200": gb200,
}


def described_host(named: str, folder: Path) -> NamedHost:
    """Return the host that `HOSTS` names so, else the host of the capture with this path.

    `folder` must not exist; a capture is unpacked into it. Raises `PlaygroundError`, `SysfsError`.
    """
    if named in HOSTS:
        return HOSTS[named]()
    folder.mkdir()
    return captured_host(Path(named), folder)


def captured_host(capture: Path, folder: Path) -> NamedHost:
    """Return the host of `numawarden capture`: an archive, or a directory that has `sys`.

    An archive is unpacked into `folder`. Raises `PlaygroundError`, `SysfsError`.
    """
    root = capture if capture.is_dir() else _unpacked(capture, folder)
    return NamedHost(discover(root))


def _unpacked(capture: Path, folder: Path) -> Path:
    try:
        with tarfile.open(capture) as archive:
            _unpack(archive, folder)
    except (tarfile.TarError, OSError) as error:
        kinds = ", ".join(HOSTS)
        why = getattr(error, "strerror", None) or error
        message = f"{capture} is neither a capture nor one of {kinds}: {why}"
        raise PlaygroundError(message) from error
    tops = [folder, *(path for path in sorted(folder.iterdir()) if path.is_dir())]
    for top in tops:
        if (top / "sys").is_dir():
            return top
    raise PlaygroundError(f"{capture} has no directory sys, as the capture of a host would")


def _unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """Make the directories, files and symbolic links of an archive, none outside of `folder`.

    Links are made last, so that nothing is written through a link. The filters of tarfile do not
    keep to that in every Python (CVE-2025-4517). Raises `OSError`, `TarError`.
    """
    links: dict[Path, str] = {}
    size = 0
    for count, member in enumerate(archive, 1):
        size += member.size
        if count > _MOST_FILES or size > _MOST_BYTES:
            raise tarfile.TarError("it has more files or bytes than a capture has")
        path = folder / member.name
        if ".." in path.parts or not path.is_relative_to(folder):
            raise tarfile.TarError(f"{shown(member.name)} is outside of its directory")
        path.parent.mkdir(parents=True, exist_ok=True)
        content = archive.extractfile(member) if member.isreg() else None
        if content is not None:
            with path.open("xb") as file:
                shutil.copyfileobj(content, file)
        elif member.issym():
            links[path] = member.linkname
        elif member.isdir():
            path.mkdir(exist_ok=True)
        else:
            raise tarfile.TarError(f"{shown(member.name)} is no file, directory or symbolic link")
    for path, target in links.items():
        path.symlink_to(target)
    top = folder.resolve()
    for path, target in links.items():
        with suppress(FileNotFoundError):
            if not Path(os.path.realpath(path, strict=True)).is_relative_to(top):
                message = f"{shown(str(path.relative_to(folder)))} leads to {shown(target)}"
                raise tarfile.TarError(f"{message}, outside of its directory")


#: Texts and devices are put in as JSON, which is YAML and needs no escapes of its own.
_CONFIG: Final = """\
cpuManagerPolicy: static
memoryManagerPolicy: Static
topologyManagerPolicy: restricted
topologyManagerScope: {scope}
reservedSystemCPUs: "{reserved}"
systemReserved: {{cpu: "{cpus}", memory: 2Gi}}
featureGates: {{PodLevelResourceManagers: true}}
cgroupDriver: cgroupfs
cgroupRoot: "{root}"
agent:
  stateDirectory: "{folder}/state"
  cdiDirectory: "{folder}/cdi"
  socketPath: "{folder}/agent.sock"
  sysfsRoot: "{folder}/host"
  cgroupMount: "{folder}/cgroup"
  metrics: {{port: {port}}}
  logging: {{format: console, level: {level}}}
{devices}"""
#: How long an agent may take to start and to end, in seconds.
PATIENCE: Final = 30.0
#: The kernel's PID_MAX_LIMIT.
_PID_MAX: Final = 4 << 20
#: How many ports are tried for the metrics of a host.
_PORTS_TRIED: Final = 100
#: How often a starting agent is checked, in seconds: an agent that ends does not say so.
_LOOK: Final = 0.2


class EmulatedHost:
    """A host in a directory, for any user: by default two sockets, 16 cores, 32 threads, 32 GiB."""

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
            root=_escaped(self.cgroup_root),
            folder=_escaped(str(self.folder)),
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

        Raises `PlaygroundError` if the agent ends with an exit code other than 0. An agent that a
        signal killed meanwhile, such as by a caller, has none.
        """
        with ExitStack() as stack:
            file = None if log is None else stack.enter_context(log.open("wb"))
            notify = stack.enter_context(self.notified())
            agent = stack.enter_context(self.launch(config, file, notify))
            try:
                yield agent
            finally:
                killed = (agent.poll() or 0) < 0
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
        if shutil.which(
            "setpriv"
        ):  # of util-linux: the agent ends with a playground that is killed
            command[:0] = ["setpriv", "--pdeathsig", "TERM"]
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
    """Make, populate and bind a cgroup for each container of a pod that has none; return them.

    Raises `PlaygroundError`, and what the client raises.
    """
    pod = _pod_cgroup(cgroups, uid)
    started = []
    for container in client.pod(uid).containers:
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


def _pod_cgroup(cgroups: Path, uid: str) -> Path:
    for path in cgroups.rglob("pod*"):
        if path.name == f"pod{uid}":
            return path
    raise PlaygroundError(f"pod {uid} has no cgroup now; see `numawarden check`")


def _escaped(text: str) -> str:
    """Return a text as it stands between the quotes of JSON."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _devices(devices: Mapping[str, Mapping[str, int]]) -> str:
    listed = {
        resource: [{"id": name, "numaNodes": [node]} for name, node in nodes.items()]
        for resource, nodes in devices.items()
    }
    return f"  devices: {json.dumps(listed)}\n" if listed else ""


def _free_port() -> int:
    """Return a free port below 30000.

    The kernel gives connections ports from 32768 on (ip_local_port_range), so none of them takes
    the port before the agent does.
    """
    for _ in range(_PORTS_TRIED):
        port = 20_000 + secrets.randbelow(10_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise PlaygroundError("no port of 127.0.0.1 from 20000 to 29999 is free")


_MIXED: Final = """\
# A budget for the pod: the database has four of its CPUs for itself, the others share the rest.
apiVersion: v1
kind: Pod
metadata: {name: mixed}
spec:
  resources:
    requests: {cpu: "6", memory: 4Gi}
    limits: {cpu: "6", memory: 4Gi}
  containers:
    - name: database
      image: example.com/database
      resources:
        requests: {cpu: "4", memory: 2Gi}
        limits: {cpu: "4", memory: 2Gi}
    - {name: metrics, image: example.com/metrics}
    - {name: logs, image: example.com/logs}
"""
_GUARANTEED: Final = """\
# Whole CPUs, requests equal to limits: the container has them for itself.
apiVersion: v1
kind: Pod
metadata: {name: guaranteed}
spec:
  containers:
    - name: main
      image: example.com/main
      resources:
        requests: {cpu: "2", memory: 1Gi}
        limits: {cpu: "2", memory: 1Gi}
"""
_SHARED: Final = """\
# Requests below limits: the container runs on the shared pool, with the other pods of its kind.
apiVersion: v1
kind: Pod
metadata: {name: shared}
spec:
  containers:
    - name: main
      image: example.com/main
      resources:
        requests: {cpu: 500m, memory: 256Mi}
        limits: {cpu: "2", memory: 1Gi}
"""
_TOO_LARGE: Final = """\
# More CPUs than any host of the playground has.
apiVersion: v1
kind: Pod
metadata: {name: too-large}
spec:
  containers:
    - name: main
      image: example.com/main
      resources:
        requests: {cpu: "200", memory: 1Gi}
        limits: {cpu: "200", memory: 1Gi}
"""


def manifests() -> Mapping[str, str]:
    """Return the manifests by the name of their pod."""
    return MappingProxyType(
        {
            "mixed": _MIXED,
            "guaranteed": _GUARANTEED,
            "shared": _SHARED,
            "too-large": _TOO_LARGE,
        }
    )


#: How long after an agent that could not start the next one is tried, in seconds (RestartSec=).
RESTART_SECONDS: Final = 2.0
_SCRIPT: Final = '#!/bin/sh\nexec {program} -P -m agent.tools.playground {verb} "$@"\n'
_ALIAS: Final = '#!/bin/sh\nexec {program} "$@"\n'
#: What the shell can do besides asking the agent, as systemd and a runtime do on a usual host.
_SCRIPTS: Final = ("start-containers", "cgroup-of", "crash-agent", "restart-agent", "agent-log")
_BASH: Final = """\
[ -f ~/.bashrc ] && . ~/.bashrc
PATH="$PLAYGROUND/bin:$PATH"
PS1='playground:\\w\\$ '
"""
WELCOME: Final = """\
A host of its own, in {folder}. Its agent runs; nothing outside of the directory is
touched, and the directory is removed when you leave (exit, or Ctrl-D).

  numawarden map                         who has which CPU
  numawarden admit pods/mixed.yaml       a pod with CPUs of its own, and a shared pool of its own
  start-containers mixed                 what a container runtime does then
  numawarden show mixed                  what the pod has, why, and what the kernel says
  numawarden admit pods/too-large.yaml   a rejection, with advice that was tried
  numawarden fit --count pods/mixed.yaml   how many more of them would fit
  echo 0 > $(cgroup-of mixed)/cpuset.cpus; numawarden check --cgroups    another process interferes
  numawarden history mixed               what happened to the pod, and who did it
  crash-agent; numawarden list           the agent is killed and started again; pods stay
  agent-log                              what the agent says of all this

"""


class Playground:
    """An emulated host whose agent is started again whenever it ends, as a service is."""

    def __init__(self, host: EmulatedHost, scope: str) -> None:
        self.host = host
        self._config = host.configure(scope, level="info")
        self._ending = threading.Event()
        _provide(host.folder)
        log = host.folder / "agent.log"
        with ExitStack() as life:
            self._log = life.enter_context(log.open("wb"))
            self._notify = life.enter_context(host.notified())
            try:
                self._agent = self._launch()
            except PlaygroundError as error:  # the log goes with the directory
                raise PlaygroundError(f"{error}:\n{log.read_text().rstrip()}") from error
            self._life = life.pop_all()
        self._watcher = threading.Thread(target=self._keep, name="agent")

    def __enter__(self) -> Self:
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._agent.terminate()
        self._watcher.join(2 * PATIENCE)
        self._life.close()

    def run(self, command: Sequence[str]) -> int:
        """Run a command, or an interactive shell if there is none, and return its exit status."""
        folder = self.host.folder
        path = f"{folder / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        environment = self.host.environment(PLAYGROUND=str(folder), PATH=path)
        if "COLUMNS" not in os.environ:
            del environment["COLUMNS"]  # the width of the terminal counts
        argv = list(command) or _shell(folder)
        try:
            # What the user asks for, in the user's own name.
            return subprocess.run(argv, cwd=folder, env=environment, check=False).returncode  # noqa: S603
        except OSError as error:
            raise PlaygroundError(f"cannot run {argv[0]}: {error.strerror}") from error

    def _launch(self) -> subprocess.Popen[bytes]:
        agent = self.host.launch(self._config, self._log, self._notify)
        (self.host.folder / "agent.pid").write_text(f"{agent.pid}\n")
        return agent

    def _keep(self) -> None:
        """Start the agent again whenever it ends, until the playground does."""
        while True:
            self._agent.wait()
            if self._ending.is_set():
                return
            try:
                self._agent = self._launch()
            except PlaygroundError:  # its log says why; the configuration may be mended meanwhile
                self._ending.wait(RESTART_SECONDS)
            except OSError as error:
                self._log.write(f"the agent cannot be started: {error}\n".encode())
                self._log.flush()
                self._ending.wait(RESTART_SECONDS)
            if self._ending.is_set():  # since `__exit__` may have ended the agent before this one
                self._agent.terminate()


def end_by_signals() -> None:
    """Have SIGTERM and SIGHUP end this process as an exit does: agent and directory go with it."""

    def end(number: int, _frame: object) -> None:
        for each in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + number)

    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, end)


def _shell(folder: Path) -> list[str]:
    bash = shutil.which("bash")
    if bash is None:
        return ["/bin/sh", "-i"]
    (folder / "bashrc").write_text(_BASH)
    return [bash, "--rcfile", str(folder / "bashrc"), "-i"]


def _provide(folder: Path) -> None:
    """Write the commands of the shell and the manifests of the first pods."""
    (folder / "bin").mkdir()
    python = shlex.quote(sys.executable)
    scripts = {verb: _SCRIPT.format(program=python, verb=verb) for verb in _SCRIPTS}
    scripts["numawarden"] = _ALIAS.format(program=shlex.quote(numawarden()))
    for name, script in scripts.items():
        file = folder / "bin" / name
        file.write_text(script)
        file.chmod(0o755)
    (folder / "pods").mkdir()
    for name, manifest in manifests().items():
        (folder / "pods" / f"{name}.yaml").write_text(manifest)


#: How often an agent that starts again is asked, in seconds.
_PAUSE: Final = 0.1


def main(arguments: Sequence[str]) -> int:
    """Run a verb and return its exit status; what is wrong is printed as one line."""
    name = " ".join(arguments[:1])
    try:
        _run_verb(name, arguments[1:])
    except (PlaygroundError, AgentError, Unreachable, OSError) as error:
        click.echo(f"{name or 'playground'}: {error}", err=True)
        return 1
    return 0


def _run_verb(name: str, arguments: Sequence[str]) -> None:
    if name not in _VERBS:
        raise PlaygroundError(f"give one of the verbs {', '.join(_VERBS)}")
    if "PLAYGROUND" not in os.environ:
        raise PlaygroundError("PLAYGROUND is not set; run this in `numawarden playground`")
    _VERBS[name](Path(os.environ["PLAYGROUND"]), arguments)


def _start_containers(folder: Path, arguments: Sequence[str]) -> None:
    client = _client(folder)
    uid = _uid(client, "start-containers", arguments)
    for cgroup in start_containers(client, folder / "cgroup", uid):
        click.echo(f"mkdir {cgroup.relative_to(folder)}")


def _cgroup_of(folder: Path, arguments: Sequence[str]) -> None:
    uid = _uid(_client(folder), "cgroup-of", arguments)
    click.echo(_pod_cgroup(folder / "cgroup", uid))


def _crash_agent(folder: Path, _arguments: Sequence[str]) -> None:
    _end_agent(folder, signal.SIGKILL)


def _restart_agent(folder: Path, _arguments: Sequence[str]) -> None:
    _end_agent(folder, signal.SIGTERM)


def _agent_log(folder: Path, _arguments: Sequence[str]) -> None:
    click.echo((folder / "agent.log").read_text(errors="replace"), nl=False)


def _end_agent(folder: Path, number: signal.Signals) -> None:
    """Send a signal to the agent, if one runs, and wait for the next one's first comparison.

    An agent answers before that comparison, but has found no container yet.
    """
    client = _client(folder)
    before = None
    # No agent runs if the last one could not start; the configuration may be mended meanwhile.
    with suppress(Unreachable, ProcessLookupError):
        status = client.status()
        before = status.started
        os.kill(status.pid, number)
    deadline = monotonic() + PATIENCE
    while monotonic() < deadline:
        with suppress(Unreachable):  # the agent that ended no longer answers, the next one not yet
            status = client.status()
            if status.started != before and status.last_reconcile is not None:
                return
        sleep(_PAUSE)
    raise PlaygroundError("the agent does not start again; see agent-log")


def _client(folder: Path) -> AgentClient:
    return AgentClient(folder / "agent.sock", timeout=PATIENCE)


def _uid(client: AgentClient, verb: str, arguments: Sequence[str]) -> str:
    """Return the uid of the pod that is named by its name, namespace/name or uid."""
    if len(arguments) != 1:
        raise PlaygroundError(f"give the pod: {verb} POD")
    pods = client.pods()
    for pod in pods:
        if arguments[0] in (pod.name, full_name(pod), pod.uid):
            return pod.uid
    known = ", ".join(full_name(pod) for pod in pods) or "none"
    raise PlaygroundError(f"no pod {arguments[0]!r} is admitted; admitted: {known}")


_VERBS: Final[Mapping[str, Callable[[Path, Sequence[str]], None]]] = {
    "start-containers": _start_containers,
    "cgroup-of": _cgroup_of,
    "crash-agent": _crash_agent,
    "restart-agent": _restart_agent,
    "agent-log": _agent_log,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
