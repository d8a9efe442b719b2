"""What the agent remembers of pods beside the ledger; none of it decides anything."""

from __future__ import annotations

from collections import OrderedDict
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from agent.wire import AdmissionDocument, ExplanationDocument

API: Final = "api"
CHECKPOINT: Final = "checkpoint"

#: How many refusals are kept to be asked about.
REFUSALS_KEPT: Final = 64


class PodRecord(Struct):
    """Where a pod came from, why it got what it got, and what the kernel does not honour."""

    source: str = CHECKPOINT
    explanation: ExplanationDocument | None = None
    problems: tuple[str, ...] = ()


class Records(Struct):
    """The records of all admitted pods by uid, and the latest refusals."""

    pods: dict[str, PodRecord] = field(default_factory=dict)
    refused: OrderedDict[str, AdmissionDocument] = field(default_factory=OrderedDict)
    _unenforced: set[str] = field(default_factory=set)

    def of(self, uid: str) -> PodRecord:
        """Return the record of a pod, a new one for a pod that was restored."""
        return self.pods.setdefault(uid, PodRecord())

    def forget(self, uid: str) -> None:
        """Drop what is known of a pod."""
        self.pods.pop(uid, None)
        self._unenforced.discard(uid)

    def note_refusal(self, document: AdmissionDocument) -> None:
        """Keep a refusal; the oldest goes when there are too many."""
        self.refused.pop(document.uid, None)
        self.refused[document.uid] = document
        while len(self.refused) > REFUSALS_KEPT:
            self.refused.popitem(last=False)

    def note_unenforced(
        self, unenforced: Mapping[str, tuple[str, ...]], admitted: Container[str]
    ) -> Mapping[str, tuple[str, ...]]:
        """Take over all that is not honoured now; return the pods of which this is news.

        What is said of pods that are not `admitted` is left out.
        """
        found = {uid: problems for uid, problems in unenforced.items() if uid in admitted}
        news = {uid: lines for uid, lines in found.items() if lines != self.of(uid).problems}
        for uid in self._unenforced - found.keys():
            self.of(uid).problems = ()
        for uid, problems in found.items():
            self.of(uid).problems = problems
        self._unenforced = set(found)
        return MappingProxyType(news)

    @property
    def unenforced(self) -> int:
        """How many pods the kernel does not honour in full."""
        return len(self._unenforced)
