"""Where the recorded decisions and host captures lie, for tests that use them when present."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_BESIDE_PROJECT = Path(__file__).resolve().parents[2] / "shared"


def shared_dir() -> Path | None:
    """Return the folder named by `NUMAWARDEN_SHARED`, or `../shared`; None where there is none."""
    named = os.environ.get("NUMAWARDEN_SHARED")
    folder = Path(named) if named else _BESIDE_PROJECT
    return folder if folder.is_dir() else None


def needs_shared(part: str) -> pytest.MarkDecorator:
    """Mark a test that reads `part` of the shared folder; it is skipped where that is absent."""
    folder = shared_dir()
    present = folder is not None and (folder / part).exists()
    return pytest.mark.skipif(not present, reason=f"no shared folder with {part} on this machine")
