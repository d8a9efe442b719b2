"""HTTP errors."""

from __future__ import annotations

from http import HTTPStatus
from typing import ClassVar


class HttpError(Exception):
    """An HTTP error response, with `headers` and `details` (name, reason)."""

    status: ClassVar[HTTPStatus] = HTTPStatus.BAD_REQUEST
    headers: tuple[tuple[str, str], ...] = ()
    details: tuple[tuple[str, str], ...] = ()


class NotFoundError(HttpError):
    """There is no resource of that path."""

    status = HTTPStatus.NOT_FOUND

    def __init__(self, path: str) -> None:
        super().__init__(f"there is no resource {path}; see docs/api.md")
        self.path = path


class MethodNotAllowedError(HttpError):
    """The resource does not support this method."""

    status = HTTPStatus.METHOD_NOT_ALLOWED

    def __init__(self, method: str, allowed: tuple[str, ...]) -> None:
        listed = ", ".join(allowed)
        super().__init__(f"{method} is not possible here; use {listed}")
        self.headers = (("Allow", listed),)


class UnknownParameterError(HttpError):
    """The query names a parameter that this resource does not have.

    Ignoring the parameter could do more than was requested, such as admitting instead of a dry run.
    """

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        listed = ", ".join(known) or "none"
        super().__init__(f"unknown query parameter {name!r}; this resource knows {listed}")
        self.details = ((name, "unknown"),)


class BodyTooLargeError(HttpError):
    """The body exceeds the limit."""

    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE

    def __init__(self, limit: int) -> None:
        super().__init__(f"the body is larger than {limit} bytes")
        self.limit = limit


class BrokenBodyError(HttpError):
    """The body does not match its head, or ends too early."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the body cannot be read: {reason}")
        self.reason = reason
