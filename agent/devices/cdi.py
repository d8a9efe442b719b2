"""What was delivered to a pod's containers: checked, specified and written for container runtimes.

A provider of devices is another program, and what it answers becomes files, mounts and arguments
of commands, so `checked` looks at it before it is saved; the kubelet hands the values on unread.
`specification` makes of it the Container Device Interface of a pod, `CdiFiles` the pod's file.

A pod has one specification with a device for each container that has something to edit. Rules and
versions are those of CDI 0.8 (tags.cncf.io/container-device-interface, SPEC.md and its library). A
device of CDI cannot name devices of other specifications, and its annotations are for readers of
the file, not for the container: CDI names and annotations of a delivery are given beside it.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import msgspec

from agent.devices.provider import DeviceError
from agent.files import (
    UntrustedPathError,
    is_current,
    own_file,
    replace_file,
    take,
    trusted_directory,
)
from agent.pods.model import full_name, uid_fault
from agent.yaml import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from agent.managers.allocation import PodAllocation
    from agent.managers.delivery import Delivery, DeviceNode, Mount


KIND: Final = "numawarden.dev/pod"
#: The versions of the specification that a runtime with CDI 0.8 reads, oldest first.
VERSIONS: Final = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0")
_EARLIEST, _HOST_PATH, _DOTTED_CLASS = "0.3.0", "0.5.0", "0.6.0"

#: What a uid almost always is: a UUID, or the 32 hexadecimal digits of a generated one.
_USUAL_UID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}")
_VENDOR_OR_CLASS: Final = re.compile(r"[A-Za-z](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?")
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.:]*[A-Za-z0-9])?")


class _Part(
    msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """Base of what a specification consists of; a runtime rejects fields that it does not know."""


class NodeEdit(_Part, frozen=True):
    """A device node; without `host_path` the host has it at `path`, too."""

    path: str
    host_path: str = ""
    permissions: str = ""


class MountEdit(_Part, frozen=True):
    """A mount, with options of mount(8)."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()


class ContainerEdits(_Part, frozen=True):
    """What a runtime changes in a container; `env` are texts `NAME=value`."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[NodeEdit, ...] = ()
    mounts: tuple[MountEdit, ...] = ()


class CdiDevice(_Part, frozen=True):
    """A device that a container can be given by its name."""

    name: str
    container_edits: ContainerEdits


class Specification(_Part, frozen=True):
    """The content of one file."""

    cdi_version: str
    kind: str
    devices: tuple[CdiDevice, ...]


def device_name(uid: str, container: str) -> str:
    """Return the name of a container's device: `<uid>-<container>`.

    It is `<uid>_<container>` if the uid is neither a UUID nor 32 hexadecimal digits: such uids may
    end like the name of a container begins, and two devices of one name are none to a runtime.
    """
    return f"{uid}{'-' if _USUAL_UID.fullmatch(uid) else '_'}{container}"


def device_names(allocation: PodAllocation) -> dict[str, str]:
    """Return the fully qualified CDI name by container, of those that have a device."""
    return {
        container.name: f"{KIND}={device_name(allocation.uid, container.name)}"
        for container in allocation.delivered
        if _has_edits(container.delivery)
    }


def specification(allocation: PodAllocation) -> Specification | None:
    """Return the specification of a pod, None if nothing in its deliveries can be edited.

    The version is the lowest that has what is used, so that old runtimes read the file, too.
    """
    devices = tuple(
        CdiDevice(device_name(allocation.uid, container.name), _edits(container.delivery))
        for container in allocation.delivered
        if _has_edits(container.delivery)
    )
    if not devices:
        return None
    return Specification(_minimum_version(KIND, devices), KIND, devices)


def _has_edits(delivery: Delivery) -> bool:
    return bool(delivery.environment or delivery.mounts or delivery.device_nodes)


def _edits(delivery: Delivery) -> ContainerEdits:
    return ContainerEdits(
        env=tuple(f"{name}={value}" for name, value in delivery.environment.items()),
        device_nodes=tuple(_node(node) for node in delivery.device_nodes),
        mounts=tuple(_mount(mount) for mount in delivery.mounts),
    )


def _node(node: DeviceNode) -> NodeEdit:
    """Return a node; a path that is the same on the host is not repeated, for old runtimes."""
    host_path = "" if node.host_path == node.container_path else node.host_path
    return NodeEdit(node.container_path, host_path, node.permissions)


def _mount(mount: Mount) -> MountEdit:
    """Return a mount with the options that a kubelet's mounts get from a runtime."""
    options = ("rbind", "rprivate", "ro" if mount.read_only else "rw")
    return MountEdit(mount.host_path, mount.container_path, options)


