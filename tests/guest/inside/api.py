"""The admission API over its Unix socket: what scenarios ask often, without a process each time."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any, Final

from tests.guest.inside.checks import STUCK
from tests.guest.inside.commands import CommandFailed

SOCKET: Final = "/run/numawarden/agent.sock"


class _Connection(http.client.HTTPConnection):
    """HTTP over the agent's socket."""

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(SOCKET)


def answer_to(method: str, path: str, body: object = None) -> tuple[int, dict[str, Any]]:
    """Return an answer's status and document; raises `OSError` or `HTTPException` on none."""
    connection = _Connection("localhost", timeout=STUCK)
    try:
        text = None if body is None else json.dumps(body)
        connection.request(method, f"/v1/{path}", text)
        answer = connection.getresponse()
        status, document = answer.status, json.loads(answer.read())
    finally:
        connection.close()
    assert isinstance(document, dict)
    return status, document


def ask(method: str, path: str, body: object = None) -> dict[str, Any]:
    """Return the document of an answer; raises `CommandFailed` on an error, `OSError` on none."""
    status, document = answer_to(method, path, body)
    if status != http.client.OK:
        raise CommandFailed(f"{method} /v1/{path}: {status} {document}")
    return document
