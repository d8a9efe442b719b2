from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import structlog

from sysfs.tree import write_tree
from tests.agent.service.support import make_world, two_packages

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.service.support import World


@pytest.fixture(scope="session", autouse=True)
def _no_pictures_in_the_log() -> None:
    """Keep structlog from drawing every traceback, which takes half a second each."""
    structlog.configure(
        processors=[structlog.processors.format_exc_info, structlog.processors.KeyValueRenderer()],
        cache_logger_on_first_use=False,
    )


@pytest.fixture(scope="session")
def host_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lay out one described host for all tests that only read it."""
    root = tmp_path_factory.mktemp("two_packages")
    write_tree(two_packages(), root)
    return root


@pytest.fixture
def world(tmp_path: Path, host_root: Path) -> World:
    """Return a host with its kernel and a configuration, in which an agent can be run."""
    return make_world(tmp_path, host_root)
