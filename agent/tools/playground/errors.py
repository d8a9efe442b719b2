"""What keeps a playground from being made."""

from __future__ import annotations


class PlaygroundError(Exception):
    """The host, its directory or its agent cannot be had; the message says why."""
