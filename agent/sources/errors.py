"""What can be wrong with the manifest directory or a file in it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class ManifestDirectoryError(Exception):
    """The manifest directory cannot be used; one line: what was found and what to do."""

    def __init__(self, directory: Path, found: str, remedy: str) -> None:
        super().__init__(f"manifest directory {directory}: {found}; {remedy}")
        self.directory = directory
        self.found = found
        self.remedy = remedy


class ManifestFileError(Exception):
    """A file of the manifest directory is not read; `found` says why, `remedy` what to do."""

    def __init__(self, path: Path, found: str, remedy: str) -> None:
        super().__init__(f"{printable(path)}: {found}; {remedy}")
        self.path = path
        self.found = found
        self.remedy = remedy


class FileFailedError(Exception):
    """The agent failed at one file, through no fault that it could name; `error` is why."""

    def __init__(self, path: str, error: Exception) -> None:
        kind = type(error).__name__
        super().__init__(f"{path}: the agent failed at it ({kind}); its log says more")
        self.error = error


def printable(path: Path) -> str:
    r"""Return a path as a text that can be sent and shown: bytes that are not UTF-8 as `\xe9`.

    Characters that would end a line or speak to a terminal are escaped, too.
    """
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
