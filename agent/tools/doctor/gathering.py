"""Gathers the facts of a host beside whose kubelet the agent is to work.

What other programs left there is read bounded, without waiting, and without an exception: a file
may be huge, binary, a pipe, or not for this user. What cannot be read becomes the `problem` of a
fact. `root` is the directory below which the host's file system stands. `gather` reads files;
`with_answers` asks the kubelet for its pods and the runtime for its version, each with a deadline.
"""

from __future__ import annotations

import asyncio
import os
import stat
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from agent.cluster.kubelet.pods import PodsUnavailableError
from agent.cluster.kubelet.pods_api import PodsApi
from agent.cluster.kubelet.pods_endpoint import EndpointAccess, PodsEndpoint
from agent.files import take, trusted_users
from agent.rpc.calls import CallError
from agent.rpc.client import Client
from agent.rpc.messages import Messages
from agent.runtimes import KUBELET, KUBELETS, served_by_kubelet
from agent.tools.doctor.checks import CPU_MANAGERS, PLUGIN_DIRECTORY
from agent.tools.doctor.facts import (
    AskedWay,
    CgroupControllers,
    CgroupFacts,
    GatheredFacts,
    HostFile,
    HostListing,
    HostPath,
    HostProcess,
    KernelFacts,
    KubeletFiles,
    RuntimeFacts,
)
from agent.tools.doctor.kernel import WORK
from agent.tools.doctor.kubelet import AGENT_UNIT, KUBELET_UNIT, flag_of
from agent.tools.doctor.runtime import CONTAINERD_FILE, CRIO_FILE, toml_of
from agent.tools.doctor.version import reported_version
from agent.versions import ReportedVersion
from cgroupfs.names import Driver, Layout, Tier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from agent.config.model import Config


CONTAINERD_SOCKET: Final = "/run/containerd/containerd.sock"
CRIO_SOCKET: Final = "/run/crio/crio.sock"
_CPUS: Final = "/sys/devices/system/cpu"
_NETWORK: Final = "/sys/class/net"
#: Flags of the kubelet's unit; those of the first file count.
_ENVIRONMENT: Final = ("/etc/default/kubelet", "/etc/sysconfig/kubelet")


def gather(config: Config, root: Path = Path("/"), *, with_runtime: bool) -> GatheredFacts:
    """Return the facts; nothing is changed, no process is asked, and no exception is raised.

    `with_runtime` False leaves out container runtimes, devices and the kernel's own work, which the
    agent's start does not judge.
    """
    found = list(processes(root, (*KUBELETS, *CPU_MANAGERS)))
    kubelets = (one for one in found if one.name in KUBELETS)
    kubelet = min(kubelets, key=lambda one: one.name != KUBELET, default=None)
    return GatheredFacts(
        kubelet=_kubelet(config, root, kubelet),
        cgroups=_cgroups(config, root),
        isolated=read_file(root, f"{_CPUS}/isolated"),
        online=read_file(root, f"{_CPUS}/online"),
        release=read_file(root, "/proc/sys/kernel/osrelease"),
        tuned=read_file(root, "/etc/tuned/active_profile"),
        kernel=_kernel(root) if with_runtime else None,
        runtime=_runtime(config, root) if with_runtime else None,
        others=tuple(one for one in found if one.name.startswith(CPU_MANAGERS)),
        agent_unit=read_unit(root, AGENT_UNIT),
        kubelet_unit=read_unit(root, KUBELET_UNIT),
    )


