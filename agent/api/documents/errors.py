"""The body of every answer that is not a success."""

from __future__ import annotations

from agent.api.documents.document import Document
from agent.yaml import Mistake  # noqa: TC001  # msgspec reads annotations


class ErrorDocument(Document, frozen=True):
    """The body of every answer that is not a success."""

    error: ErrorBody


class ErrorBody(Document, frozen=True):
    """An error."""

    #: For programs: `InvalidManifest`.
    code: str
    #: For people.
    message: str
    details: tuple[Mistake, ...] = ()
    #: The id in the log lines of the request; "" where no request was read.
    operation: str = ""
