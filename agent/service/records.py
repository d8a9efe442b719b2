"""What the agent remembers of pods beside the ledger; none of it decides anything."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.wire import AdmissionDocument, ExplanationDocument

API: Final = "api"
CHECKPOINT: Final = "checkpoint"

#: How many refusals are kept to be asked about.
REFUSALS_KEPT: Final = 64


@dataclass(slots=True)
class PodRecord:
    """Where a pod came from, why it got what it got, and what the kernel does not honour."""

    source: str = CHECKPOINT
    explanation: ExplanationDocument | None = None
    problems: tuple[str, ...] = ()


@dataclass(slots=True)
class Records:
    """The records of all admitted pods by uid, and the latest refusals."""

    pods: dict[str, PodRecord] = field(default_factory=dict)
    refused: OrderedDict[str, AdmissionDocument] = field(default_factory=OrderedDict)

    def of(self, uid: str) -> PodRecord:
        """Return the record of a pod, a new one for a pod that was restored."""
        return self.pods.setdefault(uid, PodRecord())

    def forget(self, uid: str) -> None:
        """Drop what is known of a pod."""
        self.pods.pop(uid, None)

    def note_refusal(self, document: AdmissionDocument) -> None:
        """Keep a refusal; the oldest goes when there are too many."""
        self.refused.pop(document.uid, None)
        self.refused[document.uid] = document
        while len(self.refused) > REFUSALS_KEPT:
            self.refused.popitem(last=False)

    def note_unenforced(
        self, admitted: Iterable[str], unenforced: Mapping[str, tuple[str, ...]]
    ) -> Mapping[str, tuple[str, ...]]:
        """Take over what is not honoured now; return the pods of which this is news."""
        news: dict[str, tuple[str, ...]] = {}
        for uid in admitted:
            record, problems = self.of(uid), unenforced.get(uid, ())
            if problems and problems != record.problems:
                news[uid] = problems
            record.problems = problems
        return MappingProxyType(news)

    @property
    def unenforced(self) -> int:
        """How many pods the kernel does not honour in full."""
        return sum(1 for record in self.pods.values() if record.problems)
