"""Laying out a few files for a test."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"


def lay_out(root: Path, files: Mapping[str, str]) -> Path:
    """Write each file with its text below the root, and return the root."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root
