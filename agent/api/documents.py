"""The documents of the admission API: what goes over the socket, and what `--output json` prints.

Sets of CPUs and NUMA nodes are text in the kernel's list format (`0-3,8`), sizes are bytes, CPU
shares millicores, times seconds since 1970 (UTC). Field names are camel case on the wire. A field
may be added in any release; none is renamed or removed within `/v1` (see `docs/api.md`). An entry
of the history has the same form on the disk (`agent.state.history`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from msgspec import field

from agent.managers.advice import Advice  # noqa: TC001  # msgspec reads annotations
from agent.managers.allocation import KUBELET
from agent.managers.amounts import FreeCpus  # noqa: TC001  # same
from agent.managers.decision import Shortage  # noqa: TC001  # same
from agent.managers.delivery import Delivery
from agent.managers.violations import Violation  # noqa: TC001  # same
from agent.values import plain
from agent.yaml import Mistake  # noqa: TC001  # same
from cgroupfs.settings import PARTITIONS, VALUES
from cgroupfs.state import Writer  # noqa: TC001  # same

#: The code of the answer to an invalid manifest, and the reason in the status of its pod.
INVALID_MANIFEST: Final = "InvalidManifest"
#: The reason of a pod of the kubelet that runs in the shared pool without what it asks for.
RUNS_SHARED: Final = "RunsShared"


class Document(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of all documents."""


_Document = TypeVar("_Document", bound=Document)
_encoder = msgspec.json.Encoder(enc_hook=plain)


def encode(document: Document) -> bytes:
    r"""Return a document as compact JSON.

    Names of files, processes and cgroups need not be UTF-8. A byte that is not is sent as `\xe9`,
    so that one such name does not make the whole answer fail.
    """
    try:
        return _encoder.encode(document)
    except UnicodeEncodeError:
        return _encoder.encode(_sendable(msgspec.to_builtins(document, enc_hook=plain)))


def _sendable(value: object) -> object:
    """Return plain values in which the bytes that are not UTF-8 are escaped."""
    if isinstance(value, str):
        try:
            raw = value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:  # half of a surrogate pair that stands for no byte
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


class ErrorBody(Document, frozen=True):
    """An error."""

    #: For programs: `InvalidManifest`.
    code: str
    #: For people.
    message: str
    details: tuple[Mistake, ...] = ()
    #: The id in the log lines of the request; "" where no request was read.
    operation: str = ""


class ErrorDocument(Document, frozen=True):
    """The body of every answer that is not a success."""

    error: ErrorBody


class DeliveryDocument(Delivery, frozen=True, kw_only=True):
    """What a container gets with its devices."""

    #: The name of the environment, mounts and device nodes in the CDI file of the pod; "" where no
    #: such file is written. `cdi_devices`, which are in other files, and `annotations` are not part
    #: of it.
    cdi_device: str = ""


class HintDocument(Document, frozen=True):
    """A topology hint."""

    #: The set of nodes; null for any node.
    nodes: str | None
    preferred: bool


class MemoryDocument(Document, frozen=True):
    """Memory of one type."""

    type: str
    bytes: int
    #: The nodes on which the memory is.
    nodes: str


class KernelDocument(Document, frozen=True):
    """The files of one cgroup; a field is null where the file does not exist.

    Fields that are not named here have the text of the file of that name. `hugetlb` has texts by
    file (`hugetlb.2MB.max`). Files of `memory.min`, `memory.low`, `memory.high` and `pids.max` are
    shown where the agent sets them, those of a partition where partitions are configured.
    """

    cgroup: str
    cpus: str | None = None
    cpus_effective: str | None = None
    mems: str | None = None
    mems_effective: str | None = None
    #: The text of the file: `max 100000`.
    cpu_max: str | None = None


if not TYPE_CHECKING:
    # A field for each file of one value: what the agent writes, it shows.
    KernelDocument = msgspec.defstruct(
        "KernelDocument",
        [
            *((row.field, str | None, None) for row in (*VALUES, *PARTITIONS)),
            ("hugetlb", dict[str, str], {}),
        ],
        bases=(KernelDocument,),
        namespace={"__doc__": KernelDocument.__doc__},
        module=__name__,
        frozen=True,
    )


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
    others: dict[str, Any] = {}
    #: The devices that plugins of the kubelet beside the agent gave: their NUMA nodes ("": not
    #: known) by id by resource.
    kubelet_devices: dict[str, dict[str, str]] = {}
    #: What the container gets with its devices; null for nothing.
    delivery: DeliveryDocument | None = None


