"""A message bus of one's own on a Unix socket: real bytes for the client under test."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from jeepney import DBusAddress, MessageType, Parser, new_error, new_method_return, new_signal
from jeepney.low_level import HeaderFields

if TYPE_CHECKING:
    from pathlib import Path

    from jeepney import Message


class Rejection(Exception):  # noqa: N818 - it is the answer, not a failure of the fake
    """Raised by a handler to answer with a D-Bus error."""

    def __init__(self, name: str, text: str = "") -> None:
        super().__init__(name, text)
        self.name = name
        self.text = text


class Silence(Exception):  # noqa: N818 - as above
    """Raised by a handler to give no answer."""


@dataclass(frozen=True)
class Signal:
    """A signal to send after the answer."""

    path: str
    interface: str
    member: str
    signature: str
    body: tuple[object, ...]


@dataclass
class Answer:
    """What a handler returns: the reply's values, and signals to send before and after it."""

    signature: str = ""
    body: tuple[object, ...] = ()
    before: list[Signal] = field(default_factory=list)
    after: list[Signal] = field(default_factory=list)


#: Called with (member, object path, arguments).
Handler = Callable[[str, str, tuple[object, ...]], Answer]


class FakeBus:
    """Serves one client at a time in a thread; `calls` holds what was called, in order."""

    def __init__(self, directory: Path, handler: Handler, *, greets: bool = True) -> None:
        self.path = directory / "bus"
        self.address = f"unix:path={self.path}"
        self.calls: list[tuple[str, str, tuple[object, ...]]] = []
        #: What is not answered when it is called the next time.
        self.silent_once: set[str] = set()
        self._handler = handler
        self._greets = greets
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(str(self.path))
        self._server.listen()
        self._client: socket.socket | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # A shutdown wakes accept() and recv(); a close alone does not.
        self._server.shutdown(socket.SHUT_RDWR)
        self.drop_client()
        self._thread.join(10)
        self._server.close()

    def drop_client(self) -> None:
        client = self._client
        if client is not None:
            try:
                client.shutdown(socket.SHUT_RDWR)
            except OSError:
                return

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            self._client = client
            with client:
                try:
                    self._talk(client, self._authenticate(client))
                except OSError:
                    continue

    @staticmethod
    def _authenticate(client: socket.socket) -> bytes:
        """Greet the client; return what came behind its BEGIN, the first message perhaps."""
        data = b""
        while b"BEGIN\r\n" not in data:
            more = client.recv(4096)
            if not more:
                raise ConnectionResetError
            data += more
            if data.endswith(b"\r\n") and b"BEGIN" not in data:
                client.sendall(b"OK 0123456789abcdef0123456789abcdef\r\n")
        return data.partition(b"BEGIN\r\n")[2]

    def _talk(self, client: socket.socket, data: bytes) -> None:
        parser, serial = Parser(), 0
        while data := data or client.recv(4096):
            parser.add_data(data)
            data = b""
            while (message := parser.get_next_message()) is not None:
                if message.header.message_type is not MessageType.method_call:
                    continue
                for reply in self._replies(message):
                    serial += 1
                    client.sendall(reply.serialise(serial=serial))

    def _replies(self, message: Message) -> list[Message]:
        fields = message.header.fields
        member, path = fields[HeaderFields.member], fields[HeaderFields.path]
        body = tuple(message.body)
        self.calls.append((member, path, body))
        if member in self.silent_once:
            self.silent_once.remove(member)
            return []
        if member == "Hello":
            return [new_method_return(message, "s", (":1.1",))] if self._greets else []
        if member in ("AddMatch", "RemoveMatch", "Subscribe"):
            return [new_method_return(message)]
        try:
            answer = self._handler(member, path, body)
        except Rejection as rejection:
            return [new_error(message, rejection.name, "s", (rejection.text,))]
        except Silence:
            return []
        reply = new_method_return(message, answer.signature or None, answer.body)
        return [*map(_signal, answer.before), reply, *map(_signal, answer.after)]


def _signal(signal: Signal) -> Message:
    emitter = DBusAddress(signal.path, interface=signal.interface)
    return new_signal(emitter, signal.member, signal.signature, signal.body)
