"""Runs the agent as a process: log, signals, event loop, and a small memory footprint."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import structlog

from agent import __version__
from agent.server.clock import SystemClock
from agent.server.reporting import logs
from agent.server.start.service_manager import ServiceManager
from agent.server.start.wiring import Wiring

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.config.config import Config
    from agent.server.lifecycle import Service
    from agent.server.start.wiring import Fakes

log = structlog.get_logger(__name__)

STOPPING: Final = (signal.SIGTERM, signal.SIGINT)


def run(config: Config, fakes: Fakes | None = None) -> None:
    """Run the agent until it is stopped; raises what `Wiring` raises.

    SIGTERM and SIGINT stop the agent. SIGHUP makes it read the host and the manifests again and
    reconcile; the configuration is read only at the start. Neither a stop nor a restart changes
    running workloads.
    """
    logs.configure(config.agent.logging.format, config.agent.logging.level)
    manager = ServiceManager.of(os.environ)
    log.info("starting", version=__version__, pid=os.getpid())
    with Wiring(config, manager, SystemClock(), fakes) as service:
        settle_memory()
        asyncio.run(_serve(service))


async def _serve(service: Service) -> None:
    loop = asyncio.get_running_loop()
    for number in STOPPING:
        loop.add_signal_handler(number, service.stop)
    loop.add_signal_handler(signal.SIGHUP, service.resync)
    await service.run()


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Disable the garbage collector during imports, which create only permanent objects."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def import_structlog_without_rich() -> None:
    """Import structlog as if rich were not installed, unless either is imported already.

    structlog imports rich for coloured tracebacks, which a service never prints: 3 MiB and 0.1 s.
    """
    if "structlog" in sys.modules or "rich" in sys.modules:
        return
    hidden: dict[str, None] = {"rich": None}
    sys.modules.update(hidden)  # type: ignore[arg-type]  # None makes the import fail
    try:
        import structlog  # noqa: F401, PLC0415  # imported for its effect, at this moment
    finally:
        del sys.modules["rich"]


def settle_memory() -> None:
    """Exempt all present objects from garbage collection, once the agent has started.

    Modules, the host and the restored pods live as long as the process; a collection that scans
    them takes tens of milliseconds, possibly during an admission.
    """
    gc.collect()
    gc.freeze()
