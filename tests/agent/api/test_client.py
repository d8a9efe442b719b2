from __future__ import annotations

import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from agent.api.client import AgentClient, AgentError, Unreachable
from agent.api.documents.document import encode
from agent.api.documents.errors import ErrorBody, ErrorDocument
from agent.yaml import Mistake

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@contextmanager
def answering(path: Path, *answers: bytes | None, unread: bool = False) -> Iterator[AgentClient]:
    """Answer one connection after the other; None: end it without an answer.

    `unread`: before the request was read.
    """

    def serve() -> None:
        for answer in answers:
            connection, _ = listening.accept()
            with connection:
                if answer is not None:
                    if not unread:
                        connection.recv(65536)
                    connection.sendall(answer)

    with listener(path) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        yield AgentClient(path, timeout=60)
        thread.join()


@contextmanager
def listener(path: Path, backlog: int = 8) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(backlog)
        yield listening


def http(status: str, body: bytes) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def watched(client: AgentClient) -> object:
    return next(client.watch())


@pytest.mark.parametrize("ask", [AgentClient.status, watched])
def test_an_agent_that_does_not_answer_is_reported_with_what_to_do(
    tmp_path: Path, ask: Callable[[AgentClient], object]
) -> None:
    path = tmp_path / "a.sock"
    client = AgentClient(path, timeout=0.01)
    with pytest.raises(Unreachable, match=r"is the agent running.* 'journalctl -u numawarden'"):
        ask(client)
    with (
        listener(path),
        pytest.raises(Unreachable, match=r"no answer within 0\.01 s; see .*'journalctl"),
    ):
        ask(client)
    with pytest.raises(Unreachable, match=r"listens there; start the agent, or .*'journalctl"):
        ask(client)
    path.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(path))
        with pytest.raises(Unreachable, match="it is a socket of another program"):
            ask(client)
    with pytest.raises(Unreachable, match="AF_UNIX path too long"):
        ask(AgentClient(path.parent / ("a" * 200)))
    path.unlink()
    path.mkdir()
    with pytest.raises(Unreachable, match="it is not a socket"):
        ask(client)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", "it closed the connection"),
        (b"SSH-2.0-OpenSSH\r\n", "it does not speak HTTP"),
        (http("200 OK", b"{}"), "not a numawarden of this version"),
        (http("200 OK", b"\xff"), "not a numawarden of this version"),
        (http("502 Bad Gateway", b"<html>"), "HTTP status 502 and no explanation"),
    ],
)
def test_an_answer_that_is_not_an_agents_is_an_error(
    tmp_path: Path, answer: bytes, said: str
) -> None:
    with (
        answering(tmp_path / "a.sock", answer) as client,
        pytest.raises(Unreachable, match=said),
    ):
        client.remove("uid")


def test_an_error_carries_code_message_and_details(tmp_path: Path) -> None:
    body = (
        b'{"error":{"code":"InvalidManifest","message":"2 mistakes","details":'
        b'[{"path":"a","message":"b"},{"path":"","message":"c"}]}}'
    )
    with (
        answering(tmp_path / "a.sock", http("422 Unprocessable Content", body)) as client,
        pytest.raises(AgentError) as rejected,
    ):
        client.admit(b"")
    assert rejected.value.status == 422
    assert rejected.value.error == ErrorBody(
        code="InvalidManifest",
        message="2 mistakes",
        details=(Mistake("a", "b"), Mistake("", "c")),
    )
    assert str(rejected.value) == "2 mistakes\na: b\nc"


def test_watching_yields_a_document_a_line_for_any_time(tmp_path: Path) -> None:
    """The head of the answer arrives; the socket then waits for events without a limit."""
    waits: list[float | None] = []

    class Recorded(socket.socket):
        def settimeout(self, value: float | None, /) -> None:
            waits.append(value)
            super().settimeout(value)

    line = b'{"type":"PodAdmitted","time":1.5,"operation":"x","uid":"u"}\n'
    with (
        pytest.MonkeyPatch.context() as patched,
        answering(tmp_path / "a.sock", http("200 OK", line * 2)) as client,
    ):
        patched.setattr("agent.api.client.socket.socket", Recorded)
        assert [(each.type, each.uid) for each in client.watch()] == [("PodAdmitted", "u")] * 2
    assert (waits[0], waits[-1]) == (60, None)


def test_watching_may_be_rejected(tmp_path: Path) -> None:
    body = b'{"error":{"code":"Forbidden","message":"no"}}'
    with (
        answering(tmp_path / "a.sock", http("403 Forbidden", body)) as client,
        pytest.raises(AgentError, match="no"),
    ):
        next(client.watch())


BUSY = encode(ErrorDocument(error=ErrorBody(code="Busy", message="too many wait")))


def test_a_request_that_was_not_begun_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.api.client.AGAIN_SECONDS", 0.0)
    busy = http("503 Service Unavailable", BUSY)
    done = http("404 Not Found", encode(ErrorDocument(error=ErrorBody(code="X", message="done"))))
    with (
        answering(tmp_path / "a.sock", busy, busy, done) as client,
        pytest.raises(AgentError, match="done"),
    ):
        client.remove("uid")


def test_a_question_that_got_no_answer_is_asked_again_and_a_change_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.api.client.AGAIN_SECONDS", 0.0)
    with answering(tmp_path / "a.sock", None, http("200 OK", b"{}")) as client:
        assert client.topology() == b"{}"
    with (
        answering(tmp_path / "b.sock", None) as client,
        pytest.raises(Unreachable, match="it closed the connection"),
    ):
        client.remove("uid")


def test_a_full_backlog_is_waited_for_and_reported_in_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with listener(path, backlog=0) as listening, socket.socket(socket.AF_UNIX) as first:
        first.connect(str(path))
        with pytest.raises(Unreachable, match="too many processes wait to connect"):
            AgentClient(path, timeout=0.01).topology()
        answers: list[bytes] = []
        asking = threading.Thread(target=lambda: answers.append(AgentClient(path, 60).topology()))
        asking.start()
        listening.accept()[0].close()
        connection, _ = listening.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(http("200 OK", b"{}"))
        asking.join()
        assert answers == [b"{}"]


def test_an_answer_before_the_request_was_read_is_reported(tmp_path: Path) -> None:
    body = encode(ErrorDocument(error=ErrorBody(code="TooLarge", message="send less")))
    answer = http("413 Content Too Large", body)
    with (
        answering(tmp_path / "a.sock", answer, unread=True) as client,
        pytest.raises(AgentError, match="send less") as caught,
    ):
        client.admit(bytes(8 << 20))  # more than the kernel takes while the agent does not read
    assert caught.value.status == 413
