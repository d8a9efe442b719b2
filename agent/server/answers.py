"""The answers of the API: documents as JSON, errors among them.

In goes a document, or why a request is not served. Out comes the response. An error has a code for
programs, a status that follows from the code, and the id of the operation in which it arose.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import structlog
from msgspec.structs import replace

from agent.api.documents.document import Document, encode
from agent.api.documents.errors import ErrorBody, ErrorDocument
from agent.reconcile.report import BindingError
from agent.server.errors import RequestError
from agent.server.http import (
    BodyTooLargeError,
    HttpError,
    MethodNotAllowedError,
    NotFoundError,
    Response,
)
from agent.server.limits import NoRoomError
from agent.server.log import shortened
from agent.server.operations import current_operation
from agent.server.queue import QueueStopped

if TYPE_CHECKING:
    from agent.server.http import Request
    from agent.yaml import Mistake

log = structlog.get_logger(__name__)

JSON: Final = "application/json"
#: The statuses of `RequestError.code`; 400 for all others.
STATUSES: Final = {
    "PodNotFound": HTTPStatus.NOT_FOUND,
    "ContainerNotFound": HTTPStatus.NOT_FOUND,
    "BindingNotFound": HTTPStatus.NOT_FOUND,
    "NoHistory": HTTPStatus.NOT_FOUND,
    "HistoryUnreadable": HTTPStatus.INTERNAL_SERVER_ERROR,
    "ManagedByManifest": HTTPStatus.CONFLICT,
    "ManagedByKubelet": HTTPStatus.CONFLICT,
    "CordonRejected": HTTPStatus.CONFLICT,
    "NotCordoned": HTTPStatus.CONFLICT,
    "PodRemoved": HTTPStatus.CONFLICT,
    "UnderPressure": HTTPStatus.CONFLICT,
    "NotReady": HTTPStatus.SERVICE_UNAVAILABLE,
    "Busy": HTTPStatus.SERVICE_UNAVAILABLE,
    "KernelUnreadable": HTTPStatus.INTERNAL_SERVER_ERROR,
    "CheckpointFailed": HTTPStatus.INSUFFICIENT_STORAGE,
    "TooSlow": HTTPStatus.REQUEST_TIMEOUT,
    "InvalidManifest": HTTPStatus.UNPROCESSABLE_ENTITY,
    "InvalidBinding": HTTPStatus.UNPROCESSABLE_ENTITY,
    "InvalidResize": HTTPStatus.UNPROCESSABLE_ENTITY,
    "InvalidMove": HTTPStatus.UNPROCESSABLE_ENTITY,
}
_INVALID_REQUEST: Final = "InvalidRequest"
#: The codes of `HttpError`s; `_INVALID_REQUEST` for all others.
HTTP_CODES: Final = {
    BodyTooLargeError: "TooLarge",
    MethodNotAllowedError: "MethodNotAllowed",
    NoRoomError: "Busy",
    NotFoundError: "NotFound",
}
#: The codes of answers that no handler makes, by status; `_INVALID_REQUEST` for all others.
CODES_WITHOUT_HANDLER: Final = {
    HTTPStatus.FORBIDDEN: "Forbidden",
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: "HeadTooLarge",
    HTTPStatus.INTERNAL_SERVER_ERROR: "Internal",
    HTTPStatus.SERVICE_UNAVAILABLE: "Busy",
}


def json_answer(document: Document, status: HTTPStatus = HTTPStatus.OK) -> Response:
    """Return a document as an answer."""
    return Response(encode(document) + b"\n", status, JSON)


def answer_without_handler(status: HTTPStatus, message: str) -> Response:
    """Return the answer to what reaches no handler: malformed HTTP, other users, no room."""
    return _error_answer(status, CODES_WITHOUT_HANDLER.get(status, _INVALID_REQUEST), message)


def answer_to_error(request: Request, error: Exception) -> Response:
    """Return the answer to a request whose handler raised an error, and log the error."""
    match error:
        case RequestError():
            status = STATUSES.get(error.code, HTTPStatus.BAD_REQUEST)
            return _not_served(request, status, error.code, error.message, error.details)
        case BindingError():
            code = "InvalidBinding"
            return _not_served(request, STATUSES[code], code, str(error))
        case QueueStopped():
            return _not_served(request, HTTPStatus.SERVICE_UNAVAILABLE, "Stopping", str(error))
        case HttpError():
            code = HTTP_CODES.get(type(error), _INVALID_REQUEST)
            answer = _not_served(request, error.status, code, str(error), error.details)
            return replace(answer, headers=error.headers)
        case _:
            method, path = request.method, request.target.path
            log.error("request failed", method=method, path=path, exc_info=error)
            message = "internal error; see the agent log"
            return _error_answer(HTTPStatus.INTERNAL_SERVER_ERROR, "Internal", message)


def _not_served(
    request: Request,
    status: HTTPStatus,
    code: str,
    message: str,
    details: tuple[Mistake, ...] = (),
) -> Response:
    path = shortened(request.target.path)
    log.info("request not served", method=request.method, path=path, code=code)
    return _error_answer(status, code, message, details)


def _error_answer(
    status: HTTPStatus, code: str, message: str, details: tuple[Mistake, ...] = ()
) -> Response:
    error = ErrorBody(code=code, message=message, details=details, operation=current_operation())
    return json_answer(ErrorDocument(error=error), status)
