"""Running the agent as a process: log, signals, and the loop."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Final

import structlog

from agent import __version__, logs
from agent.lean import settle_memory
from agent.service.assembly import Assembly
from agent.service.clock import SystemClock
from agent.service.manager import ServiceManager

if TYPE_CHECKING:
    from agent.config.config import Config
    from agent.service.assembly import Surrogates
    from agent.service.service import Service

log = structlog.get_logger(__name__)

STOPPING: Final = (signal.SIGTERM, signal.SIGINT)


def run(config: Config, surrogates: Surrogates | None = None) -> None:
    """Run the agent until it is told to stop; raises what `Assembly` raises.

    SIGTERM and SIGINT stop it. SIGHUP has it look at the host, the manifests and the kernel again;
    the configuration is read at the start only, and a restart touches no workload.
    Whatever runs in the pods' cgroups is left exactly as it is when this returns.
    """
    logs.configure(config.agent.logging.format, config.agent.logging.level)
    manager = ServiceManager.of(os.environ)
    log.info("starting", version=__version__, pid=os.getpid())
    with Assembly(config, manager, SystemClock(), surrogates) as service:
        settle_memory()
        asyncio.run(_serve(service))


async def _serve(service: Service) -> None:
    loop = asyncio.get_running_loop()
    for number in STOPPING:
        loop.add_signal_handler(number, service.stop)
    loop.add_signal_handler(signal.SIGHUP, service.look_again)
    await service.run()
