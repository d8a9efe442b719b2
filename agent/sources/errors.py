"""Errors of sources of pods: the manifest directory, its files, and any single entry."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class SourceUnreadableError(Exception):
    """A source of pods cannot be read: `found` says why, `reason` for programs, and a remedy."""

    def __init__(self, found: str, remedy: str, reason: str) -> None:
        super().__init__(f"{found}; {remedy}")
        self.found = found
        self.remedy = remedy
        self.reason = reason


class ManifestDirectoryError(SourceUnreadableError):
    """The manifest directory cannot be used; the message has what was found and a remedy."""

    def __init__(
        self, directory: Path, found: str, remedy: str, reason: str = "DirectoryUnusable"
    ) -> None:
        super().__init__(f"manifest directory {directory}: {found}", remedy, reason)
        self.directory = directory


class ManifestFileError(Exception):
    """A file of the manifest directory is not read; `found` has the reason."""

    def __init__(self, path: Path, found: str, remedy: str) -> None:
        super().__init__(f"{printable(path)}: {found}; {remedy}")
        self.path = path
        self.found = found
        self.remedy = remedy


class EntryFailedError(Exception):
    """An unexpected `error` while processing one entry of a source, such as a file."""

    def __init__(self, key: str, error: Exception) -> None:
        kind = type(error).__name__
        super().__init__(f"{key}: internal error ({kind}); see the agent log")
        self.error = error


def printable(path: Path | str) -> str:
    r"""Return a path, or another key of an entry, as a text that can be sent and shown.

    Bytes that are not UTF-8 are shown as `\xe9`; line breaks and terminal control characters are
    escaped, too.
    """
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
