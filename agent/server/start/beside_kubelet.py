"""What runs beside the agent's own loops where there is a kubelet; imported only then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.server.cluster.runtime_events import SUBJECT, RuntimeEvents
from agent.server.lifecycle import Companion
from agent.sources.kubelet import KubeletPods

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agent.config.config import BesideKubeletConfig
    from agent.server.control.controller import Controller
    from agent.server.intake import PodIntake


def companions(
    config: BesideKubeletConfig, controller: Controller, intakes: Iterable[PodIntake]
) -> Iterator[Companion]:
    """Yield the companions that a configuration asks for, for the intake of the kubelet's pods."""
    for intake in intakes:
        if not isinstance(intake.source, KubeletPods):
            continue
        if config.nri_socket is not None:
            from agent.runtimes.nri.session import NriSession  # noqa: PLC0415  # if it is on

            events = RuntimeEvents(controller, intake.source, intake.sync, config.on_reject)
            session = NriSession(config.nri_socket, events, controller.clock)
            yield Companion(SUBJECT, session.serve)
