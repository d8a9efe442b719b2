"""Settings of all tests."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Final

import pytest
from hypothesis import settings

# Timings never gate a test: how long an example takes is the machine's business.
settings.register_profile("numawarden", deadline=None)
settings.load_profile("numawarden")

#: The tests save tens of thousands of checkpoints, each with its syncs, and a disk that others use
#: too takes up to a tenth of a second for one.
_MEMORY: Final = Path("/dev/shm")  # pytest makes its directory there, for its user
#: A whole run leaves 2 GB until its end, and programs that it executes.
_ENOUGH: Final = 6 << 30
if _MEMORY.is_dir():
    found = os.statvfs(_MEMORY)
    if found.f_bavail * found.f_frsize >= _ENOUGH and not found.f_flag & os.ST_NOEXEC:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))

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
