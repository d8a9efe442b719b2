"""The files in which runtimes find the CDI specifications of pods.

In: allocations. Out: one file for each pod to which something was delivered, and conditions. The
files follow from the allocations: they are written after the checkpoint, removed with the pod, and
written again where they are missing or differ. So a file that cannot be written rejects no pod: it
is reported, and tried again with the next comparison.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import msgspec

from agent.devices.cdi import KIND, device_names, specification, validate
from agent.devices.delivery_checks import delivery_faults
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

    from agent.devices.cdi import Specification
    from agent.managers.allocation import PodAllocation

_FILE: Final = re.compile(r"numawarden-(.+)\.json")
#: A file that is being written; runtimes read only names that end with .json or .yaml.
_UNFINISHED: Final = re.compile(r"\.numawarden-.+\.json\.new")
#: The most bytes that are read of a file; no pod's deliveries have as many.
_LARGEST: Final = 64 << 20


class CdiFiles:
    """The files of pods in one directory; without a directory nothing is written.

    Runtimes read every specification in `/var/run/cdi` (and `/etc/cdi`). `write`, `remove` and
    `reconcile` block on the file system. They raise nothing: `conditions` says what failed.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        #: A line by the name of the file, or "" for the directory. Another thread reads it, so it
        #: is replaced and never changed.
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
        """Write what is missing or differs, and remove the agent's files that belong to no pod.

        Files of others stay. The directory is created if a file is to be written.
        """
        if self._directory is not None:
            contents, faults = _contents(allocations)
            self._conditions = faults | self._apply(self._directory, contents, None)

    def _update(self, allocation: PodAllocation, *, removed: bool) -> None:
        if self._directory is None:
            return
        contents, faults = _contents((allocation,))
        conditions = {} if removed else faults
        subjects = {_file_name(allocation.uid)}
        if contents:
            subjects.add("")
            written, gone = ({}, tuple(contents)) if removed else (contents, ())
            conditions = self._apply(self._directory, written, gone)
        others = {name: line for name, line in self._conditions.items() if name not in subjects}
        self._conditions = others | conditions

    def _apply(
        self, path: Path, contents: dict[str, bytes], removed: tuple[str, ...] | None
    ) -> dict[str, str]:
        """Write and remove files by name; `removed` None: all of the agent's but `contents`.

        Returns what could not be done, by the name of the file, or "" for the directory.
        """
        failed: dict[str, str] = {}
        try:
            with trusted_directory(path, create=bool(contents)) as directory:
                for name, content in contents.items():
                    with _noted(failed, name, f"the CDI file {path}/{name} cannot be written"):
                        if not is_current(directory, name, content):
                            replace_file(directory, name, content)
                for name in _without_pod(directory, contents) if removed is None else removed:
                    with (
                        _noted(failed, name, f"the CDI file {path}/{name} cannot be removed"),
                        suppress(FileNotFoundError),
                    ):
                        os.unlink(name, dir_fd=directory)
        except FileNotFoundError as error:
            return failed | {"": _unusable(path, error)} if contents else failed
        except (OSError, UntrustedPathError) as error:
            # If the agent has no file there, it does not matter what others do with the directory.
            return failed | {"": _unusable(path, error)} if contents or removed else failed
        return failed


def _contents(
    allocations: Iterable[PodAllocation],
) -> tuple[dict[str, bytes], dict[str, str]]:
    """Return the files of pods by name, and why a pod has none that should have one."""
    contents: dict[str, bytes] = {}
    faults: dict[str, str] = {}
    for allocation in allocations:
        spec = specification(allocation)
        if spec is None:
            continue
        name = _file_name(allocation.uid)
        # The checkpoint may be another one than that for which the delivery was checked.
        fault = next(_file_faults(allocation, spec), None)
        if fault is None:
            contents[name] = msgspec.json.encode(spec) + b"\n"
        else:
            faults[name] = f"no CDI file is written for {full_name(allocation)}: {fault}"
    return contents, faults


def _file_name(uid: str) -> str:
    return f"numawarden-{uid}.json"


@contextmanager
def _noted(failed: dict[str, str], name: str, what: str) -> Iterator[None]:
    """Note an error of one file, so that the others are still written."""
    try:
        yield
    except OSError as error:
        failed[name] = f"{what}: {error.strerror}"


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
    """Return the names of the agent's files that no pod has."""
    return tuple(
        name
        for name in sorted(os.listdir(directory))
        if name not in contents and (_UNFINISHED.fullmatch(name) or _is_of_agent(directory, name))
    )


def _is_of_agent(directory: int, name: str) -> bool:
    """Return whether name, owner and content say that a file was written for a pod."""
    match = _FILE.fullmatch(name)
    if match is None or uid_fault(match[1]) is not None:
        return False
    with own_file(directory, name) as (file, _):
        try:
            return file is not None and _kind_of(take(file, _LARGEST, name)) == KIND
        except (OSError, msgspec.DecodeError):
            return False  # a file that cannot be read may be of others


class _WithKind(msgspec.Struct):
    """The part of a specification that says whose it is."""

    kind: str


def _kind_of(content: bytes) -> str:
    return msgspec.json.decode(content, type=_WithKind).kind
