"""A small memory footprint: what is not imported, and what the collector does not look through.

It imports nothing but the standard library, so that it comes before all that it keeps small.
"""

from __future__ import annotations

import gc
import sys
from contextlib import contextmanager
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType


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


@contextmanager
def parts_of(package: str, **attributes: object) -> Iterator[None]:
    """Let imports of a package's modules in this block load these alone, not its `__init__`.

    `attributes` are what the modules read of the package itself. A later import of the package
    runs its `__init__`; a package imported before stays. Raises `ModuleNotFoundError` when it is
    not installed.
    """
    if package in sys.modules:
        yield
        return
    sys.modules[package] = _without_init(package, attributes)
    try:
        yield
    finally:
        del sys.modules[package]


def _without_init(package: str, attributes: dict[str, object]) -> ModuleType:
    spec = find_spec(package)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    module = module_from_spec(spec)
    vars(module).update(attributes)
    return module


def settle_memory() -> None:
    """Exempt all present objects from garbage collection, once the agent has started.

    Modules, the host and the restored pods live as long as the process; a collection that scans
    them takes tens of milliseconds, possibly during an admission.
    """
    gc.collect()
    gc.freeze()
