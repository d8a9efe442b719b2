"""What an API server of a cluster answers: bytes of HTTP, to the client and to what reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agent.cluster.api_server import ApiAccess, ApiServer, ApiServerError
from agent.cluster.topology import NODE_TOPOLOGIES, _uid_of_ours
from tests.fuzz.damage import damaged_bytes
from tests.fuzz.target import Target, demand, plain_check

if TYPE_CHECKING:
    from random import Random

_SERVER: Final = ApiServer(ApiAccess("10.0.0.1", 6443, "", Path("/token"), Path("/ca")))
_OBJECTS: Final[tuple[object, ...]] = (
    {"metadata": {"uid": "u-1", "managedFields": [{"manager": "numawarden"}]}, "zones": []},
    {"kind": "Status", "status": "Failure", "message": "conflict", "code": 409},
    {"metadata": {"managedFields": [None, {"manager": ["numawarden"]}], "uid": 7}},
    [],
)
_STATUSES: Final = ("200 OK", "201 Created", "403 Forbidden", "404 Not Found", "500 Error", "999")


def make_answer(random: Random) -> bytes:
    """Draw an answer, whole or in chunks, and damage its head, its body or all of it."""
    body = json.dumps(random.choice(_OBJECTS)).encode()
    if not random.randrange(3):
        body = damaged_bytes(random, body)
    if random.randrange(2):
        length = b"%d" % len(body)
    else:
        body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:9], body[9:], b""))
        length = b""
    name = b"Content-Length: " + length if length else b"Transfer-Encoding: chunked"
    answer = f"HTTP/1.1 {random.choice(_STATUSES)}\r\n".encode() + name + b"\r\n\r\n" + body
    return damaged_bytes(random, answer) if random.randrange(2) else answer


def check_answer(data: bytes) -> bool:
    """Return whether an answer was read as an object."""
    try:
        found = _SERVER._answer(data, "GET", NODE_TOPOLOGIES, "GET x")
    except ApiServerError as error:
        demand(str(error).isprintable(), f"no line: {error!s}")
        return False
    demand(found, "an empty object")
    uid = _uid_of_ours(found)
    demand(uid is None or isinstance(uid, str), f"uid {uid!r}")
    return True


API_ANSWERS: Final = Target("api-answers", make_answer, plain_check(check_answer))