class UnusedBudgetDocument(Document, frozen=True):
    """Budget of a pod that no container can use."""

    resource: str
    #: CPUs, or bytes of a memory type.
    unused: int
    budget: int
    #: Which CPUs are unused.
    cpus: str = ""


class EnforcementDocument(Document, frozen=True):
    """Whether the kernel enforces an allocation."""

    enforced: bool
    #: What is missing, one line each.
    differences: tuple[str, ...] = ()
    #: Facts that are no failure: processes that still run, for example.
    notes: tuple[str, ...] = ()


class RejectionDocument(Document, frozen=True):
    """Why a pod was rejected."""

    reason: str
    message: str
    remedy: str
    resource: str | None
    container: str | None
    #: In the unit of the resource. Null for the reasons `OutOf<resource>`.
    asked: int | None
    #: By NUMA node, in the unit of the resource. Empty for the reasons `OutOf<resource>`.
    free: dict[str, int]
    #: The amounts for the reasons `OutOf<resource>`.
    shortages: tuple[Shortage, ...] = ()
    #: Changes with which the pod would be admitted now. Empty: none of those tried helps. Null:
    #: none was tried.
    advice: tuple[Advice, ...] | None = None


class ProviderDocument(Document, frozen=True):
    """What one provider of topology hints offered."""

    provider: str
    #: The best hints by resource; null: no preference.
    hints: dict[str, tuple[HintDocument, ...] | None]
    #: The number of all hints by resource; null: too many to count.
    counts: dict[str, int | None]


class HintTraceDocument(Document, frozen=True):
    """The merge of topology hints for a container or a pod."""

    #: Null for the pod as a whole.
    container: str | None
    providers: tuple[ProviderDocument, ...]
    merged: HintDocument
    admitted: bool


class EligibilityDocument(Document, frozen=True):
    """Whether a container is eligible for exclusive resources."""

    container: str
    exclusive_cpus: int
    exclusive_memory: bool
    #: The reason, for exclusive CPUs.
    why: str
    #: The reason of each resource manager, by its name.
    reasons: dict[str, str] = {}


class ExplanationDocument(Document, frozen=True):
    """The explanation of a decision."""

    eligibility: tuple[EligibilityDocument, ...]
    hints: tuple[HintTraceDocument, ...]
    #: What in the manifest has another meaning than its author probably intended.
    warnings: tuple[str, ...] = ()


class JudgementDocument(Document, frozen=True):
    """Whether a container has one of the qualities that a pod can require."""

    container: str
    quality: str
    met: bool
    #: Why the container does not have it; "" if it has.
    why: str = ""


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
    others: dict[str, Any] = {}
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
    isolation: dict[str, str] = {}
    #: Those of `exclusive_cpus` that no container uses: siblings of the others.
    idle_cpus: str = ""
    #: The cgroups of others that may use exclusive CPUs of the pod now. As long as there are any,
    #: the pod is not exclusive.
    intruding: tuple[IntrusionDocument, ...] = ()


class FailedPodDocument(Document, frozen=True):
    """A pod that was rejected, or whose manifest is invalid.

    `phase`, `reason` and `message` are those of v1.PodStatus.
    """

    #: "" where the manifest does not have it.
    uid: str
    #: "" where the manifest does not have it.
    name: str
    #: "" where the manifest does not have it.
    namespace: str
    reason: str
    message: str
    #: Unix time in seconds.
    time: float
    source: str
    phase: str = "Failed"
    #: The first mistakes of an invalid manifest.
    details: tuple[Mistake, ...] = ()
    #: Why a rejected pod was rejected; null for an invalid manifest.
    rejection: RejectionDocument | None = None
    explanation: ExplanationDocument | None = None
    #: The devices that the kubelet gave the pod all the same, by container (`ContainerDocument`).
    kubelet_devices: dict[str, dict[str, dict[str, str]]] = {}


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


class PodListDocument(Document, frozen=True):
    """All pods, in the order of admission."""

    pods: tuple[PodDocument, ...]
    #: The latest pods that are not admitted, as in the status.
    failed: tuple[FailedPodDocument, ...] = ()


class WriteDocument(Document, frozen=True):
    """One write to a file of a cgroup."""

    cgroup: str
    file: str
    value: str


class PlanDocument(Document, frozen=True):
    """What an admission would do in cgroups."""

    #: The cgroups that the admission creates.
    created: tuple[str, ...]
    #: In the order of writing.
    writes: tuple[WriteDocument, ...]


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
    #: What in the manifest has no effect.
    warnings: tuple[str, ...] = ()


