"""Makes what publishes to a cluster, if it is configured; nothing of it is imported otherwise."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from agent.server.errors import StartError

if TYPE_CHECKING:
    from agent.config.config import Config
    from agent.server.control.controller import Controller
    from agent.server.publishing import Publishing


def make_publishing(config: Config, controller: Controller) -> Publishing | None:
    """Return what publishes to the cluster, None if nothing is configured (`agent.kubernetes`).

    Files of credentials are looked at when they are used, since both may come later. Raises
    `StartError` if no API server is known.
    """
    kubernetes = config.agent.kubernetes
    if not kubernetes.enabled:
        return None
    # Only here: an agent outside of clusters saves their memory.
    from agent.kubernetes.access import AccessError, api_access, node_name  # noqa: PLC0415
    from agent.kubernetes.api_server import ApiServer  # noqa: PLC0415
    from agent.server.publishing import Publishing  # noqa: PLC0415

    try:
        access = api_access(kubernetes, os.environ)
    except AccessError as error:
        raise StartError(f"agent.kubernetes.{error.key}", error.found, error.remedy) from error
    node = node_name(kubernetes, os.environ)
    return Publishing(controller, ApiServer(access), node, kubernetes)
