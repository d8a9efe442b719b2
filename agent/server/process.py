"""Runs the agent as a process: log, signals and event loop."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Final

import structlog

from agent import __version__
from agent.clock import SystemClock
from agent.config.model import gate_notes
from agent.server import log as logs
from agent.server.memory import settle_memory
from agent.server.service_manager import ServiceManager
from agent.server.wiring import Wiring
from systemd.journal import Journal, is_journal

if TYPE_CHECKING:
    from agent.api.documents import ConfigurationDocument
    from agent.config.model import Config
    from agent.server.lifecycle import Service
    from agent.server.wiring import Fakes, Plugs


log = structlog.get_logger(__name__)

STANDARD_ERROR: Final = 2
STOPPING: Final = (signal.SIGTERM, signal.SIGINT)


def run(
    config: Config,
    fakes: Fakes | None = None,
    configuration: ConfigurationDocument | None = None,
    *,
    plugs: Plugs,
) -> None:
    """Run the agent until it is stopped; raises what `Wiring` raises.

    `configuration` is what *status* says of the configuration.

    SIGTERM and SIGINT stop the agent. SIGHUP makes it read the host and the manifests again and
    reconcile; the configuration is read only at the start. Neither a stop nor a restart changes
    running workloads.
    """
    journal = Journal() if is_journal(STANDARD_ERROR, os.environ) else None
    logs.configure(config.agent.logging.format, config.agent.logging.level, journal=journal)
    manager = ServiceManager.of(os.environ)
    log.info("starting", version=__version__, pid=os.getpid())
    for note in gate_notes(config.feature_gates):
        log.warning("feature gate changes nothing", note=note)
    wiring = Wiring(config, manager, SystemClock(), plugs, fakes)
    wiring.controller.state.start.configuration = configuration
    with wiring as service:
        settle_memory()
        asyncio.run(_serve(service))


async def _serve(service: Service) -> None:
    loop = asyncio.get_running_loop()
    for number in STOPPING:
        loop.add_signal_handler(number, service.stop)
    loop.add_signal_handler(signal.SIGHUP, service.resync)
    await service.run()
