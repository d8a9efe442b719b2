"""What can be wrong with a sequence to replay."""

from __future__ import annotations

from agent.parsing.errors import DocumentError


class ReplayError(DocumentError):
    """A sequence was rejected; `problems` holds every mistake in it with path and line."""

    what = "sequence"
