"""Keeping the resident service small."""

from __future__ import annotations

import sys


def import_structlog_without_rich() -> None:
    """Import structlog as if rich were not installed, unless either is imported already.

    structlog imports rich for coloured tracebacks, which a service never prints: 3 MiB and 0.1 s.
    """
    if "structlog" in sys.modules or "rich" in sys.modules:
        return
    hidden: dict[str, None] = {"rich": None}
    sys.modules.update(hidden)  # type: ignore[arg-type]  # None says "not there" to the importer
    try:
        import structlog  # noqa: F401, PLC0415  # imported for its effect, at this moment
    finally:
        del sys.modules["rich"]
