"""What runtimes leave in files: bundles (`config.json`), which name containers, and states.

A runtime writes the bundle once, before the container's cgroup exists, into directories of root's.
A manifest can add annotations to it (containerd's `pod_annotations` and `container_annotations`,
CRI-O's allowed annotations). containerd writes its own after them; an annotation that did override
one of these would still have to name the pod in whose cgroup the container lives. So the most that
a forged annotation gives a container is the allocation of another container of the same pod.

runc writes its state (`state.json`, libcontainer's `State.config.cgroups`) together with the
cgroup, at the start and at every update. crun writes a copy of the bundle at the start and nothing
at an update.

`RuntimeFiles` says from them which container a cgroup is and what was last set for it; others see
it as a `ContainerIdentifier`. Beside the runtimes stand the processes in which a kubelet runs.
"""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar

import msgspec
from msgspec import Struct, field

from agent.files import risk_of, take
from cgroupfs.names import Runtime, parse_container
from cgroupfs.settings import CPU_MAX, DEFAULT_PERIOD_US, CpuMax
from cgroupfs.state import WriterRecord
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path

    from agent.pods.model import Named


class RuntimeName(Struct, frozen=True):
    """A runtime's name of a cgroup; `container` is None for a pod's sandbox."""

    container: str | None


class ContainerIdentifier(Protocol):
    """Identifies container cgroups by another source, such as a container runtime's files."""

    def container_of(self, pod: Named, cgroup: str) -> RuntimeName | None:
        """Return what lives in `cgroup`, a container's cgroup of `pod`; None if unknown."""
        ...

    def remembered(self, cgroup: str) -> WriterRecord | None:
        """Return what the runtime last set in `cgroup`, None if it keeps no record of it."""
        ...


class RuntimeKeys(Struct, frozen=True):
    """The annotations by which a runtime names a container and its pod."""

    kind: str
    container: str
    uid: str
    name: str
    namespace: str


class RuntimeDirectory(Struct, frozen=True):
    """One runtime's directories, below the root of the host.

    A bundle is `bundles`/ID/`inside`config.json, the state of runc `states`/ID/state.json.
    """

    runtime: str
    bundles: str
    inside: str
    states: str
    keys: RuntimeKeys


#: containerd pkg/cri/annotations; older versions write no uid.
_CRI: Final = RuntimeKeys(
    kind="io.kubernetes.cri.container-type",
    container="io.kubernetes.cri.container-name",
    uid="io.kubernetes.cri.sandbox-uid",
    name="io.kubernetes.cri.sandbox-name",
    namespace="io.kubernetes.cri.sandbox-namespace",
)
#: CRI-O pkg/annotations, and the kubelet's labels, which CRI-O makes annotations too.
_CRIO: Final = RuntimeKeys(
    kind="io.kubernetes.cri-o.ContainerType",
    container="io.kubernetes.container.name",
    uid="io.kubernetes.pod.uid",
    name="io.kubernetes.pod.name",
    namespace="io.kubernetes.pod.namespace",
)
_TASKS: Final = "io.containerd.runtime.v2.task/k8s.io"
#: Of containerd's shim for runc, wherever containerd itself keeps its own state.
_RUNC_OF_CONTAINERD: Final = "run/containerd/runc/k8s.io"

#: containerd by itself, as K3s and RKE2 run it, as k0s does.
_CONTAINERD: Final = tuple(
    RuntimeDirectory("containerd", f"{state}/{_TASKS}", "", _RUNC_OF_CONTAINERD, _CRI)
    for state in ("run/containerd", "run/k3s/containerd", "run/k0s/containerd")
)
_CRIO_PLACE: Final = RuntimeDirectory(
    "CRI-O", "run/containers/storage/overlay-containers", "userdata/", "run/runc", _CRIO
)

#: The directories to read, by the runtime that a cgroup's name shows. Any runtime may use a plain
#: name.
PLACES: Final = {
    Runtime.CONTAINERD: _CONTAINERD,
    Runtime.CRIO: (_CRIO_PLACE,),
    Runtime.PLAIN: (*_CONTAINERD, _CRIO_PLACE),
}


#: Of a bundle or a state, in bytes: they are tens of kilobytes (annotations and environment
#: included, of which Kubernetes allows 256 KiB and the kernel 2 MiB).
LIMIT: Final = 4 << 20

