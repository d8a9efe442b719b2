from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def directory() -> Iterator[Path]:
    """Return a directory whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="plugins") as path:
        yield Path(path)
