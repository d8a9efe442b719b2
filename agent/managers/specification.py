"""The specification that an allocation was decided on, as the allocation keeps it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.managers.device.kubelet import given_devices
from agent.pods.saved import pod_of

if TYPE_CHECKING:
    from agent.managers.allocation import PodAllocation
    from agent.pods.model import Pod


def specification_of(allocation: PodAllocation) -> Pod | None:
    """Return the specification of a pod, None if it is not known.

    That of an imported or recovered pod, and of one that an older release saved, is not known until
    it is admitted again.
    """
    if not allocation.spec:
        return None
    pod = pod_of(allocation.spec, allocation, allocation.annotations)
    given = {each.name: tuple(given_devices(each)) for each in allocation.containers}
    devices = {name: of_container for name, of_container in given.items() if of_container}
    return replace(pod, given_devices=devices) if devices else pod
