"""What can be wrong with a configuration."""

from __future__ import annotations

from agent.parsing.errors import DocumentError


class ConfigError(DocumentError):
    """A configuration was rejected; `problems` holds every mistake in it with path and line."""

    what = "configuration"
