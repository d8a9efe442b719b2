"""The documents of the admission API: what goes over the socket, and what `--output json` prints.

Sets of CPUs and NUMA nodes are text in the kernel's list format (`0-3,8`), sizes are bytes, CPU
shares millicores, times seconds since 1970 (UTC). Field names are camel case on the wire. A field
may be added in any release; none is renamed or removed within `/v1` (see `docs/api.md`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from agent.api.delivery import DeliveryDocument  # noqa: TC001 - msgspec reads it at run time
from agent.managers.answers import Advice, FreeCpus, Shortage  # noqa: TC001 - same
from agent.managers.assessment.violation import Violation  # noqa: TC001 - same
from agent.values import plain
from agent.yaml import Mistake  # noqa: TC001 - same
from cgroupfs.settings import VALUES

_Document = TypeVar("_Document", bound="Document")

#: The code of the answer to an invalid manifest, and the reason in the status of its pod.
INVALID_MANIFEST: Final = "InvalidManifest"
#: The reason of a pod of the kubelet that runs in the shared pool without what it asks for.
RUNS_SHARED: Final = "RunsShared"


class Document(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of all documents."""


class ErrorBody(Document, frozen=True):
    """An error: `code` for programs (`InvalidManifest`), `message` for people.

    `operation` is the id that the log lines of the request have, "" if no request was read.
    """

    code: str
    message: str
    details: tuple[Mistake, ...] = ()
    operation: str = ""


class ErrorDocument(Document, frozen=True):
    """The body of every answer that is not a success."""

    error: ErrorBody


class HintDocument(Document, frozen=True):
    """A topology hint; `nodes` None means any node."""

    nodes: str | None
    preferred: bool


class MemoryDocument(Document, frozen=True):
    """`bytes` of one memory type on the nodes of a set."""

    type: str
    bytes: int
    nodes: str


class KernelDocument(Document, frozen=True):
    """The files of one cgroup; a field is None if the file does not exist.

    `cpu_max` is the file's text (`max 100000`), so are `cpu_weight`, `memory_max` (bytes or `max`)
    and `hugetlb`, the latter by file (`hugetlb.2MB.max`).
    """

    cgroup: str
    cpus: str | None = None
    cpus_effective: str | None = None
    mems: str | None = None
    mems_effective: str | None = None
    cpu_max: str | None = None


if not TYPE_CHECKING:
    # A field for each file of one value: what the agent writes, it shows.
    KernelDocument = msgspec.defstruct(
        "KernelDocument",
        [
            *((row.field, str | None, None) for row in VALUES),
            ("hugetlb", dict[str, str], {}),
        ],
        bases=(KernelDocument,),
        namespace={"__doc__": KernelDocument.__doc__},
        module=__name__,
        frozen=True,
    )


class ContainerDocument(Document, frozen=True):
    """The allocation of one container.

    `cpus` are the CPUs it may run on: its own, its pod's, or the node's shared pool, as `isolation`
    says. `mems` None: its memory is not pinned. `kernel` lists its cgroups. `why` says why its CPUs
    are exclusive or not, "" where no specification is known. `sharing`
    (`agent.managers.allocations.sharing.Sharing`) says who else may run on them while it does; of
    what is `overlapping`, `shared_cpus` are the CPUs and `shared_with` the first of the other
    containers. `others` is what resource managers without a field of their own have allocated, by
    the name of the manager. `delivery` is what the container gets with its devices, None for
    nothing. `devices` are the agent's, `kubelet_devices` those that plugins of the kubelet beside
    the agent gave: their NUMA nodes ("": not known) by id by resource.
    """

    name: str
    kind: str
    isolation: str
    cpus: str
    mems: str | None
    memory: tuple[MemoryDocument, ...]
    devices: dict[str, tuple[str, ...]]
    hint: HintDocument
    quota_disabled: bool
    kernel: tuple[KernelDocument, ...] = ()
    why: str = ""
    sharing: str = "unknown"
    shared_cpus: str = ""
    shared_with: tuple[str, ...] = ()
    others: dict[str, Any] = {}
    kubelet_devices: dict[str, dict[str, str]] = {}
    delivery: DeliveryDocument | None = None


class UnusedBudgetDocument(Document, frozen=True):
    """Budget of a pod that no container can use; CPUs, or bytes of a memory type.

    `cpus` says which CPUs.
    """

    resource: str
    unused: int
    budget: int
    cpus: str = ""


