"""The status of the agent: its rules, what it runs with, and what is not as it should be."""

from __future__ import annotations

from typing import Any

from agent.api.documents.admissions import (  # noqa: TC001  # msgspec reads annotations
    AdmissionDocument,
)
from agent.api.documents.document import Document
from agent.api.documents.maintenance import CordonDocument  # noqa: TC001  # same
from agent.api.documents.rejections import FailedPodDocument  # noqa: TC001  # same
from agent.api.documents.verification import DriftDocument, ReconcileDocument  # noqa: TC001  # same
from agent.managers.allocation import KUBELET
from agent.managers.violations import Violation  # noqa: TC001  # same
from agent.yaml import Mistake  # noqa: TC001  # same


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


class PolicyDocument(Document, frozen=True):
    """The effective policies, with the kubelet's names."""

    cpu_manager_policy: str
    memory_manager_policy: str
    topology_manager_policy: str
    topology_manager_scope: str
    reserved_cpus: str
    #: The online CPUs of isolcpus, with policy static; what they are for (`agent.isolatedCPUs`).
    isolated_cpus: str = ""
    isolated_for: str = "ignored"


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
