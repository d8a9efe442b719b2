"""The pods of the ledger: what their containers have, and whether the kernel enforces that."""

from __future__ import annotations

from typing import Any

from msgspec import field

from agent.api.documents.document import Document
from agent.api.documents.explanations import (  # noqa: TC001  # msgspec reads annotations
    ExplanationDocument,
    HintDocument,
)
from agent.api.documents.kernel import EnforcementDocument, KernelDocument  # noqa: TC001  # same
from agent.api.documents.rejections import FailedPodDocument  # noqa: TC001  # same
from agent.api.documents.slowness import Slowness  # noqa: TC001  # same
from agent.api.documents.verification import IntrusionDocument  # noqa: TC001  # same
from agent.managers.delivery import Delivery
from agent.managers.violations import Violation  # noqa: TC001  # same


class PodListDocument(Document, frozen=True):
    """All pods, in the order of admission."""

    pods: tuple[PodDocument, ...]
    #: The latest pods that are not admitted, as in the status.
    failed: tuple[FailedPodDocument, ...] = ()


class PodDocument(Document, frozen=True):
    """One pod of the ledger."""

    uid: str
    #: "" where only the uid is known.
    name: str
    #: "" where only the uid is known.
    namespace: str
    qos: str
    #: Who asked for the pod: `api`, or the key of the pod in its source, such as the path of a
    #: manifest; "" if no source has.
    source: str
    #: "" without a specification: see `origin`.
    spec_digest: str
    #: The budget of CPUs; null for a pod without one.
    cpus: str | None
    memory: tuple[MemoryDocument, ...]
    exclusive_cpus: str
    containers: tuple[ContainerDocument, ...]
    enforcement: EnforcementDocument
    #: Null for a pod that was decided before the agent was started; the `why` of its containers is
    #: kept.
    explanation: ExplanationDocument | None = None
    #: The pod's own cgroups.
    kernel: tuple[KernelDocument, ...] = ()
    invalid: tuple[Violation, ...] = ()
    #: `Admitted`: the agent does not say whether the containers run.
    phase: str = "Admitted"
    unused_budget: tuple[UnusedBudgetDocument, ...] = ()
    #: How many of the containers that are to run (no finished init containers) have a cgroup; null
    #: where the kernel was not observed (a dry run).
    containers_found: int | None = None
    #: The containers without a cgroup for longer than a start takes.
    not_found: tuple[str, ...] = ()
    #: Why a container is missing: `starting`, `not started` (no container of the pod was found) or
    #: `not found` (it ended, or runs outside of the pod).
    absence: str = ""
    #: What resource managers without a field of their own allocated to the pod as a whole.
    others: dict[str, Any] = field(default_factory=dict)
    #: How the resources were determined: `decided` for the specification, `imported` from the
    #: kubelet's state files, or `recovered` from cgroups. The last two have no specification yet.
    origin: str = "decided"
    #: The name of the source (`manifests`); "" if no source asked for the pod.
    source_name: str = ""
    #: What each container has of the qualities that a pod can require.
    verdict: tuple[JudgementDocument, ...] = ()
    #: What ends the pod: `removal`, `processes` (the last one ends) or `unit`.
    end: str = "removal"
    #: The systemd unit whose end ends the pod, else "".
    unit: str = ""
    #: What the pod asks of the isolation of its exclusive CPUs, by item.
    isolation: dict[str, str] = field(default_factory=dict)
    #: Those of `exclusive_cpus` that no container uses: siblings of the others.
    idle_cpus: str = ""
    #: The cgroups of others that may use exclusive CPUs of the pod now. As long as there are any,
    #: the pod is not exclusive.
    intruding: tuple[IntrusionDocument, ...] = ()
    #: What makes the pod slow; null where it was not read: in a list and in answers to admissions.
    slow: Slowness | None = None
    #: The pool of shared CPUs (`agent.pools`) in which the pod runs, "" for none.
    pool: str = ""
    #: What its processes start with where their start can set it; null for the kernel's own.
    numa_policy: NumaPolicyDocument | None = None
    #: How long the admission took, from the request until the kernel was read back, in seconds;
    #: null for a pod that was admitted before the agent was started.
    admission_seconds: float | None = None


class NumaPolicyDocument(Document, frozen=True):
    """From which of the nodes that it may use a process takes memory (set_mempolicy(2))."""

    #: `interleave`: one page from each after the other. `preferred`: from some while they have
    #: free memory.
    mode: str
    #: Of `preferred` the nodes; of `interleave` numbers from 0 in what the process may use.
    nodes: str


class ContainerDocument(Document, frozen=True):
    """The allocation of one container."""

    name: str
    kind: str
    #: Where `cpus` come from: `container`, `pod` or `host` (the node's shared pool).
    isolation: str
    #: The CPUs that the container may run on.
    cpus: str
    #: Null: its memory may be on all nodes.
    mems: str | None
    memory: tuple[MemoryDocument, ...]
    #: The ids of the agent's devices, by resource.
    devices: dict[str, tuple[str, ...]]
    hint: HintDocument
    quota_disabled: bool
    #: The cgroups of the container.
    kernel: tuple[KernelDocument, ...] = ()
    #: Why its CPUs are exclusive or not; "" where no specification is known.
    why: str = ""
    #: Which containers may run on the CPUs at the same time (`agent.managers.sharing.Sharing`).
    sharing: str = "unknown"
    #: The CPUs that other containers may use; "" unless `sharing` is `overlapping`.
    shared_cpus: str = ""
    #: The first of the containers that may use them.
    shared_with: tuple[str, ...] = ()
    #: What resource managers without a field of their own allocated, by their names.
    others: dict[str, Any] = field(default_factory=dict)
    #: The devices that plugins of the kubelet beside the agent gave: their NUMA nodes ("": not
    #: known) by id by resource.
    kubelet_devices: dict[str, dict[str, str]] = field(default_factory=dict)
    #: What the container gets with its devices; null for nothing.
    delivery: DeliveryDocument | None = None


class MemoryDocument(Document, frozen=True):
    """Memory of one type."""

    type: str
    bytes: int
    #: The nodes on which the memory is.
    nodes: str


class DeliveryDocument(Delivery, frozen=True, kw_only=True):
    """What a container gets with its devices."""

    #: The name of the environment, mounts and device nodes in the CDI file of the pod; "" where no
    #: such file is written. `cdi_devices`, which are in other files, and `annotations` are not part
    #: of it.
    cdi_device: str = ""


class UnusedBudgetDocument(Document, frozen=True):
    """Budget of a pod that no container can use."""

    resource: str
    #: CPUs, or bytes of a memory type.
    unused: int
    budget: int
    #: Which CPUs are unused.
    cpus: str = ""


class JudgementDocument(Document, frozen=True):
    """Whether a container has one of the qualities that a pod can require."""

    container: str
    quality: str
    met: bool
    #: Why the container does not have it; "" if it has.
    why: str = ""