class RemovalDocument(Document, frozen=True):
    """The answer to a removal."""

    uid: str
    name: str
    namespace: str
    #: Whether the kernel was updated completely.
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
    `PodRemoved`, `PodNotEnforced`, `PodNotExclusive`, `ContainerBound`, `ContainerUnbound`,
    `PodRecovered`, `AllocationDisplaced`, `DriftFound`, `DriftContested`, `AllocationInvalid`,
    `HostChanged`, `ManifestInvalid`, `EventsLost`.
    """

    type: str
    time: float
    operation: str
    uid: str | None = None
    pod: str | None = None
    message: str = ""


class CordonRequest(Document, frozen=True):
    """What to cordon or uncordon."""

    #: CPUs (`4-7`), cores as the map numbers them (`core:2`), or NUMA nodes (`node:1`).
    target: str
    #: For people; uncordon ignores it.
    reason: str = ""


class CordonedPodDocument(Document, frozen=True):
    """A pod that has something of what is cordoned."""

    uid: str
    name: str
    namespace: str
    cpus: str = ""
    #: The nodes of its memory.
    nodes: str = ""
    devices: dict[str, tuple[str, ...]] = field(default_factory=dict)


class CordonDocument(Document, frozen=True):
    """One cordon: CPUs, NUMA nodes, or both."""

    cpus: str
    nodes: str
    reason: str
    #: Unix time.
    since: float


class CordonsDocument(Document, frozen=True):
    """What is cordoned after a change, and which pods have something of it."""

    cordons: tuple[CordonDocument, ...]
    #: The online CPUs that are cordoned, by themselves or with their node.
    cpus: str
    shared_pool: str
    pods: tuple[CordonedPodDocument, ...]
    differences: tuple[str, ...] = ()


class DrainedPodDocument(Document, frozen=True):
    """A pod that would have to end."""

    uid: str
    name: str
    namespace: str
    #: `fits`, `rejected`, or `unknown`: its specification does not follow from its allocation.
    outcome: str
    cpus: str = ""
    nodes: str = ""
    devices: dict[str, tuple[str, ...]] = field(default_factory=dict)
    #: What a pod that fits would get elsewhere.
    moved_cpus: str = ""
    moved_nodes: str = ""
    #: Why the pod would be rejected, or is not known.
    message: str = ""


class DrainDocument(Document, frozen=True):
    """What a drain would need."""

    cpus: str
    nodes: str
    #: In the order in which they were tried together.
    pods: tuple[DrainedPodDocument, ...]
    #: How many pods stay as they are.
    stay: int
    #: The node's shared pool after the drain, with the pods that fit elsewhere.
    shared_pool: str
    #: How many CPUs are free after the drain, with the pods that fit elsewhere.
    free_cpus: int
    #: Why the cordon itself would be rejected; "" if it would not be.
    rejection: str = ""


class PolicyDocument(Document, frozen=True):
    """The effective policies, with the kubelet's names."""

    cpu_manager_policy: str
    memory_manager_policy: str
    topology_manager_policy: str
    topology_manager_scope: str
    reserved_cpus: str


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


class ConditionDocument(Document, frozen=True):
    """One thing that is not as it should be, as Kubernetes reports a condition."""

    #: What holds when all is well.
    type: str
    reason: str
    #: One line.
    message: str
    #: What to do, where the message does not say so.
    remedy: str = ""
    status: str = "False"
    #: The Unix time at which the condition was found.
    since: float = 0.0
    #: The pod concerned; "" for none.
    uid: str = ""
    #: The namespace/name of that pod.
    pod: str = ""
    #: The container concerned; null for none.
    container: str | None = None
    #: The cgroup concerned; "" for none.
    cgroup: str = ""
    #: The file of the cgroup that differs; "" for none.
    file: str = ""
    #: The text that the file should show.
    desired: str = ""
    #: The text that the file shows; null: it does not exist.
    observed: str | None = None

    @property
    def line(self) -> str:
        """The message with its remedy."""
        return f"{self.message}; {self.remedy}" if self.remedy else self.message


class StateDirectoryDocument(Document, frozen=True):
    """The directory of the checkpoint."""

    directory: str
    #: The bytes left there at the last comparison; null before the first.
    free: int | None


class ConfigurationDocument(Document, frozen=True):
    """The configuration that the agent runs with."""

    file: str
    #: What was laid over the file (`--set`).
    settings: tuple[str, ...]
    #: Every key with its value, as `numawarden config show` prints them.
    keys: dict[str, Any]


