"""The kubelet's HTTPS endpoint `/pods`: all pods of the kubelet, as JSON, with a token."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Final

import aiohttp
from msgspec import Struct

from agent.cluster.kubelet.pods import PodsUnavailableError, UnreadablePodError, read_list
from agent.cluster.kubelet.pods_api import MOST_PODS
from agent.files import read_bounded

if TYPE_CHECKING:
    from pathlib import Path

    from agent.cluster.kubelet.pods import ReportedPods


#: The longest answer in bytes: some KiB for each of thousands of pods.
LONGEST_ANSWER: Final = 32 << 20
_LONGEST_TOKEN: Final = 64 << 10
_CHUNK: Final = 1 << 16
_OK: Final = 200


class EndpointAccess(Struct, frozen=True):
    """Where the endpoint is, and how the kubelet and the agent know each other.

    `token_file` is read at each request, since tokens are renewed; None sends none. `ca_file` has
    the authorities that the kubelet's certificate is checked with, None: those of the system.
    With `verified` False the certificate is not checked at all.
    """

    url: str
    token_file: Path | None = None
    ca_file: Path | None = None
    verified: bool = True


class PodsEndpoint:
    """The endpoint of one kubelet. Close it in the end."""

    def __init__(self, access: EndpointAccess) -> None:
        self.way = f"kubelet endpoint ({access.url})"
        self._access = access
        self._session: aiohttp.ClientSession | None = None
        #: The file of authorities as it was when the session was opened.
        self._trusted: tuple[int, ...] = ()

    async def pods(self, seconds: float) -> ReportedPods:
        """Return all pods of the kubelet; raises `PodsUnavailableError`, also after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                answer = await self._answer()
        except TimeoutError:
            raise self._unavailable(f"no complete answer within {seconds:g} s") from None
        except (aiohttp.ClientError, ssl.SSLError, OSError) as error:
            words = (str(error) or type(error).__name__).partition("\n")[0]
            raise self._unavailable(words) from error
        try:
            return await asyncio.to_thread(read_list, answer, MOST_PODS)
        except UnreadablePodError as error:
            raise self._unavailable(error.found) from error

    async def close(self) -> None:
        """Close the connection; a later request opens another."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _answer(self) -> bytes:
        headers = {"Accept": "application/json"}
        if self._access.token_file is not None:
            token = read_bounded(self._access.token_file, _LONGEST_TOKEN).decode("ascii", "replace")
            headers["Authorization"] = f"Bearer {token.strip()}"
        session = await self._opened()
        # A redirect could carry the token to another host.
        async with session.get(self._access.url, headers=headers, allow_redirects=False) as found:
            if found.status != _OK:
                raise self._unavailable(
                    f"HTTP status {found.status}{_REMEDIES.get(found.status, '')}"
                )
            content = bytearray()
            async for chunk in found.content.iter_chunked(_CHUNK):
                content += chunk
                if len(content) > LONGEST_ANSWER:
                    raise self._unavailable(f"its answer has more than {LONGEST_ANSWER} bytes")
            return bytes(content)

    async def _opened(self) -> aiohttp.ClientSession:
        file = self._access.ca_file
        shown = () if file is None else file.stat()
        trusted = shown and (shown.st_dev, shown.st_ino, shown.st_mtime_ns, shown.st_size)
        if trusted != self._trusted:  # the authorities were replaced
            await self.close()
        if self._session is None:
            self._trusted = trusted
            connector = aiohttp.TCPConnector(ssl=self._tls(), limit=2)
            self._session = aiohttp.ClientSession(connector=connector)
        return self._session

    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self._access.ca_file)
        if not self._access.verified:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def _unavailable(self, found: str) -> PodsUnavailableError:
        return PodsUnavailableError(self.way, found)


_REMEDIES: Final = {
    401: ": the token is missing, expired, or not one of this cluster; see agent.kubelet.tokenFile",
    403: ": the token may not read pods of the kubelet; allow its user to get nodes/pods",
}
