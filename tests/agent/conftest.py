from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Final

import pytest
import structlog

from sysfs.described import write_tree
from tests.agent.server.support import PATIENCE, in_loop, make_world, two_packages
from tests.fakes.certificate import write_certificate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.agent.server.support import World


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an asynchronous test to its end in a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = pyfuncitem._fixtureinfo.argnames
    in_loop(pyfuncitem.obj)(**{name: pyfuncitem.funcargs[name] for name in given})
    return True


@pytest.fixture(scope="session", autouse=True)
def _quiet_log() -> None:
    """Keep the log out of what commands print, and tracebacks from being drawn (0.5 s each)."""
    structlog.configure(
        processors=[structlog.processors.format_exc_info, structlog.processors.KeyValueRenderer()],
        logger_factory=structlog.ReturnLoggerFactory(),
        cache_logger_on_first_use=False,
    )


#: How long neighbours may take that answer within a moment, unless nothing runs for so long.
_MOMENTS: Final = (
    "agent.cluster.kubelet.pod_resources.GET_SECONDS",
    "agent.cluster.kubelet.pod_resources.LIST_SECONDS",
    "agent.isolation.places._ANSWER_SECONDS",
    "agent.cluster.pod_decisions.ASK_SECONDS",
)


@pytest.fixture(scope="session", autouse=True)
def _patient() -> Iterator[None]:
    """Wait for answers as long as a busy machine takes; tests of what is late make that short."""
    with pytest.MonkeyPatch.context() as patched:
        for name in _MOMENTS:
            patched.setattr(name, PATIENCE)
        yield


@pytest.fixture(scope="session")
def host_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lay out one described host for all tests that only read it."""
    root = tmp_path_factory.mktemp("two_packages")
    write_tree(two_packages(), root)
    return root


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a certificate for 127.0.0.1 with its key, both in one PEM file."""
    return write_certificate(tmp_path_factory.mktemp("tls") / "localhost.pem")


@pytest.fixture
def world(tmp_path: Path, host_root: Path) -> World:
    """Return a host with its kernel and a configuration, in which an agent can be run."""
    return make_world(tmp_path, host_root)
