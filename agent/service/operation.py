"""One thing that was asked: its id is in every log line and event that it causes."""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from structlog.contextvars import bound_contextvars

if TYPE_CHECKING:
    from collections.abc import Iterator

_current: ContextVar[str] = ContextVar("operation", default="")


def current_operation() -> str:
    """Return the id of the operation that runs in this context, "" outside of any."""
    return _current.get()


@contextmanager
def operation(action: str, **facts: str) -> Iterator[str]:
    """Give everything in the block one id; `action` and `facts` go into its log lines."""
    identity = secrets.token_hex(6)
    token = _current.set(identity)
    try:
        with bound_contextvars(operation=identity, action=action, **facts):
            yield identity
    finally:
        _current.reset(token)
