"""Settings of all tests."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from pathlib import Path

# Timings never gate a test: how long an example takes is the machine's business.
settings.register_profile("numawarden", deadline=None)
settings.load_profile("numawarden")

# What a shell starts in the background ignores SIGINT, and so would all that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory as pytest's own fixture does, but with a short name.

    Tests make sockets below the directory, and the path of a socket has at most 107 bytes
    (unix(7)): with the directory of a user's thousandth run and of a worker before, pytest's
    30 letters of the test's name leave too few.
    """
    return tmp_path_factory.mktemp(re.sub(r"\W", "_", request.node.name)[:8])
