"""The kubelet's `/pods` over HTTPS, for bearers of a token."""

from __future__ import annotations

import asyncio
import json
import ssl
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.fakes.kubelet.pods import KubeletPod

_REDIRECTS: Final = range(300, 400)


class PodsEndpoint:
    """An HTTPS server on a port of 127.0.0.1 (0: any) that knows one path and one token.

    `reply` is what it answers to its token instead, `hanging`: it does not answer.
    """

    def __init__(
        self, pods: Iterable[KubeletPod], certificate: Path, token: str, port: int = 0
    ) -> None:
        self._pods = pods
        self._certificate = certificate
        self._token = token
        self._server: asyncio.Server | None = None
        self._stopped = asyncio.Event()
        self.reply: tuple[int, bytes] | None = None
        self.hanging = False
        self.port = port

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}/pods"

    async def start(self) -> None:
        """Serve; `port` is the one in use then."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._certificate)
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._stopped.set()
            self._server.close()
            await self._server.wait_closed()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if self.hanging:
                await self._stopped.wait()
            status, body = self._answer(head.decode("latin-1"))
            headers = f"content-length: {len(body)}\r\nconnection: close\r\n"
            if status in _REDIRECTS:
                headers += "location: https://127.0.0.1:1/\r\n"
            reason = HTTPStatus(status).phrase
            writer.write(f"HTTP/1.1 {status} {reason}\r\n{headers}\r\n".encode() + body)
            await writer.drain()
        except (OSError, EOFError):
            pass  # the client left
        finally:
            writer.close()

    def _answer(self, head: str) -> tuple[int, bytes]:
        first, *lines = head.split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)
        }
        if headers.get("authorization") != f"Bearer {self._token}":
            return 401, b"Unauthorized"
        if first.split()[:2] not in (["GET", "/pods"], ["GET", "/pods/"]):
            return 404, b"404 page not found\n"
        if self.reply is not None:
            return self.reply
        items = [pod.document() for pod in self._pods]
        return 200, json.dumps({"kind": "PodList", "apiVersion": "v1", "items": items}).encode()