class EnforcementDocument(Document, frozen=True):
    """Whether the kernel enforces an allocation; `differences` says what is missing, one line each.

    `notes` are facts worth knowing that are no failure (processes that still run, say).
    """

    enforced: bool
    differences: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class RejectionDocument(Document, frozen=True):
    """Why a pod was rejected; `asked` and `free` (by NUMA node) are in the resource's unit.

    Of the reasons `OutOf<resource>` these two are null and empty: `shortages` has the amounts.
    `advice` are changes with which the pod would be admitted now; empty: none of those that were
    tried, null: none was tried.
    """

    reason: str
    message: str
    remedy: str
    resource: str | None
    container: str | None
    asked: int | None
    free: dict[str, int]
    shortages: tuple[Shortage, ...] = ()
    advice: tuple[Advice, ...] | None = None


class ProviderDocument(Document, frozen=True):
    """What one provider offered: by resource, None (no preference) or its best hints.

    `counts` is how many hints there were in all, None where they were too many to count.
    """

    provider: str
    hints: dict[str, tuple[HintDocument, ...] | None]
    counts: dict[str, int | None]


class HintTraceDocument(Document, frozen=True):
    """The merge for one container (None: for the pod as a whole)."""

    container: str | None
    providers: tuple[ProviderDocument, ...]
    merged: HintDocument
    admitted: bool


class EligibilityDocument(Document, frozen=True):
    """Whether one container is eligible for exclusive resources, and why.

    `why` is about CPUs, `reasons` has the reason of each resource manager.
    """

    container: str
    exclusive_cpus: int
    exclusive_memory: bool
    why: str
    reasons: dict[str, str] = {}


class ExplanationDocument(Document, frozen=True):
    """The explanation of a decision.

    `warnings` say what in the manifest is read otherwise than it was probably meant.
    """

    eligibility: tuple[EligibilityDocument, ...]
    hints: tuple[HintTraceDocument, ...]
    warnings: tuple[str, ...] = ()


class JudgementDocument(Document, frozen=True):
    """Whether a container has one of the qualities; `why` says why not, "" if it has."""

    container: str
    quality: str
    met: bool
    why: str = ""


class PodDocument(Document, frozen=True):
    """One pod of the ledger.

    `source` is who asked for it: `api`, or the key of the pod in the source called `source_name` (a
    manifest's path in `manifests`); both are "" if no source has. `explanation` is None for a pod
    that was decided before the agent was last started; the `why` of its containers is kept. `phase`
    is `Admitted`: whether its containers run is not the agent's to say. `origin` says how its
    resources were determined: `decided` for its specification, `imported` from the kubelet's state
    files or `recovered` from its cgroups. The last two have no specification yet: `spec_digest` is
    "", and so are `name` and `namespace` if only the uid is known.
    `containers_found` counts the containers that are to run (no finished init containers) and whose
    cgroups were found, None where the kernel was not looked at (a dry run). `not_found` names those
    that were not for longer than a start takes; `absence` says why any is missing: `starting`, `not
    started` (no container of the pod was found) or `not found` (ended, or outside of the pod).
    `others` is what managers without a field of their own have allocated to the pod as a whole.
    `verdict` is what each container has of the qualities that a pod can require. `end` is what ends
    the pod: `removal`, `processes` or `unit`, the systemd unit `unit` (else "").
    """

    uid: str
    name: str
    namespace: str
    qos: str
    source: str
    spec_digest: str
    cpus: str | None
    memory: tuple[MemoryDocument, ...]
    exclusive_cpus: str
    containers: tuple[ContainerDocument, ...]
    enforcement: EnforcementDocument
    explanation: ExplanationDocument | None = None
    kernel: tuple[KernelDocument, ...] = ()
    invalid: tuple[Violation, ...] = ()
    phase: str = "Admitted"
    unused_budget: tuple[UnusedBudgetDocument, ...] = ()
    containers_found: int | None = None
    not_found: tuple[str, ...] = ()
    absence: str = ""
    others: dict[str, Any] = {}
    origin: str = "decided"
    source_name: str = ""
    verdict: tuple[JudgementDocument, ...] = ()
    end: str = "removal"
    unit: str = ""


