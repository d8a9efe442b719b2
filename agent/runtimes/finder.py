"""Which container a cgroup is and what was last set for it, from the files of its runtime."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec import Struct

from agent.runtimes.identifier import RuntimeName
from agent.runtimes.records import (
    PLACES,
    RuntimeFileError,
    read_claim,
    read_spec,
    read_state,
    stamp_of,
)
from cgroupfs.names import parse_container

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from agent.pods.identity import Named
    from agent.runtimes.records import RuntimeClaim, RuntimeDirectory, Stamp
    from cgroupfs.state import WriterRecord

#: The ids of all supported runtimes; no other text becomes part of a path.
_ID: Final = re.compile(r"[0-9a-f]{64}")
#: This many containers are remembered; a host with more reads some of their bundles again.
_REMEMBERED: Final = 8192

_Value = TypeVar("_Value")


class _Known(Struct, frozen=True):
    """A bundle that was read; `claim` is None when it was unusable."""

    file: str
    stamp: Stamp
    claim: RuntimeClaim | None


class RuntimeFiles:
    """The containers of containerd and CRI-O by their bundles (a `ContainerIdentifier`).

    `root` is where the host's file system is mounted. A bundle is read once, and again when the
    file was replaced. What cannot be used is reported once: `report` is called with one line that
    names the container's id or directory and the reason.
    """

    def __init__(self, root: Path, report: Callable[[str], None]) -> None:
        self._root = root
        self._report = report
        self._known: dict[str, _Known] = {}
        self._reported: dict[str, str] = {}

    def container_of(self, pod: Named, cgroup: str) -> RuntimeName | None:
        """Return the runtime's name of a container cgroup of `pod`, None if nothing is known.

        A bundle that names another pod is ignored.
        """
        directory = cgroup.rpartition("/")[2]
        claim = self._claim(directory)
        if claim is None:
            return None
        if not claim.is_of(pod):
            self._report_once(
                directory,
                f"/{cgroup} is in pod {pod.uid}, but its runtime says that it is of pod "
                f"{claim.pod}; the runtime's bundle is ignored",
            )
            return None
        return RuntimeName(claim.container)

    def remembered(self, cgroup: str) -> WriterRecord | None:
        """Return what the runtime last set in a container cgroup, None if it keeps no record.

        runc records every update. For other runtimes there are only the settings that the container
        was created with, which containerd sends again until it is asked to change them.
        """
        found = _container_id(cgroup.rpartition("/")[2])
        if found is None:
            return None
        id_, places = found
        for file in self._states(id_, places):
            record = self._record(file, read_state)
            if record is not None:
                return record
        for _, file in self._bundles(id_, places):
            record = self._record(file, read_spec)
            if record is not None:
                return record
        return None

    def _claim(self, directory: str) -> RuntimeClaim | None:
        known = self._known.get(directory)
        if known is not None and stamp_of(known.file) == known.stamp:
            return known.claim
        found = _container_id(directory)
        if found is None:
            return None
        known = self._read(*found)
        if known is not None:
            _keep(self._known, directory, known)
            return known.claim
        self._report_missing(*found)
        return None

    def _read(self, id_: str, places: tuple[RuntimeDirectory, ...]) -> _Known | None:
        """Return the first bundle that there is."""
        for place, file in self._bundles(id_, places):
            stamp = stamp_of(str(file))
            if stamp is None:
                continue
            try:
                return _Known(str(file), stamp, read_claim(file, place.keys))
            except FileNotFoundError:
                continue
            except RuntimeFileError as error:
                self._report_once(str(file), f"{error}; bind the container with 'numawarden bind'")
                return _Known(str(file), stamp, None)
        return None

    def _record(self, file: Path, read: Callable[[Path], WriterRecord]) -> WriterRecord | None:
        try:
            return read(file)
        except FileNotFoundError:
            return None
        except RuntimeFileError as error:
            self._report_once(
                str(file), f"{error}; the writer of the container's cgroup is unknown"
            )
            return None

    def _bundles(
        self, id_: str, places: tuple[RuntimeDirectory, ...]
    ) -> Iterator[tuple[RuntimeDirectory, Path]]:
        for place in places:
            yield place, self._root / place.bundles / id_ / f"{place.inside}config.json"

    def _states(self, id_: str, places: tuple[RuntimeDirectory, ...]) -> Iterator[Path]:
        for states in dict.fromkeys(place.states for place in places):
            yield self._root / states / id_ / "state.json"

    def _report_missing(self, id_: str, places: tuple[RuntimeDirectory, ...]) -> None:
        if id_ in self._reported:
            return
        _keep(self._reported, id_, "")
        there = [self._root / place.bundles for place in places]
        there = [directory for directory in there if stamp_of(str(directory)) is not None]
        if there:
            looked = " or ".join(map(str, there))
            self._report(
                f"no bundle of container {id_} is in {looked}, so the container is not identified"
            )
            return
        names = " or ".join(dict.fromkeys(place.runtime for place in places))
        first = self._root / places[0].bundles
        self._report_once(
            names,
            f"a container has an id as {names} gives it, but {first} does not exist; mount it if "
            "the agent runs in a container, else bind the containers of pods that have several "
            "('numawarden bind')",
        )

    def _report_once(self, about: str, what: str) -> None:
        if self._reported.get(about) != what:
            _keep(self._reported, about, what)
            self._report(what)


def _container_id(directory: str) -> tuple[str, tuple[RuntimeDirectory, ...]] | None:
    named = parse_container(directory)
    if named is None or named.runtime not in PLACES or not _ID.fullmatch(named.id):
        return None
    return named.id, PLACES[named.runtime]


def _keep(kept: dict[str, _Value], key: str, value: _Value) -> None:
    """Keep a value, and forget the oldest of too many."""
    kept[key] = value
    if len(kept) > _REMEMBERED:
        del kept[next(iter(kept))]