def _kubelet(config: Config, root: Path, process: HostProcess | None) -> KubeletFiles:
    directory = config.agent.kubelet.directory
    arguments = () if process is None else process.arguments
    named = config.agent.kubelet.config_file or flag_of(arguments, "config")
    # Of a kubelet inside another program it is not known whether it reads the default file.
    inside = process is not None and process.name != KUBELET
    default = str(directory / "config.yaml")
    drop_ins = flag_of(arguments, "config-dir")
    environment: tuple[HostFile, ...] = ()
    socket = ""
    if process is None:
        socket = served_by_kubelet(root, directory, config.agent.own_sockets)
        files = (*_ENVIRONMENT, directory / "kubeadm-flags.env")
        environment = tuple(read_file(root, file) for file in files)
    return KubeletFiles(
        directory=str(directory),
        config=HostFile(default) if named is None and inside else read_file(root, named or default),
        cpu_state=read_file(root, directory / "cpu_manager_state", LARGEST_CHECKPOINT),
        memory_state=read_file(root, directory / "memory_manager_state", LARGEST_CHECKPOINT),
        device_checkpoint=read_file(
            root, directory / "device-plugins/kubelet_internal_checkpoint", LARGEST_CHECKPOINT
        ),
        pods_api=socket_at(root, directory / "pods-api/pods-api.sock"),
        plugin_directory=directory_at(root, directory / "device-plugins"),
        process=process,
        drop_ins=read_files(root, f"{drop_ins}/*.conf") if drop_ins else (),
        environment=environment,
        socket=socket,
    )


def _cgroups(config: Config, root: Path) -> CgroupFacts:
    mount = config.agent.cgroup_mount

    def of(driver: Driver) -> tuple[CgroupControllers, ...]:
        layout = Layout(driver, config.cgroup_root)
        # The cgroup of all pods, in which Guaranteed pods stand, comes first.
        paths = dict.fromkeys((layout.pods(), *map(layout.tier, Tier)))
        return tuple(_controllers(root, mount, path) for path in paths)

    own = _controllers(root, mount, "")
    return CgroupFacts(str(mount), own, of(Driver.SYSTEMD), of(Driver.CGROUPFS))


def _controllers(root: Path, mount: Path, path: str) -> CgroupControllers:
    file = read_file(root, mount / path / "cgroup.controllers")
    words = None if file.text is None else frozenset(file.text.split())
    return CgroupControllers(path, words, file.problem)


def _kernel(root: Path) -> KernelFacts:
    names = names_in(root, _NETWORK).names
    cards = (name for name in names if directory_at(root, f"{_NETWORK}/{name}/device").there)
    queues = {
        name: sum(
            each.startswith("rx-") for each in names_in(root, f"{_NETWORK}/{name}/queues").names
        )
        for name in islice(cards, _MOST_FILES)
    }
    return KernelFacts(
        mounts=read_file(root, "/proc/self/mounts"),
        meminfo=read_file(root, "/proc/meminfo"),
        command_line=read_file(root, "/proc/cmdline"),
        work=tuple(read_file(root, path) for path in WORK.values()),
        queues=queues,
    )


def _runtime(config: Config, root: Path) -> RuntimeFacts:
    nri = config.agent.kubelet.nri_socket
    return RuntimeFacts(
        containerd_socket=socket_at(root, CONTAINERD_SOCKET),
        crio_socket=socket_at(root, CRIO_SOCKET),
        nri_socket=None if nri is None else socket_at(root, nri),
        plugins=names_in(root, PLUGIN_DIRECTORY),
        containerd=tuple(_with_imports(root, read_file(root, CONTAINERD_FILE))),
        crio=(read_file(root, CRIO_FILE), *read_files(root, f"{CRIO_FILE}.d/*.conf")),
        packages=dpkg_versions(root, ("containerd", "containerd.io", "cri-o", "kubelet")),
    )


def _with_imports(root: Path, file: HostFile) -> Iterator[HostFile]:
    """Yield containerd's file and those that it imports, which win over it."""
    yield file
    imports = toml_of(file)[0].get("imports")
    if isinstance(imports, list):
        for pattern in imports:
            if isinstance(pattern, str):
                yield from read_files(root, str(Path(CONTAINERD_FILE).parent / pattern))


#: Above every configuration; checkpoints of a kubelet with hundreds of pods are larger.
LARGEST_CONFIGURATION: Final = 1 << 20
LARGEST_CHECKPOINT: Final = 64 << 20
_MOST_ARGUMENTS: Final = 2 << 20
_MOST_FILES: Final = 64
_ABSENT: Final = (FileNotFoundError, NotADirectoryError)
#: Where systemd looks for units, those of the administrator first.
_UNIT_PLACES: Final = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)
#: The kernel keeps so many characters of a process's name.
_NAME_LENGTH: Final = 15


def below(root: Path, path: str | Path) -> Path:
    """Return where a path of the host stands below `root`."""
    return root / str(path).lstrip("/")


