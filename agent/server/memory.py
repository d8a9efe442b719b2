"""A small memory footprint: what the garbage collector does not look through.

It imports nothing but the standard library, so that it comes before all that it keeps small.
"""

from __future__ import annotations

import gc
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Disable the garbage collector during imports, which create only permanent objects."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def as_if_missing(*modules: str) -> Iterator[None]:
    """Let imports of optional modules fail in this block; a module imported before stays."""
    hidden: dict[str, None] = dict.fromkeys(name for name in modules if name not in sys.modules)
    sys.modules.update(hidden)  # type: ignore[arg-type]  # None makes the import fail
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


def settle_memory() -> None:
    """Exempt all present objects from garbage collection, once the agent has started.

    Modules, the host and the restored pods live as long as the process; a collection that scans
    them takes tens of milliseconds, possibly during an admission.
    """
    gc.collect()
    gc.freeze()
