"""Directories that are expensive to make, kept by the hash of what they are made from."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


def key_of(*parts: bytes) -> str:
    """Return a short hash over byte strings; each part counts with its length."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()[:16]


def key_of_files(base: Path, files: Iterable[Path]) -> str:
    """Return a short hash over the names below `base`, modes and contents of files."""
    parts: list[bytes] = []
    for file in sorted(files):
        parts.append(str(file.relative_to(base)).encode())
        parts.append(str(file.stat().st_mode & 0o111).encode())
        parts.append(file.read_bytes())
    return key_of(*parts)


class Cache:
    """Directories `KIND-KEY` below one root, each complete or absent."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def has(self, kind: str, key: str) -> bool:
        """Return whether an entry is there."""
        return (self.root / f"{kind}-{key}").is_dir()

    def entry(self, kind: str, key: str, make: Callable[[Path], None]) -> Path:
        """Return the directory of `kind` and `key`, made by `make(empty directory)` if absent.

        Two processes that ask at once wait for each other; an interrupted `make` leaves nothing
        that could be mistaken for a complete entry. Older entries of the same kind are removed.
        """
        desired = self.root / f"{kind}-{key}"
        if desired.is_dir():
            return desired
        self.root.mkdir(parents=True, exist_ok=True)
        with self._lock(kind):
            if not desired.is_dir():
                self._make(desired, make)
                self._remove_others(kind, desired)
        return desired

    def scratch(self, prefix: str) -> Path:
        """Return a new empty directory below the root; the caller removes it."""
        self.root.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f"tmp-{prefix}-", dir=self.root))

    def _make(self, desired: Path, make: Callable[[Path], None]) -> None:
        work = self.scratch(desired.name)
        try:
            work.chmod(0o755)
            make(work)
            work.rename(desired)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise

    def _remove_others(self, kind: str, desired: Path) -> None:
        for other in self.root.glob(f"{kind}-*"):
            if other != desired and other.name.rpartition("-")[0] == kind:
                shutil.rmtree(other)

    @contextmanager
    def _lock(self, kind: str) -> Iterator[None]:
        with (self.root / f".{kind}.lock").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
