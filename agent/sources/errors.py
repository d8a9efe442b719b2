"""What can be wrong with the manifest directory or a file in it."""

from __future__ import annotations

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
        super().__init__(f"{path}: {found}; {remedy}")
        self.path = path
        self.found = found
        self.remedy = remedy