class FailedPodDocument(Document, frozen=True):
    """The status of a pod that was rejected, or whose manifest is invalid.

    `phase`, `reason` and `message` are those of v1.PodStatus, `time` is Unix seconds. `uid`, `name`
    and `namespace` are "" if they are missing in the manifest. A rejected pod has `rejection` and
    `explanation`, an invalid one the first of its mistakes in `details`. `kubelet_devices` are
    those that the kubelet gave it all the same, by container (`ContainerDocument`).
    """

    uid: str
    name: str
    namespace: str
    reason: str
    message: str
    time: float
    source: str
    phase: str = "Failed"
    details: tuple[Mistake, ...] = ()
    rejection: RejectionDocument | None = None
    explanation: ExplanationDocument | None = None
    kubelet_devices: dict[str, dict[str, dict[str, str]]] = {}


class FitDocument(Document, frozen=True):
    """How many copies of a pod would be admitted now, one after the other; nothing is changed.

    `on` counts them by the nodes of their exclusive CPUs and pinned memory, in the kernel's list
    format ("" for pods with neither). `limited`: no more than `count` were tried. `rejection` is
    that of the first copy that does not fit (null if `limited`), with advice where none fits.
    `empty` is how many would fit a host without pods, up to as many as were tried.
    """

    count: int
    limited: bool
    on: dict[str, int]
    empty: int
    free: FreeCpus
    rejection: RejectionDocument | None = None


class PodListDocument(Document, frozen=True):
    """All pods, in the order of admission.

    `failed` are the latest pods that are not admitted, as in the status.
    """

    pods: tuple[PodDocument, ...]
    failed: tuple[FailedPodDocument, ...] = ()


class WriteDocument(Document, frozen=True):
    """One write to a file of a cgroup."""

    cgroup: str
    file: str
    value: str


class PlanDocument(Document, frozen=True):
    """What an admission would do: the cgroups it creates, and its writes in their order."""

    created: tuple[str, ...]
    writes: tuple[WriteDocument, ...]


class AdmissionDocument(Document, frozen=True):
    """The answer to an admission.

    Admitted: `pod` is set. Rejected: `rejection` and `error` are set. `dry_run`: nothing was
    changed; `plan` is what the admission would change in cgroups. `replaced` is the uid of the pod
    in whose place this one is, null for none. `warnings` say what of the manifest has no effect.
    """

    uid: str
    name: str
    namespace: str
    admitted: bool
    dry_run: bool = False
    already_admitted: bool = False
    pod: PodDocument | None = None
    rejection: RejectionDocument | None = None
    explanation: ExplanationDocument | None = None
    error: ErrorBody | None = None
    plan: PlanDocument | None = None
    replaced: str | None = None
    warnings: tuple[str, ...] = ()


class RemovalDocument(Document, frozen=True):
    """The answer to a removal; `enforcement` says whether the kernel was updated completely."""

    uid: str
    name: str
    namespace: str
    enforcement: EnforcementDocument


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


class EventDocument(Document, frozen=True):
    """One line of `watch`.

    `type` is one of `PodAdmitted`, `PodRejected`, `PodShared`, `PodResizeRejected`, `PodInvalid`,
    `PodRemoved`, `PodNotEnforced`, `ContainerBound`, `ContainerUnbound`, `PodRecovered`,
    `AllocationDisplaced`, `DriftFound`, `DriftContested`, `AllocationInvalid`, `HostChanged`,
    `ManifestInvalid`, `EventsLost`.
    """

    type: str
    time: float
    operation: str
    uid: str | None = None
    pod: str | None = None
    message: str = ""


_encoder = msgspec.json.Encoder(enc_hook=plain)


def encode(document: Document) -> bytes:
    r"""Return a document as compact JSON.

    Names that the kernel gives out need not be UTF-8 (of files, processes, cgroups); what of them
    is not is sent as `\xe9`, so that one name does not cost the whole answer.
    """
    try:
        return _encoder.encode(document)
    except UnicodeEncodeError:
        return _encoder.encode(_sendable(msgspec.to_builtins(document, enc_hook=plain)))


def _sendable(value: object) -> object:
    """Return plain values with every half of a surrogate pair escaped."""
    if isinstance(value, str):
        try:
            raw = value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:  # a half that stands for no byte
            raw = value.encode("utf-8", "backslashreplace")
        return raw.decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {_sendable(key): _sendable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_sendable(item) for item in value]
    return value


def decode(body: bytes, kind: type[_Document]) -> _Document:
    """Return the document of a JSON text; raises `msgspec.DecodeError`."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(f"JSON is malformed: {error}") from error
