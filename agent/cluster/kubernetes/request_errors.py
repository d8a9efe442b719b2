"""Why a request to the API server failed, and what to do.

An error says what was asked, what was answered, and what to do. The outcome is the result that the
metrics count and by which a caller decides whether to try again.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from pathlib import Path


class Outcome(StrEnum):
    """The result of a request."""

    DONE = "done"
    #: A file with the token or the certificate authority cannot be used, or the token is not valid.
    CREDENTIALS = "credentials"
    FORBIDDEN = "forbidden"
    #: The object, or its namespace, does not exist.
    NOT_FOUND = "not_found"
    #: The server does not know the kind of object.
    NOT_SERVED = "not_served"
    CONFLICT = "conflict"
    #: The server does not accept what was sent, or answers in a way that is not Kubernetes'.
    REJECTED = "rejected"
    TLS = "tls"
    TIMEOUT = "timeout"
    UNAVAILABLE = "unavailable"


class ApiResource(Struct, frozen=True):
    """A kind of object, and what to do where the server does not serve it."""

    #: The path of all objects of the kind below the server.
    path: str
    #: The resource that a rule of a role names.
    rule: str
    #: The verbs that a role has to allow on `rule`.
    verbs: str
    #: What to do where the server does not know the kind, or knows another version of it.
    missing: str


class ApiServerError(Exception):
    """A request failed; the message says what was asked, what was answered and what to do."""

    def __init__(self, outcome: Outcome, asked: str, found: str, remedy: str) -> None:
        super().__init__(f"{asked}: {found}; {remedy}")
        self.outcome = outcome
        self.asked = asked
        self.found = found
        self.remedy = remedy


OTHER_SERVER: Final = "check that agent.kubernetes.server is a Kubernetes API server"
REACH: Final = "check agent.kubernetes.server and the network; the agent tries again"
#: The unit of the package reaches localhost only.
ALLOW: Final = (
    "let the unit reach the API server: systemctl edit numawarden, and below [Service] "
    "IPAddressAllow= with its address"
)
_UNAUTHORIZED: Final = 401
_FORBIDDEN: Final = 403
_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_TOO_MANY: Final = 429
_SERVER_ERRORS: Final = 500


def error_of_status(
    status: int, resource: ApiResource, asked: str, said: str, *, is_object: bool, token_file: Path
) -> ApiServerError:
    """Return the error for an HTTP status that is not a success.

    `said` is the message of the answer; `is_object` says whether the answer is a JSON object, as
    each of Kubernetes' errors is (`Status`).
    """
    if status == _UNAUTHORIZED:
        outcome, remedy = Outcome.CREDENTIALS, f"renew the token in {token_file}"
    elif status == _FORBIDDEN:
        outcome = Outcome.FORBIDDEN
        remedy = f"allow the agent's service account the verbs {resource.verbs} on {resource.rule}"
    elif status == _NOT_FOUND and is_object:
        outcome, remedy = Outcome.NOT_FOUND, "the object is gone"
    elif status == _NOT_FOUND:
        # The API server answers in plain text for a kind that it does not serve.
        outcome, remedy = Outcome.NOT_SERVED, resource.missing
    elif status == _CONFLICT:
        outcome, remedy = Outcome.CONFLICT, "stop the other program that writes this object"
    elif status >= _SERVER_ERRORS or status == _TOO_MANY:
        outcome = Outcome.UNAVAILABLE
        remedy = "see the log of the API server; the agent tries again"
    else:
        # A Status says what is wrong with the object: the server knows another version of its kind.
        outcome, remedy = Outcome.REJECTED, resource.missing if is_object else OTHER_SERVER
    return ApiServerError(outcome, asked, f"{status} {said}".strip(), remedy)
