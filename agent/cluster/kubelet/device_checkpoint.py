"""The kubelet's file of the devices that its plugins gave to containers (`DeviceCheckpoint`).

In: the file in the kubelet's directory. Out: the devices of each pod, or `DeviceCheckpointError`.
The kubelet's device manager replaces the file whenever a container got devices; it is parsed only
when it has changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta, Struct

from agent.files import UntrustedPathError, read_trusted
from agent.pods.model import NO_GIVEN_DEVICES, GivenDevice
from sysfs.mask import EMPTY, MAX_ID, Mask

if TYPE_CHECKING:
    from pathlib import Path

    from agent.pods.model import GivenDevices, Pod

#: In the kubelet's directory.
FILE: Final = "device-plugins/kubelet_internal_checkpoint"
#: The most bytes that are read. A container has an entry of a few KiB for each resource (the
#: plugin's response).
LONGEST: Final = 8 << 20
#: In place of a NUMA node: the plugin reports none for the device.
_NO_NODE: Final = -1
_FORMAT: Final = (
    "this release does not know the format: report the kubelet's release; meanwhile the kubelet is "
    "asked over podresources"
)


class DeviceCheckpointError(Exception):
    """The file cannot be read: `fault` says why, `remedy` what to do."""

    def __init__(self, path: Path, fault: str, remedy: str) -> None:
        super().__init__(f"{path}: {fault}; {remedy}")
        self.path = path
        self.remedy = remedy


class DeviceCheckpoint:
    """`kubelet_internal_checkpoint` of one kubelet.

    `own` is the resource of which the agent itself is the plugin, "" without one. The checksum is
    not compared: the file is never half written (it is renamed into its place), and a kubelet that
    adds a field to it computes the sum in another way.
    """

    def __init__(self, directory: Path, own: str = "") -> None:
        self.path = directory / FILE
        self._own = own
        #: The content with the identity of the file (inode, time, size).
        self._content: tuple[tuple[int, int, int], CheckpointContent] | None = None

    def read(self) -> CheckpointContent:
        """Return what the file says now; raises `DeviceCheckpointError`.

        A kubelet without a file has given no device yet.
        """
        try:
            status = self.path.stat()
            # If the kubelet replaces the file now, this identity is that of the former one, and the
            # file is read again.
            identity = (status.st_ino, status.st_mtime_ns, status.st_size)
            if self._content is None or self._content[0] != identity:
                self._content = (identity, self._parsed(read_trusted(self.path, LONGEST)))
        except FileNotFoundError as error:
            if self.path.parent.is_dir():
                return CheckpointContent(_Data())
            raise DeviceCheckpointError(
                self.path.parent,
                "there is no such directory",
                "set agent.kubelet.directory to the kubelet's --root-dir",
            ) from error
        except UntrustedPathError as error:
            raise DeviceCheckpointError(self.path, str(error.risk), error.risk.remedy) from error
        except OSError as error:
            remedy = f"make it readable to the agent: ls -l {self.path}"
            raise DeviceCheckpointError(self.path, error.strerror or str(error), remedy) from error
        return self._content[1]

    def awaits(self, pod: Pod) -> bool:
        """Return whether the kubelet has yet to give a pod devices; it does so when it admits it.

        The agent's own resource does not count: it is given while the agent decides. If the file
        cannot be read, the answer is False.
        """
        try:
            return bool(self.read().awaited(pod) - {self._own})
        except DeviceCheckpointError:
            return False

    def _parsed(self, content: bytes) -> CheckpointContent:
        try:
            return CheckpointContent(msgspec.json.decode(content, type=_Document).Data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
            fault = str(error) if content else "the file is empty"
            raise DeviceCheckpointError(self.path, fault, _FORMAT) from error


class CheckpointContent:
    """What the file says."""

    def __init__(self, data: _Data) -> None:
        #: The resources of plugins that registered.
        self.registered = frozenset(data.RegisteredDevices or ())
        self._entries: dict[str, list[_Entry]] = {}
        for entry in data.PodDeviceEntries or ():
            self._entries.setdefault(entry.PodUID, []).append(entry)

    def of(self, uid: str) -> GivenDevices:
        """Return the devices of a pod, none of a pod that the file does not have."""
        devices: dict[str, tuple[GivenDevice, ...]] = {}
        for entry in self._entries.get(uid, ()):
            others = devices.get(entry.ContainerName, ())
            devices[entry.ContainerName] = (*others, *entry.devices())
        return devices or NO_GIVEN_DEVICES

    def awaited(self, pod: Pod) -> frozenset[str]:
        """Return the resources of plugins that a container asks for and does not have yet."""
        given = self.of(pod.uid)
        return frozenset(
            resource
            for container in pod.all_containers()
            for resource, amount in container.resources.limits.items()
            if resource in self.registered
            and amount.value
            and all(each.resource != resource for each in given.get(container.name, ()))
        )


_Node: TypeAlias = Annotated[int, Meta(ge=_NO_NODE, le=MAX_ID)]


class _Entry(Struct):
    """The devices of one resource that a container has; a device of several nodes is at each."""

    PodUID: str
    ContainerName: str
    ResourceName: str
    DeviceIDs: dict[_Node, list[str] | None] | None = None

    def devices(self) -> tuple[GivenDevice, ...]:
        nodes: dict[str, Mask] = {}
        for node, ids in sorted((self.DeviceIDs or {}).items()):
            place = EMPTY if node == _NO_NODE else Mask.of(node)
            for each in ids or ():
                nodes[each] = nodes.get(each, EMPTY) | place
        return tuple(GivenDevice(self.ResourceName, each, on) for each, on in nodes.items())


class _Data(Struct):
    PodDeviceEntries: list[_Entry] | None = None
    RegisteredDevices: dict[str, object] | None = None


class _Document(Struct):
    Data: _Data
