"""The answers to requests that concern one pod: admit, fit, bind, remove."""

from __future__ import annotations

from agent.api.documents.document import Document
from agent.api.documents.errors import ErrorBody  # noqa: TC001  # msgspec reads annotations
from agent.api.documents.explanations import ExplanationDocument  # noqa: TC001  # same
from agent.api.documents.kernel import EnforcementDocument, PlanDocument  # noqa: TC001  # same
from agent.api.documents.pods import PodDocument  # noqa: TC001  # same
from agent.api.documents.rejections import RejectionDocument  # noqa: TC001  # same
from agent.managers.amounts import FreeCpus  # noqa: TC001  # same


class AdmissionDocument(Document, frozen=True):
    """The answer to an admission."""

    uid: str
    name: str
    namespace: str
    admitted: bool
    #: Nothing was changed.
    dry_run: bool = False
    already_admitted: bool = False
    #: Set if the pod was admitted.
    pod: PodDocument | None = None
    #: Set if the pod was rejected.
    rejection: RejectionDocument | None = None
    explanation: ExplanationDocument | None = None
    #: Set if the pod was rejected.
    error: ErrorBody | None = None
    #: What the admission would change in cgroups; null unless `dry_run`.
    plan: PlanDocument | None = None
    #: The uid of the pod in whose place this pod is; null for none.
    replaced: str | None = None
    #: What in the manifest has no effect, and what of the memory that the pod gets is not there.
    warnings: tuple[str, ...] = ()


class FitDocument(Document, frozen=True):
    """How many copies of a pod would be admitted now, one after the other; nothing is changed."""

    count: int
    #: No more than `count` copies were tried.
    limited: bool
    #: The number of copies by the nodes of their exclusive CPUs and pinned memory; "" for neither.
    on: dict[str, int]
    #: How many would fit a host without pods; not more than were tried.
    empty: int
    free: FreeCpus
    #: Why the first copy does not fit that does not; with advice where no copy fits. Null if
    #: `limited`.
    rejection: RejectionDocument | None = None
    #: What of the memory that the copies would get is not there.
    warnings: tuple[str, ...] = ()


class ResizeRequest(Document, frozen=True, forbid_unknown_fields=True):
    """Other amounts of one container, or of the pod-level resources of a pod that states them."""

    #: "": the pod-level resources, where the pod states some, else its only container.
    container: str = ""
    #: A Kubernetes quantity, such as `6` or `1500m`; "": as before.
    cpus: str = ""
    #: A Kubernetes quantity, such as `12Gi`; "": as before.
    memory: str = ""
    #: CPUs that stay with their containers, in the kernel's list format.
    keep: str = ""


class BindRequest(Document, frozen=True, forbid_unknown_fields=True):
    """The cgroup of a container: either its path below the root, or one of its pids."""

    cgroup: str | None = None
    pid: int | None = None


class BindDocument(Document, frozen=True):
    """The answer to a binding."""

    uid: str
    container: str
    cgroup: str
    enforcement: EnforcementDocument


class RemovalDocument(Document, frozen=True):
    """The answer to a removal."""

    uid: str
    name: str
    namespace: str
    #: Whether the kernel was updated completely.
    enforcement: EnforcementDocument