def validate(spec: Specification) -> tuple[str, ...]:
    """Return what a runtime would reject in a specification, a line each; empty if it is valid."""
    return tuple(_faults(spec))


def qualified_name_fault(text: str) -> str | None:
    """Return why a text is not a fully qualified CDI name, None if it is `vendor/class=name`."""
    kind, _, name = text.partition("=")
    if _kind_fault(kind) is None and _NAME.fullmatch(name):
        return None
    return "a CDI device is named vendor/class=name, such as vendor.com/gpu=0"


def _faults(spec: Specification) -> Iterator[str]:
    fault = _kind_fault(spec.kind)
    if fault is not None:
        yield fault
    lowest = _minimum_version(spec.kind, spec.devices)
    if spec.cdi_version not in VERSIONS:
        yield f"version {spec.cdi_version!r} is not one of {', '.join(VERSIONS)}"
    elif VERSIONS.index(spec.cdi_version) < VERSIONS.index(lowest):
        yield f"version {spec.cdi_version} lacks what is used; {lowest} is the lowest that has it"
    if not spec.devices:
        yield "the list of devices is empty"
    names = [device.name for device in spec.devices]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"there are {names.count(name)} devices of the name {name!r}"
    for device in spec.devices:
        for fault in _device_faults(device):
            yield f"device {device.name!r}: {fault}"


def _device_faults(device: CdiDevice) -> Iterator[str]:
    edits = device.container_edits
    if not _NAME.fullmatch(device.name):
        yield "the name is not letters, digits and '_-.:' between letters or digits"
    if edits == ContainerEdits():
        yield "nothing is edited"
    for variable in edits.env:
        if variable.find("=") <= 0:
            yield f"the variable {variable!r} is not NAME=value"
    for node in edits.device_nodes:
        if not node.path:
            yield "a device node has no path"
        if node.permissions.strip("rwm"):
            yield f"the permissions {node.permissions!r} of {node.path!r} are not of r, w and m"
    for mount in edits.mounts:
        if not (mount.host_path and mount.container_path):
            yield "a mount has no path"


def _kind_fault(kind: str) -> str | None:
    vendor, _, name = kind.partition("/")
    if _VENDOR_OR_CLASS.fullmatch(vendor) and _VENDOR_OR_CLASS.fullmatch(name):
        return None
    return f"the kind {kind!r} is not vendor/class"


def _minimum_version(kind: str, devices: tuple[CdiDevice, ...]) -> str:
    """Return the lowest version that has all that is used (MinimumRequiredVersion)."""
    if "." in kind.partition("/")[2]:
        return _DOTTED_CLASS
    named_by_digit = any(device.name[:1].isdigit() for device in devices)
    nodes = (node for device in devices for node in device.container_edits.device_nodes)
    if named_by_digit or any(node.host_path for node in nodes):
        return _HOST_PATH
    return _EARLIEST


#: Bytes that all texts of one answer may have together; they are kept in the checkpoint.
LARGEST: Final = 1 << 20
#: MAX_ARG_STRLEN of the kernel: bytes of one `NAME=value` with its zero (execve(2)).
_LARGEST_VARIABLE: Final = 1 << 17
#: PATH_MAX of the kernel, with its zero.
_LONGEST_PATH: Final = 4096

#: Control characters, what ends a line elsewhere, and halves of characters that UTF-8 cannot have.
_CONTROLS: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_PERMISSIONS: Final = re.compile(r"[rwm]{1,3}")
#: The names that execve(2), a shell and a unit file agree on: visible ASCII characters but `=`.
_VARIABLE: Final = re.compile(r"[!-<>-~]+")
_PCI_ADDRESS: Final = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")


def checked(delivery: Delivery, provider: str, resource: str) -> Delivery:
    """Return a delivery that a container can get; raises `DeviceError` with its first fault."""
    size = sum(map(_size, _texts(delivery)))
    large = (f"its texts have {size} bytes, more than {LARGEST}",) if size > LARGEST else ()
    faults = large or delivery_faults(delivery)
    if not faults:
        return delivery
    more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
    raise DeviceError(
        f"{provider} delivered for {resource} what no container can get: {faults[0]}{more}",
        "the provider's answer has to be corrected; pods without this resource are admitted",
    )


def delivery_faults(delivery: Delivery) -> tuple[str, ...]:
    """Return what is wrong with a delivery, a line each; empty if a container can get it."""
    return tuple(_delivery_faults(delivery))


