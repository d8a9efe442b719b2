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
from msgspec.structs import asdict

from agent.managers.advice import Advice  # noqa: TC001 - same
from agent.managers.allocation import KUBELET
from agent.managers.amounts import FreeCpus  # noqa: TC001 - same
from agent.managers.decision import Shortage  # noqa: TC001 - same
from agent.managers.delivery import NOTHING, Delivery
from agent.managers.violations import Violation  # noqa: TC001 - same
from agent.values import plain
from agent.yaml import Mistake  # noqa: TC001 - same
from cgroupfs.settings import PARTITIONS, VALUES
from cgroupfs.state import Writer  # noqa: TC001  # same


class DeliveryDocument(Delivery, frozen=True, kw_only=True):
    """What a container gets with its devices.

    `cdi_device` is the name under which a runtime finds environment, mounts and device nodes in the
    CDI file of the pod, "" where none is written. `cdi_devices` are names of other files, which a
    runtime needs besides; so are `annotations`.
    """

    cdi_device: str = ""


def delivery_document(delivery: Delivery, cdi_name: str) -> DeliveryDocument | None:
    """Return what was delivered, None for nothing; `cdi_name` is "" without a CDI file."""
    if delivery == NOTHING:
        return None
    plain = {"environment": dict(delivery.environment), "annotations": dict(delivery.annotations)}
    return DeliveryDocument(**{**asdict(delivery), **plain}, cdi_device=cdi_name)


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
    and `hugetlb`, the latter by file (`hugetlb.2MB.max`). Those of `memory.min`,
    `memory.low`, `memory.high` and `pids.max` are shown where the agent sets them, those of a
    partition where partitions are asked for.
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
            *((row.field, str | None, None) for row in (*VALUES, *PARTITIONS)),
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
    says. `mems` None: its memory may be on all nodes. `kernel` lists its cgroups. `why` says why
    its CPUs are exclusive or not, "" where no specification is known. `sharing`
    (`agent.managers.sharing.Sharing`) says who else may run on them while it does; of
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


class IntrusionDocument(Document, frozen=True):
    """A cgroup that may use `cpus`, which are exclusively those of a pod that it is not of.

    `user` is the namespace/name of the pod that the cgroup is of ("": none), `cause` that of the
    difference (`DifferenceDocument`) or `intruding task`. `message` says all of it in one line, and
    what to do.
    """

    cgroup: str
    cpus: str
    user: str
    cause: str
    message: str


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
    the pod: `removal`, `processes` or `unit`, the systemd unit `unit` (else ""). `isolation` is
    what the pod asks of the isolation of its exclusive CPUs, by item. `idle_cpus` are those of
    `exclusive_cpus` that no pod uses: the siblings of the others. `intruding` are the cgroups of
    others that may use exclusive CPUs of the pod now: as long as there are any, the pod is not
    exclusive.
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
    isolation: dict[str, str] = {}
    idle_cpus: str = ""
    intruding: tuple[IntrusionDocument, ...] = ()


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


PREFIX: Final = "NUMAWARDEN_"


def allocation_variables(pod: str, uid: str, cpus: str, mems: str) -> dict[str, str]:
    """Return the variables by which a process knows its resources, of a pod by full name and uid.

    `cpus` and `mems` are lists as in `cpuset.cpus`. `NUMAWARDEN_MEMORY_NODES` is empty where the
    memory is not pinned.
    """
    return {
        f"{PREFIX}POD": pod,
        f"{PREFIX}POD_UID": uid,
        f"{PREFIX}CPUS": cpus,
        f"{PREFIX}MEMORY_NODES": mems,
    }


class CordonRequest(Document, frozen=True):
    """What to cordon or uncordon.

    `target` is a list of CPUs (`4-7`), of cores (`core:2`, as the map numbers them) or of NUMA
    nodes (`node:1`). `reason` is for people; uncordon ignores it.
    """

    target: str
    reason: str = ""


class CordonedPodDocument(Document, frozen=True):
    """A pod that still has something of what is cordoned: CPUs, nodes of memory, devices."""

    uid: str
    name: str
    namespace: str
    cpus: str = ""
    nodes: str = ""
    devices: dict[str, tuple[str, ...]] = field(default_factory=dict)


class CordonDocument(Document, frozen=True):
    """One cordon: CPUs or NUMA nodes as lists, why, and since when (Unix time)."""

    cpus: str
    nodes: str
    reason: str
    since: float


