"""Operations: what belongs together in the log, in events and in answers, and who asked for it.

In goes a block of code that runs as an operation, or on behalf of a requester. The operation's id
and the requester hold in the context of the block: in the tasks that it starts, and in the worker
threads that it uses. The id is in all log lines, events and answers of the operation.
"""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from structlog.contextvars import bound_contextvars

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.api.documents.history import RequesterDocument

_operation: Final[ContextVar[str]] = ContextVar("operation", default="")
_requester: Final[ContextVar[RequesterDocument | None]] = ContextVar("requester", default=None)


@contextmanager
def operation(action: str, **facts: str) -> Iterator[str]:
    """Run the block as an operation; its log lines have its id, `action` and `facts`.

    An operation within another one is a part of the outer one and has the same id.
    """
    identity = _operation.get() or secrets.token_hex(6)
    token = _operation.set(identity)
    try:
        with bound_contextvars(operation=identity, action=action, **facts):
            yield identity
    finally:
        _operation.reset(token)


def current_operation() -> str:
    """Return the id of the operation that runs in this context, "" without one."""
    return _operation.get()


@contextmanager
def requested_by(requester: RequesterDocument) -> Iterator[None]:
    """Run the block on behalf of a requester."""
    token = _requester.set(requester)
    try:
        yield
    finally:
        _requester.reset(token)


def current_requester() -> RequesterDocument | None:
    """Return who asked for what runs in this context; None for what the agent does by itself."""
    return _requester.get()