def _texts(delivery: Delivery) -> Iterator[str]:
    for pairs in (delivery.environment, delivery.annotations):
        for name, value in pairs.items():
            yield from (name, value)
    for mount in delivery.mounts:
        yield from (mount.host_path, mount.container_path)
    for node in delivery.device_nodes:
        yield from (node.host_path, node.container_path, node.permissions)
    yield from delivery.cdi_devices
    yield from delivery.pci_addresses


def _delivery_faults(delivery: Delivery) -> Iterator[str]:
    for what, pairs in (("variable", delivery.environment), ("annotation", delivery.annotations)):
        for name, value in pairs.items():
            yield from _pair_faults(f"the {what} {shown(name)}", name, value)
    for mount in delivery.mounts:
        yield from _path_faults("the mount from", mount.host_path)
        yield from _inside_faults("the mount at", mount.container_path)
    for node in delivery.device_nodes:
        yield from _path_faults("the device node from", node.host_path)
        yield from _inside_faults("the device node at", node.container_path)
        if not _PERMISSIONS.fullmatch(node.permissions):
            found = shown(node.permissions)
            yield f"the permissions {found} of {shown(node.container_path)} are not of r, w and m"
    for name in delivery.cdi_devices:
        fault = qualified_name_fault(name)
        if fault is not None:
            yield f"{shown(name)}: {fault}"
    for address in delivery.pci_addresses:
        if not _PCI_ADDRESS.fullmatch(address):
            yield f"{shown(address)} is not a PCI address such as 0000:3b:02.1"


def _pair_faults(what: str, name: str, value: str) -> Iterator[str]:
    """Yield why a variable or an annotation cannot be given as `NAME=value` on one line."""
    if not _VARIABLE.fullmatch(name):
        yield f"{what} has a name that cannot be given; visible ASCII characters other than = can"
    if _has_controls(value):
        yield f"{what} has control characters"
    if _size(name) + _size(value) + 2 > _LARGEST_VARIABLE:
        yield f"{what} is longer than the kernel allows"


def _inside_faults(what: str, path: str) -> Iterator[str]:
    """Yield what is wrong with a path in the container; its root itself cannot be replaced."""
    yield from _path_faults(what, path)
    if path.startswith("/") and not path.strip("/"):
        yield f"{what} {shown(path)} would replace all of the container"


def _path_faults(what: str, path: str) -> Iterator[str]:
    if not path.startswith("/"):
        yield f"{what} {shown(path)} is not at an absolute path"
    elif not {".", ".."}.isdisjoint(path.split("/")):
        yield f"{what} {shown(path)} leads through '.' or '..'"
    if not path.isprintable():
        yield f"{what} {shown(path)} has characters that cannot be printed"
    if _size(path) >= _LONGEST_PATH:
        yield f"{what} {shown(path)} is longer than the kernel allows"


def _size(text: str) -> int:
    return len(text.encode(errors="replace"))


def _has_controls(text: str) -> bool:
    return _CONTROLS.search(text) is not None


_FILE: Final = re.compile(r"numawarden-(.+)\.json")
#: A file that is being written: runtimes read names that end with .json or .yaml alone.
_UNFINISHED: Final = re.compile(r"\.numawarden-.+\.json\.new")
#: Bytes that are read of a file; above those of any pod's deliveries.
_LARGEST: Final = 64 << 20


