from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.config.model import CgroupDriver
from tests.agent.server.changes import settled
from tests.agent.server.sites import make_site, site_config
from tests.agent.server.support import make_world

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.server.sites import Site


@pytest.fixture
def units(tmp_path: Path, host_root: Path) -> Site:
    """Return a host whose cgroups systemd makes, on which nothing was ever started."""
    return make_site(site_config(make_world(tmp_path, host_root).config, CgroupDriver.SYSTEMD))


@pytest.fixture(params=CgroupDriver)
def site(request: pytest.FixtureRequest, tmp_path: Path, host_root: Path) -> Site:
    """Return a host of each driver on which nothing was ever started."""
    return make_site(site_config(make_world(tmp_path, host_root).config, request.param))


@pytest.fixture(scope="module", params=list(CgroupDriver))
def host(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, host_root: Path
) -> Site:
    """Return the settled host of a driver; play on copies of it."""
    world = make_world(tmp_path_factory.mktemp("settled"), host_root)
    return settled(site_config(world.config, request.param))
