"""What runs beside the agent's own loops where there is a kubelet; imported only then."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from agent.cluster.kubelet.source import KubeletPods
from agent.cluster.runtime_events import SUBJECT, RuntimeEvents
from agent.server import metrics as names
from agent.server.lifecycle import Companion, directory_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from agent.cluster.kubelet.exclusive_plugin import ExclusivePlugin
    from agent.config.model import BesideKubeletConfig
    from agent.server.controller import Controller
    from agent.server.intake import PodIntake


_PLUGIN: Final = "device plugin of the kubelet"
_DEVICES: Final = "devices of the kubelet"
#: After which the runtime gets an answer without settings, in seconds, if it does not say that it
#: waits for less: it waits 2 s, and for no other request meanwhile.
_LONGEST_ANSWER: Final = 1.6


def companions(
    config: BesideKubeletConfig, controller: Controller, intakes: Iterable[PodIntake]
) -> Iterator[Companion]:
    """Yield the companions that a configuration asks for, for the intake of the kubelet's pods."""
    devices = controller.state.kubelet_devices
    if devices is not None:
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

    controller.state.runtime = session

    async def serve() -> None:
        try:
            await session.serve()
        finally:
            await events.close()

    return Companion(SUBJECT, serve)


def _exclusive_plugin(
    config: BesideKubeletConfig, controller: Controller, intake: PodIntake, pods: KubeletPods
) -> ExclusivePlugin:
    from agent.cluster.kubelet.exclusive_plugin import ExclusivePlugin  # noqa: PLC0415  # if it is on
    from agent.cluster.opt_in import OptInAdmissions  # noqa: PLC0415

    conditions = controller.state.conditions

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
