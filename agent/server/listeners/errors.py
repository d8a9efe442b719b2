"""Why a request is not served, as far as HTTP itself is concerned."""

from __future__ import annotations

from http import HTTPStatus
from typing import ClassVar


class HttpError(Exception):
    """A request that gets no answer but this one, with `headers` and `details` (name, why)."""

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
    """The resource is there, and not for this method."""

    status = HTTPStatus.METHOD_NOT_ALLOWED

    def __init__(self, method: str, allowed: tuple[str, ...]) -> None:
        listed = ", ".join(allowed)
        super().__init__(f"{method} is not possible here; use {listed}")
        self.headers = (("Allow", listed),)


class UnknownParameterError(HttpError):
    """The query names a parameter that this resource does not have.

    To pass over it would do something else than was asked for, such as a dry run in earnest.
    """

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        listed = ", ".join(known) or "none"
        super().__init__(f"unknown query parameter {name!r}; this resource knows {listed}")
        self.details = ((name, "unknown"),)


class BodyTooLargeError(HttpError):
    """The body is larger than it may be."""

    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE

    def __init__(self, limit: int) -> None:
        super().__init__(f"the body is larger than {limit} bytes")
        self.limit = limit


class BrokenBodyError(HttpError):
    """The body is not what its head says, or ends too early."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the body cannot be read: {reason}")
        self.reason = reason