class CheckedDocument(Document, frozen=True):
    """What `numawarden check` found of one subject."""

    subject: str
    ok: bool
    #: One line; with what to do, if not `ok`.
    message: str


class CheckDocument(Document, frozen=True):
    """The verdict of `numawarden check`."""

    ok: bool
    #: The exit code of the command.
    code: int
    checks: tuple[CheckedDocument, ...]
    #: The comparison with every cgroup; null where it was not asked for.
    verification: VerificationDocument | None = None

    def summary(self) -> str:
        """Return the verdict in one line."""
        wrong = tuple(dict.fromkeys(each.subject for each in self.checks if not each.ok))
        return f"numawarden NOT OK: {', '.join(wrong)}" if wrong else "numawarden OK"


class HostCheckDocument(Document, frozen=True):
    """One check of `numawarden doctor`."""

    check: str
    #: `ok`, `warning`, `error` or `unknown`.
    verdict: str
    found: str
    #: What to change; "" for nothing.
    change: str


class DoctorDocument(Document, frozen=True):
    """What `numawarden doctor` says of a host."""

    #: None of the checks is an error.
    ok: bool
    checks: tuple[HostCheckDocument, ...]


class InterferingTaskDocument(Document, frozen=True):
    """A thread that ran on an exclusive CPU and does not belong there."""

    name: str
    thread: int
    #: Null for a thread of the kernel, and for one that ended before it was examined.
    cgroup: str | None
    kernel: bool
    #: How often it began to run there.
    times: int
    #: How long it ran there.
    seconds: float


class DisturbedCpuDocument(Document, frozen=True):
    """What happened on one exclusive CPU besides the tasks of its owners."""

    cpu: int
    #: `namespace/pod/container`, or `namespace/pod` for CPUs that the containers of a pod share.
    owners: tuple[str, ...]
    online: bool
    tasks: tuple[InterferingTaskDocument, ...]
    #: How long the owners' tasks ran.
    own_seconds: float
    #: The number of interrupts by source, without those of the timer.
    interrupts: dict[str, int]
    #: Interrupts of the timer.
    ticks: int
    #: The number of softirqs by kind.
    softirqs: dict[str, int]
    steal_seconds: float
    #: How often any task began to run; null where the kernel does not count it.
    switches: int | None
    #: How often a task began to run that was on another of the CPUs before.
    migrations: int
    #: The longest interruption that a probe saw; null without a probe.
    longest_seconds: float | None = None
    #: How many interruptions of more than 10 us the probe saw; null without a probe.
    interruptions: int | None = None


class InterferenceDocument(Document, frozen=True):
    """What `numawarden interference` saw on exclusive CPUs."""

    #: How long the CPUs were watched.
    seconds: float
    #: Every switch was recorded; otherwise tasks were sampled.
    exact: bool
    #: How many switches were dropped.
    lost: int
    cpus: tuple[DisturbedCpuDocument, ...]
    notes: tuple[str, ...]
    #: What spun on the CPUs; "" without a probe.
    probe: str = ""


class RuntimeDocument(Document, frozen=True):
    """The container runtime that asks the agent over NRI what containers get."""

    connected: bool
    #: The Unix time since which it is connected, or not connected.
    since: float
    #: The name of the runtime that was connected last; "" before the first.
    name: str = ""
    #: The version of that runtime.
    version: str = ""
    #: The version of NRI that it uses; "" for a runtime before NRI 0.12, which does not say it.
    nri_version: str = ""
    #: How often a runtime connected since the agent was started.
    connections: int = 0
    #: Why the runtime is not connected.
    error: str = ""


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


class ManifestDocument(Document, frozen=True):
    """A pod that a source asks for, and its outcome."""

    #: The path of the manifest, or whatever the source has instead.
    file: str
    #: `admitted`, `rejected`, `conflict`, `invalid` or `shared`.
    state: str
    #: Null where it cannot be read; `name` and `namespace` are "" where they cannot.
    uid: str | None = None
    message: str = ""
    details: tuple[Mistake, ...] = ()
    name: str = ""
    namespace: str = ""
    #: The name of the source.
    source: str = "manifests"

    @property
    def subject(self) -> str:
        """The name for users: a pod of the kubelet by its own name, any other by its file."""
        if self.source != KUBELET:
            return f"manifest {self.file}"
        return f"pod {self.namespace}/{self.name}" if self.name else f"pod {self.file}"


class WithheldDocument(Document, frozen=True):
    """Online CPUs that pods cannot have, and the cgroup that withholds them."""

    cpus: str
    cgroup: str
    #: The CPUs that a cgroup above the pods has. Null: the cgroup is a partition elsewhere, which
    #: has the CPUs to itself.
    allows: str | None
    #: The other fields in one line.
    detail: str


