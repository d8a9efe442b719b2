"""Why a pod got what it got: eligibility of its containers and the merge of topology hints."""

from __future__ import annotations

from msgspec import field

from agent.api.documents.document import Document


class ExplanationDocument(Document, frozen=True):
    """The explanation of a decision."""

    eligibility: tuple[EligibilityDocument, ...]
    hints: tuple[HintTraceDocument, ...]
    #: What in the manifest has another meaning than its author probably intended.
    warnings: tuple[str, ...] = ()


class EligibilityDocument(Document, frozen=True):
    """Whether a container is eligible for exclusive resources."""

    container: str
    exclusive_cpus: int
    exclusive_memory: bool
    #: The reason, for exclusive CPUs.
    why: str
    #: The reason of each resource manager, by its name.
    reasons: dict[str, str] = field(default_factory=dict)


class HintTraceDocument(Document, frozen=True):
    """The merge of topology hints for a container or a pod."""

    #: Null for the pod as a whole.
    container: str | None
    providers: tuple[ProviderDocument, ...]
    merged: HintDocument
    admitted: bool


class ProviderDocument(Document, frozen=True):
    """What one provider of topology hints offered."""

    provider: str
    #: The best hints by resource; null: no preference.
    hints: dict[str, tuple[HintDocument, ...] | None]
    #: The number of all hints by resource; null: too many to count.
    counts: dict[str, int | None]


class HintDocument(Document, frozen=True):
    """A topology hint."""

    #: The set of nodes; null for any node.
    nodes: str | None
    preferred: bool
