from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.tools.playground import EmulatedHost
from tests.browser import program
from tests.browser.devtools import running
from tests.demo.__main__ import EXAMPLES

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def devtools() -> Iterator[str]:
    """Run the browser; give the address of its DevTools."""
    found = program()
    if found is None:
        pytest.skip("no Chromium on this host; `make browser` installs it")
    with running(found) as address:
        yield address


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedHost]:
    """Run the agent of `make demo` with two of its pods; tests leave these as they are."""
    host = EmulatedHost(tmp_path_factory.mktemp("demo"))
    with host.agent("pod"):
        for name in ("shared-only", "mixed"):
            admitted = host.client().admit((EXAMPLES / f"{name}.yaml").read_bytes())
            host.start_containers(admitted.uid)
        host.client().reconcile()
        yield host
