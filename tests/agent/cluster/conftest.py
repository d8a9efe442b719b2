"""The host of the tests of what answers a container runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.agent.cluster.beside import make_node

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.server.sites import Site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Return a node on which a kubelet has made its cgroups."""
    return make_node(tmp_path)
