"""What runtimes leave in files: bundles (`config.json`), which name containers, and states.

A runtime writes the bundle once, before the container's cgroup exists, into directories of root's.
A manifest can add annotations to it (containerd's `pod_annotations` and `container_annotations`,
CRI-O's allowed annotations). containerd writes its own after them; an annotation that did override
one of these would still have to name the pod in whose cgroup the container lives. So the most that
a forged annotation gives a container is the allocation of another container of the same pod.

runc writes its state (`state.json`, libcontainer's `State.config.cgroups`) together with the
cgroup, at the start and at every update. crun writes a copy of the bundle at the start and nothing
at an update.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import msgspec
from msgspec import Struct, field

from agent.safe_files import risk_of, take
from cgroupfs.names import Runtime
from cgroupfs.settings import CPU_MAX, DEFAULT_PERIOD_US, CpuMax
from cgroupfs.state import WriterRecord
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agent.pods.identity import Named


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
        self.why = why


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