def read_file(
    root: Path, path: str | Path, limit: int = LARGEST_CONFIGURATION, errors: str = "strict"
) -> HostFile:
    """Return a regular file of at most `limit` bytes of UTF-8; `errors` as of `bytes.decode`."""
    shown = str(path)
    try:
        # Path.open takes no opener; a pipe without a writer is opened without waiting.
        with open(below(root, path), "rb", opener=_open) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return HostFile(shown, problem="not a regular file")
            return HostFile(shown, take(file, limit, shown).decode(errors=errors))
    except _ABSENT:
        return HostFile(shown)
    except UnicodeDecodeError:
        return HostFile(shown, problem="not UTF-8 text")
    except OSError as error:
        return HostFile(shown, problem=_why(error))
    except ValueError as error:  # a null byte in the path
        return HostFile(shown, problem=str(error))


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def socket_at(root: Path, path: str | Path) -> HostPath:
    """Return whether a Unix socket is there."""
    return _path(root, path, stat.S_ISSOCK)


def directory_at(root: Path, path: str | Path) -> HostPath:
    """Return whether a directory is there."""
    return _path(root, path, stat.S_ISDIR)


def _path(root: Path, path: str | Path, is_kind: Callable[[int], bool]) -> HostPath:
    shown = str(path)
    try:
        return HostPath(shown, is_kind(below(root, path).stat().st_mode))
    except _ABSENT:
        return HostPath(shown)
    except OSError as error:
        return HostPath(shown, problem=_why(error))
    except ValueError as error:
        return HostPath(shown, problem=str(error))


def read_files(root: Path, pattern: str) -> tuple[HostFile, ...]:
    """Return the files of a pattern, whose last part may have wildcards, in order of their names.

    At most 64 of them are read. A directory that cannot be listed stands for them as one file.
    """
    directory, _, pattern = str(pattern).rpartition("/")
    listed = names_in(root, directory)
    if listed.problem:
        return (HostFile(directory, problem=listed.problem),)
    names = (name for name in listed.names if fnmatchcase(name, pattern))
    return tuple(read_file(root, f"{directory}/{name}") for name in islice(names, _MOST_FILES))


def names_in(root: Path, directory: str | Path) -> HostListing:
    """Return the names in a directory in their order."""
    shown = str(directory)
    try:
        names = tuple(sorted(path.name for path in below(root, directory).iterdir()))
    except _ABSENT:
        return HostListing(shown)
    except OSError as error:
        return HostListing(shown, problem=_why(error))
    except ValueError as error:
        return HostListing(shown, problem=str(error))
    return HostListing(shown, names)


def read_unit(root: Path, unit: str) -> tuple[HostFile, ...]:
    """Return a unit of systemd and its drop-ins, the unit first; empty where there is none."""
    files = (read_file(root, f"{place}/{unit}") for place in _UNIT_PLACES)
    unit_file = next((one for one in files if one.text is not None or one.problem), None)
    if unit_file is None:
        return ()
    drop_ins = (
        one for place in _UNIT_PLACES for one in read_files(root, f"{place}/{unit}.d/*.conf")
    )
    return (unit_file, *drop_ins)


def processes(root: Path, names: Sequence[str]) -> Iterator[HostProcess]:
    """Yield root's processes whose program's name begins as one of `names`, by their ids.

    Other users can call their programs as they like.
    """
    cut = tuple(name[:_NAME_LENGTH] for name in names)
    for pid in _pids(root):
        directory = f"/proc/{pid}"
        comm = (read_file(root, f"{directory}/comm").text or "").strip()
        if not comm.startswith(cut) or not _is_trusted(below(root, directory)):
            continue
        if comm in KUBELETS and comm != KUBELET:
            yield HostProcess(pid, comm)
            continue
        line = read_file(root, f"{directory}/cmdline", _MOST_ARGUMENTS, "backslashreplace")
        arguments = (line.text or "").rstrip("\0").split("\0")
        name = arguments[0].rpartition("/")[2] or comm
        if name.startswith(tuple(names)):
            yield HostProcess(pid, name, tuple(arguments[1:]), arguments[0])


def _pids(root: Path) -> list[int]:
    names = names_in(root, "/proc").names
    return sorted(int(name) for name in names if name.isdecimal())


