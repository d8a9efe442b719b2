"""What the OCI bundle of a container says: the annotations and resources in `config.json`.

A runtime writes the bundle once, before the container's cgroup exists, into directories of root's.
A manifest can add annotations to it (containerd's `pod_annotations` and `container_annotations`,
CRI-O's allowed annotations). containerd writes its own after them; an annotation that did override
one of these would still have to name the pod in whose cgroup the container lives. So the most that
a forged annotation gives a container is the allocation of another container of the same pod.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from agent.runtimes.files import RuntimeFileError, read_json
from agent.runtimes.records import recorded
from cgroupfs.state import WriterRecord

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agent.pods.identity import Named
    from agent.runtimes.places import RuntimeKeys

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