class CordonsDocument(Document, frozen=True):
    """All that is cordoned after a change, and which pods still have something of it.

    `cpus` are the online CPUs that are cordoned by themselves or with their node.
    """

    cordons: tuple[CordonDocument, ...]
    cpus: str
    shared_pool: str
    pods: tuple[CordonedPodDocument, ...]
    differences: tuple[str, ...] = ()


class DrainedPodDocument(Document, frozen=True):
    """One pod that would have to end.

    `outcome` is `fits` (`moved_cpus` and `moved_nodes` are what it would get elsewhere), `rejected`
    (`message` says why) or `unknown` (its specification does not follow from its allocation).
    """

    uid: str
    name: str
    namespace: str
    outcome: str
    cpus: str = ""
    nodes: str = ""
    devices: dict[str, tuple[str, ...]] = field(default_factory=dict)
    moved_cpus: str = ""
    moved_nodes: str = ""
    message: str = ""


class DrainDocument(Document, frozen=True):
    """What a drain would need; the pods are in the order in which they were tried together.

    `stay` is the number of pods that stay as they are. `shared_pool` and `free_cpus` are those
    after the drain, with the pods elsewhere that fit. `rejection` says why the cordon itself would
    be rejected, "" if it would not be.
    """

    cpus: str
    nodes: str
    pods: tuple[DrainedPodDocument, ...]
    stay: int
    shared_pool: str
    free_cpus: int
    rejection: str = ""


class PolicyDocument(Document, frozen=True):
    """The effective policies, with the kubelet's names."""

    cpu_manager_policy: str
    memory_manager_policy: str
    topology_manager_policy: str
    topology_manager_scope: str
    reserved_cpus: str


class DriftDocument(Document, frozen=True):
    """One setting that another process changed; it was repaired unless a condition names it.

    `uid` and `pod` are "" for what is of no pod, `container` is null for what is of no container.
    `observed` is the text that the file showed (null: it was not there), `desired` what it should.
    `writer` is null where the process that changed it is not known. `repaired`: the comparison that
    found the difference repaired it.
    """

    time: float
    uid: str
    pod: str
    container: str | None
    cgroup: str
    file: str
    observed: str | None
    desired: str
    cause: str
    detail: str
    writer: Writer | None = None
    repaired: bool = False

    def line(self) -> str:
        """Return all details in a line."""
        container = f"container {self.container}" if self.container else ""
        owner = ", ".join(filter(None, (self.pod or self.uid, container)))
        cause = self.cause if self.writer is None else f"{self.cause}, {self.writer.line()}"
        return f"{owner or 'no pod'}: {self.detail} ({cause})"


class ConditionDocument(Document, frozen=True):
    """One thing that is not as it should be, as Kubernetes reports a condition.

    `type` says what holds when all is well; `status` is "False". `message` is one line, `remedy`
    what to do where the message does not say so. `since` is the Unix time at which the condition
    was found. Where a pod, container or cgroup is concerned it is named, and where a file differs
    also what it should show and shows (`observed` null: it does not exist).
    """

    type: str
    reason: str
    message: str
    remedy: str = ""
    status: str = "False"
    since: float = 0.0
    uid: str = ""
    pod: str = ""
    container: str | None = None
    cgroup: str = ""
    file: str = ""
    desired: str = ""
    observed: str | None = None

    @property
    def line(self) -> str:
        """The message with its remedy."""
        return f"{self.message}; {self.remedy}" if self.remedy else self.message


class StateDirectoryDocument(Document, frozen=True):
    """The directory of the checkpoint; `free` bytes were left for it at the last comparison.

    `free` is null before the first one.
    """

    directory: str
    free: int | None


class ConfigurationDocument(Document, frozen=True):
    """The configuration that the agent runs with: its file, what was laid over it, and all keys.

    `keys` has every key with its value, as `numawarden config show` prints them.
    """

    file: str
    settings: tuple[str, ...]
    keys: dict[str, Any]


class CheckedDocument(Document, frozen=True):
    """What `numawarden check` found of one `subject`: `ok`, and one line with what to do if not."""

    subject: str
    ok: bool
    message: str


class CheckDocument(Document, frozen=True):
    """The verdict of `numawarden check`; `code` is its exit code.

    `verification` is the comparison with every cgroup, null where it was not asked for.
    """

    ok: bool
    code: int
    checks: tuple[CheckedDocument, ...]
    verification: VerificationDocument | None = None

    def summary(self) -> str:
        """Return the verdict in one line."""
        wrong = tuple(dict.fromkeys(each.subject for each in self.checks if not each.ok))
        return f"numawarden NOT OK: {', '.join(wrong)}" if wrong else "numawarden OK"


