"""Comparisons of the kernel with the ledger: the differences, who wrote them, who intrudes."""

from __future__ import annotations

from msgspec import field

from agent.api.documents.document import Document
from agent.api.documents.kernel import KernelDocument  # noqa: TC001  # msgspec reads annotations
from cgroupfs.state import Writer  # noqa: TC001  # same


class VerificationDocument(Document, frozen=True):
    """A comparison of the kernel with the ledger."""

    agrees: bool
    cgroups: tuple[VerifiedDocument, ...]
    ancestors: tuple[AncestorDocument, ...]
    #: Tasks that are confined to a set with exclusive CPUs of others.
    intruding: tuple[IntrudingTaskDocument, ...]
    #: The first tasks that may run on every CPU. They are no difference.
    unconfined: tuple[IntrudingTaskDocument, ...]
    #: The number of threads that may run on every CPU.
    unconfined_tasks: int
    #: The number of kernel threads that are not bound to one CPU. They are no difference.
    kernel_threads: int
    differences: tuple[str, ...]
    notes: tuple[str, ...]
    #: The cgroups that may use exclusive CPUs of a pod to which they do not belong, by its
    #: namespace/name.
    intruding_cgroups: dict[str, tuple[IntrusionDocument, ...]] = field(default_factory=dict)


class VerifiedDocument(Document, frozen=True):
    """One cgroup: its desired settings and those of the kernel."""

    #: "" for a cgroup without a pod.
    uid: str
    #: "" for a cgroup without a pod.
    pod: str
    container: str | None
    #: `pod`, `container`, `subgroup`, `sandbox`, `ephemeral`, `unidentified`, or of a cgroup
    #: without a pod `orphaned`, `qos class` or `all pods`.
    role: str
    #: The desired setting; null: none.
    cpus: str | None
    #: The desired setting; null: none.
    mems: str | None
    #: The desired setting; null: none.
    cpu_max: str | None
    kernel: KernelDocument
    #: The desired texts of other files.
    values: dict[str, str] = field(default_factory=dict)
    differences: tuple[DifferenceDocument, ...] = ()
    #: The cgroup has no CPUs of its own: `cpus` are those of its parent.
    inherits: bool = False


class DifferenceDocument(Document, frozen=True):
    """One file of a cgroup that differs from what is desired."""

    #: "" for the cgroup itself.
    file: str
    cause: str
    detail: str
    #: The process that wrote the file last; null where it is not known.
    writer: Writer | None = None


class AncestorDocument(Document, frozen=True):
    """A cgroup above all pods."""

    cgroup: str
    #: The controllers that it enables for the cgroups below it.
    enabled: tuple[str, ...]
    #: The controllers that it should enable and does not.
    lacking: tuple[str, ...]


class IntrudingTaskDocument(Document, frozen=True):
    """Threads of one process that may run on exclusive CPUs of other pods."""

    pid: int
    name: str
    threads: int
    cgroup: str | None
    affinity: str
    #: The exclusive CPUs on which they may run.
    cpus: str
    #: The uids of the pods that these CPUs belong to.
    pods: tuple[str, ...]


class IntrusionDocument(Document, frozen=True):
    """A cgroup that may use exclusive CPUs of a pod to which it does not belong."""

    cgroup: str
    cpus: str
    #: The namespace/name of the pod that the cgroup belongs to; "" for no pod.
    user: str
    #: The cause of the difference (`DifferenceDocument`), or `intruding task`.
    cause: str
    #: The other fields in one line, and what to do.
    message: str


class ReconcileDocument(Document, frozen=True):
    """The outcome of one comparison of the kernel with the ledger."""

    #: The number of differences by cause.
    found: dict[str, int]
    #: The number of repaired differences by cause.
    repaired: dict[str, int]
    differences: tuple[str, ...]
    notes: tuple[str, ...]
    finished: float
    seconds: float


class DriftDocument(Document, frozen=True):
    """A setting that another process changed.

    The agent repaired it, unless a condition names it.
    """

    time: float
    #: "" for what belongs to no pod.
    uid: str
    #: "" for what belongs to no pod.
    pod: str
    #: Null for what belongs to no container.
    container: str | None
    cgroup: str
    file: str
    #: The text of the file; null: it did not exist.
    observed: str | None
    desired: str
    cause: str
    detail: str
    #: The process that changed it; null where it is not known.
    writer: Writer | None = None
    #: The comparison that found the difference repaired it.
    repaired: bool = False

    def line(self) -> str:
        """Return all details in a line."""
        container = f"container {self.container}" if self.container else ""
        owner = ", ".join(filter(None, (self.pod or self.uid, container)))
        cause = self.cause if self.writer is None else f"{self.cause}, {self.writer.line()}"
        return f"{owner or 'no pod'}: {self.detail} ({cause})"