class StatusDocument(Document, frozen=True):
    """The status of the agent."""

    version: str
    pid: int
    started: float
    ready: bool
    policy: PolicyDocument
    online_cpus: str
    nodes: str
    shared_pool: str
    exclusive_cpus: str
    pods: int
    containers: int
    #: The latest pods that were decided and rejected; they are in `failed`, too.
    rejected: tuple[AdmissionDocument, ...]
    last_reconcile: ReconcileDocument | None
    manifests: tuple[ManifestDocument, ...]
    #: What is not as it should be.
    conditions: tuple[ConditionDocument, ...]
    invalid: tuple[Violation, ...] = ()
    #: The latest pods that were rejected or invalid.
    failed: tuple[FailedPodDocument, ...] = ()
    #: The latest settings that another process changed.
    drift: tuple[DriftDocument, ...] = ()
    #: Why no pod can be admitted; "" if `ready`.
    unready: str = ""
    #: Null where the agent has no state directory.
    state: StateDirectoryDocument | None = None
    #: Null where the agent has no configuration file.
    configuration: ConfigurationDocument | None = None
    #: The CPUs and nodes that an operator took out of use.
    cordons: tuple[CordonDocument, ...] = ()
    #: The online CPUs that are cordoned, by themselves or with their node.
    cordoned_cpus: str = ""
    #: Null where no runtime asks the agent over NRI.
    runtime: RuntimeDocument | None = None
    #: The name of the host as the agent sees it.
    hostname: str = ""
    #: The Unix time of the answer.
    time: float = 0.0
    #: The version of Kubernetes whose rules hold.
    kubernetes_version: str = ""
    #: What says that this is the version.
    kubernetes_version_source: str = ""
    #: Those of `online_cpus` that pods cannot have.
    withheld: tuple[WithheldDocument, ...] = ()

    def condition_lines(self) -> tuple[str, ...]:
        """Return what is not as it should be, one line each."""
        return tuple(condition.line for condition in self.conditions)


class RequesterDocument(Document, frozen=True):
    """Who asked for a change: a source of pods, or a process over the API."""

    #: `api`, or the key of the pod in the source, such as the path of a manifest.
    source: str
    #: The user of the process, as the kernel recorded it at connect(2); null for another source.
    uid: int | None = None
    #: The process, as the kernel recorded it at connect(2); null for another source.
    pid: int | None = None
    #: The text of `/proc/PID/comm` when the request came; "" where the process had ended.
    command: str = ""
    #: The user who logged in (`/proc/PID/loginuid`), such as before sudo; null where unknown.
    login: int | None = None

    def line(self) -> str:
        """Return who asked, in a few words."""
        if self.pid is None:
            return f"by {self.source}"
        login = "" if self.login in (None, self.uid) else f" (logged in as {self.login})"
        return f"by uid {self.uid}{login}, {self.command or 'process'}[{self.pid}]"


class HistoryEntry(Document, frozen=True):
    """One event of the past."""

    #: The type of the event (`EventDocument`).
    type: str
    #: Unix time in seconds.
    time: float
    #: The id in the log lines; "" for what belongs to none.
    operation: str = ""
    #: "" for what belongs to no pod.
    uid: str = ""
    #: "" for what belongs to no pod.
    pod: str = ""
    message: str = ""
    #: Null for what the agent does by itself.
    requester: RequesterDocument | None = None
    #: The settings of cgroups that differed: of a `DriftFound`.
    differences: tuple[DriftDocument, ...] = ()
    #: What the kubelet beside the agent had given when a pod was admitted or rejected, by container
    #: (`ContainerDocument`).
    kubelet_devices: dict[str, dict[str, dict[str, str]]] = field(default_factory=dict)

    def of_pod(self, named: str) -> bool:
        """Return whether this is of the pod with a uid, name or namespace/name."""
        return named in (self.uid, self.pod, self.pod.partition("/")[2])


class HistoryDocument(Document, frozen=True):
    """The latest entries that were asked for, the latest first."""

    entries: tuple[HistoryEntry, ...]
    #: There are older ones.
    more: bool = False
    #: The number of lines that could not be read as entries.
    damaged: int = 0


class DifferenceDocument(Document, frozen=True):
    """One file of a cgroup that differs from what is desired."""

    #: "" for the cgroup itself.
    file: str
    cause: str
    detail: str
    #: The process that wrote the file last; null where it is not known.
    writer: Writer | None = None


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