class HostCheckDocument(Document, frozen=True):
    """One check of `numawarden doctor`: its name, the verdict, what was found, what to change.

    `verdict` is ok, warning, error or unknown; `change` is "" where there is nothing to change.
    """

    check: str
    verdict: str
    found: str
    change: str


class DoctorDocument(Document, frozen=True):
    """What `numawarden doctor` says of a host; `ok`: none of its `checks` is an error."""

    ok: bool
    checks: tuple[HostCheckDocument, ...]


class InterferingTaskDocument(Document, frozen=True):
    """A thread that ran on an exclusive CPU and does not belong there.

    `times` is how often it began to run there, `seconds` how long it ran. `cgroup` is null for a
    thread of the kernel, and where the thread had ended before it was looked at.
    """

    name: str
    thread: int
    cgroup: str | None
    kernel: bool
    times: int
    seconds: float


class DisturbedCpuDocument(Document, frozen=True):
    """What happened on one exclusive CPU beside its owner's own tasks.

    `owners` are `namespace/pod/container`, or `namespace/pod` for CPUs that a pod's containers
    share. `own_seconds` is how long the owners' tasks ran. `interrupts` and `softirqs` count by
    source; the interrupts of the timer are in `ticks`. `switches` is how often any task began to
    run, null where the kernel does not count that; `migrations` how often one did that was on
    another of the CPUs before. `longest_seconds` and `interruptions` (of more than 10 us) are what
    a probe saw, null without one.
    """

    cpu: int
    owners: tuple[str, ...]
    online: bool
    tasks: tuple[InterferingTaskDocument, ...]
    own_seconds: float
    interrupts: dict[str, int]
    ticks: int
    softirqs: dict[str, int]
    steal_seconds: float
    switches: int | None
    migrations: int
    longest_seconds: float | None = None
    interruptions: int | None = None


class InterferenceDocument(Document, frozen=True):
    """What `numawarden interference` saw on exclusive CPUs within `seconds`.

    `exact`: every switch was recorded; otherwise tasks were sampled. `lost` counts switches that
    were dropped. `probe` says what spun on the CPUs, "" without a probe.
    """

    seconds: float
    exact: bool
    lost: int
    cpus: tuple[DisturbedCpuDocument, ...]
    notes: tuple[str, ...]
    probe: str = ""


class RuntimeDocument(Document, frozen=True):
    """The container runtime that asks the agent over NRI what containers get.

    `connected` since, or not since, the Unix time `since`; `error` says why not. `name`, `version`
    and `nri_version` are those of the last one that was connected, "" before; runtimes before NRI
    0.12 do not say its version. `connections` counts since the agent started.
    """

    connected: bool
    since: float
    name: str = ""
    version: str = ""
    nri_version: str = ""
    connections: int = 0
    error: str = ""


class ReconcileDocument(Document, frozen=True):
    """The outcome of one comparison of the kernel with the ledger, counts by cause."""

    found: dict[str, int]
    repaired: dict[str, int]
    differences: tuple[str, ...]
    notes: tuple[str, ...]
    finished: float
    seconds: float


class ManifestDocument(Document, frozen=True):
    """What a source asks for, such as a file of the manifest directory, and what has become of it.

    `source` is the name of the source, `file` the path or whatever else the pod belongs to there.
    `state` is admitted, rejected, conflict, invalid or shared. `uid`, `name` and `namespace` are
    those of the pod as far as they can be read.
    """

    file: str
    state: str
    uid: str | None = None
    message: str = ""
    details: tuple[Mistake, ...] = ()
    name: str = ""
    namespace: str = ""
    source: str = "manifests"

    @property
    def subject(self) -> str:
        """What users call it: a pod of the cluster by its name, anything else by what it is in."""
        if self.source != KUBELET:
            return f"manifest {self.file}"
        return f"pod {self.namespace}/{self.name}" if self.name else f"pod {self.file}"


class WithheldDocument(Document, frozen=True):
    """CPUs that are online and that pods cannot have, and the cgroup that withholds them.

    `allows` are the CPUs that a cgroup above the pods has; null: the cgroup is a partition
    elsewhere, which has the CPUs to itself. `detail` says that in one line.
    """

    cpus: str
    cgroup: str
    allows: str | None
    detail: str


