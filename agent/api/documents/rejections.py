"""Pods that were not admitted: rejected, or with an invalid manifest."""

from __future__ import annotations

from typing import Final

from msgspec import field

from agent.api.documents.document import Document
from agent.api.documents.explanations import (  # noqa: TC001  # msgspec reads annotations
    ExplanationDocument,
)
from agent.managers.advice import Advice  # noqa: TC001  # same
from agent.managers.decision import Shortage  # noqa: TC001  # same
from agent.yaml import Mistake  # noqa: TC001  # same

#: The code of the answer to an invalid manifest, and the reason in the status of its pod.
INVALID_MANIFEST: Final = "InvalidManifest"


#: The reason of a pod of the kubelet that runs in the shared pool without what it asks for.
RUNS_SHARED: Final = "RunsShared"


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
    kubelet_devices: dict[str, dict[str, dict[str, str]]] = field(default_factory=dict)


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
