"""The verdicts of `numawarden check` (a running agent) and of `numawarden doctor` (a host)."""

from __future__ import annotations

from agent.api.documents.document import Document
from agent.api.documents.verification import (  # noqa: TC001  # msgspec reads annotations
    VerificationDocument,
)


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


class CheckedDocument(Document, frozen=True):
    """What `numawarden check` found of one subject."""

    subject: str
    ok: bool
    #: One line; with what to do, if not `ok`.
    message: str


class DoctorDocument(Document, frozen=True):
    """What `numawarden doctor` says of a host."""

    #: None of the checks is an error.
    ok: bool
    checks: tuple[HostCheckDocument, ...]


class HostCheckDocument(Document, frozen=True):
    """One check of `numawarden doctor`."""

    check: str
    #: `ok`, `warning`, `error` or `unknown`.
    verdict: str
    found: str
    #: What to change; "" for nothing.
    change: str
