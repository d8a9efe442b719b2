"""The devices of the kubelet's own plugins, as the agent knows them now (`KubeletDevices`).

In: the kubelet's file and its podresources. Out: the devices of a pod, before the agent decides on
it; the last list of all devices, for what shows them (documents of pods, the map, podresources of
the agent, the node topology); and conditions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import structlog

from agent.cluster.kubelet.device_checkpoint import DeviceCheckpoint, DeviceCheckpointError
from agent.cluster.kubelet.pod_resources import SOCKET, PodResourcesClient
from agent.managers.device.kubelet import NOT_LISTED, KubeletListing
from agent.pods.model import NO_GIVEN_DEVICES
from agent.rpc.calls import CallError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from agent.clock import Clock
    from agent.pods.model import GivenDevices, Pod

log = structlog.get_logger(__name__)

#: The pause after an answer about all pods, in seconds.
REFRESH_SECONDS: Final = 10.0
_Result = TypeVar("_Result")


class InThread(Protocol):
    """Runs a blocking call beside the event loop."""

    def __call__(self, call: Callable[[], _Result], /) -> Awaitable[_Result]:
        """Return what the call returns."""
        ...


class KubeletDevices:
    """The devices of one kubelet.

    `own` is the resource of which the agent itself is the plugin, "" for none. Its devices are on
    no NUMA node and are left out.
    """

    def __init__(self, directory: Path, in_thread: InThread, own: str = "") -> None:
        self._checkpoint = DeviceCheckpoint(directory, own)
        self._own = own
        self._client = PodResourcesClient(directory / SOCKET)
        self._in_thread = in_thread
        #: The last answer about all pods. It stays while the kubelet does not answer, since pods
        #: keep their devices.
        self.listed: KubeletListing = NOT_LISTED
        #: The conditions that the devices of a pod, and those of all pods, are not known.
        self._unread = ""
        self._unlisted = ""

    @property
    def conditions(self) -> tuple[str, ...]:
        """Which devices are not known, a line each."""
        return tuple(filter(None, (self._unread, self._unlisted)))

    async def of(self, pod: Pod) -> GivenDevices:
        """Return the devices of a pod, by container; none where they are not known."""
        return _without(self._own, await self._of(pod))

    async def _of(self, pod: Pod) -> GivenDevices:
        try:
            content = await self._in_thread(self._checkpoint.read)
        except DeviceCheckpointError as error:
            return await self._asked(pod, str(error))
        self._note_read("")
        given = content.of(pod.uid)
        # While the kubelet admits the pod, the file may lack devices: then the kubelet is asked.
        if not content.awaited(pod) - {self._own}:
            return given
        try:
            return await self._client.of(pod.namespace, pod.name) or given
        except CallError:
            return given

    async def follow(self, clock: Clock) -> None:
        """Ask for the devices of all pods again and again, until cancelled."""
        while True:
            await self.refresh()
            await clock.sleep(REFRESH_SECONDS)

    async def refresh(self) -> None:
        """Ask for the devices of all pods once."""
        try:
            listed = await self._client.all()
        except CallError as error:
            self._note_listed(str(error))
            return
        self._note_listed("")
        listed = _listed_without(self._own, listed)
        if listed != self.listed:
            self.listed = listed

    async def _asked(self, pod: Pod, why: str) -> GivenDevices:
        try:
            given = await self._client.of(pod.namespace, pod.name)
        except CallError as error:
            self._note_read(f"{why}; podresources of the kubelet: {error}")
            return NO_GIVEN_DEVICES
        self._note_read("")
        return given

    def _note_read(self, why: str) -> None:
        if why and not self._unread:
            log.warning("devices of the kubelet not known", why=why)
        self._unread = (
            f"the devices of the kubelet's plugins are not known, so that CPUs and memory of new "
            f"pods may be far from them: {why}"
            if why
            else ""
        )

    def _note_listed(self, why: str) -> None:
        if why and not self._unlisted:
            log.warning("devices of the kubelet not listed", why=why)
        self._unlisted = (
            f"the map, podresources and the node topology may lack devices of the kubelet's "
            f"plugins: the kubelet's podresources do not answer: {why}; see that the kubelet runs: "
            "systemctl status kubelet"
            if why
            else ""
        )


def _listed_without(own: str, listed: KubeletListing) -> KubeletListing:
    """Return a list without the devices of a resource, and without pods that have no other."""
    pods = {name: _without(own, given) for name, given in listed.pods.items()}
    return KubeletListing(
        {name: given for name, given in pods.items() if given},
        tuple(each for each in listed.allocatable if each.resource != own),
        listed.claims,
    )


def _without(own: str, given: GivenDevices) -> GivenDevices:
    """Return the devices without those of a resource, and without containers that have no other."""
    if not own:
        return given
    rest = {
        name: tuple(each for each in devices if each.resource != own)
        for name, devices in given.items()
    }
    return {name: devices for name, devices in rest.items() if devices}
