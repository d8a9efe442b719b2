"""Keeping the resident service small."""

from __future__ import annotations

import gc
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Let the garbage collector rest while modules are imported: all they make stays anyway."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


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


def settle_memory() -> None:
    """Take all that is there now, after a start, out of the garbage collector's sight.

    Modules, the host and the restored pods live as long as the process; looking through them again
    and again takes tens of milliseconds, in the middle of somebody's admission.
    """
    gc.collect()
    gc.freeze()
