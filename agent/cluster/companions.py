"""The loops that run beside the agent's own where there is a kubelet; imported only then.

In: the configuration and the intake of the kubelet's pods. Out: a `Companion` for each of: the
answers to the container runtime, the kubelet's devices, and, for pods that opted in, the answers to
the kubelet's device manager.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from agent.api.documents.status import RuntimeDocument
from agent.cluster.kubelet.devices import KubeletDevices
from agent.cluster.kubelet.source import KubeletPods
from agent.cluster.opt_in import OptInAdmissions
from agent.cluster.runtime_events import SUBJECT, RuntimeEvents
from agent.server import metrics as names
from agent.server.lifecycle import Companion
from agent.server.watches import directory_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from agent.cluster.kubelet.exclusive_plugin import ExclusivePlugin
    from agent.cluster.nri.session import SessionState
    from agent.config.cluster import BesideKubeletConfig
    from agent.server.controller import Controller
    from agent.server.intake import PodIntake


_PLUGIN: Final = "device plugin of the kubelet"
_DEVICES: Final = "devices of the kubelet"
#: The longest time after which the runtime gets an answer, with settings or without, in seconds:
#: it waits 2 s if it does not say otherwise, and handles no other request meanwhile.
_LONGEST_ANSWER: Final = 1.6

log = structlog.get_logger(__name__)


def of_kubelet(
    config: BesideKubeletConfig, controller: Controller, intakes: Iterable[PodIntake]
) -> Iterator[Companion]:
    """Yield the companions that a configuration asks for, for the intake of the kubelet's pods."""
    devices = controller.state.parts.kubelet_devices
    if isinstance(devices, KubeletDevices):
        yield Companion(_DEVICES, partial(devices.follow, controller.clock))
    for intake in intakes:
        if not isinstance(intake.source, KubeletPods):
            continue
        if config.nri_socket is not None:
            yield _runtime(config.nri_socket, config, controller, intake, intake.source)
        if config.exclusive_resource:
            plugin = _exclusive_plugin(config, controller, intake, intake.source)
            yield Companion(_PLUGIN, plugin.serve)


def _runtime(
    socket: Path,
    config: BesideKubeletConfig,
    controller: Controller,
    intake: PodIntake,
    pods: KubeletPods,
) -> Companion:
    from agent.cluster.nri.session import NriSession  # noqa: PLC0415  # if it is on

    events = RuntimeEvents(controller, pods, intake, config.on_reject)
    session = NriSession(
        socket, events, controller.clock, seconds=_LONGEST_ANSWER, observe=events.observe
    )
    controller.state.parts.runtime = lambda: _runtime_document(session.state)

    async def serve() -> None:
        try:
            await session.serve()
        finally:
            await events.close()

    return Companion(SUBJECT, serve)


def _runtime_document(session: SessionState) -> RuntimeDocument:
    runtime = session.runtime
    return RuntimeDocument(
        connected=session.connected,
        since=session.since,
        name="" if runtime is None else runtime.name,
        version="" if runtime is None else runtime.version,
        nri_version="" if runtime is None else runtime.nri_version,
        connections=session.connections,
        error="" if session.connected else session.last_error,
    )


def _exclusive_plugin(
    config: BesideKubeletConfig, controller: Controller, intake: PodIntake, pods: KubeletPods
) -> ExclusivePlugin:
    from agent.cluster.kubelet.exclusive_plugin import ExclusivePlugin  # noqa: PLC0415  # if it is on

    conditions = controller.state.observed.conditions

    def report(line: str) -> None:
        if line:
            conditions[config.exclusive_resource] = line
        else:
            conditions.pop(config.exclusive_resource, None)

    decisions = OptInAdmissions(config.exclusive_resource, controller, pods, intake.sync)
    return ExclusivePlugin(
        config.plugin_directory,
        config.exclusive_resource,
        decisions.decide,
        directory_names,
        controller.clock,
        report,
        partial(controller.metrics.counters.add, names.OPT_IN_ANSWERS),
    )