def _is_trusted(directory: Path) -> bool:
    try:
        return directory.stat().st_uid in trusted_users()
    except OSError:  # the process has ended
        return False


def dpkg_versions(root: Path, packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of packages that dpkg has installed, by their names."""
    text = read_file(root, "/var/lib/dpkg/status", LARGEST_CHECKPOINT).text or ""
    found: dict[str, str] = {}
    for paragraph in text.split("\n\n"):
        name = paragraph.partition("\n")[0].removeprefix("Package: ")
        if name not in packages:
            continue
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line)
        if fields.get("Status", "").endswith(" installed"):
            found[name] = fields.get("Version", "")
    return found


def _why(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


#: How long each of them may take to answer, in seconds; all are asked at the same time.
PATIENCE: Final = 10.0
SERVICE: Final = "runtime.v1.RuntimeService"
V1: Final = Messages(
    "runtime.v1",
    {
        "VersionRequest": {"version": (1, "string")},
        "VersionResponse": {
            "version": (1, "string"),
            "runtime_name": (2, "string"),
            "runtime_version": (3, "string"),
            "runtime_api_version": (4, "string"),
        },
    },
)


def with_answers(
    config: Config, facts: GatheredFacts, root: Path, seconds: float = PATIENCE
) -> GatheredFacts:
    """Return facts with what the kubelet and the runtime answer within so many seconds.

    The runtime is asked over its CRI socket: its answer is about the process that makes containers,
    and no program of others is started as root. Of another root's programs none is run, the
    kubelet's neither. The calls need the extra `grpc`.
    """
    if root == Path("/"):
        facts = replace(facts, kubelet_version=reported_version(facts, root))
    return asyncio.run(_with_answers(config, facts, root, seconds))


async def _with_answers(
    config: Config, facts: GatheredFacts, root: Path, seconds: float
) -> GatheredFacts:
    runtime = facts.runtime
    sockets = () if runtime is None else (runtime.containerd_socket, runtime.crio_socket)
    socket = next((one for one in sockets if one.there), None)
    reported, *ways = await asyncio.gather(
        _version(root, socket, seconds),
        _pods_api(config, facts, root, seconds),
        _pods_endpoint(config, seconds),
    )
    asked = tuple(way for way in ways if way is not None)
    if runtime is not None:
        runtime = replace(runtime, reported=reported)
    return replace(facts, runtime=runtime, asked=asked)


async def _version(root: Path, socket: HostPath | None, seconds: float) -> ReportedVersion | None:
    if socket is None:
        return None
    client = Client(below(root, socket.path), SERVICE)
    try:
        answer = await client.call(
            "Version", V1["VersionRequest"](), V1["VersionResponse"], seconds
        )
    except CallError as error:
        problem = f"{socket.path} does not answer Version of CRI ({error.code})"
        return ReportedVersion(problem=problem)
    finally:
        await client.close()
    source = f"asked at {socket.path}"
    return ReportedVersion(answer.runtime_name, answer.runtime_version, source)


async def _pods_api(
    config: Config, facts: GatheredFacts, root: Path, seconds: float
) -> AskedWay | None:
    if not facts.kubelet.pods_api.there:
        return None
    api = PodsApi(below(root, config.agent.kubelet.directory))
    return await _asked(f"the Pods API at {facts.kubelet.pods_api.path}", api, seconds)


async def _pods_endpoint(config: Config, seconds: float) -> AskedWay | None:
    kubelet = config.agent.kubelet
    if not kubelet.pods_endpoint:
        return None
    trust = (kubelet.token_file, kubelet.ca_file, kubelet.verify_certificate)
    endpoint = PodsEndpoint(EndpointAccess(kubelet.pods_endpoint, *trust))
    return await _asked(f"the kubelet's endpoint {kubelet.pods_endpoint}", endpoint, seconds)


async def _asked(way: str, pods: PodsApi | PodsEndpoint, seconds: float) -> AskedWay:
    """Return how many pods a way lists, or why it does not, and close it."""
    try:
        listed = await pods.pods(seconds)
    except PodsUnavailableError as error:
        return AskedWay(way, problem=error.found)
    finally:
        await pods.close()
    return AskedWay(way, len(listed.pods))
