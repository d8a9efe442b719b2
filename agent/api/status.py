"""The status document: what is allocated, and what is not as it should be."""

from __future__ import annotations

from typing import Any

from agent.api.documents import (
    AdmissionDocument,
    Document,
    FailedPodDocument,
)
from agent.api.maintenance import CordonDocument, LogLevelDocument  # noqa: TC001  # msgspec reads the annotation
from agent.managers.allocations.origin import KUBELET
from agent.managers.assessment.violation import Violation  # noqa: TC001  # same
from agent.yaml import Mistake  # noqa: TC001  # same
from cgroupfs.state import Writer  # noqa: TC001  # same


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
    """The verdict of `numawarden check`; `code` is its exit code."""

    ok: bool
    code: int
    checks: tuple[CheckedDocument, ...]

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


class StatusDocument(Document, frozen=True):
    """The agent's status; `conditions` are what is not as it should be.

    `failed` are the latest pods that were rejected or invalid, those decided also in `rejected`,
    `drift` the latest settings that another process changed. `unready` says why no pod can be
    admitted, "" if `ready`. `state` and `configuration` are null where the agent has none.
    `cordons` are what an operator took out of use, `cordoned_cpus` the online CPUs among that.
    `log_level` is that of the log. `runtime` is null where the agent is not asked over NRI.
    `hostname` is the host's as the agent sees it, `time` the Unix time of the answer.
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
    log_level: LogLevelDocument | None = None
    runtime: RuntimeDocument | None = None
    hostname: str = ""
    time: float = 0.0

    def condition_lines(self) -> tuple[str, ...]:
        """Return what is not as it should be, one line each."""
        return tuple(condition.line for condition in self.conditions)