_Content = TypeVar("_Content")

#: What changes when a file is replaced or written: inode, time of the last change, size.
Stamp: TypeAlias = tuple[int, int, int]


class RuntimeFileError(Exception):
    """A file exists but is unusable; `path` and `why` say which and why, on one line."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path


def stamp_of(path: str) -> Stamp | None:
    """Return a file's stamp, None when there is no file or it is not accessible."""
    try:
        found = os.stat(path)  # noqa: PTH116 - asked for each container in each pass; a Path doubles it
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def read_json(path: Path, kind: type[_Content]) -> _Content:
    """Return a JSON file as a msgspec type; unknown fields are ignored.

    Raises `RuntimeFileError`, and `FileNotFoundError` when there is none.
    """
    try:
        return msgspec.json.decode(_read(path), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RuntimeFileError(path, f"it is damaged ({error})") from error


def _read(path: Path) -> bytes:
    try:
        with open(path, "rb", opener=_open) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise RuntimeFileError(path, "it is not a regular file")
            risk = risk_of(path, status)
            if risk is not None:
                raise RuntimeFileError(
                    path, f"it {risk.found}, so the runtime may not have written it"
                )
            return take(file, LIMIT, str(path))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RuntimeFileError(path, f"it cannot be read ({error.strerror})") from error


def _open(path: str, flags: int) -> int:
    # A named pipe at this path must not block the agent.
    return os.open(path, flags | os.O_NONBLOCK)


class _Cgroups(Struct):
    cpuset_cpus: str = ""
    cpuset_mems: str = ""
    cpu_quota: int = 0
    cpu_period: int = 0


class _Config(Struct):
    cgroups: _Cgroups


class _State(Struct):
    config: _Config


def read_state(path: Path) -> WriterRecord:
    """Return what runc's `state.json` says.

    Raises `RuntimeFileError` when it is unusable, `FileNotFoundError` when there is none.
    """
    cgroups = read_json(path, _State).config.cgroups
    return recorded(
        path, cgroups.cpuset_cpus, cgroups.cpuset_mems, cgroups.cpu_quota, cgroups.cpu_period
    )


def recorded(path: Path, cpus: str, mems: str, quota: int, period: int) -> WriterRecord:
    """Return settings as a record.

    A runtime does not write values that are "" or 0; a quota of -1 means unlimited. Raises
    `RuntimeFileError` on values that the kernel would not accept.
    """
    try:
        return WriterRecord(
            Mask.parse(cpus) or None, Mask.parse(mems) or None, _quota(quota, period)
        )
    except ValueError as error:
        raise RuntimeFileError(path, f"it is damaged ({error})") from error


def _quota(quota: int, period: int) -> dict[str, str]:
    if not quota and not period:
        return {}
    return {CPU_MAX: str(CpuMax(quota if quota > 0 else None, period or DEFAULT_PERIOD_US))}


_SANDBOX: Final = "sandbox"
_CONTAINER: Final = "container"
#: This many characters of a name are shown.
_SHOWN: Final = 100


class _Cpu(Struct):
    quota: int | None = None
    period: int | None = None
    cpus: str = ""
    mems: str = ""


class _Resources(Struct):
    cpu: _Cpu | None = None


class _Linux(Struct):
    resources: _Resources | None = None


class _Spec(Struct):
    annotations: dict[str, str] = field(default_factory=dict)
    linux: _Linux | None = None


class RuntimeClaim(Struct, frozen=True):
    """A runtime's statement about a container; `container` is None for a pod's sandbox.

    `uid` is "" where the runtime does not write it.
    """

    container: str | None
    uid: str
    name: str
    namespace: str

    def is_of(self, pod: Named) -> bool:
        """Return whether the statement names this pod: by uid, else by full name."""
        if self.uid:
            return self.uid == pod.uid
        return bool(self.name) and (self.namespace, self.name) == (pod.namespace, pod.name)

    @property
    def pod(self) -> str:
        """The pod as the runtime names it, always on one line."""
        name = repr(f"{self.namespace}/{self.name}"[:_SHOWN]) if self.name else "without a name"
        return f"{name} (uid {self.uid[:_SHOWN]!r})" if self.uid else name


def read_claim(path: Path, keys: RuntimeKeys) -> RuntimeClaim:
    """Return what a bundle's `config.json` says.

    Raises `RuntimeFileError` when it is unusable, `FileNotFoundError` when there is none.
    """
    annotations = read_json(path, _Spec).annotations
    return RuntimeClaim(
        _container(path, keys, annotations),
        annotations.get(keys.uid, ""),
        annotations.get(keys.name, ""),
        annotations.get(keys.namespace, ""),
    )


def _container(path: Path, keys: RuntimeKeys, annotations: Mapping[str, str]) -> str | None:
    kind = annotations.get(keys.kind)
    if kind == _SANDBOX:
        return None
    name = annotations.get(keys.container)
    if kind != _CONTAINER or not name:
        why = f"its annotations {keys.kind} and {keys.container} do not name a pod's container"
        raise RuntimeFileError(path, why)
    return name


def read_spec(path: Path) -> WriterRecord:
    """Return the settings that a container was created with; raises as `read_claim` does."""
    spec = read_json(path, _Spec)
    resources = None if spec.linux is None else spec.linux.resources
    cpu = None if resources is None else resources.cpu
    if cpu is None:
        return WriterRecord()
    return recorded(path, cpu.cpus, cpu.mems, cpu.quota or 0, cpu.period or 0)


#: The ids of all supported runtimes; no other text becomes part of a path.
_ID: Final = re.compile(r"[0-9a-f]{64}")
#: This many containers are remembered; a host with more reads some of their bundles again.
_REMEMBERED: Final = 8192

_Value = TypeVar("_Value")


class _Known(Struct, frozen=True):
    """A bundle that was read; `claim` is None when it was unusable."""

    file: str
    stamp: Stamp
    claim: RuntimeClaim | None


class RuntimeFiles:
    """The containers of containerd and CRI-O by their bundles (a `ContainerIdentifier`).

    `root` is where the host's file system is mounted. A bundle is read once, and again when the
    file was replaced. What cannot be used is reported once: `report` is called with one line that
    names the container's id or directory and the reason.
    """

    def __init__(self, root: Path, report: Callable[[str], None]) -> None:
        self._root = root
        self._report = report
        self._known: dict[str, _Known] = {}
        self._reported: dict[str, str] = {}

    def container_of(self, pod: Named, cgroup: str) -> RuntimeName | None:
        """Return the runtime's name of a container cgroup of `pod`, None if nothing is known.

        A bundle that names another pod is ignored.
        """
        directory = cgroup.rpartition("/")[2]
        claim = self._claim(directory)
        if claim is None:
            return None
        if not claim.is_of(pod):
            self._report_once(
                directory,
                f"/{cgroup} is in pod {pod.uid}, but its runtime says that it is of pod "
                f"{claim.pod}; the runtime's bundle is ignored",
            )
            return None
        return RuntimeName(claim.container)

    def remembered(self, cgroup: str) -> WriterRecord | None:
        """Return what the runtime last set in a container cgroup, None if it keeps no record.

        runc records every update. For other runtimes there are only the settings that the container
        was created with, which containerd sends again until it is asked to change them.
        """
        found = _container_id(cgroup.rpartition("/")[2])
        if found is None:
            return None
        id_, places = found
        for file in self._states(id_, places):
            record = self._record(file, read_state)
            if record is not None:
                return record
        for _, file in self._bundles(id_, places):
            record = self._record(file, read_spec)
            if record is not None:
                return record
        return None

    def _claim(self, directory: str) -> RuntimeClaim | None:
        known = self._known.get(directory)
        if known is not None and stamp_of(known.file) == known.stamp:
            return known.claim
        found = _container_id(directory)
        if found is None:
            return None
        known = self._read(*found)
        if known is not None:
            _keep(self._known, directory, known)
            return known.claim
        self._report_missing(*found)
        return None

    def _read(self, id_: str, places: tuple[RuntimeDirectory, ...]) -> _Known | None:
        """Return the first bundle that there is."""
        for place, file in self._bundles(id_, places):
            stamp = stamp_of(str(file))
            if stamp is None:
                continue
            try:
                return _Known(str(file), stamp, read_claim(file, place.keys))
            except FileNotFoundError:
                continue
            except RuntimeFileError as error:
                self._report_once(str(file), f"{error}; bind the container with 'numawarden bind'")
                return _Known(str(file), stamp, None)
        return None

    def _record(self, file: Path, read: Callable[[Path], WriterRecord]) -> WriterRecord | None:
        try:
            return read(file)
        except FileNotFoundError:
            return None
        except RuntimeFileError as error:
            self._report_once(
                str(file), f"{error}; the writer of the container's cgroup is unknown"
            )
            return None

    def _bundles(
        self, id_: str, places: tuple[RuntimeDirectory, ...]
    ) -> Iterator[tuple[RuntimeDirectory, Path]]:
        for place in places:
            yield place, self._root / place.bundles / id_ / f"{place.inside}config.json"

    def _states(self, id_: str, places: tuple[RuntimeDirectory, ...]) -> Iterator[Path]:
        for states in dict.fromkeys(place.states for place in places):
            yield self._root / states / id_ / "state.json"

    def _report_missing(self, id_: str, places: tuple[RuntimeDirectory, ...]) -> None:
        if id_ in self._reported:
            return
        _keep(self._reported, id_, "")
        there = [self._root / place.bundles for place in places]
        there = [directory for directory in there if stamp_of(str(directory)) is not None]
        if there:
            looked = " or ".join(map(str, there))
            self._report(
                f"no bundle of container {id_} is in {looked}, so the container is not identified"
            )
            return
        names = " or ".join(dict.fromkeys(place.runtime for place in places))
        first = self._root / places[0].bundles
        self._report_once(
            names,
            f"a container has an id as {names} gives it, but {first} does not exist; mount it if "
            "the agent runs in a container, else bind the containers of pods that have several "
            "('numawarden bind')",
        )

    def _report_once(self, about: str, what: str) -> None:
        if self._reported.get(about) != what:
            _keep(self._reported, about, what)
            self._report(what)


def _container_id(directory: str) -> tuple[str, tuple[RuntimeDirectory, ...]] | None:
    named = parse_container(directory)
    if named is None or named.runtime not in PLACES or not _ID.fullmatch(named.id):
        return None
    return named.id, PLACES[named.runtime]


def _keep(kept: dict[str, _Value], key: str, value: _Value) -> None:
    """Keep a value, and forget the oldest of too many."""
    kept[key] = value
    if len(kept) > _REMEMBERED:
        del kept[next(iter(kept))]


#: The name of a kubelet's process.
KUBELET: Final = "kubelet"
#: Programs that run a kubelet in their own process, and when they do not.
_WITH_KUBELET: Final = {
    "edgecore": "; none with modules.edged.enable: false",  # KubeEdge
    "k3s-agent": "",
    "k3s-server": "; none with --disable-agent",
    "kubelite": "",  # MicroK8s
    "microshift": "",
}
#: The processes of kubelets, as the kernel names them.
KUBELETS: Final = (KUBELET, *_WITH_KUBELET)


#: What every kubelet serves, below its directory.
_SERVED: Final = ("device-plugins/kubelet.sock", "pod-resources/kubelet.sock")
#: The flags of a listening socket in /proc/net/unix (__SO_ACCEPTCON in linux/net.h), and its parts.
_LISTENS: Final = "00010000"
_PARTS: Final = 8


def served_by_kubelet(root: Path, directory: Path, own: Collection[Path]) -> str:
    """Return a socket on which a kubelet listens, whatever its program is called, "" for none.

    `directory` is the kubelet's, below `root`; `own` are the sockets that the agent serves itself.
    A path alone could be that of another mount namespace, so the socket has to be there.
    """
    served = {str(directory / name) for name in _SERVED} - set(map(str, own))
    try:
        table = (root / "proc/net/unix").read_text(errors="replace")
        listening = {
            one[-1]
            for line in table.splitlines()
            if len(one := line.split(maxsplit=_PARTS - 1)) == _PARTS and one[3] == _LISTENS
        }
        there = (path for path in sorted(served & listening) if _is_socket(root, path))
        return next(there, "")
    except OSError:
        return ""


def _is_socket(root: Path, path: str) -> bool:
    return stat.S_ISSOCK((root / path.lstrip("/")).stat().st_mode)


def running_kubelet(name: str, pid: int) -> str:
    """Return the words for the kubelet of a process, which may run another program."""
    if name == KUBELET:
        return f"a kubelet runs (process {pid})"
    return f"a kubelet runs in {name} (process {pid}{_WITH_KUBELET[name]})"
