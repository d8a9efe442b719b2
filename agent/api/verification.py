"""The documents of `GET /v1/verify`: observed and desired settings."""

from __future__ import annotations

from msgspec import field

from agent.api.documents import Document, KernelDocument
from cgroupfs.state import Writer  # noqa: TC001 - msgspec reads it at run time


class DifferenceDocument(Document, frozen=True):
    """One file of a cgroup that differs from what is desired ("" for the cgroup itself).

    `writer` is the process that wrote the file last, null where it is not known.
    """

    file: str
    cause: str
    detail: str
    writer: Writer | None = None


class VerifiedDocument(Document, frozen=True):
    """One cgroup: its desired settings (null: none) and those of the kernel.

    `role` is `pod`, `container`, `subgroup`, `sandbox`, `unidentified`, `orphaned`, `qos class` or
    `all pods`; `uid` and `pod` are "" for the last three. `values` are the texts desired of other
    files. With `inherits` the cgroup has no CPUs of its own: `cpus` are what its parent has.
    """

    uid: str
    pod: str
    container: str | None
    role: str
    cpus: str | None
    mems: str | None
    cpu_max: str | None
    kernel: KernelDocument
    values: dict[str, str] = field(default_factory=dict)
    differences: tuple[DifferenceDocument, ...] = ()
    inherits: bool = False


class AncestorDocument(Document, frozen=True):
    """An ancestor: its enabled controllers, and those that are lacking."""

    cgroup: str
    enabled: tuple[str, ...]
    lacking: tuple[str, ...]


class IntrudingTaskDocument(Document, frozen=True):
    """Threads of one process that may run on `cpus`, which belong to other `pods` (uids)."""

    pid: int
    name: str
    threads: int
    cgroup: str | None
    affinity: str
    cpus: str
    pods: tuple[str, ...]


class VerificationDocument(Document, frozen=True):
    """A comparison of the kernel with the ledger.

    `intruding` are tasks confined to a set with exclusive CPUs of others. `unconfined` are the
    first of those that may run on every CPU, `unconfined_tasks` is the number of their threads and
    `kernel_threads` that of kernel threads not bound to one CPU; neither is a difference.
    """

    agrees: bool
    cgroups: tuple[VerifiedDocument, ...]
    ancestors: tuple[AncestorDocument, ...]
    intruding: tuple[IntrudingTaskDocument, ...]
    unconfined: tuple[IntrudingTaskDocument, ...]
    unconfined_tasks: int
    kernel_threads: int
    differences: tuple[str, ...]
    notes: tuple[str, ...]
