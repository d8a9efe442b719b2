"""Runs the agent as a process: log, signals and event loop."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Final

import structlog

from agent import __version__
from agent.clock import SystemClock
from agent.config.document import config_keys, differing_keys
from agent.config.gates import gate_notes
from agent.config.load import load_config_file
from agent.config.model import ConfigError
from agent.server import log_output as logs
from agent.server.listener import report_to
from agent.server.log import LimitedLog
from agent.server.memory import settle_memory
from agent.server.service_manager import ServiceManager
from agent.server.wiring import Wiring
from systemd.journal import Journal, is_journal

if TYPE_CHECKING:
    from agent.api.documents.status import ConfigurationDocument
    from agent.config.model import Config
    from agent.server.lifecycle import Service
    from agent.server.plugs import Fakes, Plugs


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
    reconcile; the configuration is in effect only from a start on, so that a warning says of a file
    that changed since. Neither a stop nor a restart changes
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
        asyncio.run(_serve(service, configuration))


async def _serve(service: Service, configuration: ConfigurationDocument | None = None) -> None:
    loop = asyncio.get_running_loop()

    def hang_up() -> None:
        service.resync()
        if configuration is not None:
            # Not in the loop: the file may be on a file system that does not answer.
            Thread(target=_compare, args=(configuration,), daemon=True).start()

    loop.set_exception_handler(report_to(LimitedLog(log)))
    for number in STOPPING:
        loop.add_signal_handler(number, service.stop)
    loop.add_signal_handler(signal.SIGHUP, hang_up)
    await service.run()


def _compare(running: ConfigurationDocument) -> None:
    """Log whether the file of the configuration is still what the agent runs with."""
    file = running.file
    try:
        written = config_keys(load_config_file(Path(file), running.settings))
    except (OSError, ConfigError) as error:
        effect = "the configuration stays as it was; with this file the agent would not start again"
        log.warning(effect, file=file, error=str(error))
        return
    differing = [path for path, _, _ in differing_keys(written, running.keys)]
    if differing:
        effect = "the configuration stays as it was; a restart applies what changed in the file"
        log.warning(effect, file=file, keys=differing)
    else:
        log.info("the configuration file has not changed", file=file)
