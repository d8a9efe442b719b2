"""The devices that a kubelet beside the agent gave; gRPC is imported only with one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.server.errors import missing_extra

if TYPE_CHECKING:
    from agent.config.model import Config
    from agent.kubelet.devices.kubelet_devices import KubeletDevices
    from agent.server.queue import Worker


def devices_of_kubelet(config: Config, worker: Worker) -> KubeletDevices | None:
    """Return the devices of the kubelet beside the agent, None without one.

    Raises `StartError` without the extra grpc.
    """
    if not config.agent.kubelet.enabled:
        return None
    try:
        from agent.kubelet.devices.kubelet_devices import (  # noqa: PLC0415  # needs the extra
            KubeletDevices,
        )
    except ImportError as error:
        raise missing_extra("agent.kubelet.enabled", error) from error
    kubelet = config.agent.kubelet
    return KubeletDevices(kubelet.directory, worker.run, kubelet.exclusive_resource)
