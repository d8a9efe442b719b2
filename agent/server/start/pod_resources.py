"""Opens the podresources listener, if it is configured; gRPC is imported only then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from agent.server.errors import StartError, missing_extra

if TYPE_CHECKING:
    from pathlib import Path

    from agent.config.model import Config
    from agent.server.controller import Controller
    from agent.server.lifecycle import Listeners

#: As the kubelet makes the directory: for its user and group alone.
_DIRECTORY_MODE: Final = 0o750


def with_pod_resources(listeners: Listeners, config: Config, controller: Controller) -> Listeners:
    """Return the listeners with that of podresources, unchanged if it is not configured.

    Its directory is created. Raises `StartError` if another process listens on the socket, if the
    path cannot be used, or without the extra grpc.
    """
    path, version = config.agent.pod_resources.socket, config.agent.pod_resources.version
    if path is None:
        return listeners
    try:
        from agent.server.listeners.pod_resources import (  # noqa: PLC0415  # needs the extra
            PodResourcesListener,
        )
    except ImportError as error:
        raise missing_extra("agent.podResources.socket", error) from error
    _make_directory(path.parent)
    counters = controller.metrics.counters
    listener = PodResourcesListener(path, controller.state, counters, controller.clock, version)
    return replace(listeners, pod_resources=listener)


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True)
        path.chmod(_DIRECTORY_MODE)
    except FileExistsError:
        return
    except OSError as error:
        remedy = f"create the directory: install -d -m 0750 {path}"
        raise StartError(f"directory {path}", error.strerror or str(error), remedy) from error
