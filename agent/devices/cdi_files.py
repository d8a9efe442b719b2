"""The files by which container runtimes find what was delivered to pods: one for each pod.

Runtimes read every specification in `/var/run/cdi` (and `/etc/cdi`). The files follow from the
allocations: they are written after the checkpoint, removed with the pod, and written again where
they are missing or differ. So a file that cannot be written ends nothing: it is reported, and
tried again with the next comparison.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, BinaryIO, Final

import msgspec

from agent.devices.cdi import KIND, device_names, specification, validate
from agent.devices.delivery_checks import delivery_faults
from agent.pods.identity import full_name, uid_fault
from agent.safe_files import UntrustedPathError, risk_above, risk_of, take
from agent.yaml import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from agent.devices.cdi import Specification
    from agent.managers.allocations.allocation import PodAllocation

_FILE: Final = re.compile(r"numawarden-(.+)\.json")
#: A file that is being written: runtimes read names that end with .json or .yaml alone.
_UNFINISHED: Final = re.compile(r"\.numawarden-.+\.json\.new")
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
#: Without O_NONBLOCK opening a named pipe would wait for a writer for ever.
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: Runtimes of other users, such as rootless podman, read the files, too.
_FILE_MODE: Final = 0o644
_DIRECTORY_MODE: Final = 0o755
#: Nothing, a symbolic link, a socket: there is no file that could be read.
_NO_FILE: Final = frozenset({errno.ENOENT, errno.ELOOP, errno.ENXIO})
#: Bytes that are read of a file; above those of any pod's deliveries.
_LARGEST: Final = 64 << 20


class CdiFiles:
    """The files of pods in one directory; without a directory nothing is written.

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
            with _opened(path, create=bool(contents)) as directory:
                for name, content in contents.items():
                    with _noted(found, name, f"the CDI file {path}/{name} cannot be written"):
                        if not _is_current(directory, name, content):
                            _replace(directory, name, content)
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
        fault = next(_faults(allocation, spec), None)
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


def _faults(allocation: PodAllocation, spec: Specification) -> Iterator[str]:
    fault = uid_fault(allocation.uid)
    if fault is not None:
        yield f"its uid {shown(allocation.uid)} cannot be part of a file name: {fault}"
    for container in allocation.containers:
        yield from delivery_faults(container.delivery)
    yield from validate(spec)


@contextmanager
def _opened(path: Path, *, create: bool) -> Iterator[int]:
    """Open a directory that no other user can change; raises `OSError`, `UntrustedPathError`."""
    created = create and _created(path)
    directory = os.open(path, _DIRECTORY)
    try:
        risk = risk_above(path) or risk_of(path, os.fstat(directory))
        if risk is not None:
            raise UntrustedPathError(path, risk)
        if created:
            os.fchmod(directory, _DIRECTORY_MODE)  # whatever the umask of the service is
        yield directory
    finally:
        os.close(directory)


def _created(path: Path) -> bool:
    try:
        path.mkdir(_DIRECTORY_MODE)
    except FileExistsError:
        return False
    return True


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
    with _file(directory, name) as (file, _):
        try:
            return file is not None and _kind_of(take(file, _LARGEST, name)) == KIND
        except (OSError, msgspec.DecodeError):
            return False  # what cannot be read may be of others


class _WithKind(msgspec.Struct):
    """What of a specification says whose it is."""

    kind: str


def _kind_of(content: bytes) -> str:
    return msgspec.json.decode(content, type=_WithKind).kind


def _is_current(directory: int, name: str, content: bytes) -> bool:
    """Return whether a file is as `_replace` writes it."""
    with _file(directory, name) as (file, mode):
        if file is None or mode != _FILE_MODE:
            return False
        return file.read(len(content) + 1) == content


@contextmanager
def _file(directory: int, name: str) -> Iterator[tuple[BinaryIO | None, int]]:
    """Open a regular file of this process's user with its mode; None for anything else there."""
    try:
        fd = os.open(name, _READ, dir_fd=directory)
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise
        yield None, 0
        return
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        os.close(fd)
        yield None, 0
        return
    with os.fdopen(fd, "rb") as file:
        yield file, stat.S_IMODE(status.st_mode)


def _replace(directory: int, name: str, content: bytes) -> None:
    """Write a file, for readers in one step; it need not outlive a power failure."""
    unfinished = f".{name}.new"
    with suppress(FileNotFoundError):
        os.unlink(unfinished, dir_fd=directory)
    try:
        with os.fdopen(os.open(unfinished, _NEW, _FILE_MODE, dir_fd=directory), "wb") as file:
            os.fchmod(file.fileno(), _FILE_MODE)  # whatever the umask of the service is
            file.write(content)
        os.rename(unfinished, name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        with suppress(OSError):  # the first error is the one that says something
            os.unlink(unfinished, dir_fd=directory)
        raise
