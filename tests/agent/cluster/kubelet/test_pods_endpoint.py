from __future__ import annotations

import asyncio
import json
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from aiohttp import web

from agent.cluster.kubelet import pods_endpoint
from agent.cluster.kubelet.pods import PodsUnavailableError
from agent.cluster.kubelet.pods_endpoint import EndpointAccess, PodsEndpoint
from tests.agent.server.support import UID
from tests.fakes.certificate import write_certificate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

#: Longer than any answer takes, on however busy a machine.
LONG = 60.0
LIST = {
    "kind": "PodList",
    "items": [
        {
            "metadata": {"uid": UID, "name": "web", "namespace": "shop"},
            "spec": {"containers": [{"name": "main"}]},
            "status": {"phase": "Running"},
        }
    ],
}


async def answer(request: web.Request) -> web.StreamResponse:
    """Answer as a kubelet: the list to who has the token, else 401."""
    if request.headers.get("Authorization") != "Bearer secret":
        return web.Response(status=401, text="Unauthorized")
    return web.json_response(LIST)


@asynccontextmanager
async def served(
    directory: Path, handler: Callable[[web.Request], Awaitable[web.StreamResponse]] = answer
) -> AsyncIterator[EndpointAccess]:
    """Yield how a kubelet with a certificate of its own is reached."""
    certificate = write_certificate(directory / "kubelet.crt")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    application = web.Application()
    application.router.add_get("/pods", handler)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    token = directory / "token"
    token.write_text("secret\n")
    port = runner.addresses[0][1]
    try:
        yield EndpointAccess(f"https://127.0.0.1:{port}/pods", token, certificate)
    finally:
        await runner.cleanup()


@asynccontextmanager
async def client(access: EndpointAccess, **changed: object) -> AsyncIterator[PodsEndpoint]:
    known = {name: getattr(access, name) for name in access.__struct_fields__}
    endpoint = PodsEndpoint(EndpointAccess(**{**known, **changed}))
    try:
        yield endpoint
    finally:
        await endpoint.close()


async def test_pods_are_listed_with_the_token_over_a_checked_certificate(tmp_path: Path) -> None:
    async with served(tmp_path) as access, client(access) as endpoint:
        assert [pod.uid for pod in (await endpoint.pods(LONG)).pods] == [UID]


async def test_the_token_is_read_at_each_request(tmp_path: Path) -> None:
    async with served(tmp_path) as access, client(access) as endpoint:
        assert access.token_file is not None
        access.token_file.write_text("old")
        with pytest.raises(PodsUnavailableError, match=r"401.*agent\.kubelet\.tokenFile"):
            await endpoint.pods(LONG)
        access.token_file.write_text("secret")
        await endpoint.pods(LONG)
        access.token_file.unlink()
        with pytest.raises(PodsUnavailableError, match="No such file"):
            await endpoint.pods(LONG)


async def test_a_certificate_of_an_unknown_authority_may_be_accepted(tmp_path: Path) -> None:
    async with served(tmp_path) as access:
        async with client(access, ca_file=None) as endpoint:
            with pytest.raises(PodsUnavailableError, match="certificate"):
                await endpoint.pods(LONG)
        async with client(access, ca_file=None, verified=False) as endpoint:
            await endpoint.pods(LONG)


async def test_a_replaced_file_of_authorities_is_read_again(tmp_path: Path) -> None:
    async with served(tmp_path) as access:
        assert access.ca_file is not None
        authorities = tmp_path / "ca.crt"
        authorities.write_bytes(write_certificate(tmp_path / "former.crt").read_bytes())
        async with client(access, ca_file=authorities) as endpoint:
            with pytest.raises(PodsUnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
                await endpoint.pods(LONG)
            new = tmp_path / "new.crt"
            new.write_bytes(access.ca_file.read_bytes())
            new.replace(authorities)
            assert [pod.uid for pod in (await endpoint.pods(LONG)).pods] == [UID]
            authorities.unlink()
            with pytest.raises(PodsUnavailableError, match="No such file"):
                await endpoint.pods(LONG)


async def test_a_kubelet_that_does_not_listen_is_an_error(tmp_path: Path) -> None:
    async with served(tmp_path) as access:
        pass
    async with client(access) as endpoint:
        with pytest.raises(PodsUnavailableError, match="kubelet endpoint"):
            await endpoint.pods(LONG)


async def test_a_kubelet_that_hangs_is_an_error_at_the_deadline(tmp_path: Path) -> None:
    over = asyncio.Event()

    async def hang(_request: web.Request) -> web.StreamResponse:
        await over.wait()
        return web.Response()

    async with served(tmp_path, hang) as access, client(access) as endpoint:
        with pytest.raises(PodsUnavailableError, match=r"within 0\.05 s"):
            await endpoint.pods(0.05)
        over.set()


@pytest.mark.parametrize(
    ("status", "words"), [(403, "nodes/pods"), (302, "status 302"), (500, "status 500")]
)
async def test_any_other_status_is_an_error_and_no_redirect_is_followed(
    tmp_path: Path, status: int, words: str
) -> None:
    async def answered(_request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, headers={"Location": "https://127.0.0.1:1/"})

    async with served(tmp_path, answered) as access, client(access) as endpoint:
        with pytest.raises(PodsUnavailableError, match=words):
            await endpoint.pods(LONG)


async def test_no_list_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def answered(_request: web.Request) -> web.StreamResponse:
        return web.Response(body=content)

    content = json.dumps(LIST).encode()
    async with served(tmp_path, answered) as access, client(access) as endpoint:
        await endpoint.pods(LONG)
        monkeypatch.setattr(pods_endpoint, "LONGEST_ANSWER", len(content) - 1)
        with pytest.raises(PodsUnavailableError, match="more than"):
            await endpoint.pods(LONG)
        content = b"<html>"
        with pytest.raises(PodsUnavailableError, match="not a list of pods"):
            await endpoint.pods(LONG)