class StatusDocument(Document, frozen=True):
    """The agent's status; `conditions` are what is not as it should be.

    `failed` are the latest pods that were rejected or invalid, those decided also in `rejected`,
    `drift` the latest settings that another process changed. `unready` says why no pod can be
    admitted, "" if `ready`. `state` and `configuration` are null where the agent has none.
    `cordons` are what an operator took out of use, `cordoned_cpus` the online CPUs among that.
    `runtime` is null where the agent is not asked over NRI.
    `hostname` is the host's as the agent sees it, `time` the Unix time of the answer.
    `kubernetes_version` is the version of Kubernetes whose rules hold, `kubernetes_version_source`
    what says so. `withheld` are the CPUs among `online_cpus` that pods cannot have.
    """

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
    rejected: tuple[AdmissionDocument, ...]
    last_reconcile: ReconcileDocument | None
    manifests: tuple[ManifestDocument, ...]
    conditions: tuple[ConditionDocument, ...]
    invalid: tuple[Violation, ...] = ()
    failed: tuple[FailedPodDocument, ...] = ()
    drift: tuple[DriftDocument, ...] = ()
    unready: str = ""
    state: StateDirectoryDocument | None = None
    configuration: ConfigurationDocument | None = None
    cordons: tuple[CordonDocument, ...] = ()
    cordoned_cpus: str = ""
    runtime: RuntimeDocument | None = None
    hostname: str = ""
    time: float = 0.0
    kubernetes_version: str = ""
    kubernetes_version_source: str = ""
    withheld: tuple[WithheldDocument, ...] = ()

    def condition_lines(self) -> tuple[str, ...]:
        """Return what is not as it should be, one line each."""
        return tuple(condition.line for condition in self.conditions)


class RequesterDocument(Document, frozen=True):
    """Who asked for a change: a source of pods by its key (a file), or a process over the API.

    `source` is `api`, or the key of the source. `uid` and `pid` are those of the process as the
    kernel recorded them at connect(2), null for another source; `command` is what its
    `/proc/PID/comm` showed when the request came, "" where the process had ended by then. `login`
    is the user who logged in (`/proc/PID/loginuid`), such as before sudo; null where unknown.
    """

    source: str
    uid: int | None = None
    pid: int | None = None
    command: str = ""
    login: int | None = None

    def line(self) -> str:
        """Return who asked, in a few words."""
        if self.pid is None:
            return f"by {self.source}"
        login = "" if self.login in (None, self.uid) else f" (logged in as {self.login})"
        return f"by uid {self.uid}{login}, {self.command or 'process'}[{self.pid}]"


class HistoryEntry(Document, frozen=True):
    """One thing that happened; `type` is that of the event, `time` a Unix time in seconds.

    `operation` is the id that the log lines have, "" for what belongs to none. `uid` and `pod` are
    "" for what is of no pod. `requester` is null for what the agent does by itself. `differences`
    are the settings of cgroups that differed, of a `DriftFound`. `kubelet_devices` are those that
    the kubelet beside the agent had given when a pod was admitted or rejected, by container
    (`agent.api.documents.ContainerDocument`).
    """

    type: str
    time: float
    operation: str = ""
    uid: str = ""
    pod: str = ""
    message: str = ""
    requester: RequesterDocument | None = None
    differences: tuple[DriftDocument, ...] = ()
    kubelet_devices: dict[str, dict[str, dict[str, str]]] = field(default_factory=dict)

    def of_pod(self, named: str) -> bool:
        """Return whether this is of the pod with a uid, name or namespace/name."""
        return named in (self.uid, self.pod, self.pod.partition("/")[2])


class HistoryDocument(Document, frozen=True):
    """The latest entries that were asked for, the latest first.

    `more`: there are older ones. `damaged` counts lines that could not be read as entries.
    """

    entries: tuple[HistoryEntry, ...]
    more: bool = False
    damaged: int = 0


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

    `role` is `pod`, `container`, `subgroup`, `sandbox`, `ephemeral`, `unidentified`, `orphaned`,
    `qos class` or `all pods`; `uid` and `pod` are "" for the last three. `values` are the texts
    desired of other files. With `inherits` the cgroup has no CPUs of its own: `cpus` are what its
    parent has.
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
    `intruding_cgroups` are those that may use exclusive CPUs of pods they are not of, by the
    namespace/name of these pods.
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
    intruding_cgroups: dict[str, tuple[IntrusionDocument, ...]] = field(default_factory=dict)
