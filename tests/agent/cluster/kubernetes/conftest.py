from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.cluster.kubernetes.access import ApiAccess
from agent.cluster.kubernetes.api_server import ApiServer
from tests.fakes.api_server import TOKEN, api_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fakes.api_server import FakeApiServer


@pytest.fixture
def fake(certificate: Path) -> Iterator[FakeApiServer]:
    with api_server(certificate) as fake:
        yield fake


@pytest.fixture
def access(fake: FakeApiServer, certificate: Path, tmp_path: Path) -> ApiAccess:
    """Return the way to the fake server, with its token in a file."""
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    return ApiAccess("127.0.0.1", fake.port, "", token, certificate)


@pytest.fixture
def server(access: ApiAccess) -> ApiServer:
    """Return a client that waits long enough for any answer that comes at all."""
    return ApiServer(access, 60.0)
