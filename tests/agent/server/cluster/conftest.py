"""The host of the tests of what answers a container runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.server.cluster import runtime_events
from tests.agent.server.cluster.beside import make_node

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.server.sites import Site


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Return a node on which decisions are ready in time on a busy machine, too."""
    monkeypatch.setattr(runtime_events, "DECISION_SECONDS", 60.0)
    return make_node(tmp_path)
