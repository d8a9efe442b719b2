from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from agent.cluster.kubelet import pods_endpoint
from agent.cluster.kubelet.pods import PodsUnavailableError
from agent.cluster.kubelet.pods_endpoint import EndpointAccess, PodsEndpoint
from tests.agent.server.support import UID
from tests.fakes.certificate import write_certificate
from tests.fakes.kubelet.endpoint import PodsEndpoint as FakeEndpoint
from tests.fakes.kubelet.pods import KubeletPod

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

#: Longer than any answer takes, on however busy a machine.
LONG = 60.0
WEB = {
    "metadata": {"uid": UID, "name": "web", "namespace": "shop"},
    "spec": {"containers": [{"name": "main"}]},
}


@asynccontextmanager
async def served(directory: Path) -> AsyncIterator[tuple[FakeEndpoint, EndpointAccess]]:
    """Yield the endpoint of a kubelet with a certificate of its own, and how it is reached."""
    certificate, token = write_certificate(directory / "kubelet.crt"), directory / "token"
    token.write_text("secret\n")
    fake = FakeEndpoint([KubeletPod(WEB, "Running")], certificate, "secret")
    await fake.start()
    try:
        yield fake, EndpointAccess(fake.url, token, certificate)
    finally:
        await fake.stop()


@asynccontextmanager
async def client(access: EndpointAccess, **changed: object) -> AsyncIterator[PodsEndpoint]:
    known = {name: getattr(access, name) for name in access.__struct_fields__}
    endpoint = PodsEndpoint(EndpointAccess(**{**known, **changed}))
    try:
        yield endpoint
    finally:
        await endpoint.close()


async def test_pods_are_listed_with_the_token_over_a_checked_certificate(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, access), client(access) as endpoint:
        assert [pod.uid for pod in (await endpoint.pods(LONG)).pods] == [UID]


async def test_the_token_is_read_at_each_request(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, access), client(access) as endpoint:
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
    async with served(tmp_path) as (_, access):
        async with client(access, ca_file=None) as endpoint:
            with pytest.raises(PodsUnavailableError, match="certificate"):
                await endpoint.pods(LONG)
        async with client(access, ca_file=None, verified=False) as endpoint:
            await endpoint.pods(LONG)


async def test_a_replaced_file_of_authorities_is_read_again(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, access):
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
    async with served(tmp_path) as (_, access):
        pass
    async with client(access) as endpoint:
        with pytest.raises(PodsUnavailableError, match="kubelet endpoint"):
            await endpoint.pods(LONG)


async def test_a_kubelet_that_hangs_is_an_error_at_the_deadline(tmp_path: Path) -> None:
    async with served(tmp_path) as (fake, access), client(access) as endpoint:
        fake.hanging = True
        with pytest.raises(PodsUnavailableError, match=r"within 0\.05 s"):
            await endpoint.pods(0.05)


@pytest.mark.parametrize(
    ("status", "words"), [(403, "nodes/pods"), (302, "status 302"), (500, "status 500")]
)
async def test_any_other_status_is_an_error_and_no_redirect_is_followed(
    tmp_path: Path, status: int, words: str
) -> None:
    async with served(tmp_path) as (fake, access), client(access) as endpoint:
        fake.reply = (status, b"")
        with pytest.raises(PodsUnavailableError, match=words):
            await endpoint.pods(LONG)


async def test_an_answer_that_is_too_long_or_no_list_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pods_endpoint, "LONGEST_ANSWER", 50)
    async with served(tmp_path) as (fake, access), client(access) as endpoint:
        for length, words in ((50, "not a list of pods"), (51, "more than")):
            fake.reply = (200, b"x" * length)
            with pytest.raises(PodsUnavailableError, match=words):
                await endpoint.pods(LONG)
