"""Every way in which an API server can fail becomes one error that says what to do."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.cluster.kubernetes.access import ApiAccess
from agent.cluster.kubernetes.api_server import LONGEST_ANSWER, ApiServer
from agent.cluster.kubernetes.request_errors import ApiServerError, Outcome
from agent.cluster.kubernetes.topology_publisher import NODE_TOPOLOGIES
from agent.server import metrics as names
from tests.fakes.api_server import TOKEN, Failure, Fault
from tests.fakes.certificate import write_certificate

if TYPE_CHECKING:
    from tests.fakes.api_server import FakeApiServer

#: Long enough for any answer that comes at all.
PATIENT = 60.0


async def get(access: ApiAccess, seconds: float = PATIENT) -> dict[str, Any]:
    return await ApiServer(access, seconds).call("GET", NODE_TOPOLOGIES, "/worker-1")


async def error_of(access: ApiAccess, seconds: float = PATIENT) -> ApiServerError:
    with pytest.raises(ApiServerError) as caught:
        await get(access, seconds)
    return caught.value


async def test_an_answer_in_chunks_is_read_whole(fake: FakeApiServer, access: ApiAccess) -> None:
    fake.topologies["worker-1"] = {"metadata": {"name": "worker-1"}, "zones": ["x" * 100_000]}
    assert await get(access) == fake.topologies["worker-1"]


@pytest.mark.parametrize(
    ("fault", "outcome", "parts"),
    [
        (
            Failure(403, 'user "a" cannot get resource'),
            Outcome.FORBIDDEN,
            ("403 user", "verbs get, create, patch and delete on noderesourcetopologies of"),
        ),
        (Failure(404, "not found"), Outcome.NOT_FOUND, ("404 not found",)),
        (
            Failure(404, text="404 page not found\n"),
            Outcome.NOT_SERVED,
            ("404 404 page not found", "install the CustomResourceDefinition"),
        ),
        (Failure(409, "conflict with x"), Outcome.CONFLICT, ("409 conflict with x", "stop the")),
        (Failure(401, "Unauthorized"), Outcome.CREDENTIALS, ("renew the token in",)),
        (
            Failure(422, "zones: Required value"),
            Outcome.REJECTED,
            ("422 zones: Required value", "install the CustomResourceDefinition"),
        ),
        (Failure(307, text="elsewhere"), Outcome.REJECTED, ("307 elsewhere",)),
        (Failure(429, "too many requests"), Outcome.UNAVAILABLE, ("429 too many requests",)),
        (Failure(500, "etcdserver: timed out"), Outcome.UNAVAILABLE, ("500 etcdserver",)),
        (Failure(503, text="\x1b[31mno\nhost"), Outcome.UNAVAILABLE, ("503 \\x1b[31mno host",)),
        (Fault.GARBAGE, Outcome.REJECTED, ("not an answer of HTTP (BadStatusLine)",)),
        (Fault.CLOSE, Outcome.REJECTED, ("not an answer of HTTP",)),
        (Fault.TRUNCATED, Outcome.REJECTED, ("not an answer of HTTP (IncompleteRead)",)),
        (Fault.HTML, Outcome.REJECTED, ("200 without a JSON object",)),
        (Fault.ENDLESS, Outcome.REJECTED, (f"more than {LONGEST_ANSWER} bytes",)),
    ],
    ids=str,
)
def test_a_failed_request_says_what_was_asked_what_was_answered_and_what_to_do(
    fake: FakeApiServer,
    access: ApiAccess,
    fault: Fault | Failure,
    outcome: Outcome,
    parts: tuple[str, ...],
) -> None:
    fake.faults.append(fault)
    error = asyncio.run(error_of(access))
    assert error.outcome is outcome
    text = str(error)
    assert text.startswith(f"GET {fake.url}/apis/topology.node.k8s.io/v1alpha2/")
    assert all(part.replace("  ", " ") in text for part in parts), text
    assert error.remedy
    assert text.isprintable()
    assert TOKEN not in text


@pytest.mark.parametrize("fault", [Fault.HANG, Fault.DRIP])
def test_no_answer_is_too_late(fake: FakeApiServer, access: ApiAccess, fault: Fault) -> None:
    fake.faults.append(fault)
    error = asyncio.run(error_of(access, seconds=0.3))
    assert error.outcome is Outcome.TIMEOUT
    assert "no answer within 0.3 s" in str(error)


async def test_a_server_that_is_not_there_is_unavailable(access: ApiAccess) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    error = await error_of(replace(access, port=port))
    assert error.outcome is Outcome.UNAVAILABLE


async def test_a_server_of_another_authority_gets_no_token(
    fake: FakeApiServer, access: ApiAccess, tmp_path: Path
) -> None:
    other = write_certificate(tmp_path / "other.pem")
    error = await error_of(replace(access, ca_file=other))
    assert error.outcome is Outcome.TLS
    assert "agent.kubernetes.caFile" in error.remedy
    assert fake.requests == []


async def test_another_name_gets_no_token(fake: FakeApiServer, access: ApiAccess) -> None:
    error = await error_of(replace(access, host="localhost"))
    assert error.outcome is Outcome.TLS
    assert fake.requests == []


async def test_a_server_without_tls_gets_no_token(access: ApiAccess) -> None:
    heard = bytearray()

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.extend(await reader.read(1 << 16))
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    async with server:
        error = await error_of(replace(access, port=server.sockets[0].getsockname()[1]))
    assert error.outcome is Outcome.TLS
    assert TOKEN.encode() not in heard


@pytest.mark.parametrize("content", [b"", b" \n", b"two words", b"a\r\nX-Other: b", b"\xff\xfe"])
def test_what_is_no_token_is_not_sent(
    fake: FakeApiServer, access: ApiAccess, content: bytes
) -> None:
    access.token_file.write_bytes(content)
    error = asyncio.run(error_of(access))
    assert error.outcome is Outcome.CREDENTIALS
    assert "agent.kubernetes.tokenFile" in error.remedy
    assert fake.requests == []


def test_missing_files_are_named(access: ApiAccess, tmp_path: Path) -> None:
    for missing in (
        replace(access, token_file=tmp_path / "gone"),
        replace(access, ca_file=tmp_path / "gone"),
    ):
        error = asyncio.run(error_of(missing))
        assert error.outcome is Outcome.CREDENTIALS
        assert f"{tmp_path}/gone: No such file or directory" in str(error)


def test_a_file_without_a_certificate_is_named(access: ApiAccess, tmp_path: Path) -> None:
    ca = tmp_path / "ca.crt"
    ca.write_text("not a certificate")
    error = asyncio.run(error_of(replace(access, ca_file=ca)))
    assert error.outcome is Outcome.CREDENTIALS
    assert f"{ca}: not a certificate in PEM form" in str(error)


async def test_a_replaced_token_is_used_next(fake: FakeApiServer, access: ApiAccess) -> None:
    fake.topologies["worker-1"] = {"metadata": {}}
    fake.token = "another"  # noqa: S105  # of a fake
    assert (await error_of(access)).outcome is Outcome.CREDENTIALS
    access.token_file.write_text("another")
    assert await get(access) == {"metadata": {}}


_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
_WHOLE = _HEAD + b'10\r\n{"kind": "Event"\r\n1\r\n}\r\n0\r\n\r\n'


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    at = draw(st.integers(0, len(_WHOLE)))
    lost = draw(st.integers(0, 12))
    return _WHOLE[:at] + draw(st.binary(max_size=12)) + _WHOLE[at + lost :]


@given(st.one_of(st.binary(max_size=200), damaged(), st.binary(max_size=100).map(_HEAD.__add__)))
def test_no_answer_raises_anything_else(raw: bytes) -> None:
    server = ApiServer(ApiAccess("127.0.0.1", 1, "", Path("t"), Path("c")))
    try:
        found = server._answer(raw, "GET", NODE_TOPOLOGIES, "GET x")
    except ApiServerError as error:
        assert str(error).isprintable()  # noqa: PT017  # of any answer that fails
    else:
        assert isinstance(found, dict)


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 40 + b"\r\n\r\n{}",
        _HEAD + b"f" * 40 + b"\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 1000,
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000 + b"\r\n{}",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n{}",
    ],
    ids=range(7),
)
def test_sizes_that_no_server_means_are_not_an_answer(raw: bytes) -> None:
    server = ApiServer(ApiAccess("127.0.0.1", 1, "", Path("t"), Path("c")))
    with pytest.raises(ApiServerError) as caught:
        server._answer(raw, "GET", NODE_TOPOLOGIES, "GET x")
    assert caught.value.outcome is Outcome.REJECTED


def test_metrics_have_every_outcome() -> None:
    for metric in (names.TOPOLOGY_PUBLICATIONS, names.POD_EVENTS):
        assert {labels for (labels,) in metric.initial()} == set(map(str, Outcome))
