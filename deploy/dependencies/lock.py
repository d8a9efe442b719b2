"""The lock files of the agent's dependencies, and what they say of each on Linux."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Final

from packaging.markers import Marker, default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

ROOT: Final = Path(__file__).resolve().parents[2]
#: What every installation has.
RUN: Final = ROOT / "deploy/requirements/run.txt"
#: The same, in the same versions, and what the extra `grpc` adds.
GRPC: Final = ROOT / "deploy/requirements/grpc.txt"

#: The versions of Python for which a marker is evaluated; 3.11 is the oldest one supported.
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")

_HASH: Final = "--hash="


class DependencyError(Exception):
    """A dependency does not fit the lock, or its licence is unknown; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Locked:
    """One pinned dependency: canonical name, version, SHA-256 of each of its files in hex."""

    name: str
    version: str
    hashes: tuple[str, ...]


def read(path: Path = RUN, pythons: Sequence[str] = PYTHONS) -> tuple[Locked, ...]:
    """Return what the lock file pins for Linux, by name.

    Lines that none of these versions of Python ("3.11") on Linux evaluates to true
    (`sys_platform == 'win32'`) are left out. Raises `DependencyError` on a line that is not an
    exact version with SHA-256 hashes.
    """
    found = [_locked(requirement, hashes, pythons) for requirement, hashes in _lines(path)]
    return tuple(sorted((one for one in found if one), key=lambda one: one.name))


def installed(site: Path) -> dict[str, str]:
    """Return the versions of the packages in a site-packages directory, by canonical name."""
    return {
        canonicalize_name(distribution.name): distribution.version
        for distribution in distributions(path=[str(site)])
    }


def require_locked(
    installed: Mapping[str, str], locked: Iterable[Locked], agent_version: str
) -> None:
    """Raise `DependencyError` where a package is installed that is not locked in that version.

    `installed` are versions by canonical name; the agent itself has to have `agent_version`.
    """
    allowed = {one.name: one.version for one in locked} | {"numawarden": agent_version}
    strange = {name: version for name, version in installed.items() if allowed.get(name) != version}
    if strange:
        raise DependencyError(f"Python packages are installed that are not locked: {strange}")


def holds_on_linux(marker: Marker | None, pythons: Sequence[str] = PYTHONS) -> bool:
    """Return whether an environment marker is true on Linux with any of the Pythons, no extra."""
    return marker is None or any(marker.evaluate(_linux(python)) for python in pythons)


def _linux(python: str) -> dict[str, str]:
    described = {str(key): str(value) for key, value in default_environment().items()}
    return described | {
        "extra": "",
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
    }


def _lines(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the text of each requirement and its options; comments are dropped."""
    lines = [line for line in path.read_text().splitlines() if not line.strip().startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        requirement, *options = line.split(" --")
        if requirement.strip():
            yield requirement.strip(), [f"--{option.strip()}" for option in options]


def _locked(text: str, options: list[str], pythons: Sequence[str]) -> Locked | None:
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        raise DependencyError(f"the lock file has no requirement in {text!r}: {error}") from error
    pins = [pin for pin in requirement.specifier if pin.operator == "=="]
    hashes = [option.removeprefix(f"{_HASH}sha256:") for option in options]
    if len(pins) != 1 or not hashes or any(one.startswith("--") for one in hashes):
        raise DependencyError(
            f"the lock file has {text!r} without one exact version and SHA-256 hashes"
        )
    if not holds_on_linux(requirement.marker, pythons):
        return None
    name = canonicalize_name(requirement.name)
    return Locked(name, pins[0].version, tuple(sorted(hashes)))