class CdiFiles:
    """The files of pods in one directory; without a directory nothing is written.

    Runtimes read every specification in `/var/run/cdi` (and `/etc/cdi`). The files follow from the
    allocations: they are written after the checkpoint, removed with the pod, and written again
    where they are missing or differ. So a file that cannot be written ends nothing: it is reported,
    and tried again with the next comparison.

    `write`, `remove` and `reconcile` block on the file system and raise nothing: `conditions` says
    what is not as it should be.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        #: A line by the name of the file, or "" for the directory. Replaced, never changed: it is
        #: read in another thread than the one that writes.
        self._conditions: dict[str, str] = {}

    @property
    def conditions(self) -> tuple[str, ...]:
        """What is not as it should be, a line each, as of the latest call about each pod."""
        return tuple(self._conditions.values())

    def names(self, allocation: PodAllocation) -> dict[str, str]:
        """Return the fully qualified CDI name by container, of those that have a device."""
        return {} if self._directory is None else device_names(allocation)

    def write(self, allocation: PodAllocation) -> None:
        """Write the file of a pod if anything was delivered to it; creates the directory."""
        self._update(allocation, removed=False)

    def remove(self, allocation: PodAllocation) -> None:
        """Remove the file of a pod if anything was delivered to it."""
        self._update(allocation, removed=True)

    def reconcile(self, allocations: Iterable[PodAllocation]) -> None:
        """Write what is missing or differs, and remove files of ours that belong to no pod.

        Files that are not ours stay. A directory that is missing is created where it is needed.
        """
        if self._directory is not None:
            contents, faults = _contents(allocations)
            self._conditions = faults | self._apply(self._directory, contents, None)

    def _update(self, allocation: PodAllocation, *, removed: bool) -> None:
        if self._directory is None:
            return
        contents, faults = _contents((allocation,))
        found = {} if removed else faults
        about = {_file_name(allocation.uid)}
        if contents:
            about.add("")
            written, gone = ({}, tuple(contents)) if removed else (contents, ())
            found = self._apply(self._directory, written, gone)
        others = {name: line for name, line in self._conditions.items() if name not in about}
        self._conditions = others | found

    def _apply(
        self, path: Path, contents: dict[str, bytes], removed: tuple[str, ...] | None
    ) -> dict[str, str]:
        """Write and remove files by name; `removed` None stands for all of ours but `contents`.

        Returns what could not be done, by the name of the file, or "" for the directory.
        """
        found: dict[str, str] = {}
        try:
            with trusted_directory(path, create=bool(contents)) as directory:
                for name, content in contents.items():
                    with _noted(found, name, f"the CDI file {path}/{name} cannot be written"):
                        if not is_current(directory, name, content):
                            replace_file(directory, name, content)
                for name in _without_pod(directory, contents) if removed is None else removed:
                    with (
                        _noted(found, name, f"the CDI file {path}/{name} cannot be removed"),
                        suppress(FileNotFoundError),
                    ):
                        os.unlink(name, dir_fd=directory)
        except FileNotFoundError as error:
            return found | {"": _unusable(path, error)} if contents else found
        except (OSError, UntrustedPathError) as error:
            # Without a file of ours it does not matter what others do with the directory.
            return found | {"": _unusable(path, error)} if contents or removed else found
        return found


def _contents(
    allocations: Iterable[PodAllocation],
) -> tuple[dict[str, bytes], dict[str, str]]:
    """Return the files of pods by name, and why a pod has none that should have one."""
    contents: dict[str, bytes] = {}
    found: dict[str, str] = {}
    for allocation in allocations:
        spec = specification(allocation)
        if spec is None:
            continue
        name = _file_name(allocation.uid)
        # What was checked before it was saved may be read from another checkpoint by now.
        fault = next(_file_faults(allocation, spec), None)
        if fault is None:
            contents[name] = msgspec.json.encode(spec) + b"\n"
        else:
            found[name] = f"no CDI file is written for {full_name(allocation)}: {fault}"
    return contents, found


def _file_name(uid: str) -> str:
    return f"numawarden-{uid}.json"


@contextmanager
def _noted(found: dict[str, str], name: str, what: str) -> Iterator[None]:
    """Note an error of one file: the others are still to be written."""
    try:
        yield
    except OSError as error:
        found[name] = f"{what}: {error.strerror}"


def _unusable(path: Path, error: OSError | UntrustedPathError) -> str:
    if isinstance(error, UntrustedPathError):
        return f"the CDI directory cannot be used: {error}; {error.risk.remedy}"
    return (
        f"the CDI directory {path} cannot be used: {error.strerror}; run "
        "systemd-tmpfiles --create numawarden.conf and restart the agent, or set "
        'agent.cdiDirectory to ""'
    )


def _file_faults(allocation: PodAllocation, spec: Specification) -> Iterator[str]:
    fault = uid_fault(allocation.uid)
    if fault is not None:
        yield f"its uid {shown(allocation.uid)} cannot be part of a file name: {fault}"
    for container in allocation.containers:
        yield from delivery_faults(container.delivery)
    yield from validate(spec)


def _without_pod(directory: int, contents: dict[str, bytes]) -> tuple[str, ...]:
    """Return the names of files of ours that no pod has."""
    return tuple(
        name
        for name in sorted(os.listdir(directory))
        if name not in contents and (_UNFINISHED.fullmatch(name) or _is_ours(directory, name))
    )


def _is_ours(directory: int, name: str) -> bool:
    """Return whether name, owner and content say that a file was written for a pod."""
    named = _FILE.fullmatch(name)
    if named is None or uid_fault(named[1]) is not None:
        return False
    with own_file(directory, name) as (file, _):
        try:
            return file is not None and _kind_of(take(file, _LARGEST, name)) == KIND
        except (OSError, msgspec.DecodeError):
            return False  # what cannot be read may be of others


class _WithKind(msgspec.Struct):
    """What of a specification says whose it is."""

    kind: str


def _kind_of(content: bytes) -> str:
    return msgspec.json.decode(content, type=_WithKind).kind
